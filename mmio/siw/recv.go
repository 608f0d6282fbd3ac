package siw

import (
	"unsafe"

	"github.com/goverbs/goverbs/mmio/siw/internal/abi"
)

// A RecvQueue is the receive ring of a queue pair or of a shared receive queue (an array of struct
// siw_rqe). One goroutine at a time may use it.
type RecvQueue struct {
	producer
}

// NewRecvQueue makes a RecvQueue of a mapped ring of num elements, whose work requests have up
// to maxSGE scatter/gather entries. The error matches ErrMapping.
func NewRecvQueue(mem []byte, num, maxSGE int) (*RecvQueue, error) {
	p, err := newProducer(mem, "receive queue", num, maxSGE, unsafe.Sizeof(abi.SiwRqe{}))
	if err != nil {
		return nil, err
	}
	return &RecvQueue{producer: p}, nil
}

// Slot returns the i-th slot that is not published yet.
//
// Preconditions: 0 <= i; Room(i+1) was true since the last Publish.
func (q *RecvQueue) Slot(i int) RecvSlot {
	at := q.head + uint32(i)
	return RecvSlot{rqe: (*abi.SiwRqe)(q.elem(at)), word: &q.words[at&q.mask], maxSGE: q.maxSGE}
}

// Publish hands the first n slots to the kernel and makes the next one slot 0.
//
// Preconditions: 0 <= n; Room(n) was true, and all n slots were filled.
func (q *RecvQueue) Publish(n int) {
	for i := range uint32(n) {
		at := q.head + i
		// The kernel looks at the flag before it reads the rest (siw_rqe_get).
		q.word(at).Release(q.words[at&q.mask])
	}
	q.advance(n)
}

// A RecvSlot fills one element of a RecvQueue in place. Call Start first. One goroutine uses it,
// until the slot is published.
type RecvSlot struct {
	rqe    *abi.SiwRqe
	word   *uint32 // what publishing stores: the program's own memory
	maxSGE uint32
	numSGE uint32
	length uint32 // in bytes, of all scatter/gather entries
}

// Start begins a work request.
func (s *RecvSlot) Start(wrID uint64) {
	s.rqe.ID = wrID
	s.numSGE, s.length = 0, 0
	*s.word = valid
}

// AddSGE appends length bytes of registered memory at addr to the memory for the message. The
// errors are ErrTooManySGE and ErrTooLong; they leave the request unchanged.
func (s *RecvSlot) AddSGE(addr uint64, length, lkey uint32) error {
	total := s.length + length
	if s.numSGE >= s.maxSGE {
		return ErrTooManySGE
	}
	if total < length {
		return ErrTooLong
	}
	s.rqe.SGE[s.numSGE] = abi.SiwSGE{Laddr: addr, Length: length, LKey: lkey}
	s.numSGE, s.length = s.numSGE+1, total
	*s.word = valid | s.numSGE<<numSGEBit
	return nil
}
