package efa

import (
	"math/bits"
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
)

// slots are the request IDs of a queue, and what is known about the request of each. An ID consists of
// the index of a slot and, above that, the generation of the queue. Requests complete in any order, so
// the unused slots form a ring: the posting goroutine takes them from its head, and the polling
// goroutine returns them at its tail. A queue has room for as many requests as the ring has slots.
type slots struct {
	all  unsafe.Pointer // the first slot
	free unsafe.Pointer // the first place of the ring of unused slots, each a uint16
	mask uint32         // places in each - 1
	gen  uint32         // the generation, in its place in a request ID

	// Only the posting goroutine uses these.
	head  uint32 // requests that were published
	limit uint32 // tail, when it was last loaded

	n         uint32     // requests that fit
	published mmio.Index // head, which the posting goroutine stores
	tail      mmio.Index // n and the number of slots that were returned; the polling goroutine stores it
}

// slot is the record of a request. The posting goroutine stores it, and Find may load it at the same
// time.
type slot struct {
	id    mmio.Word
	what  mmio.Word // bits 0 to 31: requests posted before it; 32 to 63: bytes of a send, or descriptors posted before a receive
	state mmio.Word // bits 0 to 7: the operation, or the number of descriptors; slotUsed until it completes
	_     uint64    // two of them in a cache line, and addresses by a shift
}

const slotUsed = 1 << 8

// newSlots makes the slots for n requests.
//
// Preconditions: 1 <= n <= maxDepth.
func newSlots(n int, gen uint16) slots {
	places := pow2(n)
	s := slots{
		all: unsafe.Pointer(&make([]slot, places)[0]), free: unsafe.Pointer(&make([]uint16, places)[0]),
		mask: uint32(places - 1), n: uint32(n), gen: noGeneration,
	}
	s.reset(gen)
	return s
}

// noGeneration is no generation in its place in a request ID.
const noGeneration = 1 << 16

// reset makes all slots unused and begins a generation, which is another one than before: a deep queue has few.
func (s *slots) reset(gen uint16) {
	now := uint32(gen << bits.Len32(s.mask))
	if now == s.gen {
		now = uint32(uint16(now + s.mask + 1))
	}
	s.gen = now
	for i := range s.n {
		*s.place(i) = uint16(i)
		s.slot(i).state.Store(0)
	}
	s.head, s.limit = 0, s.n
	s.published.Release(0)
	s.tail.Release(s.n)
}

// slot returns the slot with an index.
//
// Preconditions: i <= s.mask.
func (s *slots) slot(i uint32) *slot {
	return (*slot)(unsafe.Add(s.all, uintptr(i)*unsafe.Sizeof(slot{})))
}

// place returns a place of the ring of unused slots, for any position.
func (s *slots) place(at uint32) *uint16 {
	return (*uint16)(unsafe.Add(s.free, uintptr(at&s.mask)*2))
}

// Cap returns the maximum number of requests in the queue.
func (s *slots) Cap() int { return int(s.n) }

// Room reports whether n more requests fit. A request takes room until its completion was taken.
func (s *slots) Room(n int) bool { return int64(int32(s.limit-s.head)) >= int64(n) || s.refresh(n) }

// refresh loads the tail and returns the result of Room. It is not inlined, so that Room is.
//
//go:noinline
func (s *slots) refresh(n int) bool {
	s.limit = s.tail.Acquire() // pairs with Release in Take
	return int64(int32(s.limit-s.head)) >= int64(n)
}

// Posted returns how many requests have not completed. It may be called while other goroutines post and
// complete.
func (s *slots) Posted() int {
	done := s.tail.Acquire() - s.n                   // first, because it is never ahead of the other index
	return int(min(s.published.Acquire()-done, s.n)) // a reset is between the two
}

// A Posted is what is known of the request with an ID, which may be of the past.
type Posted struct {
	slot      *slot
	index     uint32
	published uint32 // see slots
	state     uint64
}

// Op returns the operation of a send.
func (p Posted) Op() Op { return Op(p.state) }

// Length returns the number of bytes of a send, until Take.
func (p Posted) Length() uint32 { return uint32(p.slot.what.Load() >> 32) }

// Waits reports whether the request was published and has not completed.
func (p Posted) Waits() bool {
	// A slot may be in use and not published yet.
	return p.state&slotUsed != 0 && int32(p.published-uint32(p.slot.what.Load())) > 0
}

// At returns the last request with an ID.
//
// Preconditions: Stale returns false for it.
func (s *slots) At(reqID uint16) (p Posted) {
	p.index = uint32(reqID) ^ s.gen
	p.slot = (*slot)(unsafe.Add(s.all, uintptr(p.index)*unsafe.Sizeof(slot{}))) // not by slot, which is an instruction more
	p.published = s.published.Acquire()                                         // pairs with Release in publish
	p.state = p.slot.state.Load()
	return p
}

// posted returns the request with an ID, or false unless the queue has published one in this generation that has
// not completed.
func (s *slots) posted(reqID uint16) (p Posted, ok bool) {
	if s.Stale(reqID) {
		return p, false
	}
	p = s.At(reqID)
	return p, p.Waits()
}

// Take takes the completion of a request, and returns its ID. Like Stale, At and Waits it is inlined where
// completions are polled; one function for all would be too long for that.
//
// Preconditions: At has returned p, Waits returns true, and nothing was taken since.
func (s *slots) Take(p Posted) (id uint64) {
	id = p.slot.id.Load()
	p.slot.state.Store(p.state &^ slotUsed)
	tail := s.tail.Acquire() // only this goroutine stores it
	*s.place(tail) = uint16(p.index)
	s.tail.Release(tail + 1) // pairs with Acquire in refresh
	return id
}

// publish counts n more requests.
func (s *slots) publish(n int) {
	s.head += uint32(n)
	s.published.Release(s.head) // pairs with Acquire in At
}

// Stale reports whether a request ID is of another generation of the queue: the request was posted before
// the queue was reset, or to an earlier QP with the same number.
func (s *slots) Stale(reqID uint16) bool { return uint32(reqID)^s.gen > s.mask }

// pow2 rounds n up to a power of two.
//
// Preconditions: 1 <= n <= 1<<31.
func pow2(n int) int { return 1 << bits.Len(uint(n-1)) }
