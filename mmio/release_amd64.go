//go:build !race

package mmio

import "sync/atomic"

// storeRelease stores v after all loads and stores before it. On amd64 any store does: x86
// keeps a store to write-back memory after any earlier load and store, so only the compiler has
// to be stopped. The atomic load does that, as the compiler moves no access of memory across
// one, and is an ordinary MOV; so is the store, as those of other memory are, which the compiler
// does not split. Go's atomic store is an XCHG, which also waits until all of them have left
// the CPU, and a function in assembly cannot be inlined.
func storeRelease(p *uint32, v uint32) {
	atomic.LoadUint32(p)
	*p = v
}
