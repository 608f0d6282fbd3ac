package rxe

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/rxe/internal/abi"
)

// maxShift limits log2_elem_size. It is far larger than rxe's elements need, and keeps the
// arithmetic on sizes within 64 bits.
const maxShift = 31

// A ring is the common part of all rings: two indices and an array of elements (struct
// rxe_queue_buf).
type ring struct {
	producer *mmio.Index
	consumer *mmio.Index
	elems    unsafe.Pointer // element 0; does not keep the mapping alive
	size     uintptr        // distance between elements
	mask     uint32         // number of elements - 1
}

// newRing makes a ring of mapped memory. It reads the header once and checks that mem has at least
// entries+1 elements of at least elemSize bytes. It returns the current values of both indices.
func newRing(mem []byte, kind string, entries int, elemSize uintptr) (r ring, prod, cons uint32, err error) {
	fail := func(format string, args ...any) (ring, uint32, uint32, error) {
		return ring{}, 0, 0, fmt.Errorf("rxe: %s: %w: %s", kind, ErrCorrupt, fmt.Sprintf(format, args...))
	}
	if entries < 0 {
		return ring{}, 0, 0, fmt.Errorf("rxe: %s: number of entries: got %d, must not be negative", kind, entries)
	}
	const header = unsafe.Sizeof(abi.RxeQueueBuf{})
	if uintptr(len(mem)) < header {
		return fail("mapping: got %d bytes, the header alone has %d", len(mem), header)
	}
	base := unsafe.Pointer(unsafe.SliceData(mem))
	if a := unsafe.Alignof(abi.RxeSendWQE{}); uintptr(base)%a != 0 {
		return fail("mapping: got address %p, must be aligned to %d bytes", base, a)
	}
	// One load each: the checks below are about the values that are kept.
	hdr := (*abi.RxeQueueBuf)(base)
	shift, mask := hdr.Log2ElemSize, hdr.IndexMask
	if shift > maxShift {
		return fail("log2_elem_size: got %d, must be at most %d", shift, maxShift)
	}
	size := uintptr(1) << shift
	if size < elemSize {
		return fail("log2_elem_size: got elements of %d bytes, must be at least %d", size, elemSize)
	}
	if mask&(mask+1) != 0 {
		return fail("index_mask: got %#x, must be a power of two less one", mask)
	}
	if uint64(mask) < uint64(entries) {
		return fail("index_mask: got room for %d entries, the queue has %d", mask, entries)
	}
	if need := uint64(header) + (uint64(mask)+1)<<shift; need > uint64(len(mem)) {
		return fail("mapping: got %d bytes, %d elements of %d bytes need %d", len(mem), uint64(mask)+1, size, need)
	}
	r = ring{elems: unsafe.Add(base, header), size: size, mask: mask}
	if r.producer, err = mmio.IndexAt(mem, unsafe.Offsetof(hdr.ProducerIndex)); err != nil {
		return ring{}, 0, 0, err
	}
	if r.consumer, err = mmio.IndexAt(mem, unsafe.Offsetof(hdr.ConsumerIndex)); err != nil {
		return ring{}, 0, 0, err
	}
	// A new queue starts at 0 and 0, a resized one with its old entries.
	prod, cons = r.producer.Acquire(), r.consumer.Acquire()
	if prod > mask || cons > mask {
		return fail("indices: got producer %d and consumer %d, must be at most %d", prod, cons, mask)
	}
	return r, prod, cons, nil
}

// elem returns the element for any index.
//
// Preconditions: the ring was made by newRing.
func (r *ring) elem(index uint32) unsafe.Pointer {
	return unsafe.Add(r.elems, uintptr(index&r.mask)*r.size)
}

// A producer is the part of a send or receive ring that posts.
type producer struct {
	ring
	head uint32     // next index to publish; only this side stores it
	tail uint32     // the consumer's index when it was last loaded
	laps mmio.Index // how often head has passed the end of the ring
}

// Cap returns the maximum number of entries in the ring.
func (p *producer) Cap() int { return int(p.mask) }

// Fits reports whether n more entries fit according to the last known index of the kernel. It is
// the fast path of Room.
func (p *producer) Fits(n int) bool { return n <= p.free() }

// Room reports whether n more entries fit. It loads the kernel's index only if the last known one
// does not leave room. The error is ErrCorrupt.
func (p *producer) Room(n int) (bool, error) {
	if n <= p.free() {
		return true, nil
	}
	return p.refresh(n)
}

// free returns how many entries fit by the last known consumer index.
func (p *producer) free() int { return int(p.mask - (p.head-p.tail)&p.mask) }

// refresh loads the consumer index and returns the result of Room. It is not inlined, so that Room
// is.
//
//go:noinline
func (p *producer) refresh(n int) (bool, error) {
	// Pairs with the release in queue_advance_consumer of rxe_queue.h: the
	// kernel has read the entries before this index.
	tail := p.consumer.Acquire()
	// It can only have come closer to the producer index. If it is farther away, it has moved
	// past it or backwards, and entries in use would be overwritten.
	if tail > p.mask || (p.head-tail)&p.mask > (p.head-p.tail)&p.mask {
		return false, ErrCorrupt
	}
	p.tail = tail
	return n <= p.free(), nil
}

// Publish hands the first n slots to the kernel and makes the next one slot 0.
//
// Preconditions: 0 <= n; Room(n) was true, and all n slots were filled.
func (p *producer) Publish(n int) {
	head := (p.head + uint32(n)) & p.mask
	if head < p.head {
		p.laps.Release(p.laps.Acquire() + 1)
	}
	p.head = head
	// Pairs with the acquire in queue_get_producer of rxe_queue.h: the kernel
	// sees the entries when it sees this index.
	p.producer.Release(p.head)
}
