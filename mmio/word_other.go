//go:build (!amd64 && !arm64) || race

package mmio

import "sync/atomic"

// storeRelaxed stores v with one store, in a way that the race detector understands.
func storeRelaxed(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

// Store3 stores three words.
func Store3(x, y, z *Word, a, b, c uint64) {
	x.Store(a)
	y.Store(b)
	z.Store(c)
}
