package mad

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// ErrRange matches the error for a field whose value needs more bits than the field has.
var ErrRange = errors.New("value out of range")

// Attribute is the content of a MAD: a pointer to a struct whose fields have tags, as the package
// documentation describes.
type Attribute interface {
	// ID returns the attribute ID (AttributeID).
	ID() AttrID
}

// Marshal encodes an attribute. The result has the size of the fields; reserved bits are 0.
func Marshal(a Attribute) ([]byte, error) {
	v, err := structOf(a)
	if err != nil {
		return nil, err
	}
	l := layoutOf(v.Type())
	b := make([]byte, l.size)
	return b, l.encode(b, v)
}

// Unmarshal decodes an attribute from the first bytes of b.
func Unmarshal(b []byte, a Attribute) error {
	v, err := structOf(a)
	if err != nil {
		return err
	}
	l := layoutOf(v.Type())
	if len(b) < l.size {
		return fmt.Errorf("mad: %s has %d bytes, want at least %d: %w", v.Type().Name(), len(b), l.size, io.ErrUnexpectedEOF)
	}
	l.decode(b, v)
	return nil
}

// structOf returns the struct of an attribute.
func structOf(a Attribute) (reflect.Value, error) {
	v := reflect.ValueOf(a)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return v, fmt.Errorf("mad: the attribute is %T(%v), allowed: a pointer to a struct: %w", a, a, ErrRange)
	}
	return v.Elem(), nil
}

// decodeHeader decodes a header from a MAD that is long enough for it.
func decodeHeader[T any](b []byte, h *T) {
	v := reflect.ValueOf(h).Elem()
	layoutOf(v.Type()).decode(b, v)
}

// encodeHeader encodes a header into a MAD that is long enough for it.
func encodeHeader[T any](b []byte, h *T) error {
	v := reflect.ValueOf(h).Elem()
	return layoutOf(v.Type()).encode(b, v)
}

// A layout is the format of a struct.
type layout struct {
	fields []field
	size   int // in bytes
}

// A field is a field of a struct, or an array of n.
type field struct {
	index  int     // in the struct
	name   string  // for errors
	offset int     // of the first, in bits
	width  int     // of each, in bits
	n      int     // 0 if the field is no array
	inner  *layout // if it is a struct
	octets bool    // it is an array of bytes, which can be copied
}

// layouts has the layouts by type.
var layouts sync.Map

// layoutOf returns the layout of a type. It panics if the tags are not valid, which is a mistake in the
// program.
func layoutOf(t reflect.Type) *layout {
	if l, ok := layouts.Load(t); ok {
		return l.(*layout)
	}
	l := &layout{}
	bits := 0
	for i := range t.NumField() {
		f := newField(t.Field(i), i)
		l.fields = append(l.fields, f)
		bits = max(bits, f.offset+f.width*max(f.n, 1))
	}
	l.size = (bits + 7) / 8
	layouts.Store(t, l)
	return l
}

// newField reads the tag of a field.
func newField(s reflect.StructField, index int) field {
	f := field{index: index, name: s.Name}
	t := s.Type
	if t.Kind() == reflect.Array {
		f.n, t = t.Len(), t.Elem()
	}
	where, width, given := strings.Cut(s.Tag.Get("mad"), " ")
	octet, bit, _ := strings.Cut(where, ".")
	f.offset = number(s, octet) * 8
	if bit != "" {
		f.offset += number(s, bit)
	}
	switch {
	case t.Kind() == reflect.Struct:
		f.inner = layoutOf(t)
		f.width = f.inner.size * 8
	case given:
		f.width = number(s, width)
	default:
		f.width = t.Bits()
	}
	f.octets = f.n > 0 && t.Kind() == reflect.Uint8 && f.width == 8 && f.offset%8 == 0
	return f
}

// number reads a number of a tag.
func number(s reflect.StructField, text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(fmt.Sprintf("mad: field %s: tag %q: %v", s.Name, s.Tag, err))
	}
	return n
}

// decode decodes a struct from bytes, of which there are enough.
func (l *layout) decode(b []byte, v reflect.Value) {
	for i := range l.fields {
		f := &l.fields[i]
		value := v.Field(f.index)
		if f.octets {
			copy(value.Bytes(), b[f.offset/8:])
			continue
		}
		if f.n == 0 {
			f.decode(b, f.offset, value)
		}
		for i := range f.n {
			f.decode(b, f.offset+i*f.width, value.Index(i))
		}
	}
}

// decode decodes one value, which begins at a bit.
func (f *field) decode(b []byte, at int, v reflect.Value) {
	switch {
	case f.inner != nil:
		f.inner.decode(b[at/8:], v)
	case v.Kind() == reflect.String:
		v.SetString(strings.TrimRight(string(b[at/8:(at+f.width)/8]), "\x00"))
	case v.Kind() == reflect.Bool:
		v.SetBool(getBits(b, at, f.width) != 0)
	default:
		v.SetUint(getBits(b, at, f.width))
	}
}

// encode encodes a struct into bytes, of which there are enough.
func (l *layout) encode(b []byte, v reflect.Value) error {
	for i := range l.fields {
		f := &l.fields[i]
		value, err := v.Field(f.index), error(nil)
		if f.octets {
			copy(b[f.offset/8:], value.Bytes())
			continue
		}
		if f.n == 0 {
			err = f.encode(b, f.offset, value)
		}
		for i := 0; i < f.n && err == nil; i++ {
			err = f.encode(b, f.offset+i*f.width, value.Index(i))
		}
		if err != nil {
			return fmt.Errorf("mad: %s.%s %w", v.Type().Name(), f.name, err)
		}
	}
	return nil
}

// encode encodes one value, which begins at a bit.
func (f *field) encode(b []byte, at int, v reflect.Value) error {
	var n uint64
	switch {
	case f.inner != nil:
		return f.inner.encode(b[at/8:], v)
	case v.Kind() == reflect.String:
		if len(v.String()) > f.width/8 {
			return fmt.Errorf("has %d bytes, at most %d fit: %w", len(v.String()), f.width/8, ErrRange)
		}
		rest := b[at/8 : (at+f.width)/8]
		clear(rest[copy(rest, v.String()):])
		return nil
	case v.Kind() == reflect.Bool:
		if v.Bool() {
			n = 1
		}
	default:
		n = v.Uint()
	}
	if n>>f.width != 0 {
		return fmt.Errorf("is %d and has %d bits: %w", n, f.width, ErrRange)
	}
	putBits(b, at, f.width, n)
	return nil
}

// getBits returns the number in the bits [at, at+width). Bit 0 is the most significant one of b[0].
func getBits(b []byte, at, width int) (v uint64) {
	for width > 0 {
		n := min(8-at%8, width) // bits of this byte
		v = v<<n | uint64(b[at/8]>>(8-at%8-n))&(1<<n-1)
		at, width = at+n, width-n
	}
	return v
}

// putBits stores a number in the bits [at, at+width), and leaves the others as they are.
func putBits(b []byte, at, width int, v uint64) {
	for width > 0 {
		n := min(8-at%8, width)
		shift := 8 - at%8 - n
		mask := byte(1<<n-1) << shift
		b[at/8] = b[at/8]&^mask | byte(v>>(width-n))<<shift&mask
		at, width = at+n, width-n
	}
}
