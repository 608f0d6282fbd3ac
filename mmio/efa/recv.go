package efa

import (
	"fmt"
	"unsafe"
)

// A RecvQueue is the receive queue of a QP: a ring of descriptors, one for each scatter/gather entry of a
// receive. One goroutine at a time may post to it, and one may complete its receives.
type RecvQueue struct {
	slots
	ring   unsafe.Pointer
	bell   *uint32
	descs  uint32 // number of descriptors - 1
	maxSGE uint32
	start  uint32 // descriptors that were published
	next   uint32 // and those that were filled since
}

// NewRecvQueue makes the receive queue of a QP in mem, which the kernel has allocated. The doorbell and the
// generation are as in [NewSendQueue].
func NewRecvQueue(mem, doorbell []byte, size RecvSize, gen uint16) (*RecvQueue, error) {
	if n := size.Descriptors; n < 1 || n > maxDepth || n&(n-1) != 0 || size.MaxSGE < 1 || size.MaxWR < 1 || size.MaxWR > n/size.MaxSGE {
		return nil, fmt.Errorf("%w: receive queue of %d descriptors for %d receives of %d entries", ErrSize, n, size.MaxWR, size.MaxSGE)
	}
	if len(mem) < size.Bytes() || uintptr(unsafe.Pointer(&mem[0]))%8 != 0 {
		return nil, fmt.Errorf("%w: receive queue: got %d bytes, %d descriptors need %d, aligned to 8", ErrMapping, len(mem), size.Descriptors, size.Bytes())
	}
	bell, err := register(doorbell)
	if err != nil {
		return nil, err
	}
	return &RecvQueue{
		slots: newSlots(size.MaxWR, gen), ring: unsafe.Pointer(&mem[0]), bell: bell,
		descs: uint32(size.Descriptors - 1), maxSGE: uint32(size.MaxSGE),
	}, nil
}

// Bits of a descriptor: the second word is the request ID, the length, the lkey and the marks.
const (
	descLength = 16
	descKey    = 32
	descFirst  = 1 << 62
	descLast   = 1 << 63
)

// desc returns the descriptor at a position.
func (q *RecvQueue) desc(pos uint32) unsafe.Pointer {
	return unsafe.Add(q.ring, uintptr(pos&q.descs)*descriptorSize)
}

// A RecvSlot fills the descriptors of one receive. Finish comes last.
type RecvSlot struct {
	q     *RecvQueue
	id    uint64
	index uint32 // of its slot
	seq   uint32 // receives before it
	n     uint32 // entries
	marks uint64 // of the next descriptor
}

// Begin drops receives that were filled and not published. It must be called before the first Slot of a
// list.
func (q *RecvQueue) Begin() { q.next = q.start }

// Slot begins the i-th receive that is not published yet. The receives before it must be finished.
//
// Preconditions: 0 <= i; Room(i+1) was true since the last Publish; Slot was called for those before since
// Begin.
func (q *RecvQueue) Slot(i int, id uint64) RecvSlot {
	seq := q.head + uint32(i)
	index := uint32(*q.place(seq))
	return RecvSlot{q: q, id: id, index: index, seq: seq, marks: uint64(index|q.gen) | descFirst}
}

// Put fills the i-th receive that is not published yet with one entry. It does what Slot, AddSGE and Finish do,
// with fewer instructions. The error is ErrKey.
//
// Preconditions: those of Slot.
func (q *RecvQueue) Put(i int, id, addr uint64, length, lkey uint32) error {
	if lkey > MaxKey {
		return ErrKey
	}
	seq, at := q.head+uint32(i), q.next
	index := uint32(*q.place(seq))
	p := q.desc(at)
	put64(p, 0, addr)
	put64(p, 8, uint64(index|q.gen)|uint64(min(length, MaxRecvLength))<<descLength|uint64(lkey)<<descKey|descFirst|descLast)
	q.record(index, seq, at, id, 1)
	q.next = at + 1
	return nil
}

// record records a receive with n entries, of which the first one is at a position.
func (q *RecvQueue) record(index, seq, at uint32, id uint64, n uint32) {
	e := q.slot(index)
	e.id.Store(id)
	e.what.Store(uint64(seq) | uint64(at)<<32)
	e.state.Store(uint64(n) | slotUsed)
}

// AddSGE appends length bytes of registered memory at addr to the memory for the message. The device has 16
// bits for a length, and no message is as long, so that a longer entry counts as MaxRecvLength. The errors are
// ErrTooManySGE and ErrKey; they leave the receive unchanged.
func (s *RecvSlot) AddSGE(addr uint64, length, lkey uint32) error {
	q := s.q
	switch {
	case s.n == q.maxSGE:
		return ErrTooManySGE
	case lkey > MaxKey:
		return ErrKey
	}
	p := q.desc(q.next + s.n)
	put64(p, 0, addr)
	put64(p, 8, s.marks|uint64(min(length, MaxRecvLength))<<descLength|uint64(lkey)<<descKey)
	s.marks, s.n = 0, s.n+1
	return nil
}

// Finish completes the receive, which is then ready to be published. The error is ErrNoSGE.
func (s *RecvSlot) Finish() error {
	if s.n == 0 {
		return ErrNoSGE
	}
	q := s.q
	*(*uint64)(unsafe.Add(q.desc(q.next+s.n-1), 8)) |= descLast
	q.record(s.index, s.seq, q.next, s.id, s.n)
	q.next += s.n
	return nil
}

// Complete takes the completion of a receive, which may be any that was published and has not completed,
// and returns its ID. If there is no such receive, nothing changes and ok is false; see [RecvQueue.Stale].
// It is Stale, At, Waits and Take.
func (q *RecvQueue) Complete(reqID uint16) (id uint64, ok bool) {
	p, ok := q.posted(reqID)
	if !ok {
		return 0, false
	}
	return q.Take(p), true
}

// Reset empties the queue after the QP has moved to state RESET; see [SendQueue.Reset].
func (q *RecvQueue) Reset(gen uint16) {
	q.start, q.next = 0, 0
	q.reset(gen)
}
