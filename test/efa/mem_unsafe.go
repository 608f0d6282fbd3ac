package efa

import (
	"sync/atomic"
	"unsafe"
)

// publishCounter stores a counter where a driver may be looking.
func publishCounter(dst []byte, v uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&dst[0])), v)
}

// publish copies an entry to memory of the guest, where a driver may be looking, in an order that the driver can rely
// on: the word that has the phase bit comes last, in one store. The card runs on little-endian machines only.
func publish(dst, entry []byte, word int) {
	copy(dst[:4*word], entry)
	copy(dst[4*word+4:], entry[4*word+4:])
	w := dst[4*word : 4*word+4]
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&w[0])), le.Uint32(entry[4*word:]))
}
