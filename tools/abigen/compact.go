package main

import (
	"bytes"
	"cmp"
	"debug/dwarf"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// compactFile is the file of a package with the directive table.
const compactFile = "ztable.go"

// compactHelp describes the table to its reader.
const compactHelp = `
// table has what the kernel's headers declare, one enum, struct or union a line:
//
//	enum NAME PREFIX ENUMERATOR=VALUE ...
//	struct NAME SIZE FIELD@OFFSET:TYPE ...
//
// PREFIX is what all names of the enumerators begin with, "-" for nothing. An enum without a name has
// that of its first enumerator. TYPE is the size of an integer in bytes, behind "b" if it is big-endian
// and behind "s" if it is signed, or the name of a struct; "*N" behind it makes an array, of which "*0"
// is one without a length. Members of a union overlap. A struct of another header has no fields here.
//
// What follows from the part before is left out: "=VALUE" for one more than the enumerator before, or 0
// for the first, "@OFFSET" behind an integer or integers (0 for the first field), and ":4".
`

// generateTable writes everything that the headers of a package declare as text, which a program can
// look up by name.
func generateTable(c *compiler, list *packageList, u *universe, version string, out map[string][]byte) error {
	headers := make([]string, len(list.headers))
	var lines []string
	for i, h := range list.headers {
		headers[i] = h.path
		text, err := enumLines(c, list, u, h)
		if err != nil {
			return err
		}
		lines = append(lines, text...)
	}
	t := tableWriter{universe: u, headers: headers, others: map[string]int64{}}
	for _, name := range sortedKeys(u.types) {
		if d := u.types[name]; t.has(d.header) && d.typ.ByteSize > 0 {
			if err := t.add(name, d.typ); err != nil {
				return err
			}
		}
	}
	for _, name := range sortedKeys(t.others) {
		t.lines = append(t.lines, fmt.Sprintf("struct %s %d", name, t.others[name]))
	}
	lines = append(lines, t.lines...)
	var b bytes.Buffer
	b.WriteString(generated + source(strings.Join(headers, ", "), version) + "\npackage " + list.table + "\n" + compactHelp)
	fmt.Fprintf(&b, "const table = `%s\n`\n", strings.Join(lines, "\n"))
	src, err := gofmt(list.dir, b.Bytes())
	if err != nil {
		return err
	}
	out[path.Join(list.dir, compactFile)] = src
	return list.unused()
}

// enumLines returns the lines of the enums of a header, and of the macros that are listed.
func enumLines(c *compiler, list *packageList, u *universe, h *headerList) ([]string, error) {
	byName := map[string]*declaredEnum{}
	for _, e := range u.owner {
		if !strings.HasSuffix(e.header, "/"+h.path) || len(e.values) == 0 {
			continue
		}
		name := e.name
		if name == "" {
			name = e.values[0]
		}
		byName[name] = e
	}
	macros, err := groups(list, u, h)
	if err != nil {
		return nil, err
	}
	for _, g := range macros {
		e := &declaredEnum{}
		for _, k := range g.constants {
			e.values = append(e.values, k.name)
		}
		byName[e.values[0]] = e
	}
	var lines []string
	for _, name := range sortedKeys(byName) {
		var values []string
		for _, v := range byName[name].values {
			if list.omit[v] {
				list.use("omit", v)
				continue
			}
			values = append(values, v)
		}
		exprs := make([]expression, len(values))
		for i, v := range values {
			exprs[i] = expression{name: v, expr: v}
		}
		got, err := c.evaluate([]string{h.path}, exprs)
		if err != nil {
			return nil, err
		}
		texts := make([]string, len(got))
		for i, v := range got {
			texts[i] = fmt.Sprint(v)
		}
		lines = append(lines, enumLine(name, values, texts))
	}
	return lines, nil
}

// enumLine returns the line of an enum.
func enumLine(name string, names, values []string) string {
	prefix := commonPrefix(names)
	line := "enum " + name + " " + cmp.Or(prefix, "-")
	next := "0"
	for i, n := range names {
		line += " " + n[len(prefix):]
		if values[i] != next {
			line += "=" + values[i]
		}
		next = after(values[i])
	}
	return line
}

// commonPrefix returns what all names begin with, up to an underscore.
func commonPrefix(names []string) string {
	if len(names) == 0 {
		return ""
	}
	p := names[0]
	for _, n := range names {
		for !strings.HasPrefix(n, p) {
			p = p[:len(p)-1]
		}
	}
	return p[:strings.LastIndex(p, "_")+1]
}

// after returns the number after a small one, and "" for another.
func after(value string) string {
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil {
		return ""
	}
	return fmt.Sprint(n + 1)
}

// tableWriter writes the lines of structs.
type tableWriter struct {
	universe *universe
	headers  []string
	others   map[string]int64 // structs of other headers, by size
	lines    []string
	end      int64 // of the field before, -1 if it is a struct
}

// has reports whether a file is one of the headers.
func (t *tableWriter) has(file string) bool {
	return slices.ContainsFunc(t.headers, func(h string) bool { return strings.HasSuffix(file, "/"+h) })
}

// add adds the line of a struct or union.
func (t *tableWriter) add(name string, st *dwarf.StructType) error {
	_, short, _ := strings.Cut(name, " ")
	line := fmt.Sprintf("struct %s %d", short, st.ByteSize)
	t.end = 0
	if err := t.fields(&line, st, "", 0); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	t.lines = append(t.lines, line)
	return nil
}

// fields adds the fields of a struct or union, and those of nameless ones in it.
func (t *tableWriter) fields(line *string, st *dwarf.StructType, prefix string, base int64) error {
	for _, m := range st.Field {
		if err := plain(m); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		name, offset := join(prefix, m.Name), base+m.ByteOffset
		if inner, ok := strip(m.Type).(*dwarf.StructType); ok && inner.StructName == "" {
			if err := t.fields(line, inner, name, offset); err != nil {
				return err
			}
			continue
		}
		typ, err := t.typeOf(m.Type)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		*line += " " + name
		if offset != t.end {
			*line += fmt.Sprintf("@%d", offset)
		}
		if typ != "4" {
			*line += ":" + typ
		}
		t.end = fieldEnd(offset, typ)
	}
	return nil
}

// fieldEnd returns where a field of the table ends, and -1 if that depends on the size of a struct.
func fieldEnd(offset int64, typ string) int64 {
	element, counts, _ := strings.Cut(typ, "*")
	size, err := strconv.ParseInt(strings.TrimLeft(element, "bs"), 10, 64)
	if err != nil {
		return -1
	}
	for count := range strings.FieldsFuncSeq(counts, func(r rune) bool { return r == '*' }) {
		n, _ := strconv.ParseInt(count, 10, 64)
		size *= n
	}
	return offset + size
}

// typeOf returns the TYPE of a field.
func (t *tableWriter) typeOf(typ dwarf.Type) (string, error) {
	switch typ := typ.(type) {
	case *dwarf.TypedefType:
		if size, ok := strings.CutPrefix(typ.Name, "__be"); ok && size != "" {
			return fmt.Sprintf("b%d", typ.Size()), nil
		}
		return t.typeOf(typ.Type)
	case *dwarf.QualType:
		return t.typeOf(typ.Type)
	case *dwarf.ArrayType:
		elem, err := t.typeOf(typ.Type)
		return fmt.Sprintf("%s*%d", elem, max(typ.Count, 0)), err
	case *dwarf.StructType:
		if typ.StructName == "" {
			return "", fmt.Errorf("an array of nameless structs is not supported")
		}
		if d := t.universe.types[typ.Kind+" "+typ.StructName]; d == nil || !t.has(d.header) {
			t.others[typ.StructName] = typ.ByteSize
		}
		return typ.StructName, nil
	case *dwarf.IntType:
		return fmt.Sprintf("s%d", typ.ByteSize), nil
	}
	return fmt.Sprint(typ.Size()), nil
}
