package mmio

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// An Index is a 32-bit word in memory that the kernel shares, stored by one side
// and loaded by the other, in the byte order of the host: a position in a ring or,
// where both sides store it in turn, what says whose an entry of a ring is.
//
// It is safe for concurrent use, which is its purpose; that only one goroutine
// stores it at a time is for the ring to arrange.
type Index struct {
	v uint32
}

// IndexAt returns the Index at offset bytes into mem, which must be aligned
// to 4 bytes and lie within mem.
func IndexAt(mem []byte, offset uintptr) (*Index, error) {
	n := uintptr(len(mem))
	if n < unsafe.Sizeof(Index{}) || offset > n-unsafe.Sizeof(Index{}) {
		return nil, fmt.Errorf("mmio: index: offset: got %d, the memory has %d bytes", offset, n)
	}
	p := unsafe.Pointer(&mem[offset])
	if uintptr(p)%unsafe.Alignof(Index{}) != 0 {
		return nil, fmt.Errorf("mmio: index: offset: got %d, which is not aligned to %d bytes", offset, unsafe.Alignof(Index{}))
	}
	return (*Index)(p), nil
}

// Acquire loads the index that the other side stores. What the other side
// wrote before it stored this value is visible afterwards.
//
// It pairs with smp_store_release in the kernel. Go's atomic load is stronger
// than acquire and costs the same (a plain MOV on amd64, LDAR on arm64).
func (x *Index) Acquire() uint32 { return atomic.LoadUint32(&x.v) }

// Release stores the index that the other side loads. What was read or written
// before it is complete when the other side sees v.
//
// It pairs with smp_load_acquire in the kernel, and like that it says nothing of
// loads that come after it.
func (x *Index) Release(v uint32) { storeRelease(&x.v, v) }

// Publish stores the word as Release does, and no load that follows comes before it. It is for
// where each side stores one word and then looks at another: of two sides that do so at once, at
// least one sees what the other has stored.
//
// It pairs with smp_store_mb in the kernel.
func (x *Index) Publish(v uint32) { atomic.StoreUint32(&x.v, v) }
