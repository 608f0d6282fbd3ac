package efa

import (
	"fmt"
	"math"
	"math/bits"
	"unsafe"
)

// A SendQueue is the send queue of a QP: a ring of requests in the device's memory (the LLQ). One
// goroutine at a time may post to it. One goroutine at a time, possibly another one, may complete its
// requests.
type SendQueue struct {
	slots
	ring        unsafe.Pointer // the requests in memory, by position, from where Publish copies them
	device      unsafe.Pointer // the ring of the device; neither keeps the mapping alive
	bell        *uint32        // the doorbell
	width       uintptr        // size of a request
	turn        int            // by how many bits a position is turned so that its round is at the phase bit
	phase       uint32         // the phase bit of the first round, in its place
	batch       uint32         // requests that one doorbell may announce
	maxSGE      uint32
	maxInline   uint32
	inlineWrite bool
}

// A Peer is the destination of a request.
type Peer struct {
	QKey uint32 // Q_Key
	QPN  uint16 // number of the QP
	AH   uint16 // number of the address handle, see [DecodeAH]
}

// NewSendQueue makes the send queue of a QP. llq is the ring, in write-combining memory of the device,
// and begins where the kernel says; doorbell is the register, which [Doorbell] finds. The generation
// should differ from that of the last QP with the same number.
func NewSendQueue(llq, doorbell []byte, size SendSize, gen uint16) (*SendQueue, error) {
	if n := size.Depth; n < 1 || n > maxDepth || n&(n-1) != 0 || size.Width != narrow && size.Width != wide {
		return nil, fmt.Errorf("%w: send queue of %d requests of %d bytes", ErrSize, n, size.Width)
	}
	if size.MaxSGE < 0 || size.MaxSGE > MaxSendSGE || size.MaxInline < 0 || size.MaxInline > size.inlineRoom() || size.Batch < 0 ||
		size.InlineWrite && size.Width != wide {
		return nil, fmt.Errorf("%w: send queue with %+v", ErrSize, size)
	}
	if len(llq) < size.Bytes() || uintptr(unsafe.Pointer(&llq[0]))%narrow != 0 {
		return nil, fmt.Errorf("%w: send queue: got %d bytes of the device, %d requests need %d, aligned to %d", ErrMapping, len(llq), size.Depth, size.Bytes(), narrow)
	}
	bell, err := register(doorbell)
	if err != nil {
		return nil, err
	}
	q := &SendQueue{
		slots: newSlots(size.Depth, gen), ring: unsafe.Pointer(&make([]uint64, size.Bytes()/8)[0]), device: unsafe.Pointer(&llq[0]), bell: bell,
		width: uintptr(size.Width), turn: controlPhaseBit - bits.TrailingZeros(uint(size.Depth)), batch: math.MaxUint32,
		maxSGE: uint32(size.MaxSGE), maxInline: uint32(size.MaxInline), inlineWrite: size.InlineWrite,
	}
	if size.Batch > 0 {
		q.batch = uint32(size.Batch)
	}
	return q, nil
}

// Layout of a request. The first 8 bytes are stored as one word: the request ID, the control bits, the
// number of the peer's QP, and the number of entries or of bytes of inline data.
const (
	wqeImm    = 8  // immediate, and the number of the address handle at 12
	wqeQKey   = 16 // Q_Key; the rest up to 32 is reserved
	wqeRemote = 32 // the peer's memory, of RDMA
	wqeData   = 32 // entries or inline data; behind the peer's memory, of RDMA
	sgeSize   = 16

	controlPhaseBit = 8

	wordControl = 16 // position in the first word
	wordQPN     = 32
	wordLength  = 48

	controlImm    = 1 << 4 // the immediate is valid
	controlInline = 1 << 5
	controlMeta   = 1 << 7               // always set
	controlPhase  = 1 << controlPhaseBit // changes each time around the ring
	controlFirst  = 1 << 10              // always set
	controlLast   = 1 << 11              // always set
	controlSignal = 1 << 12              // always set: every request has a completion

	codeSend, codeRead, codeWrite = 0, 1, 2
)

// heads have the control bits of each operation, whether it is RDMA, and whether it has an immediate.
var heads = func() (t [numOps]uint32) {
	const always = controlMeta | controlFirst | controlLast | controlSignal
	for op, code := range map[Op]uint32{
		Send: codeSend, SendImm: codeSend | controlImm | headImm, Read: codeRead | headRDMA,
		Write: codeWrite | headRDMA, WriteImm: codeWrite | headRDMA | controlImm | headImm,
	} {
		t[op] = code | always
	}
	return t
}()

const (
	headRDMA = 1 << 16
	headImm  = 1 << 31
)

// MaxSGE returns how many scatter/gather entries a SEND may have.
func (q *SendQueue) MaxSGE() int { return int(q.maxSGE) }

// MaxInline returns how many bytes of inline data a request may have.
func (q *SendQueue) MaxInline() int { return int(q.maxInline) }

// offset returns the place in the ring of the request at a position, in bytes.
func (q *SendQueue) offset(pos uint32) uintptr { return uintptr(pos&q.mask) * q.width }

// at returns the place in memory of the request at a position.
func (q *SendQueue) at(pos uint32) unsafe.Pointer {
	return unsafe.Add(q.ring, q.offset(pos))
}

// word returns the first word of a request, without a length.
func (q *SendQueue) word(pos, index, head uint32, to Peer) uint64 {
	head = head&0xffff | (bits.RotateLeft32(pos, q.turn)^q.phase)&controlPhase
	return uint64(index|q.gen) | uint64(head)<<wordControl | uint64(to.QPN)<<wordQPN
}

// record records a request.
func (q *SendQueue) record(index, pos uint32, id uint64, op Op, length uint32) {
	e := q.slot(index)
	e.id.Store(id)
	e.what.Store(uint64(pos) | uint64(length)<<32)
	e.state.Store(uint64(op) | slotUsed)
}

// Put fills the i-th request that is not published yet, with length bytes of registered memory at addr.
// It does what Slot, Start, SetRDMA, AddSGE and Finish do, with fewer instructions. raddr and rkey are the
// address and key of the peer's memory, and are not used for a SEND. The error is ErrKey.
//
// Preconditions: those of Slot and Start; MaxSGE is at least 1.
func (q *SendQueue) Put(i int, id uint64, op Op, imm uint32, to Peer, raddr uint64, rkey uint32, addr uint64, length, lkey uint32) error {
	if lkey > MaxKey {
		return ErrKey
	}
	pos, head := q.head+uint32(i), heads[op%numOps]
	index := uint32(*q.place(pos))
	p := q.at(pos)
	put64(p, 0, q.word(pos, index, head, to)|1<<wordLength)
	put64(p, wqeImm, uint64(imm&uint32(int32(head)>>31))|uint64(to.AH)<<32)
	put64(p, wqeQKey, uint64(to.QKey))
	put64(p, wqeQKey+8, 0)
	if head&headRDMA != 0 {
		putSGE(p, wqeRemote, raddr, length, rkey)
		putSGE(p, wqeRemote+sgeSize, addr, length, lkey)
	} else {
		putSGE(p, wqeData, addr, length, lkey)
		putSGE(p, wqeData+sgeSize, 0, 0, 0)
	}
	if q.width != narrow {
		*(*[wide - narrow]byte)(unsafe.Add(p, narrow)) = [wide - narrow]byte{}
	}
	q.record(index, pos, id, op, length)
	return nil
}

// A SendSlot fills one request. Call Start first, then the methods for the operation and the data, then
// Finish. Only the goroutine that posts uses it.
type SendSlot struct {
	q      *SendQueue
	p      unsafe.Pointer // the request
	word   uint64         // its first word, without the length
	id     uint64
	pos    uint32
	index  uint32 // of its slot
	data   uint32 // offset of the next data
	length uint32 // bytes of data
	sges   uint32
	left   uint32 // entries that may be added
	op     Op
	inline bool
}

// Slot returns the i-th request that is not published yet.
//
// Preconditions: 0 <= i; Room(i+1) was true since the last Publish.
func (q *SendQueue) Slot(i int) SendSlot {
	pos := q.head + uint32(i)
	return SendSlot{q: q, p: q.at(pos), pos: pos, index: uint32(*q.place(pos))}
}

// Start begins a request. The immediate, in host order, is used only for operations that have one.
//
// Preconditions: op is one of the operations.
func (s *SendSlot) Start(id uint64, op Op, imm uint32, to Peer) {
	q, head := s.q, heads[op%numOps]
	s.id, s.op, s.length, s.sges, s.inline = id, op, 0, 0, false
	s.word = q.word(s.pos, s.index, head, to)
	s.data, s.left = wqeData, q.maxSGE
	if head&headRDMA != 0 {
		s.data, s.left = wqeRemote+sgeSize, min(q.maxSGE, MaxRDMASGE)
	}
	put64(s.p, wqeImm, uint64(imm&uint32(int32(head)>>31))|uint64(to.AH)<<32)
	put64(s.p, wqeQKey, uint64(to.QKey))
	put64(s.p, wqeQKey+8, 0)
	clear(unsafe.Slice((*byte)(unsafe.Add(s.p, wqeData)), q.width-wqeData))
}

// SetRDMA sets the peer's memory for Read, Write and WriteImm.
//
// Preconditions: Start has begun one of these operations.
func (s *SendSlot) SetRDMA(addr uint64, rkey uint32) {
	putSGE(s.p, wqeRemote, addr, 0, rkey)
}

// AddSGE appends length bytes of registered memory at addr to the data. The errors are ErrTooManySGE,
// ErrTooLong, ErrKey and ErrMixedData; they leave the request unchanged.
func (s *SendSlot) AddSGE(addr uint64, length, lkey uint32) error {
	total := s.length + length
	switch {
	case s.inline:
		return ErrMixedData
	case s.left == 0:
		return ErrTooManySGE
	case total < length:
		return ErrTooLong
	case lkey > MaxKey:
		return ErrKey
	}
	putSGE(s.p, uintptr(s.data), addr, length, lkey)
	s.data, s.length, s.sges, s.left = s.data+sgeSize, total, s.sges+1, s.left-1
	return nil
}

// AddInline appends b to the data, which the device takes from the request itself. b may be used again at
// once. The errors are ErrInlineOp, ErrInlineTooLong and ErrMixedData; they leave the request unchanged.
func (s *SendSlot) AddInline(b []byte) error {
	q, op := s.q, s.op&^Quiet
	switch {
	case op == Read:
		return ErrInlineOp
	case s.sges != 0:
		return ErrMixedData
	case len(b) > int(q.maxInline-s.length):
		return ErrInlineTooLong
	case op != Send && op != SendImm && !q.inlineWrite:
		return ErrInlineOp
	}
	copy(unsafe.Slice((*byte)(unsafe.Add(s.p, s.data)), len(b)), b)
	s.data, s.length, s.inline = s.data+uint32(len(b)), s.length+uint32(len(b)), true
	return nil
}

// Finish completes the request, which is then ready to be published.
func (s *SendSlot) Finish() {
	q, n := s.q, s.sges
	if s.inline {
		n = s.length
		s.word |= controlInline << wordControl
	}
	if heads[s.op%numOps]&headRDMA != 0 {
		*(*uint32)(unsafe.Add(s.p, wqeRemote)) = s.length
	}
	put64(s.p, 0, s.word|uint64(n)<<wordLength)
	q.record(s.index, s.pos, s.id, s.op, s.length)
}

// Complete takes the completion of a request, which may be any that was published and has not completed.
// It returns the ID, the operation and the number of bytes of the request. If there is no such request,
// nothing changes and ok is false; see [SendQueue.Stale]. It is Stale, At, Waits and Take.
func (q *SendQueue) Complete(reqID uint16) (id uint64, op Op, length uint32, ok bool) {
	p, ok := q.posted(reqID)
	if !ok {
		return 0, 0, 0, false
	}
	length = p.Length()
	return q.Take(p), p.Op(), length, true
}

// Reset empties the queue after the QP has moved to state RESET. Requests that have not completed never do:
// the generation should be a new one, and becomes another one than before in any case, so that their
// completions, which may be in the CQ already, are refused. The phase bit continues, as in libefa.
func (q *SendQueue) Reset(gen uint16) {
	q.phase = (bits.RotateLeft32(q.head, q.turn) ^ q.phase) & controlPhase
	q.reset(gen)
}

func put64(p unsafe.Pointer, off uintptr, v uint64) { *(*uint64)(unsafe.Add(p, off)) = v }

// putSGE stores a scatter/gather entry or the description of the peer's memory.
func putSGE(p unsafe.Pointer, off uintptr, addr uint64, length, key uint32) {
	put64(p, off, uint64(length)|uint64(key)<<32)
	put64(p, off+8, addr)
}
