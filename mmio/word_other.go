//go:build (!amd64 && !arm64) || race

package mmio

import "sync/atomic"

// storeRelaxed stores v with one store, in a way that the race detector understands.
func storeRelaxed(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
