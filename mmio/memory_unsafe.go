package mmio

import "unsafe"

// address returns the address of memory.
func address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// adjacent reports whether b begins where a ends, and both can be treated as one mapping.
func adjacent(a, b []byte) bool { return joins && address(a)+uintptr(len(a)) == address(b) }

// join returns the memory of a and of b, which is adjacent.
func join(a, b []byte) []byte { return unsafe.Slice(unsafe.SliceData(a), len(a)+len(b)) }
