package efa

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
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
	turn        uint32         // what a position is multiplied by, so that its round is at phaseBit
	phase       uint32         // the phase of the first round, at phaseBit
	batch       uint32         // requests that one doorbell may announce
	maxSGE      uint32
	maxInline   uint32
	inlineWrite bool
}

// A Peer is the destination of a request, as the words of the request have it.
type Peer struct {
	qp uint64 // Q_Key, and the number of the QP at wordQPN
	ah uint64 // the number of the address handle in the second word, and the immediate
}

// NewPeer makes a Peer. ah is the number of the address handle, see [DecodeAH].
func NewPeer(qkey uint32, qpn, ah uint16) Peer {
	return Peer{uint64(qkey) | uint64(qpn)<<wordQPN, uint64(ah) << 32}
}

// WithImm returns the Peer of a request with an immediate, in host order. Only operations that have one use it.
func (p Peer) WithImm(imm uint32) Peer { return Peer{p.qp, p.ah | uint64(imm)} }

// QPN returns the number of the QP.
func (p Peer) QPN() uint32 { return uint32(p.qp >> wordQPN) }

// QKey returns the Q_Key.
func (p Peer) QKey() uint32 { return uint32(p.qp) }

// AH returns the number of the address handle.
func (p Peer) AH() uint16 { return uint16(p.ah >> 32) }

// A Meta is the operation of a request, and the key of the peer's memory, for RDMA.
type Meta uint64

// NewMeta makes a Meta.
func NewMeta(op Op, rkey uint32) Meta { return Meta(op) | Meta(rkey)<<32 }

// A Local is the length and the key of local memory.
type Local uint64

// NewLocal makes a Local. Put refuses a key above MaxKey.
func NewLocal(length, lkey uint32) Local { return Local(length) | Local(lkey)<<32 }

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
		width: uintptr(size.Width), turn: phaseBit / uint32(size.Depth), batch: math.MaxUint32,
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

	wordControl = 16 // position in the first word
	wordQPN     = 32
	wordLength  = 48

	controlImm    = 1 << 4 // the immediate is valid
	controlInline = 1 << 5
	controlMeta   = 1 << 7 // always set
	controlPhase  = 1 << 8 // changes each time around the ring
	phaseBit      = controlPhase << wordControl
	controlFirst  = 1 << 10 // always set
	controlLast   = 1 << 11 // always set
	controlSignal = 1 << 12 // always set: every request has a completion

	codeSend, codeRead, codeWrite = 0, 1, 2
)

// A form is what the words of a request say of its operation.
type form struct {
	first  uint64 // the control bits
	second uint64 // which bits of the address handle and the immediate it has; formRDMA
}

// formRDMA is the bit of operations on the peer's memory. The second word itself never has it.
const formRDMA = 1 << 63

// forms are the forms of operations.
var forms = func() (t [numOps]form) {
	const (
		always = controlMeta | controlFirst | controlLast | controlSignal
		ah     = 0xffff << 32
		imm    = 1<<32 - 1
	)
	for op, f := range map[Op]form{
		Send: {codeSend, ah}, SendImm: {codeSend | controlImm, ah | imm}, Read: {codeRead, ah | formRDMA},
		Write: {codeWrite, ah | formRDMA}, WriteImm: {codeWrite | controlImm, ah | imm | formRDMA},
	} {
		t[op] = form{(f.first | always) << wordControl, f.second}
	}
	return t
}()

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

// words returns the request at a position, and what its first word says of its place in the queue.
func (q *SendQueue) words(pos, index uint32) (w *[narrow / 8]uint64, first uint64) {
	return (*[narrow / 8]uint64)(q.at(pos)), uint64((pos*q.turn^q.phase)&phaseBit | index | q.gen)
}

// record records a request.
func (q *SendQueue) record(index, pos uint32, id uint64, op Op, length uint32) {
	e := q.slot(index)
	mmio.Store3(&e.id, &e.what, &e.state, id, uint64(pos)|uint64(length)<<32, uint64(op)|slotUsed)
}

// Left returns how many more requests fit, as far as the last Refresh knows.
func (q *SendQueue) Left() int { return int(int32(q.limit - q.head)) }

// Refresh returns the result of Room, and finds out how many requests have completed.
func (q *SendQueue) Refresh(n int) bool { return q.refresh(n) }

// Put fills the i-th request that is not published yet, with registered memory at addr. It does what Slot,
// Start, SetRDMA, AddSGE and Finish do, with fewer instructions: its arguments are in registers. raddr is the
// address of the peer's memory, for RDMA. It reports whether it did: it does nothing if the key of the memory
// is above MaxKey.
//
// Preconditions: those of Slot and Start; MaxSGE is at least 1.
func (q *SendQueue) Put(i int, id uint64, m Meta, to Peer, raddr, addr uint64, local Local) bool {
	if local>>32 > MaxKey {
		return false
	}
	f, pos := &forms[m%numOps], q.head+uint32(i)
	index := uint32(*q.place(pos))
	q.record(index, pos, id, Op(m), uint32(local))
	w, first := q.words(pos, index)
	w[0] = first | f.first | to.qp>>wordQPN<<wordQPN | 1<<wordLength
	w[1] = to.ah & f.second
	w[2], w[3] = uint64(uint32(to.qp)), 0
	if f.second&formRDMA != 0 {
		w[4], w[5] = uint64(m>>32<<32)|uint64(uint32(local)), raddr
		w[6], w[7] = uint64(local), addr
	} else {
		w[4], w[5] = uint64(local), addr
		w[6], w[7] = 0, 0
	}
	if q.width != narrow {
		*(*[wide - narrow]byte)(unsafe.Add(unsafe.Pointer(w), narrow)) = [wide - narrow]byte{}
	}
	return true
}

// PutInline is Put with n bytes at b as the data, which the device takes from the request itself. It does nothing
// if there are none, or if AddInline refuses them.
func (q *SendQueue) PutInline(i int, id uint64, m Meta, to Peer, raddr uint64, b *byte, n int) bool {
	f, pos := &forms[m%numOps], q.head+uint32(i)
	if uint(n-1) >= uint(q.maxInline) || f.second&formRDMA != 0 && (!q.inlineWrite || Op(m)&^Quiet == Read) {
		return false
	}
	index := uint32(*q.place(pos))
	q.record(index, pos, id, Op(m), uint32(n))
	w, first := q.words(pos, index)
	w[0] = first | f.first | to.qp>>wordQPN<<wordQPN | uint64(n)<<wordLength | controlInline<<wordControl
	w[1] = to.ah & f.second
	w[2], w[3], w[4], w[5], w[6], w[7] = uint64(uint32(to.qp)), 0, 0, 0, 0, 0
	if q.width != narrow {
		*(*[wide - narrow]byte)(unsafe.Add(unsafe.Pointer(w), narrow)) = [wide - narrow]byte{}
	}
	p, from := unsafe.Add(unsafe.Pointer(w), wqeData), unsafe.Pointer(b)
	if f.second&formRDMA != 0 {
		w[4], w[5] = uint64(m>>32<<32)|uint64(n), raddr
		p = unsafe.Add(p, sgeSize)
	}
	at := 0
	for ; at+8 <= n; at += 8 {
		*(*uint64)(unsafe.Add(p, at)) = *(*uint64)(unsafe.Add(from, at))
	}
	for ; at < n; at++ {
		*(*byte)(unsafe.Add(p, at)) = *(*byte)(unsafe.Add(from, at))
	}
	return true
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

// Start begins a request.
//
// Preconditions: op is one of the operations.
func (s *SendSlot) Start(id uint64, op Op, to Peer) {
	q, f := s.q, &forms[op%numOps]
	s.id, s.op, s.length, s.sges, s.inline = id, op, 0, 0, false
	w, first := q.words(s.pos, s.index)
	s.word = first | f.first | to.qp>>wordQPN<<wordQPN
	s.data, s.left = wqeData, q.maxSGE
	if f.second&formRDMA != 0 {
		s.data, s.left = wqeRemote+sgeSize, min(q.maxSGE, MaxRDMASGE)
	}
	w[1], w[2], w[3] = to.ah&f.second, uint64(uint32(to.qp)), 0
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
	if forms[s.op%numOps].second&formRDMA != 0 {
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

// Renewed returns the queue after the QP has moved to state RESET, empty and in memory of its own, so that whoever
// still fills requests of the old one does no harm. Requests that have not completed never do: the generation should
// be a new one, and becomes another one than before in any case, so that their completions, which may be in the
// CQ already, are refused. The phase bit continues, as in libefa.
func (q *SendQueue) Renewed(gen uint16) *SendQueue {
	n := *q
	n.phase = (q.head*q.turn ^ q.phase) & phaseBit
	n.ring = unsafe.Pointer(&make([]uint64, uintptr(q.mask+1)*q.width/8)[0])
	if n.slots = newSlots(int(q.n), gen); n.gen == q.gen {
		n.reset(gen)
	}
	return &n
}

func put64(p unsafe.Pointer, off uintptr, v uint64) { *(*uint64)(unsafe.Add(p, off)) = v }

// putSGE stores a scatter/gather entry or the description of the peer's memory.
func putSGE(p unsafe.Pointer, off uintptr, addr uint64, length, key uint32) {
	put64(p, off, uint64(length)|uint64(key)<<32)
	put64(p, off+8, addr)
}
