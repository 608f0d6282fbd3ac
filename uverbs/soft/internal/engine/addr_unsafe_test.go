package engine

import "unsafe"

// addr returns the address of a byte of the buffer.
func (s *side) addr(off int) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s.buf)))) + uint64(off)
}
