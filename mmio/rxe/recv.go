package rxe

import (
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/rxe/internal/abi"
)

// A RecvQueue is the receive ring of a queue pair or of a shared receive queue (struct
// rxe_queue_buf with elements of struct rxe_recv_wqe). One goroutine at a time may use it.
type RecvQueue struct {
	producer
	maxSGE   uint32
	doorbell *mmio.Index // see WantsDoorbell
}

// NewRecvQueue makes a RecvQueue of a mapped ring that was created for maxWR work requests of up to
// maxSGE scatter/gather entries. The error matches ErrCorrupt if the memory is not such a ring.
func NewRecvQueue(mem []byte, maxWR, maxSGE int) (*RecvQueue, error) {
	q := &RecvQueue{}
	if err := q.Init(mem, maxWR, maxSGE); err != nil {
		return nil, err
	}
	return q, nil
}

// Init is [NewRecvQueue] for a RecvQueue that is part of another object. If it fails, it changes
// nothing.
func (q *RecvQueue) Init(mem []byte, maxWR, maxSGE int) error {
	r, prod, cons, err := newRing(mem, "receive queue", maxWR, unsafe.Sizeof(abi.RxeRecvWQE{}))
	if err != nil {
		return err
	}
	room := int(r.size) - int(unsafe.Sizeof(abi.RxeRecvWQE{}))
	if err := checkRoom("receive queue", "scatter/gather entries", maxSGE, room/int(unsafe.Sizeof(abi.RxeSGE{}))); err != nil {
		return err
	}
	const offset = unsafe.Offsetof(abi.RxeQueueBuf{}.IndexMask) + unsafe.Sizeof(abi.RxeQueueBuf{}.IndexMask)
	doorbell, err := mmio.IndexAt(mem, offset)
	if err != nil {
		return err
	}
	*q = RecvQueue{producer: producer{ring: r, head: prod, tail: cons}, maxSGE: uint32(maxSGE), doorbell: doorbell}
	return nil
}

// MaxSGE returns how many scatter/gather entries a work request may have.
func (q *RecvQueue) MaxSGE() int { return int(q.maxSGE) }

// WantsDoorbell reports whether the device must be told about what was published: a software device whose QP is
// in state ERR, and which has to flush it. The word is padding in the kernel's header, where it is always 0.
func (q *RecvQueue) WantsDoorbell() bool { return q.doorbell.Acquire() != 0 }

// Posted returns how many work requests the kernel has not taken yet. It may be called while
// another goroutine posts.
func (q *RecvQueue) Posted() int {
	taken := q.ring.consumer.Acquire() // first, because it is never ahead of the other index
	return int((q.ring.producer.Acquire() - taken) & q.mask)
}

// Has reports whether the ring still has a work request with the given ID, whether or not the
// kernel has taken it. It may be called while another goroutine posts. x may be nil.
func (q *RecvQueue) Has(x *IDIndex, wrID uint64) bool {
	_, ok := x.find(&q.producer, wrID, q.readID)
	return ok
}

// Find returns the memory of the newest work request with the given ID, under the conditions of Has. It returns false
// if the ring has one with this ID and another length: it cannot tell which of them is meant.
//
//go:norace
func (q *RecvQueue) Find(x *IDIndex, wrID uint64) ([]SGEInfo, bool) {
	i, ok := x.find(&q.producer, wrID, q.readID)
	if !ok {
		return nil, false
	}
	dma := &(*abi.RxeRecvWQE)(q.elem(i)).DMA
	for other := range q.mask + 1 {
		if id, used := q.readID(other); used && id == wrID && (*abi.RxeRecvWQE)(q.elem(other)).DMA.Length != dma.Length {
			return nil, false
		}
	}
	return sgesOf(dma, q.maxSGE), true
}

// readID returns the ID of an element, and whether it was ever written. An element past the producer
// index that is all zero was not. The race detector does not watch it: see [SendInfo].
//
//go:norace
func (q *RecvQueue) readID(index uint32) (wrID uint64, used bool) {
	w := (*abi.RxeRecvWQE)(q.elem(index))
	head := q.ring.producer.Acquire() & q.mask
	return w.WRID, w.WRID != 0 || index < head || w.DMA.Length|w.DMA.NumSGE != 0
}

// Slot returns the i-th slot that is not published yet.
//
// Preconditions: 0 <= i; Room(i+1) was true since the last Publish.
func (q *RecvQueue) Slot(i int) RecvSlot {
	return RecvSlot{wqe: (*abi.RxeRecvWQE)(q.elem(q.head + uint32(i))), maxSGE: q.maxSGE}
}

// A RecvSlot fills one element of a RecvQueue in place. Call Start first. One goroutine uses it,
// until the slot is published.
type RecvSlot struct {
	wqe    *abi.RxeRecvWQE
	maxSGE uint32
	numSGE uint32
	length uint32 // in bytes, of all scatter/gather entries
}

// Start begins a work request: it clears the element and sets the ID.
func (s *RecvSlot) Start(wrID uint64) {
	// As bytes, because an assignment may skip the blank fields.
	*(*[unsafe.Sizeof(abi.RxeRecvWQE{})]byte)(unsafe.Pointer(s.wqe)) = [unsafe.Sizeof(abi.RxeRecvWQE{})]byte{}
	s.wqe.WRID = wrID
	s.numSGE, s.length = 0, 0
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
	n := s.numSGE
	s.numSGE, s.length = n+1, total
	fillSGE(&s.wqe.DMA, n, total, addr, length, lkey)
	return nil
}
