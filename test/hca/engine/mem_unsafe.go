package engine

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// little says how this machine stores words.
var little = func() bool {
	x := uint16(1)
	return *(*byte)(unsafe.Pointer(&x)) == 1
}()

// loadBE32 reads a big-endian word in one load, if it is aligned.
func loadBE32(b []byte) uint32 {
	b = b[:4]
	p := unsafe.Pointer(&b[0])
	if uintptr(p)%4 != 0 {
		return be.Uint32(b)
	}
	v := atomic.LoadUint32((*uint32)(p))
	if little {
		v = bits.ReverseBytes32(v)
	}
	return v
}

// storeBE32 writes a big-endian word in one store after all that was written before, if
// it is aligned.
func storeBE32(b []byte, v uint32) {
	b = b[:4]
	p := unsafe.Pointer(&b[0])
	if uintptr(p)%4 != 0 {
		be.PutUint32(b, v)
		return
	}
	if little {
		v = bits.ReverseBytes32(v)
	}
	atomic.StoreUint32((*uint32)(p), v)
}
