//go:build !amd64 || race

package mmio

import "sync/atomic"

// storeRelease stores v after all loads and stores before it: STLR on arm64, and what the race
// detector understands.
func storeRelease(p *uint32, v uint32) { atomic.StoreUint32(p, v) }
