package memory

import (
	"encoding/binary"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"
)

// The functions of this file access memory by address. That the memory belongs to an MR was checked.
// The program may have unmapped it since, which is a panic here and becomes MemoryGone. The program
// synchronizes with a device by rings and completions, so the race detector must not watch copies.
// It watches atomic operations, which use sync/atomic.

// at returns n bytes at an address.
//
//go:nocheckptr
//go:norace
func at(addr uint64, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(nil, uintptr(addr))), n)
}

// caught makes a memory fault in the function that defers it a MemoryGone, and sets back whether the
// goroutine panics on faults.
func caught(f *Fault, old bool) {
	debug.SetPanicOnFault(old)
	r := recover()
	if r == nil {
		return
	}
	if _, ok := r.(runtime.Error); !ok {
		panic(r)
	}
	*f = MemoryGone
}

// copyOut copies memory at addr to dst.
//
//go:nocheckptr
//go:norace
func copyOut(dst []byte, addr uint64) (f Fault) {
	defer caught(&f, debug.SetPanicOnFault(true))
	move(dst, at(addr, len(dst)))
	return OK
}

// copyIn copies src to memory at addr.
//
//go:nocheckptr
//go:norace
func copyIn(addr uint64, src []byte) (f Fault) {
	defer caught(&f, debug.SetPanicOnFault(true))
	move(at(addr, len(src)), src)
	return OK
}

// atomic does the operation on 8 bytes at addr, a multiple of 8, and leaves the old value in o.value.
// With the race detector, a fault of memory that can only be read is not caught: it happens in C code.
//
//go:nocheckptr
//go:norace
func (o *operation) atomic(addr uint64) (f Fault) {
	defer caught(&f, debug.SetPanicOnFault(true))
	word := (*uint64)(unsafe.Add(nil, uintptr(addr)))
	switch o.kind {
	case compareSwap:
		swap := o.value
		for {
			old := atomic.LoadUint64(word)
			if old != o.compare || atomic.CompareAndSwapUint64(word, old, swap) {
				o.value = old
				return OK
			}
		}
	case fetchAdd:
		add := o.value
		o.value = atomic.AddUint64(word, add) - add
	case store:
		atomic.StoreUint64(word, o.value)
	}
	return OK
}

// native returns the integer whose bytes in memory are b.
func native(b [8]byte) uint64 { return binary.NativeEndian.Uint64(b[:]) }

// touch reads a byte of every page, and returns MemoryGone if one cannot be read.
//
// Preconditions: first is the address of a page.
//
//go:nocheckptr
//go:norace
func touch(first, length uint64) (f Fault) {
	defer caught(&f, debug.SetPanicOnFault(true))
	sum := byte(0)
	for at := uint64(0); at < length; at += pageMask + 1 {
		sum |= *(*byte)(unsafe.Add(nil, uintptr(first+at)))
	}
	runtime.KeepAlive(sum)
	return OK
}
