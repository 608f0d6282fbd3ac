package main

import (
	"debug/dwarf"
	"fmt"
)

// A goType is how Go spells a C type.
type goType struct {
	expr        string
	size, align int64
}

// typeOf returns the Go type for the C type t of a field of l.
func (b *builder) typeOf(l *layout, name string, t dwarf.Type) (goType, error) {
	fail := func(why string) (goType, error) {
		return goType{}, fmt.Errorf("%s: %s", l.where(name), why)
	}
	integer := func(kind string, size int64) goType {
		return goType{fmt.Sprintf("%s%d", kind, 8*size), size, size}
	}
	switch t := t.(type) {
	case *dwarf.TypedefType:
		switch t.Name {
		case "__be16", "__be32", "__be64":
			size := t.Size()
			return goType{b.helper("Be" + t.Name[4:]), size, size}, nil
		}
		return b.typeOf(l, name, t.Type)
	case *dwarf.QualType:
		return b.typeOf(l, name, t.Type)
	case *dwarf.UintType:
		return integer("uint", t.ByteSize), nil
	case *dwarf.UcharType:
		return integer("uint", t.ByteSize), nil
	case *dwarf.IntType:
		return integer("int", t.ByteSize), nil
	case *dwarf.CharType:
		if t.Name == "signed char" {
			return integer("int", 1), nil
		}
		return goType{"byte", 1, 1}, nil // a plain char is text, whatever its sign is
	case *dwarf.EnumType:
		return integer("uint", t.ByteSize), nil
	case *dwarf.PtrType:
		return goType{b.helper("Ptr"), 8, 8}, nil
	case *dwarf.ArrayType:
		elem, err := b.typeOf(l, name, t.Type)
		if err != nil {
			return goType{}, err
		}
		if t.Count <= 0 {
			return fail("an array without a length that is not at the end of a struct")
		}
		return goType{fmt.Sprintf("[%d]%s", t.Count, elem.expr), t.Count * elem.size, elem.align}, nil
	case *dwarf.StructType:
		if t.StructName == "" {
			n, err := b.nestedLayout(l, t, name, name, 0)
			if err != nil {
				return goType{}, err
			}
			return goType{n.goName, n.size, n.align}, nil
		}
		ctype := t.Kind + " " + t.StructName
		goName, ok := b.goNames[ctype]
		if !ok {
			return fail("needs " + ctype + ", which is not on the allow-list")
		}
		align, err := b.alignment(t)
		if err != nil {
			return goType{}, err
		}
		return goType{goName, t.ByteSize, align}, nil
	}
	return fail(fmt.Sprintf("has type %s, which is not supported", t))
}

func (b *builder) helper(name string) string {
	b.helpers[name] = true
	return name
}

// alignment returns the natural alignment of a C type on a 64-bit machine.
// The attributes that could change it are not in DWARF; measure notices them.
func (b *builder) alignment(t dwarf.Type) (int64, error) {
	switch t := strip(t).(type) {
	case *dwarf.ArrayType:
		return b.alignment(t.Type)
	case *dwarf.StructType:
		if a, ok := b.aligns[t]; ok {
			return a, nil
		}
		a := int64(1)
		for _, m := range t.Field {
			n, err := b.alignment(m.Type)
			if err != nil {
				return 0, err
			}
			a = max(a, n)
		}
		b.aligns[t] = a
		return a, nil
	case *dwarf.PtrType:
		return 8, nil
	default:
		switch n := t.Size(); n {
		case 1, 2, 4, 8:
			return n, nil
		}
		return 0, fmt.Errorf("type %s of %d bytes is not supported", t, t.Size())
	}
}

// strip removes typedefs and qualifiers.
func strip(t dwarf.Type) dwarf.Type {
	for {
		switch u := t.(type) {
		case *dwarf.TypedefType:
			t = u.Type
		case *dwarf.QualType:
			t = u.Type
		default:
			return t
		}
	}
}

// openArray returns the element type of an array without a length.
func openArray(t dwarf.Type) (dwarf.Type, bool) {
	a, ok := strip(t).(*dwarf.ArrayType)
	if !ok || a.Count > 0 {
		return nil, false
	}
	return a.Type, true
}

// plain returns an error for a bitfield, which Go cannot express.
func plain(m *dwarf.StructField) error {
	if m.BitSize != 0 {
		return fmt.Errorf("a bitfield of %d bits: Go does not have bitfields, and C leaves their layout to the compiler", m.BitSize)
	}
	return nil
}
