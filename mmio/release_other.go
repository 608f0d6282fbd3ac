//go:build !amd64 || race

package mmio

import "sync/atomic"

// storeRelease stores v after all earlier loads and stores: STLR on arm64, and a store that the
// race detector understands.
func storeRelease(p *uint32, v uint32) { atomic.StoreUint32(p, v) }
