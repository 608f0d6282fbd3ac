package mlx5

import (
	"math/bits"
	"unsafe"
)

// These functions store big-endian integers into memory that the device reads, and load them from
// memory that it writes. The host must be little-endian, as it is if mmio.Supported is true.

func put16(p unsafe.Pointer, off uintptr, v uint16) {
	*(*uint16)(unsafe.Add(p, off)) = bits.ReverseBytes16(v)
}

func put32(p unsafe.Pointer, off uintptr, v uint32) {
	*(*uint32)(unsafe.Add(p, off)) = bits.ReverseBytes32(v)
}

func put64(p unsafe.Pointer, off uintptr, v uint64) {
	*(*uint64)(unsafe.Add(p, off)) = bits.ReverseBytes64(v)
}

func put8(p unsafe.Pointer, off uintptr, v uint8) { *(*uint8)(unsafe.Add(p, off)) = v }

func get8(p unsafe.Pointer, off uintptr) uint8 { return *(*uint8)(unsafe.Add(p, off)) }

func get16(p unsafe.Pointer, off uintptr) uint16 {
	return bits.ReverseBytes16(*(*uint16)(unsafe.Add(p, off)))
}

func get32(p unsafe.Pointer, off uintptr) uint32 {
	return bits.ReverseBytes32(*(*uint32)(unsafe.Add(p, off)))
}

func get64(p unsafe.Pointer, off uintptr) uint64 {
	return bits.ReverseBytes64(*(*uint64)(unsafe.Add(p, off)))
}

// alignUp rounds n up to a multiple of a power of two.
func alignUp(n, to int) int { return (n + to - 1) &^ (to - 1) }

// pow2 rounds n up to a power of two.
//
// Preconditions: 1 <= n <= 1<<62.
func pow2(n int) int { return 1 << bits.Len(uint(n-1)) }
