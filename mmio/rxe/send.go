package rxe

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/mmio/rxe/internal/abi"
)

// A SendQueue is the send ring of a queue pair (struct rxe_queue_buf with elements of struct
// rxe_send_wqe). One goroutine at a time may use it, except for the methods that say otherwise.
type SendQueue struct {
	producer
	maxSGE    uint32
	maxInline uint32
}

// NewSendQueue makes a SendQueue of a mapped ring that was created for maxWR work requests of up to
// maxSGE scatter/gather entries or maxInline bytes of inline data. The error matches ErrCorrupt if
// the memory is not such a ring.
func NewSendQueue(mem []byte, maxWR, maxSGE, maxInline int) (*SendQueue, error) {
	q := &SendQueue{}
	if err := q.Init(mem, maxWR, maxSGE, maxInline); err != nil {
		return nil, err
	}
	return q, nil
}

// Init is [NewSendQueue] for a SendQueue that is part of another object. If it fails, it changes
// nothing.
func (q *SendQueue) Init(mem []byte, maxWR, maxSGE, maxInline int) error {
	r, prod, cons, err := newRing(mem, "send queue", maxWR, unsafe.Sizeof(abi.RxeSendWQE{}))
	if err != nil {
		return err
	}
	room := int(r.size) - int(unsafe.Sizeof(abi.RxeSendWQE{}))
	if err := checkRoom("send queue", "scatter/gather entries", maxSGE, room/int(unsafe.Sizeof(abi.RxeSGE{}))); err != nil {
		return err
	}
	if err := checkRoom("send queue", "inline bytes", maxInline, room); err != nil {
		return err
	}
	*q = SendQueue{
		producer:  producer{ring: r, head: prod, tail: cons},
		maxSGE:    uint32(maxSGE),
		maxInline: uint32(maxInline),
	}
	return nil
}

// checkRoom checks that elements have room for what the kernel has granted.
func checkRoom(kind, what string, n, room int) error {
	if n < 0 {
		return fmt.Errorf("rxe: %s: %s: got %d, must not be negative", kind, what, n)
	}
	if n > room {
		return fmt.Errorf("rxe: %s: %w: %s: got %d, the elements have room for %d", kind, ErrCorrupt, what, n, room)
	}
	return nil
}

// MaxSGE returns how many scatter/gather entries a work request may have.
func (q *SendQueue) MaxSGE() int { return int(q.maxSGE) }

// MaxInline returns how many bytes of inline data a work request may have.
func (q *SendQueue) MaxInline() int { return int(q.maxInline) }

// WQE returns the element of the i-th slot that is not published yet.
//
// Preconditions: 0 <= i; Room(i+1) was true since the last Publish.
func (q *SendQueue) WQE(i int) WQE {
	return WQE{(*abi.RxeSendWQE)(q.elem(q.head + uint32(i)))}
}

// Slot returns the i-th slot that is not published yet.
//
// Preconditions: 0 <= i; Room(i+1) was true since the last Publish.
func (q *SendQueue) Slot(i int) SendSlot {
	return SendSlot{WQE: q.WQE(i), maxSGE: q.maxSGE, maxInline: q.maxInline}
}

// Started returns the i-th unpublished slot, for adding the data of a request whose WQE was started
// with these flags.
//
// Preconditions: those of Slot; the WQE has no data yet.
func (q *SendQueue) Started(i int, flags uint32) SendSlot {
	s := q.Slot(i)
	s.flags = flags
	return s
}

// A WQE fills one element of a SendQueue in place, for a request with at most one scatter/gather
// entry; a SendSlot fills any request. Call Start first. One goroutine uses it, until the slot is
// published. It consists of a pointer, and its methods compile to stores without a call.
type WQE struct {
	wqe *abi.RxeSendWQE
}

// A SendSlot fills one element of a SendQueue in place. Call Start first. One goroutine uses it,
// until the slot is published. It never reads back what it has written to the ring.
type SendSlot struct {
	WQE
	maxSGE    uint32
	maxInline uint32
	flags     uint32
	numSGE    uint32
	length    uint32 // in bytes, of all scatter/gather entries or inline data
}

// Start begins a work request: it clears the element and sets the fields that every opcode has.
func (s *SendSlot) Start(wrID uint64, opcode, flags uint32) {
	s.WQE.Start(wrID, opcode, flags)
	s.flags, s.numSGE, s.length = flags, 0, 0
}

// Start begins a work request: it clears the element and sets the fields that every opcode has.
func (s WQE) Start(wrID uint64, opcode, flags uint32) {
	w := s.wqe
	// Zero is the state of a posted request (wqe_state_posted), and status,
	// has_rd_atomic and the progress of the DMA must be zero as well. All of the
	// element goes, so that no rkey or address of an older request is left for
	// an opcode whose setter was not called.
	// As bytes, because an assignment may skip the blank fields.
	*(*[unsafe.Sizeof(abi.RxeSendWQE{})]byte)(unsafe.Pointer(w)) = [unsafe.Sizeof(abi.RxeSendWQE{})]byte{}
	w.WR.WRID = wrID
	w.WR.Opcode = opcode
	w.WR.SendFlags = flags
}

// SetSGE makes length bytes of registered memory at addr all of the data.
//
// Preconditions: the queue was made for scatter/gather entries, and the request does not have the
// flag Inline.
func (s WQE) SetSGE(addr uint64, length, lkey uint32) {
	fillSGE(&s.wqe.DMA, 0, length, addr, length, lkey)
}

// SetImm sets the immediate data, given in host order and sent in network order
// (imm_data is __be32).
func (s WQE) SetImm(imm uint32) { s.wqe.WR.Ex.ImmData().Put(imm) }

// SetInvalidate sets the rkey that the peer (SendInv) or this side (LocalInv) invalidates. It
// shares its place with the immediate data.
func (s WQE) SetInvalidate(rkey uint32) { *s.wqe.WR.Ex.InvalidateRKey() = rkey }

// SetRDMA sets the peer's memory for a read or write.
func (s WQE) SetRDMA(addr uint64, rkey uint32) {
	r := s.wqe.WR.WR.RDMA()
	r.RemoteAddr = addr
	r.RKey = rkey
	// The kernel advances this address packet by packet.
	s.wqe.IOVA = addr
}

// SetAtomic sets the peer's 8 bytes, aligned to 8, for AtomicCAS (compare, swap)
// or AtomicFAA (add).
func (s WQE) SetAtomic(addr uint64, compareAdd, swap uint64, rkey uint32) {
	a := s.wqe.WR.WR.Atomic()
	a.RemoteAddr = addr
	a.CompareAdd = compareAdd
	a.Swap = swap
	a.RKey = rkey
	s.wqe.IOVA = addr
}

// SetAtomicWrite sets the peer's 8 bytes, aligned to 8, and the value that AtomicWrite writes to
// them. It replaces AddSGE and AddInline.
func (s *SendSlot) SetAtomicWrite(addr uint64, rkey uint32, value [8]byte) {
	s.SetRDMA(addr, rkey)
	d := &s.wqe.DMA
	copy(d.TailAtomicWR(len(value)), value[:])
	s.length = uint32(len(value))
	d.Length, d.Resid = s.length, s.length
}

// SetFlush sets the peer's memory that Flush makes durable or visible (placement:
// values of enum ib_placement_type; level: of enum ib_selectivity_level).
func (s *SendSlot) SetFlush(addr uint64, length, rkey uint32, placement, level uint8) {
	f := s.wqe.WR.WR.Flush()
	f.RemoteAddr = addr
	f.Length = length
	f.RKey = rkey
	f.Type = placement
	f.Level = level
	s.wqe.IOVA = addr
	s.length = length
	d := &s.wqe.DMA
	d.Length, d.Resid = length, length
}

// SetMW sets what BindMW binds: length bytes at addr of the region mrLKey, to the window whose key
// is mwRKey before and rkey afterwards.
func (s WQE) SetMW(addr, length uint64, mrLKey, mwRKey, rkey, access uint32) {
	m := s.wqe.WR.WR.MW()
	m.Addr = addr
	m.Length = length
	m.MRLKey = mrLKey
	m.MWRKey = mwRKey
	m.RKey = rkey
	m.Access = access
}

// SetUD sets the destination of a datagram. If ahNum is not 0, it is the number of an address
// handle in the kernel; otherwise av is the address.
func (s WQE) SetUD(qpn, qkey, ahNum uint32, av *AV) {
	u := s.wqe.WR.WR.UD()
	u.RemoteQPN = qpn
	u.RemoteQKey = qkey
	u.AHNum = ahNum
	if ahNum == 0 {
		u.AV = av.av
	}
}

// AddSGE appends length bytes of registered memory at addr to the data. The errors are
// ErrTooManySGE, ErrTooLong and, if the request has the flag Inline, ErrMixedData; they leave the
// request unchanged.
func (s *SendSlot) AddSGE(addr uint64, length, lkey uint32) error {
	total := s.length + length
	switch {
	case s.flags&Inline != 0:
		return ErrMixedData
	case s.numSGE >= s.maxSGE:
		return ErrTooManySGE
	case total < length:
		return ErrTooLong
	}
	n := s.numSGE
	s.numSGE, s.length = n+1, total
	fillSGE(&s.wqe.DMA, n, total, addr, length, lkey)
	return nil
}

// AddInline appends b to the data, which the kernel takes from the element itself, and sets the
// flag Inline. b may be used again at once. The errors are ErrInlineTooLong and ErrMixedData; they
// leave the request unchanged.
func (s *SendSlot) AddInline(b []byte) error {
	if s.numSGE != 0 {
		return ErrMixedData
	}
	if len(b) > int(s.maxInline-s.length) {
		return ErrInlineTooLong
	}
	total := s.length + uint32(len(b))
	d := &s.wqe.DMA
	copy(d.TailInlineData(int(total))[s.length:], b)
	s.length = total
	d.Length, d.Resid = total, total
	s.flags |= Inline
	s.wqe.WR.SendFlags = s.flags
	return nil
}

// fillSGE writes scatter/gather entry n of a work request and the sums that include it. cur_sge and
// sge_offset stay 0, because they are the kernel's progress.
//
// Preconditions: the element has room for n+1 entries.
func fillSGE(d *abi.RxeDMAInfo, n, total uint32, addr uint64, length, lkey uint32) {
	e := &d.TailSGE(int(n) + 1)[n]
	e.Addr = addr
	e.Length = length
	e.LKey = lkey
	d.NumSGE = n + 1
	d.Length, d.Resid = total, total
}
