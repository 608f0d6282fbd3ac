package siw

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/siw/internal/abi"
)

// An element begins with an ID of 8 bytes; the word behind that has its flags and little else, so
// that all of it is stored at once. Its parts, from the lowest bits on, are the fields of struct
// siw_sqe and siw_rqe (flags, num_sge, opcode) or of struct siw_cqe (flags, opcode, status). The
// order is right on little-endian hosts, the only ones that the library supports.
const (
	wordOffset = unsafe.Offsetof(abi.SiwSqe{}.Flags)

	valid      = uint32(abi.SIW_WQE_VALID)
	flagBits   = 1<<numSGEBit - 1 // of the word
	numSGEBit  = 8 * (unsafe.Offsetof(abi.SiwSqe{}.NumSGE) - wordOffset)
	opcodeBit  = 8 * (unsafe.Offsetof(abi.SiwSqe{}.Opcode) - wordOffset)
	cqeOpBit   = 8 * (unsafe.Offsetof(abi.SiwCQE{}.Opcode) - wordOffset)
	cqeStatBit = 8 * (unsafe.Offsetof(abi.SiwCQE{}.Status) - wordOffset)
)

// The word is at the same place in all of them, and nothing else is in it.
const (
	_ = -(unsafe.Offsetof(abi.SiwRqe{}.Flags) ^ wordOffset)
	_ = -(unsafe.Offsetof(abi.SiwRqe{}.NumSGE) - wordOffset ^ numSGEBit/8)
	_ = -(unsafe.Offsetof(abi.SiwCQE{}.Flags) ^ wordOffset)
	_ = -(unsafe.Offsetof(abi.SiwSqe{}.RKey) ^ (wordOffset + 4))
	_ = -(unsafe.Offsetof(abi.SiwCQE{}.Bytes) ^ (wordOffset + 4))
	_ = -(wordOffset % 4)
)

// A ring is an array of elements.
type ring struct {
	base   unsafe.Pointer // element 0; does not keep the mapping alive
	stride uintptr        // size of an element in bytes
	mask   uint32         // number of elements - 1
}

// newRing makes a ring of num elements of stride bytes of mapped memory, with extra bytes behind
// them.
func newRing(mem []byte, kind string, num int, stride, extra uintptr) (ring, error) {
	fail := func(format string, args ...any) (ring, error) {
		return ring{}, fmt.Errorf("%w: %s: %s", ErrMapping, kind, fmt.Sprintf(format, args...))
	}
	if num < 1 || num > maxElems || num&(num-1) != 0 {
		return fail("number of elements: got %d, must be a power of two up to %d", num, maxElems)
	}
	if need := uintptr(num)*stride + extra; uintptr(len(mem)) < need {
		return fail("mapping: got %d bytes, %d elements need %d", len(mem), num, need)
	}
	base := unsafe.Pointer(unsafe.SliceData(mem))
	if a := unsafe.Alignof(abi.SiwSqe{}); uintptr(base)%a != 0 {
		return fail("mapping: got address %p, must be aligned to %d bytes", base, a)
	}
	return ring{base: base, stride: stride, mask: uint32(num - 1)}, nil
}

// elem returns the element for any position.
//
// Preconditions: the ring was made by newRing.
func (r *ring) elem(at uint32) unsafe.Pointer {
	return unsafe.Add(r.base, uintptr(at&r.mask)*r.stride)
}

// word returns the word of the element at a position.
func (r *ring) word(at uint32) *mmio.Index {
	return (*mmio.Index)(unsafe.Add(r.elem(at), wordOffset))
}

// Cap returns the maximum number of entries in the ring.
func (r *ring) Cap() int { return int(r.mask) + 1 }

// A producer is a ring that the program fills.
type producer struct {
	ring
	maxSGE uint32
	head   uint32   // position of the next element to publish
	free   int      // how many elements from there on are known to be free
	words  []uint32 // by element: the word that publishing stores
}

// newProducer makes a producer of an empty ring.
func newProducer(mem []byte, kind string, num, sges int, stride uintptr) (producer, error) {
	r, err := newRing(mem, kind, num, stride, 0)
	if err != nil {
		return producer{}, err
	}
	if sges < 0 || sges > MaxSGE {
		return producer{}, fmt.Errorf("%w: %s: scatter/gather entries: got %d, elements have room for %d", ErrMapping, kind, sges, MaxSGE)
	}
	return producer{ring: r, maxSGE: uint32(sges), words: make([]uint32, num)}, nil
}

// MaxSGE returns how many scatter/gather entries a work request may have.
func (p *producer) MaxSGE() int { return int(p.maxSGE) }

// Room reports whether n more entries fit. It looks at the ring only if the result of the last look
// is not enough.
func (p *producer) Room(n int) bool { return n <= p.free || p.refresh(n) }

// refresh looks whether the kernel has taken enough elements. It is not inlined, so that Room is.
//
//go:noinline
func (p *producer) refresh(n int) bool {
	if n > p.Cap() {
		return false
	}
	// Pairs with smp_store_mb(flags, 0) of the kernel, which has taken what is in the element.
	// It does so in order: if the last of them is free, those before it are.
	if p.word(p.head+uint32(n)-1).Acquire()&valid != 0 {
		return false
	}
	p.free = n
	return true
}

// advance makes the next element that is not published the first.
func (p *producer) advance(n int) {
	p.head += uint32(n)
	p.free -= n
}

// ID returns the ID of the i-th unpublished slot, which must be filled.
//
// Preconditions: as for the slot.
func (p *producer) ID(i int) uint64 { return *(*uint64)(p.elem(p.head + uint32(i))) }

// Recall takes back published elements that the kernel has not taken, and returns their IDs in
// order. A kernel that has flushed a ring once does not look at it again.
//
// Preconditions: the kernel does not look at the ring any more.
func (p *producer) Recall() (ids []uint64) {
	for back := p.mask + 1; back > 0; back-- {
		at := p.head - back
		if w := p.word(at); w.Acquire()&valid != 0 {
			ids = append(ids, *(*uint64)(p.elem(at)))
			w.Release(w.Acquire() &^ flagBits) // the rest says what it was
		}
	}
	return ids
}

// The ID is the first field of both elements.
const (
	_ = -unsafe.Offsetof(abi.SiwSqe{}.ID)
	_ = -unsafe.Offsetof(abi.SiwRqe{}.ID)
)
