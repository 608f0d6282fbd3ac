//go:build !race

package mmio

// storeRelease stores v after all loads and stores before it. On amd64 any store does; Go's
// atomic one is an XCHG, which also waits until all of them have left the CPU.
//
//go:noescape
func storeRelease(p *uint32, v uint32)
