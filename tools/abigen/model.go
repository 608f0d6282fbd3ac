package main

import (
	"debug/dwarf"
	"fmt"
	"slices"
	"strings"
)

// A layout is a C struct or union as it will stand in Go.
type layout struct {
	union  bool
	ctype  string // "struct x"; for a nameless type the named type around it
	base   string // "" or the path from ctype to a field of the nameless type
	origin int64  // of an embedded type: its offset from base
	goName string

	embedded bool // the type of a member that has no name either

	size   int64
	align  int64
	fields []field // of a struct: in order, with gaps filled; of a union: its members
	tails  []tail
	nested []*layout // the nameless types of its fields
}

// A field is a member of a layout.
type field struct {
	path   string // C name
	goName string // "_" for padding and reserved fields, "" for an embedded type
	goType string
	offset int64
	size   int64
	note   []string
}

// A tail is an array without a length at the end of a struct.
type tail struct {
	path   string
	goName string
	elem   string
	offset int64
}

// A builder makes the layouts of one package.
type builder struct {
	list     *packageList
	universe *universe
	goNames  map[string]string             // "struct x" to its Go name
	taken    map[string]string             // Go name to the C type that has it
	nested   map[*dwarf.StructType]*layout // nameless types that are done
	helpers  map[string]bool               // "Ptr", "Be32" and so on, that the package needs
	aligns   map[*dwarf.StructType]int64   // natural alignments
}

func newBuilder(list *packageList, u *universe) (*builder, error) {
	b := &builder{
		list:     list,
		universe: u,
		goNames:  map[string]string{},
		taken:    map[string]string{},
		nested:   map[*dwarf.StructType]*layout{},
		helpers:  map[string]bool{},
		aligns:   map[*dwarf.StructType]int64{},
	}
	for _, h := range list.headers {
		for _, t := range h.types {
			name := camel(strings.TrimPrefix(t.name, list.strip))
			if err := b.take(name, t.String()); err != nil {
				return nil, err
			}
			b.goNames[t.String()] = name
		}
	}
	return b, nil
}

// take reserves a Go name.
func (b *builder) take(name, ctype string) error {
	if other, ok := b.taken[name]; ok {
		return fmt.Errorf("%s and %s would both be %s in Go", other, ctype, name)
	}
	b.taken[name] = ctype
	return nil
}

// layout returns the layout of a type on the allow-list.
func (b *builder) layout(header string, item typeItem) (*layout, error) {
	d, ok := b.universe.types[item.String()]
	if !ok {
		return nil, fmt.Errorf("%s: not in the headers", item)
	}
	if !strings.HasSuffix(d.header, "/"+header) {
		return nil, fmt.Errorf("%s: declared in %s, not in %s", item, d.header, header)
	}
	l := &layout{ctype: item.String(), goName: b.goNames[item.String()]}
	return l, b.fill(l, d.typ)
}

// fill computes the fields of l from the C type t.
func (b *builder) fill(l *layout, t *dwarf.StructType) error {
	l.union = t.Kind == "union"
	l.size = t.ByteSize
	align, err := b.alignment(t)
	if err != nil {
		return fmt.Errorf("%s: %w", l.where(""), err)
	}
	l.align = align
	if l.size%l.align != 0 {
		return fmt.Errorf("%s: has %d bytes, which is no multiple of its alignment %d: packed structs are not supported", l.where(""), l.size, l.align)
	}
	if l.union {
		err = b.members(l, t, 0)
	} else {
		err = b.structFields(l, t)
	}
	if err != nil {
		return err
	}
	return l.unique()
}

// unique reports members that would have the same name in Go.
func (l *layout) unique() error {
	seen := map[string]string{}
	take := func(goName, path string) error {
		if other, ok := seen[goName]; ok {
			return fmt.Errorf("%s: %s and %s would both be %s in Go", l.where(""), other, path, goName)
		}
		seen[goName] = path
		return nil
	}
	for _, f := range l.fields {
		if f.goName == "_" {
			continue
		}
		name := f.goName
		if name == "" {
			name = f.goType
		}
		if err := take(name, f.path); err != nil {
			return err
		}
	}
	for _, t := range l.tails {
		if err := take(t.goName, t.path); err != nil {
			return err
		}
	}
	return nil
}

// where names a member of l in messages.
func (l *layout) where(member string) string {
	return join(join(l.ctype, l.base), member)
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "." + b
}

// key is how the allow-list calls a member of l: "type.field".
func (l *layout) key(member string) string {
	_, name, _ := strings.Cut(l.ctype, " ")
	return join(join(name, l.base), member)
}

// structFields fills a struct: every byte gets a field, so that Go adds no
// padding of its own.
func (b *builder) structFields(l *layout, t *dwarf.StructType) error {
	var end, natural int64 = 0, 1
	pad := func(to int64) {
		if n := to - end; n > 0 {
			l.fields = append(l.fields, field{path: "padding", goName: "_", goType: fmt.Sprintf("[%d]byte", n), offset: end, size: n})
			end = to
		}
	}
	add := func(f field, align int64) error {
		if f.offset < end {
			return fmt.Errorf("%s: at offset %d overlaps the field before it", l.where(f.path), f.offset)
		}
		if f.offset%align != 0 {
			return fmt.Errorf("%s: at offset %d, which is no multiple of its alignment %d: packed structs are not supported", l.where(f.path), f.offset, align)
		}
		pad(f.offset)
		l.fields = append(l.fields, f)
		end = f.offset + f.size
		natural = max(natural, align)
		return nil
	}
	for _, m := range t.Field {
		if err := plain(m); err != nil {
			return fmt.Errorf("%s: %w", l.where(m.Name), err)
		}
		if m.Name == "" {
			done, err := b.nameless(l, t, m, add)
			if err != nil {
				return err
			}
			if done {
				continue
			}
		}
		if elem, ok := openArray(m.Type); ok {
			if l.embedded {
				continue // the struct around l has it
			}
			if err := b.addTail(l, m.Name, elem, m.ByteOffset); err != nil {
				return err
			}
			continue
		}
		if m.Type.Size() == 0 {
			return fmt.Errorf("%s: a member of 0 bytes is not supported", l.where(m.Name))
		}
		f, align, err := b.field(l, m.Name, m.Type, m.ByteOffset)
		if err != nil {
			return err
		}
		if err := add(f, align); err != nil {
			return err
		}
	}
	pad(l.size)
	if natural < l.align {
		f := field{path: fmt.Sprintf("aligned to %d bytes", l.align), goName: "_", goType: fmt.Sprintf("[0]uint%d", 8*l.align)}
		l.fields = slices.Insert(l.fields, 0, f)
	}
	return nil
}

// nameless handles a nameless struct or union in a struct. It reports whether
// that is done with.
func (b *builder) nameless(l *layout, parent *dwarf.StructType, m *dwarf.StructField, add func(field, int64) error) (bool, error) {
	st, ok := strip(m.Type).(*dwarf.StructType)
	if !ok {
		return false, fmt.Errorf("%s: a nameless member that is no struct or union", l.where(""))
	}
	if err := b.innerTails(l, st, m.ByteOffset); err != nil {
		return false, err
	}
	if st.ByteSize == 0 {
		return true, nil
	}
	// One member may stand for the union.
	for _, inner := range st.Field {
		key := l.key(inner.Name)
		if st.Kind != "union" || inner.Name == "" || !b.list.member[key] {
			continue
		}
		b.list.use("member", key)
		if inner.Type.Size() != st.ByteSize {
			return false, fmt.Errorf("%s: has %d bytes and can't stand for its union of %d", l.where(inner.Name), inner.Type.Size(), st.ByteSize)
		}
		f, align, err := b.field(l, inner.Name, inner.Type, m.ByteOffset)
		if err != nil {
			return false, err
		}
		return true, add(f, align)
	}
	// Otherwise it is embedded, so that Go too finds its members in the struct.
	first := firstName(st)
	if first == "" {
		return false, fmt.Errorf("%s: a nameless %s without members", l.where(""), st.Kind)
	}
	n, err := b.nestedLayout(l, st, "", first, m.ByteOffset)
	if err != nil {
		return false, err
	}
	return true, add(field{goType: n.goName, offset: m.ByteOffset, size: n.size}, n.align)
}

// firstName returns the name of the first named member of a type.
func firstName(t *dwarf.StructType) string {
	for _, f := range t.Field {
		if f.Name != "" {
			return f.Name
		}
		if st, ok := strip(f.Type).(*dwarf.StructType); ok {
			if name := firstName(st); name != "" {
				return name
			}
		}
	}
	return ""
}

// field returns the Go field for a C field.
func (b *builder) field(l *layout, name string, t dwarf.Type, offset int64) (field, int64, error) {
	gt, err := b.typeOf(l, name, t)
	if err != nil {
		return field{}, 0, err
	}
	key := l.key(name)
	f := field{path: name, goName: camel(name), goType: gt.expr, offset: offset, size: gt.size}
	if b.list.pointer[key] {
		b.list.use("pointer", key)
		if gt.size != 8 || gt.align != 8 {
			return field{}, 0, fmt.Errorf("%s: has %d bytes and can't be a pointer", l.where(name), gt.size)
		}
		f.goType = b.helper("Ptr")
	}
	if note := b.list.note[key]; note != nil {
		b.list.use("note", key)
		f.note = note
	}
	if reserved(name) {
		f.goName = "_"
	}
	return f, gt.align, nil
}

// members fills a union with the members of t, which is l's own type or a
// nameless struct or union in it at offset.
func (b *builder) members(l *layout, t *dwarf.StructType, offset int64) error {
	for _, m := range t.Field {
		if err := plain(m); err != nil {
			return fmt.Errorf("%s: %w", l.where(m.Name), err)
		}
		at := offset + m.ByteOffset
		if m.Name == "" {
			st, ok := strip(m.Type).(*dwarf.StructType)
			if !ok {
				return fmt.Errorf("%s: a nameless member that is no struct or union", l.where(""))
			}
			if err := b.members(l, st, at); err != nil {
				return err
			}
			continue
		}
		if elem, ok := openArray(m.Type); ok {
			if l.embedded {
				continue // the struct around l has it
			}
			if err := b.addTail(l, m.Name, elem, at); err != nil {
				return err
			}
			continue
		}
		if reserved(m.Name) || m.Type.Size() == 0 {
			continue // such as what __DECLARE_FLEX_ARRAY puts before an array
		}
		f, align, err := b.field(l, m.Name, m.Type, at)
		if err != nil {
			return err
		}
		if at%align != 0 {
			return fmt.Errorf("%s: at offset %d, which is no multiple of its alignment %d: packed structs are not supported", l.where(m.Name), at, align)
		}
		l.fields = append(l.fields, f)
	}
	return nil
}

// innerTails finds the arrays without a length in a nameless member of l.
func (b *builder) innerTails(l *layout, t *dwarf.StructType, offset int64) error {
	for _, m := range t.Field {
		if elem, ok := openArray(m.Type); ok {
			if err := b.addTail(l, m.Name, elem, offset+m.ByteOffset); err != nil {
				return err
			}
			continue
		}
		if st, ok := strip(m.Type).(*dwarf.StructType); ok && m.Name == "" {
			if err := b.innerTails(l, st, offset+m.ByteOffset); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *builder) addTail(l *layout, name string, elem dwarf.Type, offset int64) error {
	gt, err := b.typeOf(l, name, elem)
	if err != nil {
		return err
	}
	if offset%gt.align != 0 {
		return fmt.Errorf("%s: at offset %d, which is no multiple of its alignment %d: packed structs are not supported", l.where(name), offset, gt.align)
	}
	key := l.key(name)
	if !b.list.tail[key] {
		return nil
	}
	b.list.use("tail", key)
	b.helper("tail")
	l.tails = append(l.tails, tail{path: name, goName: "Tail" + camel(name), elem: gt.expr, offset: offset})
	return nil
}

// nestedLayout returns the layout of the nameless type of a field of l. The
// path of the field in C is member, "" if it has none and then its offset
// counts; the type's name in Go comes from hint.
func (b *builder) nestedLayout(l *layout, t *dwarf.StructType, member, hint string, offset int64) (*layout, error) {
	if n, ok := b.nested[t]; ok {
		return n, nil
	}
	key := l.key(hint)
	name, ok := b.list.name[key]
	if ok {
		b.list.use("name", key)
	} else {
		name = b.goNames[l.ctype] + camel(hint)
		if _, taken := b.taken[name]; taken {
			name = l.goName + camel(hint)
		}
		if member == "" && t.Kind == "union" {
			name += "Union"
		}
	}
	n := &layout{ctype: l.ctype, base: join(l.base, member), goName: name}
	if member == "" {
		n.embedded, n.origin = true, l.origin+offset
	}
	if err := b.take(name, n.where("")+" (nameless)"); err != nil {
		return nil, err
	}
	b.nested[t] = n
	l.nested = append(l.nested, n)
	return n, b.fill(n, t)
}
