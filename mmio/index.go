package mmio

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// An Index is a 32-bit word in memory that is shared with the kernel, in host byte order. It is the
// position of one side in a ring, which that side stores and the other loads. Or it says which side
// owns an entry of a ring; then the sides store it in turn.
//
// It is safe for concurrent use. The ring must make sure that only one goroutine stores it at a
// time.
type Index struct {
	v uint32
}

// IndexAt returns the Index at offset bytes into mem, which must be aligned
// to 4 bytes and lie within mem.
func IndexAt(mem []byte, offset uintptr) (*Index, error) {
	return at[Index]("index", mem, offset)
}

// WordAt returns the Word at offset bytes into mem, which must be aligned to 8 bytes and lie within mem.
func WordAt(mem []byte, offset uintptr) (*Word, error) { return at[Word]("word", mem, offset) }

// at returns the T at offset bytes into mem.
func at[T any](name string, mem []byte, offset uintptr) (*T, error) {
	n, size := uintptr(len(mem)), unsafe.Sizeof(*new(T))
	if n < size || offset > n-size {
		return nil, fmt.Errorf("mmio: %s: offset: got %d, the memory has %d bytes", name, offset, n)
	}
	p := unsafe.Pointer(&mem[offset])
	if uintptr(p)%size != 0 {
		return nil, fmt.Errorf("mmio: %s: offset: got %d, which is not aligned to %d bytes", name, offset, size)
	}
	return (*T)(p), nil
}

// Acquire loads an index that the other side stores. Everything that the other side wrote before it
// stored this value is visible afterwards.
//
// It pairs with smp_store_release in the kernel. Go's atomic load is stronger than acquire and
// costs the same (a plain MOV on amd64, LDAR on arm64).
func (x *Index) Acquire() uint32 { return atomic.LoadUint32(&x.v) }

// Release stores an index that the other side loads. All earlier loads and stores are complete when
// the other side sees v.
//
// It pairs with smp_load_acquire in the kernel. Like smp_store_release it does not order later
// loads.
func (x *Index) Release(v uint32) { storeRelease(&x.v, v) }

// Publish stores the word as Release does, and also orders it before all later loads. Use it if
// each side stores one word and then loads the word of the other: if both do so at the same time,
// at least one sees the store of the other.
//
// It pairs with smp_store_mb in the kernel.
func (x *Index) Publish(v uint32) { atomic.StoreUint32(&x.v, v) }
