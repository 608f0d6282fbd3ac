package mmio

import "sync/atomic"

// A Word is 8 bytes of the program that one goroutine stores and others may load meanwhile: they
// see one of the values that were stored, and nothing follows about other memory.
type Word struct {
	v uint64
}

// Load loads the word.
func (w *Word) Load() uint64 { return atomic.LoadUint64(&w.v) }

// Store stores the word.
func (w *Word) Store(v uint64) { storeRelaxed(&w.v, v) }
