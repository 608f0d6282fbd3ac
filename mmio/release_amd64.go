//go:build !race

package mmio

import "sync/atomic"

// storeRelease stores v after all earlier loads and stores. On amd64 an ordinary store does that:
// x86 keeps a store to write-back memory after any earlier load and store, so only the compiler
// must keep the order. It does not move memory accesses across the atomic load, which is an
// ordinary MOV, and it does not split the store. Go's atomic store is an XCHG, which also waits
// until all earlier stores have left the CPU, and a function in assembly cannot be inlined.
func storeRelease(p *uint32, v uint32) {
	atomic.LoadUint32(p)
	*p = v
}
