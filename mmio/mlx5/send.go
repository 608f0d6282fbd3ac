package mlx5

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
)

// A SendQueue is the send queue of a QP. One goroutine at a time may post to it. One goroutine at a
// time, possibly another one, may complete its entries.
type SendQueue struct {
	ring      unsafe.Pointer // block 0; does not keep the memory alive
	ids       *sent          // of block 0; there is one for each block, and that in which a work request begins counts
	mask      uint32         // number of blocks - 1
	bytes     uint32         // number of bytes - 1
	number    uint32         // of the QP, shifted to its place in the control segment
	maxInline uint32
	maxSGE    uint32
	transport Transport

	// Where the next work request of the batch goes. Only the posting goroutine uses these, and Reset leaves
	// them to the next Begin: filling a WQE may run beside Reset.
	fence  uint8  // flag for the next work request, after one that changes a key
	next   uint32 // the block after the last filled one; not reduced modulo the ring size
	filled uint32 // work requests that were filled; head of them were published
	last   uint32 // the block where the last filled work request begins

	saved uint8  // fence at the start of the batch
	start uint32 // next at the start of the batch
	head  uint32 // work requests that were published
	limit uint32 // tail + maxWR when tail was last loaded
	rec   Record
	reg   *Register

	maxWR  uint32
	first  uint32 // bytes of a WQE before the part that depends on the operation
	header uint32 // how many bytes of a frame are in the Ethernet segment

	published mmio.Index // head, stored by the posting goroutine; it publishes ids to the polling one
	tail      mmio.Index // work requests that have completed; stored by the polling goroutine
}

// sent is the record of a work request until it completes. It is memory of the program that the
// device does not write. The posting goroutine stores it, and Find may load it at the same time.
type sent struct {
	id   mmio.Word
	what mmio.Word // see sentBlockShift
}

// Layout of sent.what, from the lowest bit on: the operation, the number of the block as the device
// counts it, sentPosted, and the number of work requests posted before.
const (
	sentBlockShift = 8
	sentPosted     = 1 << 31
	sentHeadShift  = 32
)

// sent returns the record of the work request that begins at a block.
func (q *SendQueue) sent(block uint32) *sent {
	return (*sent)(unsafe.Add(unsafe.Pointer(q.ids), uintptr(block&q.mask)*unsafe.Sizeof(sent{})))
}

// sentOp and sentHead return parts of sent.what.
func sentOp(what uint64) Op       { return Op(what) }
func sentHead(what uint64) uint32 { return uint32(what >> sentHeadShift) }

// An Op is the operation of a work request: the value of enum ib_uverbs_wr_opcode plus 1. Zero is none.
type Op uint8

// Operations.
const (
	Write    Op = 1
	WriteImm Op = 2
	Send     Op = 3
	SendImm  Op = 4
	Read     Op = 5
	CAS      Op = 6
	FAA      Op = 7
	LocalInv Op = 8
	BindMW   Op = 9
	SendInv  Op = 10
	numOps      = 16 // a power of two, so that a mask makes any Op a valid index
)

// A shape describes the WQE of an operation.
type shape struct {
	code uint8  // the opcode of the device
	rdma bool   // it has the address and key of the peer's memory
	imm  uint32 // all ones if it has an immediate
}

// shapes are the shapes of the operations.
var shapes = [numOps]shape{
	Write: {opWrite, true, 0}, WriteImm: {opWriteImm, true, ^uint32(0)}, Send: {opSend, false, 0}, SendImm: {opSendImm, false, ^uint32(0)},
	Read: {opRead, true, 0}, CAS: {code: opCAS}, FAA: {code: opFAA}, LocalInv: {code: opUMR}, BindMW: {code: opUMR}, SendInv: {code: opSendInv},
}

// Flags of a work request: the values of enum ib_send_flags.
const (
	Fence     uint8 = 1 << 0
	Signaled  uint8 = 1 << 1
	Solicited uint8 = 1 << 2
	numFlags        = 8
)

// heads have what the control segment says of each operation, at op, with each combination of flags, at
// flags<<headFlags: the bits for the flags in bits 0 to 7, the opcode in bits 8 to 15, the shape, and the
// operation in bits 24 to 27.
var heads = func() (t [numFlags << headFlags]uint32) {
	for i := range t {
		op, flags := i%numOps, uint8(i>>headFlags)
		how := &shapes[op]
		for bit, v := range map[uint8]uint32{Fence: flagFence, Signaled: flagCQE, Solicited: flagSolicited} {
			if flags&bit != 0 {
				t[i] |= v
			}
		}
		t[i] |= uint32(how.code)<<8 | how.imm&headImm | uint32(op)<<headOpShift
		if how.rdma {
			t[i] |= headRDMA
		}
	}
	return t
}()

const (
	headFlags   = 4       // log2 of numOps
	headBits    = 0xff    // those for the flags
	headCode    = 0xff00  // the opcode
	headRDMA    = 1 << 16 // the WQE has the address and key of the peer's memory
	headImm     = 1 << 31 // it has an immediate
	headOpShift = 24
)

// control writes the second half of a control segment.
func (q *SendQueue) control(ctrl unsafe.Pointer, head, stream, imm uint32) {
	if q.fence != 0 {
		if head&flagFence == 0 { // unless it has its own
			head |= uint32(q.fence)
		}
		q.fence = 0
	}
	put64(ctrl, ctrlFlags, uint64(stream|head&headBits)<<32|uint64(imm))
}

// end completes the WQE of octos units of 16 bytes that begins with block wqe, which is next: it writes the
// first half of its control segment. Then record records the work request, at bytes into the ring.
func (q *SendQueue) end(ctrl unsafe.Pointer, wqe, head, octos uint32) {
	// Two words in one store: it is loaded as one for the doorbell.
	put64(ctrl, ctrlOpcode, uint64(uint16(wqe))<<40|uint64(head&headCode)<<24|uint64(q.number|octos))
	q.last = wqe
	q.next = wqe + (octos+blockSize/octoSize-1)/(blockSize/octoSize)
}

func (q *SendQueue) record(id uint64, at uintptr, wqe, head uint32) {
	e := (*sent)(unsafe.Add(unsafe.Pointer(q.ids), at/(blockSize/unsafe.Sizeof(sent{}))))
	e.id.Store(id)
	e.what.Store(uint64(q.filled)<<sentHeadShift | sentPosted | uint64(uint16(wqe))<<sentBlockShift | uint64(head>>headOpShift%numOps))
	q.filled++
}

// NewSendQueue makes the send queue of a QP in mem, which has size.Bytes() bytes and is
// aligned to a page.
func NewSendQueue(mem []byte, size SendSize, t Transport, qpn uint32, rec Record, reg *Register) (*SendQueue, error) {
	if n := size.Blocks; n < 1 || n&(n-1) != 0 || n > maxBlocks || len(mem) < size.Bytes() || size.MaxWR < 1 {
		return nil, fmt.Errorf("mlx5: send queue of %d blocks in %d bytes: %w", n, len(mem), ErrSize)
	}
	first, _ := t.head()
	return &SendQueue{
		ring: unsafe.Pointer(&mem[0]), mask: uint32(size.Blocks - 1), bytes: uint32(size.Bytes() - 1), number: qpn << 8, rec: rec, reg: reg,
		maxWR: uint32(size.MaxWR), maxSGE: uint32(size.MaxSGE), maxInline: uint32(size.MaxInline),
		first: uint32(first), transport: t,
		ids: &make([]sent, size.Blocks)[0], limit: uint32(size.MaxWR),
	}, nil
}

// WantHeader sets how many bytes of each frame the device needs in the Ethernet segment of the WQE:
// n is [Context].EthHeader. See [SendSlot.AddHeader].
//
// Preconditions: the queue's transport is Raw, nothing was posted, and n is at least 2 and fits.
func (q *SendQueue) WantHeader(n int) {
	q.header = uint32(n)
	q.first = ctrlSize + ethSize + uint32(alignUp(n-ethHeaderStart, octoSize))
}

// block returns a block for any index.
func (q *SendQueue) block(i uint32) unsafe.Pointer {
	return unsafe.Add(q.ring, uintptr(i&q.mask)*blockSize)
}

// Cap returns the maximum number of work requests in the queue.
func (q *SendQueue) Cap() int { return int(q.maxWR) }

// Begin starts a batch and discards an unpublished one.
func (q *SendQueue) Begin() {
	q.next, q.filled, q.fence = q.start, q.head, q.saved
}

// Fits reports whether n more work requests fit according to the last known completion. It is the
// fast path of Room.
func (q *SendQueue) Fits(n int) bool { return int32(q.limit-q.head) >= int32(n) }

// Room reports whether n more work requests fit, including those that were begun and not published.
//
// A work request has completed when its completion, or that of a later request, was taken from the
// CQ.
func (q *SendQueue) Room(n int) bool { return q.Fits(n) || q.refresh(n) }

// Left returns how many work requests fit.
func (q *SendQueue) Left() int {
	q.refresh(0)
	return int(int32(q.limit - q.head))
}

// refresh loads the tail and returns the result of Room. It is not inlined, so that Room is.
//
//go:noinline
func (q *SendQueue) refresh(n int) bool {
	// Pairs with Release in Complete: what the completion said was read before.
	q.limit = q.tail.Acquire() + q.maxWR
	return int64(int32(q.limit-q.head)) >= int64(n)
}

// A SendSlot fills one WQE in place. Call Start first, then the methods for the operation, then the
// methods for the data, then Finish. Only the goroutine that posts uses it.
type SendSlot struct {
	q       *SendQueue
	id      uint64
	wqe     uint32 // block in which it begins
	pos     uint32 // offset of the next segment, in bytes; not reduced modulo the ring size
	data    uint32 // bytes of data
	left    uint32 // entries that may be added; none after inline data
	inline  uint32 // where inline data begins, like pos; used if inlined
	header  uint32 // bytes of the header that were added
	op      Op
	inlined bool
}

// Start begins a work request.
//
// Preconditions: Room(n+1) was true since the last Publish, for the n that were begun since;
// op is one of the operations; flags are some of the flags.
func (q *SendQueue) Start(s *SendSlot, id uint64, op Op, flags uint8) {
	wqe := q.next
	q.control(q.block(wqe), heads[uint32(flags%numFlags)<<headFlags|uint32(op%numOps)], 0, 0)
	// One by one: a composite literal would be built elsewhere and copied with larger loads
	// than its stores, which stalls the processor.
	s.q = q
	s.id = id
	s.wqe = wqe
	s.pos = wqe*blockSize + q.first
	s.data = 0
	s.left = q.maxSGE
	s.header = 0
	s.op = op
	s.inlined = false
	if q.transport >= XRC {
		q.startMore(s)
	}
}

// startMore clears the parts of the WQE before the data that only transports other than Connected
// and Datagram have.
func (q *SendQueue) startMore(s *SendSlot) {
	ctrl := s.ctrl()
	switch {
	case (q.transport == XRC || q.transport == DC) && changesKey(s.op): // without the segment that names the peer
		s.pos = s.wqe*blockSize + ctrlSize
	case q.transport == XRC:
		*(*[xrcSize]byte)(unsafe.Add(ctrl, ctrlSize)) = [xrcSize]byte{}
	case q.transport == DC: // SetDC fills it
	case q.header == 0: // nothing to be computed
		*(*[ethSize]byte)(unsafe.Add(ctrl, ctrlSize)) = [ethSize]byte{}
	default:
		*(*[ethRoom]byte)(unsafe.Add(ctrl, ctrlSize)) = [ethRoom]byte{}
		put16(ctrl, ctrlSize+ethHeaderSize, uint16(q.header))
	}
}

// changesKey reports whether an operation changes a local key.
func changesKey(op Op) bool { return op == LocalInv || op == BindMW }

// HeaderLeft returns how many more bytes of the start of the frame the device needs from AddHeader.
func (s *SendSlot) HeaderLeft() int { return int(s.q.header - s.header) }

// AddHeader appends the frame's first bytes, before any other data.
//
// Preconditions: b is not longer than HeaderLeft.
func (s *SendSlot) AddHeader(b []byte) {
	at := ctrlSize + ethSize - ethHeaderStart + s.header // it does not reach the next block
	copy(unsafe.Slice((*byte)(unsafe.Add(s.ctrl(), at)), len(b)), b)
	s.header += uint32(len(b))
}

// ctrl returns the control segment.
func (s *SendSlot) ctrl() unsafe.Pointer { return s.q.block(s.wqe) }

// at returns the address of a segment. No segment crosses the end of the ring: all have 16 bytes or
// start with a block.
func (s *SendSlot) at(pos uint32) unsafe.Pointer {
	return unsafe.Add(s.q.ring, uintptr(pos&s.q.bytes))
}

// SetImm sets the immediate, given in host order and sent in network order.
func (s *SendSlot) SetImm(imm uint32) { put32(s.ctrl(), ctrlImm, imm) }

// SetInvalidate sets the key that SendInv invalidates at the peer.
func (s *SendSlot) SetInvalidate(rkey uint32) { put32(s.ctrl(), ctrlImm, rkey) }

// SetRDMA sets the peer's memory for Read, Write and WriteImm.
func (s *SendSlot) SetRDMA(addr uint64, rkey uint32) {
	putRDMA(s.at(s.pos), addr, rkey)
	s.pos += raddrSize
}

// SetAtomic sets the peer's 8 bytes for CAS (compare, swap) or FAA (add).
func (s *SendSlot) SetAtomic(addr, compareAdd, swap uint64, rkey uint32) {
	s.SetRDMA(addr, rkey)
	p := s.at(s.pos)
	if s.op == CAS {
		put64(p, 0, swap)
		put64(p, 8, compareAdd)
	} else {
		put64(p, 0, compareAdd)
		put64(p, 8, 0)
	}
	s.pos += atomicSize
}

// SetUD sets the destination of a datagram.
//
// Preconditions: the queue's transport is Datagram.
func (s *SendSlot) SetUD(qpn, qkey uint32, av *AV) {
	putQP(s.ctrl(), qpn, qkey, av)
}

// SetDC sets the target of a work request, its access key and the stream.
//
// Preconditions: the queue's transport is DC, and the operation is none that changes a local key.
func (s *SendSlot) SetDC(dctn uint32, key uint64, stream uint16, av *AV) {
	putDCT(s.ctrl(), dctn, key, av)
	put16(s.ctrl(), ctrlStream, stream)
}

// SetSRQ names the peer's shared receive queue.
//
// Preconditions: the queue's transport is XRC.
func (s *SendSlot) SetSRQ(number uint32) {
	put32(s.ctrl(), ctrlSize, number&indexMask)
}

// AddSGE appends length bytes of registered memory at addr to the data. The errors are
// ErrTooManySGE, ErrTooLong and ErrMixedData; they leave the request unchanged.
func (s *SendSlot) AddSGE(addr uint64, length, lkey uint32) error {
	total := uint64(s.data) + uint64(length)
	if s.left == 0 || total > maxLength {
		return s.refuse()
	}
	s.left--
	if length == 0 { // the device would read it as 2 GiB
		return nil
	}
	putData(s.at(s.pos), addr, length, lkey)
	s.data = uint32(total)
	s.pos += dataSize
	return nil
}

// refuse returns the reason why AddSGE has not added an entry.
func (s *SendSlot) refuse() error {
	switch {
	case s.inlined:
		return ErrMixedData
	case s.left == 0:
		return ErrTooManySGE
	}
	return ErrTooLong
}

// AddInline appends b to the data, which the device takes from the WQE itself. b may be used again
// at once. The errors are ErrInlineTooLong and ErrMixedData; they leave the request unchanged.
func (s *SendSlot) AddInline(b []byte) error {
	q := s.q
	if !s.inlined && s.left != q.maxSGE {
		return ErrMixedData
	}
	if len(b) > int(q.maxInline-s.data) {
		return ErrInlineTooLong
	}
	if len(b) == 0 {
		return nil
	}
	if !s.inlined {
		s.inline, s.inlined, s.left = s.pos, true, 0
		s.pos += inlineSize
	}
	q.copyIn(s.at(s.pos), b)
	s.data += uint32(len(b))
	s.pos += uint32(len(b))
	return nil
}

// Finish completes the WQE, which is then ready to be published.
func (s *SendSlot) Finish() {
	q := s.q
	if s.inlined {
		put32(s.at(s.inline), 0, inlineFlag|s.data)
	}
	head := heads[s.op%numOps]
	q.end(q.block(s.wqe), s.wqe, head, (s.pos-s.wqe*blockSize+octoSize-1)/octoSize)
	q.record(s.id, uintptr(s.wqe&q.mask)*blockSize, s.wqe, head)
	if head&headCode == opUMR<<8 {
		q.fence = flagSmallFence // the next request may use the key
	}
}

// A Done is a completed work request that Take has not taken yet.
type Done struct {
	*sent
	was         uint64 // what it has
	shown, tail uint32 // work requests that were published, and that have completed
}

// Op returns the operation of the work request.
func (d Done) Op() Op { return sentOp(d.was) }

// At returns the work request whose WQE starts at a block, if Waits says that there is one.
func (q *SendQueue) At(counter uint16) (d Done) {
	d.shown, d.tail = q.published.Acquire(), q.tail.Acquire() // the first pairs with Release in Publish, only this goroutine stores the second
	d.sent = q.sent(uint32(counter))
	d.was = d.what.Load()
	return d
}

// Waits reports whether a WQE that was posted and has not completed starts at the block of At.
func (d Done) Waits(counter uint16) bool {
	return uint32(d.was)>>sentBlockShift == sentPosted>>sentBlockShift|uint32(counter) && sentHead(d.was)-d.tail < d.shown-d.tail
}

// Done finds the work request whose WQE starts at a block. It is At and Waits.
func (q *SendQueue) Done(counter uint16) (d Done, ok bool) {
	d = q.At(counter)
	return d, d.Waits(counter)
}

// Take takes the completion of a work request, together with earlier requests that are not
// signaled, and returns the ID and the operation of the request. Like At and Waits it is inlined where
// completions are polled; one function for all would be too long for that.
//
// Preconditions: Done has returned d, and nothing was taken since.
func (q *SendQueue) Take(d Done) (id uint64, op Op) {
	id = d.id.Load()
	// Pairs with Acquire in refresh: the entry was read before it can be filled anew.
	q.tail.Release(sentHead(d.was) + 1)
	return id, d.Op()
}

// Complete calls Done and Take. If Done returns false, nothing changes.
func (q *SendQueue) Complete(counter uint16) (id uint64, op Op, ok bool) {
	d, ok := q.Done(counter)
	if !ok {
		return 0, 0, false
	}
	id, op = q.Take(d)
	return id, op, true
}

// Reset empties the queue after the QP has moved to state RESET. The next work request needs a Begin.
func (q *SendQueue) Reset() {
	q.head, q.saved, q.start = 0, 0, 0
	q.published.Release(0)
	q.tail.Release(0)
	q.limit = q.maxWR
	for b := range q.mask + 1 {
		e := q.sent(b)
		e.id.Store(0)
		e.what.Store(0)
	}
	q.rec.set(recSend, 0)
}
