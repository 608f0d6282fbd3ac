package trace

import (
	"strconv"
	"strings"
	"sync"
)

// headers are the enums and structs of the table.
type headers struct {
	enums   map[string]enum
	values  map[string]uint64 // of all enumerators
	structs map[string]*structType
}

// enum has the enumerators of an enum in the order of the header, and what all their names begin with.
type enum struct {
	prefix      string
	enumerators []enumerator
}

type enumerator struct {
	name  string
	value uint64
}

// name returns the first enumerator with a value.
func (e enum) name(v uint64) (string, bool) {
	for _, n := range e.enumerators {
		if n.value == v {
			return n.name, true
		}
	}
	return "", false
}

// structType is a struct or union.
type structType struct {
	name   string
	size   int
	fields []fieldType
}

// fieldType is a field of a struct.
type fieldType struct {
	name   string
	offset int
	size   int    // of an element
	inner  string // name of its struct
	array  bool
	count  int // of an array
	big    bool
	signed bool
}

// abi returns the table of the kernel's headers.
var abi = sync.OnceValue(func() *headers {
	h := &headers{enums: map[string]enum{}, values: map[string]uint64{}, structs: map[string]*structType{}}
	for line := range strings.Lines(table) {
		words := strings.Fields(line)
		if len(words) < 3 {
			continue
		}
		if words[0] == "enum" {
			h.addEnum(words[1], strings.Trim(words[2], "-"), words[3:])
			continue
		}
		s := &structType{name: words[1]}
		s.size, _ = strconv.Atoi(words[2])
		end := 0
		for _, w := range words[3:] {
			f := parseField(w, end)
			end = f.offset + f.size*f.count
			s.fields = append(s.fields, f)
		}
		h.structs[s.name] = s
	}
	for _, s := range h.structs {
		for i := range s.fields {
			if f := &s.fields[i]; f.inner != "" && h.structs[f.inner] != nil {
				f.size = h.structs[f.inner].size
			}
		}
	}
	return h
})

// addEnum adds an enum, whose enumerators are ENUMERATOR=VALUE without what their names begin with.
func (h *headers) addEnum(name, prefix string, words []string) {
	e := enum{prefix: prefix}
	next := uint64(0)
	for _, w := range words {
		n, text, ok := strings.Cut(w, "=")
		if ok {
			var err error
			if next, err = strconv.ParseUint(text, 0, 64); err != nil { // a negative number
				i, _ := strconv.ParseInt(text, 0, 64)
				next = uint64(i)
			}
		}
		e.enumerators = append(e.enumerators, enumerator{prefix + n, next})
		h.values[prefix+n] = next
		next++
	}
	h.enums[name] = e
}

// parseField reads FIELD@OFFSET:TYPE. The field before it ends at end.
func parseField(w string, end int) fieldType {
	name, typ, ok := strings.Cut(w, ":")
	if !ok {
		typ = "4"
	}
	f := fieldType{count: 1, offset: end}
	name, offset, ok := strings.Cut(name, "@")
	if ok {
		f.offset, _ = strconv.Atoi(offset)
	}
	f.name = name
	typ, count, array := strings.Cut(typ, "*")
	if array {
		n := 1
		for c := range strings.SplitSeq(count, "*") {
			k, _ := strconv.Atoi(c)
			n *= k
		}
		f.array, f.count = true, n
	}
	number := typ
	if len(typ) == 2 && (typ[0] == 'b' || typ[0] == 's') {
		f.big, f.signed, number = typ[0] == 'b', typ[0] == 's', typ[1:]
	}
	var err error
	if f.size, err = strconv.Atoi(number); err != nil {
		f.inner = typ
	}
	return f
}
