// Package prm has the numbers of the command interface of ConnectX cards: operation codes,
// status codes, and where the fields of commands and contexts are. They come from Linux'
// include/linux/mlx5/mlx5_ifc.h and device.h; each group of fields names the struct there.
//
// A field is so many bits of a big-endian record, counted from the most significant bit of
// its first byte, and does not cross a 32-bit word unless it is 64 bits wide. [Field.Get] and
// [Field.Put] do not look beyond the end of a record that is too short: what is missing
// reads as 0 and is not written.
package prm

import "encoding/binary"

// Field says where a field is in its record.
type Field struct {
	Off   int // Off is its first bit.
	Width int // Width is the number of bits: up to 32, or 64.
}

// Get reads the field.
func (f Field) Get(b []byte) uint64 {
	if f.Width == 64 {
		if i := f.Off / 8; i+8 <= len(b) {
			return binary.BigEndian.Uint64(b[i:])
		}
		return 0
	}
	i := f.Off / 32 * 4
	if i+4 > len(b) {
		return 0
	}
	return uint64(binary.BigEndian.Uint32(b[i:])>>f.shift()) & f.mask()
}

// Int reads a field of at most 32 bits.
func (f Field) Int(b []byte) int { return int(f.Get(b)) }

// U32 reads a field of at most 32 bits.
func (f Field) U32(b []byte) uint32 { return uint32(f.Get(b)) }

// Bool reads a field of one bit.
func (f Field) Bool(b []byte) bool { return f.Get(b) != 0 }

// Put writes the field, of which v has the low bits.
func (f Field) Put(b []byte, v uint64) {
	if f.Width == 64 {
		if i := f.Off / 8; i+8 <= len(b) {
			binary.BigEndian.PutUint64(b[i:], v)
		}
		return
	}
	i := f.Off / 32 * 4
	if i+4 > len(b) {
		return
	}
	word := binary.BigEndian.Uint32(b[i:])
	word = word&^(uint32(f.mask())<<f.shift()) | uint32(v&f.mask())<<f.shift()
	binary.BigEndian.PutUint32(b[i:], word)
}

// PutBool writes a field of one bit.
func (f Field) PutBool(b []byte, v bool) {
	if v {
		f.Put(b, 1)
	} else {
		f.Put(b, 0)
	}
}

func (f Field) shift() int   { return 32 - f.Width - f.Off%32 }
func (f Field) mask() uint64 { return 1<<f.Width - 1 }

// Record gives the n bytes of b from off on, or what there is of them.
func Record(b []byte, off, n int) []byte {
	if off >= len(b) {
		return nil
	}
	return b[off:min(off+n, len(b))]
}
