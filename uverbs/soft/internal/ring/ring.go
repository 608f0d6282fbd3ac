package ring

import (
	"math/bits"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
)

// cacheLine is the smallest size of an element (cache_line_size in rxe_queue_init), in bytes.
const cacheLine = 64

// A Ring is a queue that a program and the device share.
type Ring struct {
	mem      []byte // all of the mapping
	producer *mmio.Index
	consumer *mmio.Index
	mask     uint32 // slots - 1
	shift    uint32 // log2 of the distance between elements, in bytes
	used     int    // bytes of an element that hold a work request or a completion
	owner    any    // frees mem; nil for memory of the Go heap
}

// New makes an empty ring for count elements of elemSize bytes. It has a power of two of slots, of
// which one is always free, so that count elements fit; an element takes a power of two of bytes,
// at least a cache line (rxe_queue_init). The errno is ENOMEM if the process cannot have the memory.
//
// Preconditions: 0 <= count <= 1<<20; 0 < elemSize <= 4096.
func New(count, elemSize int) (*Ring, syscall.Errno) {
	r := new(Ring)
	return r, r.Init(count, elemSize)
}

// Init is [New] for a ring that is part of another object.
func (r *Ring) Init(count, elemSize int) syscall.Errno {
	n := r.layOut(count, elemSize)
	mem, owner, errno := alloc(n)
	if errno == 0 {
		r.place(mem[:n:n], owner)
	}
	return errno
}

// InitPair is [Ring.Init] for the two rings of a QP, which are neighbors in memory. The shorter one comes first, so that
// the beginnings of both take few pages.
func InitPair(a, b *Ring, aCount, aElemSize, bCount, bElemSize int) syscall.Errno {
	n, m := a.layOut(aCount, aElemSize), b.layOut(bCount, bElemSize)
	if n > m {
		a, b, n, m = b, a, m, n
	}
	mem, owner, errno := alloc(n + m)
	if errno == 0 {
		a.place(mem[:n:n], owner)
		b.place(mem[n:n+m:n+m], owner)
	}
	return errno
}

// layOut sets the sizes of the ring, and returns how many bytes it needs, whole cache lines.
func (r *Ring) layOut(count, elemSize int) int {
	slots := uint64(1) << bits.Len64(uint64(count))
	r.mask, r.used = uint32(slots-1), elemSize
	r.shift = uint32(bits.Len64(uint64(max(elemSize, cacheLine)) - 1))
	return headerSize + int(slots)<<r.shift
}

// place gives the ring its memory, which is zeroed.
func (r *Ring) place(mem []byte, owner any) {
	r.mem, r.owner = mem, owner
	h := header(mem)
	h.Log2ElemSize, h.IndexMask = r.shift, r.mask
	r.producer, r.consumer = index(mem, producerOffset), index(mem, consumerOffset)
}

// index returns an index of a ring.
func index(mem []byte, offset uintptr) *mmio.Index {
	x, err := mmio.IndexAt(mem, offset)
	if err != nil {
		panic("ring: " + err.Error()) // alloc returns aligned memory that has room for the header
	}
	return x
}

// Bytes returns the whole mapping. In rxe it is a multiple of the page size (rxe_create_mmap_info), as the program
// can map nothing less.
func (r *Ring) Bytes() []byte { return r.mem }

// Map returns the first size bytes of the mapping for the program. They stay what they are as long as
// the program has the region, even when the device has forgotten the ring.
func (r *Ring) Map(size int) *mmio.Region { return mmio.Borrow(r.mem[:size:size], r.owner) }

// Slots returns the number of slots, a power of two. At most Slots-1 are in use.
func (r *Ring) Slots() int { return int(r.mask) + 1 }

// Cap returns the number of elements that fit, which is what rxe reports as the queue's size.
func (r *Ring) Cap() int { return int(r.mask) }

// Producer loads the producer index, masked. On a work queue it is the program's; the elements
// before it are complete.
func (r *Ring) Producer() uint32 {
	// Pairs with the release of the program, after it has written the elements.
	return r.producer.Acquire() & r.mask
}

// Consumer loads the consumer index, masked. On a completion queue it is the program's; the program
// has read the elements before it.
func (r *Ring) Consumer() uint32 {
	// Pairs with the release of the program, after it has read the elements.
	return r.consumer.Acquire() & r.mask
}

// SetProducer stores the producer index of a completion queue, masked. The program sees all elements
// before it.
func (r *Ring) SetProducer(i uint32) { r.producer.Release(i & r.mask) }

// SetConsumer stores the consumer index of a work queue, masked. The program may overwrite the
// elements before it.
func (r *Ring) SetConsumer(i uint32) { r.consumer.Release(i & r.mask) }

// WantDoorbell says whether a program that has posted to a receive queue must ring the doorbell of the QP. It
// uses a word that is padding in rxe's header, where the kernel leaves it 0. A program that posts at the same
// time may see the word too late.
func (r *Ring) WantDoorbell(want bool) {
	value := uint32(0)
	if want {
		value = 1
	}
	index(r.mem, doorbellOffset).Publish(value)
}

// Next returns the index after i.
func (r *Ring) Next(i uint32) uint32 { return (i + 1) & r.mask }

// Count returns the number of elements from one index to another, which is less than Slots.
func (r *Ring) Count(from, to uint32) int { return int((to - from) & r.mask) }

// Full reports whether no element fits any more between two indices.
func (r *Ring) Full(producer, consumer uint32) bool { return (producer+1-consumer)&r.mask == 0 }

// Elem returns the element of any index.
func (r *Ring) Elem(i uint32) []byte {
	at := uint64(headerSize) + uint64(i&r.mask)<<r.shift
	return r.mem[at : at+1<<r.shift : at+1<<r.shift]
}

// Reset clears all elements, as rxe does when a QP moves to RESET (rxe_queue_reset). The indices stay.
func (r *Ring) Reset() { clear(r.mem[headerSize:]) }

// Resize returns a new ring for count elements with the elements of r from consumer to producer at
// its start, and their number, which is the producer index of the new ring. The consumer index of r
// becomes producer, so that r is empty (resize_finish). The errno is EINVAL if the new ring would be
// too small, and that of New; r is unchanged then.
//
// Preconditions: those of New; nobody uses the device's side of r.
func (r *Ring) Resize(count int, producer, consumer uint32) (n *Ring, elems uint32, errno syscall.Errno) {
	have := r.Count(consumer, producer)
	if n, errno = New(count, r.used); errno != 0 {
		return nil, 0, errno
	}
	if have > n.Cap() {
		return nil, 0, syscall.EINVAL
	}
	for i := range uint32(have) {
		copy(n.Elem(i)[:r.used], r.Elem(consumer + i)[:r.used])
	}
	n.SetProducer(uint32(have))
	r.SetConsumer(producer)
	return n, uint32(have), 0
}
