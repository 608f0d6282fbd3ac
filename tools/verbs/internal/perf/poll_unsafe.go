package perf

import (
	"sync/atomic"
	"unsafe"
)

// watched is a byte that the device writes.
type watched struct {
	word  *uint32
	shift uint
}

// watch returns the byte at an offset. The memory begins at a multiple of 4 and does not end
// within a word.
func watch(mem []byte, offset int) watched {
	return watched{(*uint32)(unsafe.Pointer(&mem[offset&^3])), uint(offset&3) * 8}
}

// word looks at 4 bytes at an offset which is a multiple of 4, now.
func word(mem []byte, offset int) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&mem[offset])))
}

// load looks at the byte, now.
func (w watched) load() byte { return byte(atomic.LoadUint32(w.word) >> w.shift) }
