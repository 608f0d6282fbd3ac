package mmio

import "sync/atomic"

// A Word is 8 bytes that one goroutine stores while others load them. A load returns one of the
// stored values. A Word does not order accesses to other memory.
type Word struct {
	v uint64
}

// Load loads the word.
func (w *Word) Load() uint64 { return atomic.LoadUint64(&w.v) }

// Store stores the word.
func (w *Word) Store(v uint64) { storeRelaxed(&w.v, v) }
