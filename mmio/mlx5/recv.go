package mlx5

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
)

// A RecvQueue is the receive queue of a QP or a WQ. One goroutine at a time may post to it,
// and one may complete its entries.
type RecvQueue struct {
	ring   unsafe.Pointer
	mask   uint32 // number of entries - 1
	shift  uint32 // log2 of an entry's size
	maxSGE uint32
	rec    Record
	held   bool // the record is not written yet, see Hold

	head      uint32 // entries that were published
	limit     uint32 // up to where head had room when tail was last loaded
	ids       []uint64
	published mmio.Index // head, which the posting goroutine stores; see SendQueue
	tail      mmio.Index // the polling goroutine stores it: all entries before it have completed
	most      uint32     // how many entries may be posted at a time, of a queue that is used in any order; else 0
	completed mmio.Index // tail+early, which the polling goroutine stores if most is set

	// Only the polling goroutine uses these.
	early uint32 // number of entries from tail on that have completed before an earlier one
	done  []bool // marks those entries
	slow  uint32 // early, or 1 if most is set; CompleteNext takes nothing unless it is 0
}

// NewRecvQueue makes a receive queue in mem, which has size.Bytes() bytes.
func NewRecvQueue(mem []byte, size RecvSize, rec Record) (*RecvQueue, error) {
	if n := size.Entries; n < 1 || n&(n-1) != 0 || n > maxEntries || size.Shift < 4 || size.Shift > 16 || len(mem) < size.Bytes() {
		return nil, fmt.Errorf("mlx5: receive queue of %d entries of %d bytes in %d bytes: %w", n, 1<<size.Shift, len(mem), ErrSize)
	}
	if n := size.InUse; n < 0 || n > size.Entries {
		return nil, fmt.Errorf("mlx5: receive queue of %d entries, %d of them in use: %w", size.Entries, n, ErrSize)
	}
	first := 0
	if size.Strides != (Strides{}) {
		first = nextSize
	}
	q := &RecvQueue{
		most: uint32(size.InUse),
		ring: unsafe.Pointer(&mem[first]), mask: uint32(size.Entries - 1), shift: uint32(size.Shift), maxSGE: uint32(size.MaxSGE),
		rec: rec, ids: make([]uint64, size.Entries), done: make([]bool, size.Entries),
	}
	q.limit = uint32(q.Cap())
	if q.most != 0 {
		q.slow = 1
	}
	return q, nil
}

// Cap returns the maximum number of receives in the queue.
func (q *RecvQueue) Cap() int {
	if q.most != 0 {
		return int(q.most)
	}
	return int(q.mask) + 1
}

// Posted returns how many receives have not completed. In a queue without [RecvSize].InUse a receive that
// completes before an earlier one counts until the earlier one has completed. Posted may be called while
// other goroutines post and complete.
func (q *RecvQueue) Posted() int {
	completed := &q.tail
	if q.most != 0 {
		completed = &q.completed
	}
	n := completed.Acquire() // first, because it is never ahead of the other index
	return int(q.published.Acquire() - n)
}

// Room reports whether n more receives fit.
func (q *RecvQueue) Room(n int) bool {
	if int64(int32(q.limit-q.head)) >= int64(n) {
		return true
	}
	tail := q.tail.Acquire() // pairs with Release in Complete
	q.limit = tail + q.mask + 1
	if q.most != 0 {
		if posted := q.completed.Acquire() + q.most; int32(posted-q.limit) < 0 {
			q.limit = posted
		}
	}
	return int64(int32(q.limit-q.head)) >= int64(n)
}

// RecvSlot fills an entry of a receive queue in place. Finish comes last.
type RecvSlot struct {
	p      unsafe.Pointer // next segment
	left   uint32         // segments that fit
	length uint32
}

// Slot begins the i-th entry that is not published yet.
//
// Preconditions: 0 <= i; Room(i+1) was true since the last Publish.
func (q *RecvQueue) Slot(i int, id uint64) RecvSlot {
	at := (q.head + uint32(i)) & q.mask
	q.ids[at] = id
	return RecvSlot{p: unsafe.Add(q.ring, uintptr(at)<<q.shift), left: q.maxSGE}
}

// AddSGE appends length bytes of registered memory at addr to the memory for the message. The
// errors are ErrTooManySGE and ErrTooLong; they leave the entry unchanged.
func (s *RecvSlot) AddSGE(addr uint64, length, lkey uint32) error {
	total := s.length + length
	switch {
	case s.left == 0:
		return ErrTooManySGE
	case total < length || total > maxLength:
		return ErrTooLong
	case length == 0: // the device would read it as 2 GiB
		return nil
	}
	put32(s.p, 0, length&^inlineFlag)
	put32(s.p, 4, lkey)
	put64(s.p, 8, addr)
	s.p, s.left, s.length = unsafe.Add(s.p, dataSize), s.left-1, total
	return nil
}

// Finish marks the end of the entry, unless the entry is full.
func (s *RecvSlot) Finish() {
	if s.left == 0 {
		return
	}
	put32(s.p, 0, 0)
	put32(s.p, 4, invalidLKey)
	put64(s.p, 8, 0)
}

// Publish hands the first n slots to the device.
func (q *RecvQueue) Publish(n int) {
	q.head += uint32(n)
	q.published.Release(q.head) // pairs with Acquire in Complete
	if !q.held {
		ringRecv(q.rec, q.head)
	}
}

// Hold keeps published receives from the device until Release. A QP for raw packets needs it,
// because the device would receive before the QP is ready to receive.
func (q *RecvQueue) Hold() { q.held = true }

// Release ends Hold.
func (q *RecvQueue) Release() {
	q.held = false
	ringRecv(q.rec, q.head)
}

// CompleteNext takes the completion of an entry if it is the oldest one and none has completed
// before it. It returns the ID of the receive. Otherwise it changes nothing and returns false, and
// Complete may take the completion. It takes none of a queue with [RecvSize].InUse, where Complete counts
// them. It is inlined where completions are polled.
func (q *RecvQueue) CompleteNext(counter uint16) (id uint64, ok bool) {
	tail := q.tail.Acquire() // only the polling goroutine stores it
	// The Acquire of published pairs with Release in Publish.
	if q.published.Acquire() == tail || (uint32(counter)^tail)&q.mask&0xffff|q.slow != 0 {
		return 0, false
	}
	id = q.ids[tail&q.mask]
	q.tail.Release(tail + 1) // pairs with Acquire in Room
	return id, true
}

// Complete takes the completion of an entry and returns the ID of the receive. A device that places
// messages out of order may complete entries out of order, so it accepts any entry that was posted
// and has not completed. For other entries it changes nothing and returns false. An entry is used
// again only when all entries before it have completed.
func (q *RecvQueue) Complete(counter uint16) (id uint64, ok bool) {
	if !q.Waits(counter) {
		return 0, false
	}
	at, tail := uint32(counter)&q.mask, q.tail.Acquire()
	id = q.ids[at]
	q.done[at] = true
	q.early++
	for q.done[tail&q.mask] { // ends, because the last of them is cleared
		q.done[tail&q.mask] = false
		q.early--
		tail++
	}
	if q.most != 0 {
		q.completed.Release(tail + q.early) // pairs with Acquire in Room
	} else {
		q.slow = q.early
	}
	q.tail.Release(tail) // pairs with Acquire in Room
	return id, true
}

// Waits reports whether Complete would accept a completion.
func (q *RecvQueue) Waits(counter uint16) bool {
	tail := q.tail.Acquire()
	return (uint32(counter)-tail)&q.mask < q.published.Acquire()-tail && !q.done[uint32(counter)&q.mask]
}

// Scatter calls put for each scatter/gather entry of a completed receive, until put returns false.
// It is for data that the device has put into the completion.
//
// Preconditions: Waits is true.
func (q *RecvQueue) Scatter(counter uint16, put func(addr uint64, length, lkey uint32) bool) {
	scatter(unsafe.Add(q.ring, uintptr(uint32(counter)&q.mask)<<q.shift), int(q.maxSGE), put)
}

// Find calls put for each scatter/gather entry of the receive with the given ID that has completed last,
// unless its entry is in use again. It returns false if the ring has one with this ID and another length: it
// cannot tell which of them is meant. It may be called while another goroutine posts, so only messages may depend
// on it.
//
//go:norace
func (q *RecvQueue) Find(id uint64, put func(addr uint64, length, lkey uint32) bool) bool {
	tail, found := q.tail.Acquire(), -1
	var length uint64 // of that one
	for back := range q.mask + 1 {
		at := (tail - 1 - back) & q.mask
		if q.ids[at] != id {
			continue
		}
		var n uint64
		q.Scatter(uint16(at), func(_ uint64, size, _ uint32) bool { n += uint64(size); return true })
		if n == 0 { // never used
			continue
		}
		if found >= 0 && n != length {
			return false
		}
		if found < 0 {
			found, length = int(at), n
		}
	}
	if found >= 0 {
		q.Scatter(uint16(found), put)
	}
	return found >= 0
}

// scatter calls put for each data segment, until put returns false.
func scatter(p unsafe.Pointer, n int, put func(addr uint64, length, lkey uint32) bool) {
	for ; n > 0; n-- {
		length, lkey, addr := get32(p, 0), get32(p, 4), get64(p, 8)
		if length == 0 && lkey == invalidLKey {
			return
		}
		if length == 0 {
			length = maxLength
		}
		if !put(addr, length, lkey) {
			return
		}
		p = unsafe.Add(p, dataSize)
	}
}

// Reset empties the queue after the QP has moved to state RESET.
func (q *RecvQueue) Reset() {
	q.head, q.limit, q.early = 0, uint32(q.Cap()), 0
	if q.most == 0 {
		q.slow = 0
	}
	clear(q.done)
	q.published.Release(0)
	q.completed.Release(0)
	q.tail.Release(0)
	q.rec.set(recRecv, 0)
}
