package siw

import (
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/siw/internal/abi"
)

// A SendQueue is the send ring of a queue pair (an array of struct siw_sqe). One goroutine at a
// time may use it, except for Find.
type SendQueue struct {
	producer
	missed bool      // the kernel was not told of what is in the ring
	posted mmio.Word // head, for Find
}

// NewSendQueue makes a SendQueue of a mapped ring of num elements, whose work requests have up
// to maxSGE scatter/gather entries. The error matches ErrMapping.
func NewSendQueue(mem []byte, num, maxSGE int) (*SendQueue, error) {
	p, err := newProducer(mem, "send queue", num, maxSGE, unsafe.Sizeof(abi.SiwSqe{}))
	if err != nil {
		return nil, err
	}
	return &SendQueue{producer: p}, nil
}

// Slot returns the i-th slot that is not published yet.
//
// Preconditions: 0 <= i; Room(i+1) was true since the last Publish.
func (q *SendQueue) Slot(i int) SendSlot {
	at := q.head + uint32(i)
	return SendSlot{sqe: (*abi.SiwSqe)(q.elem(at)), word: &q.words[at&q.mask], maxSGE: q.maxSGE}
}

// Put fills the i-th slot that is not published yet with a work request for length bytes of
// registered memory at addr. It does what Slot, Start, SetRDMA and AddSGE do, with fewer
// instructions. raddr and rkey are the address and key of the peer's memory, 0 for a SEND.
//
// Preconditions: those of Slot; the queue was made for scatter/gather entries.
func (q *SendQueue) Put(i int, wrID uint64, op, flags uint8, raddr uint64, rkey uint32, addr uint64, length, lkey uint32) {
	at := q.head + uint32(i)
	w := (*abi.SiwSqe)(q.elem(at))
	w.ID = wrID
	w.Raddr = raddr
	w.RKey = rkey
	w.SGE[0] = abi.SiwSGE{Laddr: addr, Length: length, LKey: lkey}
	if op == Read || op == ReadInv {
		flags &^= Fence // see Start
	}
	q.words[at&q.mask] = valid | uint32(flags) | 1<<numSGEBit | uint32(op)<<opcodeBit
}

// Publish hands the first n slots to the kernel and makes the next one slot 0. It reports whether
// the kernel must be told by a doorbell.
//
// The first slot is handed over last, so that the kernel, which works in order, finds either none
// of the slots or all of them. This side sets the flag of the first slot and then looks at the slot
// before it; the kernel clears the flag of that slot and then looks at the first slot. Each has a
// full barrier between the two steps. The side that comes second sees the store of the other, so at
// least one of them knows that there is more to do: either the kernel finds the slots by itself, or
// this side rings the doorbell.
//
// Preconditions: 0 < n; Room(n) was true, and all n slots were filled.
func (q *SendQueue) Publish(n int) (ring bool) {
	for i := uint32(n) - 1; i > 0; i-- {
		at := q.head + i
		q.word(at).Release(q.words[at&q.mask])
	}
	q.word(q.head).Publish(q.words[q.head&q.mask])
	ring = n > int(q.mask) || q.missed || q.word(q.head-1).Acquire()&valid == 0
	q.missed = false
	q.advance(n)
	q.posted.Store(uint64(q.head))
	return ring
}

// copied is up to how many bytes the kernel puts into a packet right behind its header
// (MAX_HDR_INLINE of siw_qp_tx.c).
const copied = 32

// Copied returns the first slot, of the n slots from the i-th on, with so little registered memory
// that the kernel copies it. It returns n if there is none.
//
// The doorbell sends what is in the ring. After every 99 packets it leaves the rest to a kernel
// thread, which considers itself the caller until the caller has returned. If the thread copies
// data then, it copies from an address in memory that it does not have, and breaks the connection.
// Such a slot must therefore not follow another one when the doorbell is rung, unless Enclose
// accepts it (siw_post_send, siw_qp_sq_process and siw_try_1seg; the connections broke on Linux
// 7.2).
//
// Preconditions: those of Publish; 0 <= i.
func (q *SendQueue) Copied(i, n int) int {
	for ; i < n; i++ {
		at := q.head + uint32(i)
		word := q.words[at&q.mask]
		op, entries := uint8(word>>opcodeBit), uint8(word>>numSGEBit)
		if op != Send && op != SendInv && op != Write || word&abi.SIW_WQE_INLINE != 0 || entries != 1 {
			continue
		}
		if bytes := (*abi.SiwSqe)(q.elem(at)).SGE[0].Length; 0 < bytes && bytes <= copied {
			return i
		}
	}
	return n
}

// FromPages makes the kernel read the data of the first n slots from the pages of their regions. The
// data of the slots that [SendQueue.Copied] finds it would otherwise read at their addresses in the
// process that rings the doorbell, which is another process than the one that has registered the
// region if the region is imported. FromPages adds an entry of no bytes to such a slot, since the kernel
// does this with one entry only (siw_try_1seg).
//
// Preconditions: those of Publish.
func (q *SendQueue) FromPages(n int) {
	for i := q.Copied(0, n); i < n; i = q.Copied(i+1, n) {
		at := q.head + uint32(i)
		(*abi.SiwSqe)(q.elem(at)).SGE[1] = abi.SiwSGE{}
		q.words[at&q.mask] += 1 << numSGEBit
	}
}

// Local returns the memory of the first scatter/gather entry of the i-th slot.
//
// Preconditions: those of Publish; i < n; the slot has an entry.
func (q *SendQueue) Local(i int) (addr uint64, length, lkey uint32) {
	e := &(*abi.SiwSqe)(q.elem(q.head + uint32(i))).SGE[0]
	return e.Laddr, e.Length, e.LKey
}

// Enclose copies the data of the i-th slot into the slot, as inline data. It does nothing and
// returns false if the kernel does not look for inline data there, or if an earlier request may
// still change the data: a SEND or an RDMA WRITE with a fence waits for that request.
//
// Preconditions: those of Local; the entry's memory holds data, and no other entry does; len(data)
// is at most MaxInline.
func (q *SendQueue) Enclose(i int, data []byte) bool {
	at := q.head + uint32(i)
	word := &q.words[at&q.mask]
	if op := uint8(*word >> opcodeBit); op != Send && op != Write || *word&uint32(Fence) != 0 {
		return false
	}
	w := (*abi.SiwSqe)(q.elem(at))
	w.SGE[0].Length = uint32(copy(inlineRoom(w)[:], data))
	*word |= abi.SIW_WQE_INLINE
	return true
}

// inlineRoom is where inline data goes: all entries but the first.
func inlineRoom(w *abi.SiwSqe) *[MaxInline]byte { return (*[MaxInline]byte)(unsafe.Pointer(&w.SGE[1])) }

const _ = -(unsafe.Sizeof(abi.SiwSqe{}) - unsafe.Offsetof(abi.SiwSqe{}.SGE) - unsafe.Sizeof(abi.SiwSGE{}) ^ MaxInline)

// Missed records that the doorbell did not reach the kernel, so that the next Publish asks for one.
func (q *SendQueue) Missed() { q.missed = true }

// A SendSlot fills one element of a SendQueue in place. Call Start first. One goroutine uses it,
// until the slot is published.
type SendSlot struct {
	sqe    *abi.SiwSqe
	word   *uint32 // what publishing stores: the program's own memory
	maxSGE uint32
	op     uint8
	flags  uint8
	numSGE uint32
	length uint32 // in bytes, of all scatter/gather entries or inline data
}

// Start begins a work request: it sets the fields that every operation has and clears those that
// some operations do not set. The flags stay clear until the slot is published.
func (s *SendSlot) Start(wrID uint64, op, flags uint8) {
	w := s.sqe
	w.ID = wrID
	w.RKey = 0
	w.Raddr = 0
	w.SGE[0] = abi.SiwSGE{} // a READ has an entry even if it was given none
	if op == Read || op == ReadInv {
		// The kernel refuses a fence here, and would not go on. READs are carried out one after
		// the other anyway, which is all that a fence could ask for.
		flags &^= Fence
		s.maxSGE = min(s.maxSGE, 1)
	}
	s.op, s.flags, s.numSGE, s.length = op, flags, 0, 0
	s.seal()
}

// seal keeps the word that publishing stores.
func (s *SendSlot) seal() {
	*s.word = valid | uint32(s.flags) | s.numSGE<<numSGEBit | uint32(s.op)<<opcodeBit
}

// SetRDMA sets the peer's memory for a READ or a WRITE.
func (s *SendSlot) SetRDMA(addr uint64, rkey uint32) {
	s.sqe.Raddr = addr
	s.sqe.RKey = rkey
}

// SetInvalidate sets the key that the peer (SendInv) or this side (LocalInv) invalidates.
func (s *SendSlot) SetInvalidate(rkey uint32) { s.sqe.RKey = rkey }

// AddSGE appends length bytes of registered memory at addr to the data. The errors are
// ErrTooManySGE, ErrTooLong and ErrMixedData; they leave the request unchanged.
func (s *SendSlot) AddSGE(addr uint64, length, lkey uint32) error {
	total := s.length + length
	switch {
	case s.flags&abi.SIW_WQE_INLINE != 0:
		return ErrMixedData
	case s.numSGE >= s.maxSGE:
		return ErrTooManySGE
	case total < length:
		return ErrTooLong
	}
	s.sqe.SGE[s.numSGE] = abi.SiwSGE{Laddr: addr, Length: length, LKey: lkey}
	s.numSGE, s.length = s.numSGE+1, total
	s.seal()
	return nil
}

// AddInline appends b to the data, which the kernel takes from the element itself. b may be used
// again at once. The errors are ErrInlineOp, ErrInlineTooLong and ErrMixedData; they leave the
// request unchanged.
func (s *SendSlot) AddInline(b []byte) error {
	switch {
	case s.op != Send && s.op != Write:
		return ErrInlineOp
	case s.numSGE != 0 && s.flags&abi.SIW_WQE_INLINE == 0:
		return ErrMixedData
	case len(b) > MaxInline-int(s.length):
		return ErrInlineTooLong
	}
	s.length += uint32(copy(inlineRoom(s.sqe)[s.length:], b))
	s.sqe.SGE[0].Length = s.length
	s.flags |= abi.SIW_WQE_INLINE
	s.numSGE = 1
	s.seal()
	return nil
}
