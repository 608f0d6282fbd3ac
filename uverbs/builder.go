package uverbs

import (
	"errors"
	"fmt"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// SendBuilder posts send work requests by calls instead of structs (ibv_wr_start, ibv_wr_complete and
// the functions between them):
//
//   - [QP.BeginSend] starts a batch.
//   - Each method named after an operation begins a work request.
//   - To, ToSRQ, SGE and Inline complete the work request that was begun last.
//   - SendInline, SendSGE, WriteInline, WriteSGE and ReadSGE add a whole work request, with its data, in one call.
//     They are the fastest: on a connected QP of mlx5 and on efa they write the queue entry at once. To before
//     them sets where they go, on a QP for datagrams.
//   - Post hands the batch to the device with one doorbell. Nothing is posted before.
//   - Abandon drops the batch.
//
// The methods return no error. Post returns the first one. A builder belongs to one goroutine
// from BeginSend until Post or Abandon, and meanwhile nobody may call [QP.PostSend]. It allocates only when
// a work request has more data than any before.
type SendBuilder struct {
	q           *QP
	n           int         // work requests begun
	room        int         // how many may be begun by calls that write to the queue at once
	directQueue             // what they write to, if room is not 0
	to          destination // of whole work requests
	staged      bool        // wr is not in the queue yet
	open        bool        // a batch was begun
	addressed   bool        // to is set
	wr          [1]SendWR   // the work request begun last; its SGL and Inline are memory of the builder
	err         error       // the first error
	bytes       uint64      // data in the batch
	binds       []bind      // the binds in the batch
	resets      uint32      // QP.resets when the batch was begun
	keys        windowKeys  // of the BIND_MW begun last
}

// destination is where datagrams go.
type destination struct {
	ah        *AH
	qpn, qkey uint32
}

// windowKeys are the keys of a memory window before and after a bind.
type windowKeys struct{ from, to uint32 }

// BeginSend starts a batch (ibv_wr_start). A batch that was begun before and not posted is dropped.
func (q *QP) BeginSend() *SendBuilder {
	b := &q.builder
	b.Abandon()
	b.q, b.open, b.bytes, b.resets = q, true, 0, q.resets.Load() // before the state, which changes first
	if s := ib.QPState(q.state.Load()); s < ib.QPRTS || q.closed.Load() {
		b.err = q.stateErr(false)
	} else {
		q.reserve()
	}
	return b
}

// begin finishes the work request that was begun last and stages a new one. It reports whether the
// caller may fill it in.
func (b *SendBuilder) begin(id uint64, op WROpcode, flags SendFlags) bool {
	b.finish()
	if b.err != nil {
		return false
	}
	q := b.q
	switch {
	case q == nil:
		b.fail(errZero("use"))
		return false
	case int(op) >= len(q.ops) || !q.ops[op]:
		switch {
		case op == 0:
			b.fail(&reason{"it is not set: name an operation, such as WRSend", ErrOpcode})
		case int(op) < len(q.ops) && q.lacking[op]:
			b.fail(q.lackingErr(op))
		default:
			b.fail(&reason{fmt.Sprintf("%s: %s of a QP of type %s", ErrOpcode, op, q.typ), ErrOpcode})
		}
		return false
	case flags&^sendFlagsAll != 0:
		b.fail(errSendFlags)
		return false
	}
	b.n++
	b.open = true
	w := &b.wr[0] // fields that are not reset here are read only if the operation's method has set them
	w.ID, w.Opcode, w.Flags = id, op, flags
	w.SGL, w.Inline, w.AH, w.RemoteSRQN = w.SGL[:0], w.Inline[:0], nil, 0
	b.staged = true
	return true
}

// lackingErr returns why an operation that the type of QP permits cannot be posted.
func (q *QP) lackingErr(op WROpcode) error {
	if op == WRCompareSwap || op == WRFetchAdd {
		return errNoAtomics
	}
	return &FeatureError{Feature: op.String(), Driver: q.dev.driver.name(), Err: errors.New("the device or its kernel driver does not have the capability")}
}

// fail records err if it is the first error, for the next work request.
func (b *SendBuilder) fail(err error) {
	if b.err == nil {
		b.err = postErr(b.n, err)
	}
}

// failLast records err if it is the first error, for the work request that was begun last.
func (b *SendBuilder) failLast(err error) {
	if b.err == nil {
		b.err = postErr(b.n-1, err)
	}
}

// begun reports whether a work request was begun that is not complete, and there is no error.
func (b *SendBuilder) begun() bool {
	if b.err == nil && !b.staged {
		b.fail(errNothingBegun)
	}
	return b.err == nil
}

// finish encodes the staged work request, if there is one.
func (b *SendBuilder) finish() {
	if !b.staged {
		return
	}
	b.staged = false
	q := b.q
	if !q.sending.TryLock() { // as lockSide
		if b.err = q.lockSideSlow(&q.sending); b.err != nil {
			return
		}
	}
	if b.resets == q.resets.Load() {
		b.encode(b.wr[:])
	} else {
		b.err = errResetMeanwhile
	}
	q.sending.Unlock()
}

// check returns the error of a work request that does not depend on the driver, or nil.
func (q *QP) check(wr *SendWR) error {
	switch {
	case q.typ == ib.DCI && !wr.Opcode.takesData(): // it has no target
	case !isDatagram(q.typ) && q.typ != ib.DCI && wr.AH == nil:
	case !isDatagram(q.typ) && q.typ != ib.DCI:
		return errNotDatagram
	case wr.AH == nil || wr.AH.closed.Load():
		return errNoAddress
	case wr.AH.dev != q.dev:
		return errForeignAH
	}
	switch wr.Opcode {
	case WRRDMARead, WRRDMAReadWithInv, WRCompareSwap, WRFetchAdd:
		if len(wr.Inline) > 0 {
			return errInlineUse
		}
	case WRAtomicWrite:
		if len(wr.Inline) != 8 || len(wr.SGL) > 0 {
			return errAtomicWrite
		}
		if wr.RemoteAddr%8 != 0 {
			return errAtomicAddr
		}
	case WRLocalInv, WRBindMW, WRFlush:
		if len(wr.SGL) > 0 {
			return errNoSGL
		}
		if len(wr.Inline) > 0 {
			return errNoInline
		}
	}
	return nil
}

// Send begins a SEND (ibv_wr_send).
func (b *SendBuilder) Send(id uint64, flags SendFlags) { b.begin(id, WRSend, flags) }

// SendImm begins a SEND with an immediate, given in host byte order (ibv_wr_send_imm).
func (b *SendBuilder) SendImm(id uint64, flags SendFlags, imm uint32) {
	if b.begin(id, WRSendWithImm, flags) {
		b.wr[0].Imm = imm
	}
}

// SendInv begins a SEND that invalidates an rkey of the peer (ibv_wr_send_inv).
func (b *SendBuilder) SendInv(id uint64, flags SendFlags, rkey uint32) {
	if b.begin(id, WRSendWithInv, flags) {
		b.wr[0].InvalidateRKey = rkey
	}
}

// Write begins an RDMA WRITE to the peer's memory at raddr (ibv_wr_rdma_write).
func (b *SendBuilder) Write(id uint64, flags SendFlags, raddr uint64, rkey uint32) {
	b.rdma(id, WRRDMAWrite, flags, raddr, rkey)
}

// WriteImm begins an RDMA WRITE with an immediate (ibv_wr_rdma_write_imm).
func (b *SendBuilder) WriteImm(id uint64, flags SendFlags, raddr uint64, rkey, imm uint32) {
	if b.rdma(id, WRRDMAWriteWithImm, flags, raddr, rkey) {
		b.wr[0].Imm = imm
	}
}

// Read begins an RDMA READ of the peer's memory at raddr (ibv_wr_rdma_read).
func (b *SendBuilder) Read(id uint64, flags SendFlags, raddr uint64, rkey uint32) {
	b.rdma(id, WRRDMARead, flags, raddr, rkey)
}

// ReadInv begins an RDMA READ that invalidates the lkey of its SGE when it completes
// (IB_WR_RDMA_READ_WITH_INV). It is an iWARP operation; siw does not invalidate the key.
func (b *SendBuilder) ReadInv(id uint64, flags SendFlags, raddr uint64, rkey uint32) {
	b.rdma(id, WRRDMAReadWithInv, flags, raddr, rkey)
}

func (b *SendBuilder) rdma(id uint64, op WROpcode, flags SendFlags, raddr uint64, rkey uint32) bool {
	if !b.begin(id, op, flags) {
		return false
	}
	b.wr[0].RemoteAddr, b.wr[0].RKey = raddr, rkey
	return true
}

// CompareSwap begins an atomic compare and swap of the 8 bytes at raddr, which must be a multiple
// of 8 (ibv_wr_atomic_cmp_swp). The SGE receives the old value and must have 8 bytes.
func (b *SendBuilder) CompareSwap(id uint64, flags SendFlags, raddr uint64, rkey uint32, compare, swap uint64) {
	b.atomic(id, WRCompareSwap, flags, raddr, rkey, compare, swap)
}

// FetchAdd begins an atomic fetch and add (ibv_wr_atomic_fetch_add). The rules for raddr and the
// SGE are the same as for CompareSwap.
func (b *SendBuilder) FetchAdd(id uint64, flags SendFlags, raddr uint64, rkey uint32, add uint64) {
	b.atomic(id, WRFetchAdd, flags, raddr, rkey, add, 0)
}

func (b *SendBuilder) atomic(id uint64, op WROpcode, flags SendFlags, raddr uint64, rkey uint32, compareAdd, swap uint64) {
	if b.rdma(id, op, flags, raddr, rkey) {
		b.wr[0].CompareAdd, b.wr[0].Swap = compareAdd, swap
	}
}

// AtomicWrite begins an atomic write of 8 bytes to raddr, which must be a multiple of 8
// (ibv_wr_atomic_write). It has no SGE. rxe supports it since Linux 6.2.
func (b *SendBuilder) AtomicWrite(id uint64, flags SendFlags, raddr uint64, rkey uint32, value [8]byte) {
	if b.rdma(id, WRAtomicWrite, flags, raddr, rkey) {
		b.wr[0].Inline = append(b.wr[0].Inline, value[:]...)
	}
}

// Flush begins a flush of length bytes of the peer's memory at raddr (ibv_wr_flush). It completes
// when the data has reached the placement. rxe supports it since Linux 6.2.
func (b *SendBuilder) Flush(id uint64, flags SendFlags, raddr uint64, length, rkey uint32, placement FlushPlacement, level FlushLevel) {
	if b.rdma(id, WRFlush, flags, raddr, rkey) {
		w := &b.wr[0]
		w.Length, w.Placement, w.Level = length, placement, level
	}
}

// LocalInv begins the invalidation of a local key: that of a memory window of type 2 or of a
// fast-registered region (ibv_wr_local_inv).
func (b *SendBuilder) LocalInv(id uint64, flags SendFlags, rkey uint32) {
	if b.begin(id, WRLocalInv, flags) {
		b.wr[0].InvalidateRKey = rkey
	}
}

// BindMW begins to bind a memory window to length bytes at addr of an MR with AccessMWBind
// (ibv_wr_bind_mw, ibv_bind_mw). A length of 0 unbinds a window of type 1.
//
// The window's new key is rkey. It must differ from the current key in the last 8 bits only;
// [IncRKey] makes such a key. [MW.RKey] returns the new key once the batch is posted, and the old
// one again if the bind fails.
func (b *SendBuilder) BindMW(id uint64, flags SendFlags, mw *MW, rkey uint32, mr *MR, addr, length uint64, access Access) {
	if b.begin(id, WRBindMW, flags) {
		b.wr[0].Bind = BindInfo{MW: mw, MR: mr, Addr: addr, Length: length, Access: access}
		b.bind(mw, mr, rkey)
	}
}

// bind checks the window and the MR of a BIND_MW, and records the window's keys.
func (b *SendBuilder) bind(mw *MW, mr *MR, rkey uint32) {
	switch {
	case mw == nil || mr == nil || mw.closed.Load() || mr.closed.Load():
		b.failLast(errBind)
		return
	case mw.dev != b.q.dev || mr.dev != b.q.dev:
		b.failLast(errBindForeign)
		return
	}
	b.keys = windowKeys{b.windowKey(mw), rkey}
	if rkey>>8 != b.keys.from>>8 {
		b.failLast(errBindKey)
		return
	}
	b.binds = append(b.binds, bind{mw.number, rkey})
}

// bind is the key of a window after the batch is posted. It holds the window's number, because a
// pointer would move every caller's SendWR, with its SGL, to the heap.
type bind struct {
	mw   uint64
	rkey uint32
}

// windowKey returns the key of a window after the binds in the batch.
func (b *SendBuilder) windowKey(mw *MW) uint32 {
	for i := len(b.binds) - 1; i >= 0; i-- {
		if b.binds[i].mw == mw.number {
			return b.binds[i].rkey
		}
	}
	return mw.RKey()
}

// To sets the destination of a datagram, or of a request of an SRD QP (ibv_wr_set_ud_addr); the QPN of a group is
// [ib.MulticastQPN]. Behind BeginSend and whole work requests, such as that of SendSGE, it sets the destination of
// the whole ones that follow, until the next To.
func (b *SendBuilder) To(ah *AH, qpn, qkey uint32) {
	q := b.q
	switch {
	case b.err != nil || q == nil || !isDatagram(q.typ):
		b.toNone()
	case b.staged:
		w := &b.wr[0]
		w.AH, w.RemoteQPN, w.RemoteQKey = ah, qpn, qkey
	default:
		b.to, b.addressed = destination{ah, qpn, qkey}, true
		b.toEfa(ah, qpn, qkey)
	}
}

// toNone records the error of a QP that has no destinations.
func (b *SendBuilder) toNone() {
	switch {
	case b.q == nil:
		b.fail(errZero("use"))
	case b.staged:
		b.failLast(errNotDatagram)
	default:
		b.fail(errNotDatagram)
	}
}

// ToSRQ sets the number of the peer's SRQ that receives the message, for a QP of type [ib.XRCSend]
// (ibv_wr_set_xrc_srqn).
func (b *SendBuilder) ToSRQ(number uint32) {
	if !b.begun() {
		return
	}
	if b.q.typ != ib.XRCSend {
		b.failLast(errNotXRC)
		return
	}
	b.wr[0].RemoteSRQN = number
}

// SGE appends registered memory to the work request (ibv_wr_set_sge, ibv_wr_set_sge_list).
func (b *SendBuilder) SGE(sgl ...SGE) {
	if (b.err != nil || !b.staged) && !b.begun() {
		return
	}
	if len(sgl) > 0 && !b.wr[0].Opcode.takesData() {
		b.failLast(errNoSGL)
		return
	}
	w := &b.wr[0]
	if n := len(w.SGL); len(sgl) == 1 && n < cap(w.SGL) { // the usual case, without a call
		w.SGL = w.SGL[:n+1]
		w.SGL[n] = sgl[0]
		return
	}
	w.SGL = append(w.SGL, sgl...)
}

// Inline appends data that need not be registered; it is copied at once (ibv_wr_set_inline_data,
// ibv_wr_set_inline_data_list). A work request cannot have both inline data and SGEs.
func (b *SendBuilder) Inline(data []byte) {
	if !b.begun() {
		return
	}
	w := &b.wr[0]
	switch {
	case !w.Opcode.takesData():
		b.failLast(errNoInline)
	case len(data) > maxInline-len(w.Inline):
		b.failLast(given(ErrInlineTooLong, &SendWR{Inline: make([]byte, len(w.Inline)+len(data))}, b.q.Caps(), b.q.dev))
	default:
		w.Inline = append(w.Inline, data...)
	}
}

// takesData reports whether the operation takes SGEs or inline data.
func (o WROpcode) takesData() bool {
	switch o {
	case WRLocalInv, WRBindMW, WRFlush, WRAtomicWrite:
		return false
	}
	return true
}

// Post posts the whole batch with one doorbell, or nothing (ibv_wr_complete). It fails with the
// errors of [QP.PostSend], and with [ErrState] if the QP was reset since the batch was begun. The builder
// is empty afterwards.
func (b *SendBuilder) Post() error {
	q := b.q
	if b.err != nil || b.n == 0 {
		err := b.err
		b.Abandon()
		return err
	}
	if !q.sending.TryLock() {
		if err := q.lockSideSlow(&q.sending); err != nil { // Close waits until the doorbell has rung
			b.Abandon()
			return err
		}
	}
	var err error
	switch n := b.n; {
	case b.resets != q.resets.Load():
		b.Abandon()
		err = errResetMeanwhile
	case b.staged || len(b.binds) > 0:
		err = b.post()
	default:
		b.Abandon()
		err = q.ring(n, b.bytes)
	}
	q.sending.Unlock()
	return err
}

// post is Post. The caller holds sending.
func (b *SendBuilder) post() error {
	if b.staged {
		b.encode(b.wr[:])
	}
	q, n, err := b.q, b.n, b.err
	if err != nil || n == 0 {
		b.Abandon()
		return err
	}
	for _, bound := range b.binds {
		if mw, ok := q.dev.targets.get(bound.mw).(*MW); ok {
			mw.setRKey(bound.rkey)
			q.bound.Store(true)
		}
	}
	b.Abandon()
	return q.ring(n, b.bytes)
}

// Abandon drops the batch (ibv_wr_abort).
func (b *SendBuilder) Abandon() {
	b.n, b.room, b.left, b.staged, b.open, b.addressed = 0, 0, 0, false, false, false
	if b.err != nil || len(b.binds) > 0 { // the garbage collector watches stores of pointers
		b.err, b.binds = nil, b.binds[:0]
	}
}

// add begins and completes wrs[0], a work request of the slice API. It does not stage it, because
// that would move every caller's SendWR, with its SGL, to the heap. The caller holds sending.
func (b *SendBuilder) add(wrs []SendWR) {
	wr := &wrs[0]
	if !b.begin(wr.ID, wr.Opcode, wr.Flags) {
		return
	}
	b.staged = false
	if wr.Opcode == WRBindMW {
		rkey := wr.RKey
		if wr.Bind.MW != nil && rkey == 0 {
			rkey = IncRKey(b.windowKey(wr.Bind.MW))
		}
		b.bind(wr.Bind.MW, wr.Bind.MR, rkey)
	}
	b.encode(wrs)
}
