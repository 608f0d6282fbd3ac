package mlx5

import (
	"fmt"
	"unsafe"
)

// A SharedRecvQueue is a receive queue from which several QPs receive, in any order. Its entries
// are a linked list: the device follows the links from the first entry on, and completed entries
// are appended at the end. One goroutine at a time may post or complete.
type SharedRecvQueue struct {
	ring   unsafe.Pointer
	shift  uint32
	maxSGE uint32
	rec    Record

	head  uint16   // next entry to fill
	tail  uint16   // end of the list, which stays empty
	count uint32   // entries that were published
	next  []uint16 // the list; the copy in the ring is for the device only
	busy  []bool   // entries that the device has
	ids   []uint64

	// The entries that are kept unused after page faults (cooling) are a list of their own, the
	// oldest first. Their number is fixed and may be 0.
	cooling            int
	coolHead, coolTail uint16
}

// NewSharedRecvQueue makes a shared receive queue in mem, which has size.Bytes() bytes.
func NewSharedRecvQueue(mem []byte, size RecvSize, rec Record) (*SharedRecvQueue, error) {
	n := size.Entries
	list := n - size.Cooling // entries that are not cooling
	if size.Cooling < 0 || list < 2 || n > maxSRQEntries || size.Shift < 5 || size.Shift > 16 || len(mem) < size.Bytes() {
		return nil, fmt.Errorf("mlx5: shared receive queue of %d entries of %d bytes in %d bytes: %w", n, 1<<size.Shift, len(mem), ErrSize)
	}
	q := &SharedRecvQueue{
		ring: unsafe.Pointer(&mem[0]), shift: uint32(size.Shift), maxSGE: uint32(size.MaxSGE), rec: rec, tail: uint16(list - 1),
		next: make([]uint16, n), busy: make([]bool, n), ids: make([]uint64, n),
	}
	q.cooling, q.coolHead, q.coolTail = size.Cooling, uint16(list), uint16(n-1)
	for i := range n - 1 {
		if i != list-1 {
			q.link(uint16(i), uint16(i+1))
		}
	}
	return q, nil
}

func (q *SharedRecvQueue) entry(i uint16) unsafe.Pointer {
	return unsafe.Add(q.ring, uintptr(i)<<q.shift)
}

// link makes entry next follow entry i.
func (q *SharedRecvQueue) link(i, next uint16) {
	q.next[i] = next
	put16(q.entry(i), 2, next)
}

// Cap returns the maximum number of receives in the queue.
func (q *SharedRecvQueue) Cap() int { return len(q.next) - q.cooling - 1 }

// Entries returns the size of the queue for the device. It includes the entries that are kept
// unused after page faults, which Cap does not count.
func (q *SharedRecvQueue) Entries() int { return len(q.next) - 1 }

// Posted returns how many receives have not completed.
func (q *SharedRecvQueue) Posted() int {
	n := 0
	for _, b := range q.busy {
		if b {
			n++
		}
	}
	return n
}

// SharedSlot fills the entries of a batch, which is published as a whole or discarded.
type SharedSlot struct {
	RecvSlot
	at uint16 // the entry that is next
	n  uint32
}

// Begin starts a batch.
func (q *SharedRecvQueue) Begin() SharedSlot { return SharedSlot{at: q.head} }

// Next begins the next entry of a batch. It reports whether there was one.
func (q *SharedRecvQueue) Next(s *SharedSlot, id uint64) bool {
	if s.at == q.tail {
		return false
	}
	q.ids[s.at] = id
	s.RecvSlot = RecvSlot{p: unsafe.Add(q.entry(s.at), nextSize), left: q.maxSGE}
	s.at = q.next[s.at]
	s.n++
	return true
}

// Publish hands the entries of a batch to the device.
func (q *SharedRecvQueue) Publish(s *SharedSlot) {
	for q.head != s.at {
		q.busy[q.head] = true
		q.head = q.next[q.head]
	}
	q.count += s.n
	ringRecv(q.rec, q.count)
}

// ID returns the ID of an entry that has completed. The error is ErrCorrupt if the device
// does not have that entry.
func (q *SharedRecvQueue) ID(counter uint16) (uint64, error) {
	if int(counter) >= len(q.busy) || !q.busy[counter] {
		return 0, ErrCorrupt
	}
	return q.ids[counter], nil
}

// Free returns a completed entry to the queue. The error is ErrCorrupt as for ID.
func (q *SharedRecvQueue) Free(counter uint16) error {
	if int(counter) >= len(q.busy) || !q.busy[counter] {
		return ErrCorrupt
	}
	q.busy[counter] = false
	q.link(q.tail, counter)
	q.tail = counter
	return nil
}

// Repost posts the receive of an entry again after a page fault (see [CQE.PageFault]). The device
// has not used up the receive, but it may read the entry once more when it continues. The receive
// therefore moves to another entry. Its own entry stays unused until as many other entries have had
// page faults as there are cooling entries. If there are none, it goes to the end of the list. The
// error is ErrCorrupt as for ID.
func (q *SharedRecvQueue) Repost(counter uint16) error {
	if int(counter) >= len(q.busy) || !q.busy[counter] {
		return ErrCorrupt
	}
	free := counter
	if q.cooling > 0 {
		q.link(q.coolTail, counter)
		q.coolTail = counter
		free = q.coolHead
		q.coolHead = q.next[free]
	}
	q.link(q.tail, free)
	q.tail = free
	// There is an entry before the tail now, and it is not the one of the receive.
	to := q.head
	src, dst := unsafe.Add(q.entry(counter), nextSize), unsafe.Add(q.entry(to), nextSize)
	n := uintptr(1)<<q.shift - nextSize
	copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
	q.ids[to] = q.ids[counter]
	q.busy[counter], q.busy[to] = false, true
	q.head = q.next[to]
	q.count++
	ringRecv(q.rec, q.count)
	return nil
}

// Scatter is like [RecvQueue.Scatter].
//
// Preconditions: ID has returned no error.
func (q *SharedRecvQueue) Scatter(counter uint16, put func(addr uint64, length, lkey uint32) bool) {
	scatter(unsafe.Add(q.entry(counter), nextSize), int(q.maxSGE), put)
}
