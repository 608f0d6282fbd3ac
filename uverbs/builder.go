package uverbs

import (
	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/mmio/siw"
)

// SendBuilder writes send work requests into the send queue in place (ibv_wr_start,
// ibv_wr_send and so on, ibv_wr_complete). [QP.BeginSend] starts a batch; each method
// named after an operation begins a work request; To, SGE and Inline complete the one
// that was begun last; Post hands the batch to the device with one doorbell, and Abandon
// drops it. Nothing is posted before Post.
//
// The methods return nothing: the first error is kept, and Post returns it. A builder is
// part of its QP's send side and belongs to the same goroutine; it does not allocate.
type SendBuilder struct {
	q     *QP
	n     int   // work requests begun
	err   error // the first error
	bytes uint64
	binds []bind // what windows become

	// Of the work request that was begun last:
	slot  rxeSendSlot
	mslot mlx5.SendSlot
	wslot siw.SendSlot
	op    WROpcode
	raddr uint64
	data  uint64 // bytes of SGEs or inline
	to    bool   // To was called
}

// BeginSend starts a batch and drops one that was not posted (ibv_wr_start).
func (q *QP) BeginSend() *SendBuilder {
	b := &q.builder
	b.Abandon()
	b.q, b.bytes = q, 0
	if s := QPState(q.state.Load()); s < RTS || q.gone.Load() {
		b.err = q.stateErr()
	} else if q.kind == kindMlx5 {
		q.mlx5.sq.Begin()
	}
	return b
}

// begin begins a work request. It reports whether there is one to fill.
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
		if q.noAtomics && (op == WRAtomicCAS || op == WRAtomicFAA) {
			b.fail(errNoAtomics)
		} else {
			b.fail(ErrOpcode)
		}
		return false
	case flags&^sendFlagsAll != 0:
		b.fail(ErrSendFlags)
		return false
	}
	if q.sigAll {
		flags |= Signaled
	}
	b.op, b.raddr, b.data, b.to = op, 0, 0, false
	switch q.kind {
	case kindRxe:
		if ok, err := q.rxe.sq.Room(b.n + 1); !ok {
			b.err = roomErr(b.n+1, q.rxe.sq.Cap(), err)
			return false
		}
		b.slot = q.rxe.sq.Slot(b.n)
		b.slot.Start(id, uint32(op), uint32(flags))
	case kindMlx5:
		if !q.mlx5.sq.Room(b.n + 1) {
			b.err = roomErr(b.n+1, q.mlx5.sq.Cap(), nil)
			return false
		}
		q.mlx5.sq.Start(&b.mslot, id, mlx5.Op(op), uint8(flags))
	case kindSiw:
		if !q.siw.sq.Room(b.n + 1) {
			b.err = roomErr(b.n+1, q.siw.sq.Cap(), nil)
			return false
		}
		b.wslot = q.siw.sq.Slot(b.n)
		b.wslot.Start(id, siwOpcodes[op], siwSendFlags(flags))
	default:
		b.err = errKind
		return false
	}
	b.n++
	return true
}

// fail keeps the first error, with the index of the work request that begins or, if one
// was begun, of that.
func (b *SendBuilder) fail(err error) {
	if b.err == nil {
		b.err = &PostError{Index: b.n, Err: err}
	}
}

// failLast is fail for the work request that was begun last.
func (b *SendBuilder) failLast(err error) {
	if b.err == nil {
		b.err = &PostError{Index: b.n - 1, Err: err}
	}
}

// begun reports whether there is a work request to complete.
func (b *SendBuilder) begun() bool {
	if b.err == nil && b.n == 0 {
		b.fail(ErrNothingBegun)
	}
	return b.err == nil
}

// finish checks the work request that was begun last, if there is one.
func (b *SendBuilder) finish() {
	if b.err != nil || b.n == 0 {
		return
	}
	b.bytes += b.data
	switch b.op {
	case WRAtomicCAS, WRAtomicFAA:
		if b.data != 8 || b.raddr%8 != 0 {
			b.failLast(ErrAtomic)
		}
	case WRAtomicWrite:
		if b.raddr%8 != 0 {
			b.failLast(ErrAtomic)
		}
	case WRSend, WRSendWithImm:
		if b.q.typ == UD && !b.to {
			b.failLast(ErrNoAddress)
		}
	}
	if b.err == nil && b.q.kind == kindMlx5 {
		if b.mslot.HeaderLeft() > 0 {
			b.failLast(ErrHeader)
			return
		}
		b.mslot.Finish()
	}
}

// Send begins a SEND (ibv_wr_send).
func (b *SendBuilder) Send(id uint64, flags SendFlags) { b.begin(id, WRSend, flags) }

// SendImm begins a SEND with an immediate, given in host byte order (ibv_wr_send_imm).
func (b *SendBuilder) SendImm(id uint64, flags SendFlags, imm uint32) {
	if b.begin(id, WRSendWithImm, flags) {
		b.setImm(imm)
	}
}

// SendInv begins a SEND that invalidates a key of the peer (ibv_wr_send_inv).
func (b *SendBuilder) SendInv(id uint64, flags SendFlags, rkey uint32) {
	if !b.begin(id, WRSendWithInv, flags) {
		return
	}
	switch b.q.kind {
	case kindRxe:
		b.slot.SetInvalidate(rkey)
	case kindMlx5:
		b.mslot.SetInvalidate(rkey)
	case kindSiw:
		b.wslot.SetInvalidate(rkey)
	}
}

// Write begins an RDMA WRITE to the peer's memory at raddr (ibv_wr_rdma_write).
func (b *SendBuilder) Write(id uint64, flags SendFlags, raddr uint64, rkey uint32) {
	b.rdma(id, WRRDMAWrite, flags, raddr, rkey)
}

// WriteImm begins an RDMA WRITE with an immediate (ibv_wr_rdma_write_imm).
func (b *SendBuilder) WriteImm(id uint64, flags SendFlags, raddr uint64, rkey, imm uint32) {
	if b.rdma(id, WRRDMAWriteWithImm, flags, raddr, rkey) {
		b.setImm(imm)
	}
}

func (b *SendBuilder) setImm(imm uint32) {
	switch b.q.kind {
	case kindRxe:
		b.slot.SetImm(imm)
	case kindMlx5:
		b.mslot.SetImm(imm)
	}
}

// Read begins an RDMA READ of the peer's memory at raddr (ibv_wr_rdma_read).
func (b *SendBuilder) Read(id uint64, flags SendFlags, raddr uint64, rkey uint32) {
	b.rdma(id, WRRDMARead, flags, raddr, rkey)
}

// ReadInv begins an RDMA READ that invalidates the key of the place that it is read to, its SGE,
// when it is done (IB_WR_RDMA_READ_WITH_INV). iWARP has it; siw does not invalidate.
func (b *SendBuilder) ReadInv(id uint64, flags SendFlags, raddr uint64, rkey uint32) {
	b.rdma(id, WRRDMAReadWithInv, flags, raddr, rkey)
}

func (b *SendBuilder) rdma(id uint64, op WROpcode, flags SendFlags, raddr uint64, rkey uint32) bool {
	if !b.begin(id, op, flags) {
		return false
	}
	b.raddr = raddr
	switch b.q.kind {
	case kindRxe:
		b.slot.SetRDMA(raddr, rkey)
	case kindMlx5:
		b.mslot.SetRDMA(raddr, rkey)
	case kindSiw:
		b.wslot.SetRDMA(raddr, rkey)
	}
	return true
}

// CompareSwap begins an atomic compare and swap of the 8 bytes at raddr, which is a
// multiple of 8; what was there comes back into the SGE, of 8 bytes
// (ibv_wr_atomic_cmp_swp).
func (b *SendBuilder) CompareSwap(id uint64, flags SendFlags, raddr uint64, rkey uint32, compare, swap uint64) {
	b.atomic(id, WRAtomicCAS, flags, raddr, rkey, compare, swap)
}

// FetchAdd begins an atomic fetch and add; see CompareSwap (ibv_wr_atomic_fetch_add).
func (b *SendBuilder) FetchAdd(id uint64, flags SendFlags, raddr uint64, rkey uint32, add uint64) {
	b.atomic(id, WRAtomicFAA, flags, raddr, rkey, add, 0)
}

func (b *SendBuilder) atomic(id uint64, op WROpcode, flags SendFlags, raddr uint64, rkey uint32, compareAdd, swap uint64) {
	if !b.begin(id, op, flags) {
		return
	}
	b.raddr = raddr
	switch b.q.kind {
	case kindRxe:
		b.slot.SetAtomic(raddr, compareAdd, swap, rkey)
	case kindMlx5:
		b.mslot.SetAtomic(raddr, compareAdd, swap, rkey)
	}
}

// AtomicWrite begins an atomic write of 8 bytes to raddr, which is a multiple of 8. It
// has no SGE (ibv_wr_atomic_write). Linux 6.2 on rxe.
func (b *SendBuilder) AtomicWrite(id uint64, flags SendFlags, raddr uint64, rkey uint32, value [8]byte) {
	if b.begin(id, WRAtomicWrite, flags) {
		b.raddr = raddr
		b.slot.SetAtomicWrite(raddr, rkey, value)
	}
}

// Flush begins a flush of length bytes of the peer's memory at raddr: it completes when
// they are where placement says (ibv_wr_flush). Linux 6.2 on rxe.
func (b *SendBuilder) Flush(id uint64, flags SendFlags, raddr uint64, length, rkey uint32, placement FlushPlacement, level FlushLevel) {
	if b.begin(id, WRFlush, flags) {
		b.slot.SetFlush(raddr, length, rkey, uint8(placement), uint8(level))
	}
}

// LocalInv begins the invalidation of a key of this side: a memory window of type 2, or a
// fast-registered region (ibv_wr_local_inv).
func (b *SendBuilder) LocalInv(id uint64, flags SendFlags, rkey uint32) {
	if !b.begin(id, WRLocalInv, flags) {
		return
	}
	switch b.q.kind {
	case kindRxe:
		b.slot.SetInvalidate(rkey)
	case kindMlx5:
		b.mslot.SetLocalInv(rkey)
	case kindSiw:
		b.wslot.SetInvalidate(rkey)
	}
}

// BindMW begins the binding of a memory window to length bytes at addr of an MR that was
// registered with AccessMWBind (ibv_wr_bind_mw, ibv_bind_mw). The window's key is rkey
// afterwards, which differs from the one before in the last 8 bits, as [IncRKey] makes it.
// [MW.RKey] tells it as soon as the batch is posted; if the work request then fails, the
// window still has the key that it had. A length of 0 unbinds a window of type 1.
func (b *SendBuilder) BindMW(id uint64, flags SendFlags, mw *MW, rkey uint32, mr *MR, addr, length uint64, access Access) {
	if !b.begin(id, WRBindMW, flags) {
		return
	}
	switch {
	case mw == nil || mr == nil || mw.gone.Load() || mr.gone.Load():
		b.failLast(ErrBind)
		return
	case mw.dev != b.q.dev || mr.dev != b.q.dev:
		b.failLast(ErrBindForeign)
		return
	}
	now := b.windowKey(mw)
	if rkey>>8 != now>>8 {
		b.failLast(ErrBindKey)
		return
	}
	if b.q.kind == kindMlx5 && mr.Access()&AccessMWBind == 0 {
		b.failLast(ErrBindRight)
		return
	}
	switch b.q.kind {
	case kindRxe:
		b.slot.SetMW(addr, length, mr.lkey, now, rkey, uint32(access))
	case kindMlx5:
		if err := b.mslot.SetBind(&mlx5.Window{
			Key: now, NewKey: rkey, Type2: mw.typ == MWType2, LKey: mr.lkey, Addr: addr, Length: length, Access: uint32(access),
		}); err != nil {
			b.failLast(mlx5SlotErr(err))
			return
		}
	}
	b.binds = append(b.binds, bind{mw.number, rkey})
}

// bind is a window's key once the batch is posted. The window is kept by its number: a
// pointer here would move every caller's SendWR, with its SGL, to the heap.
type bind struct {
	mw   uint64
	rkey uint32
}

// windowKey returns a window's key as the batch leaves it so far.
func (b *SendBuilder) windowKey(mw *MW) uint32 {
	for i := len(b.binds) - 1; i >= 0; i-- {
		if b.binds[i].mw == mw.number {
			return b.binds[i].rkey
		}
	}
	return mw.RKey()
}

// To says where the datagram goes (ibv_wr_set_ud_addr).
func (b *SendBuilder) To(ah *AH, qpn, qkey uint32) {
	if !b.begun() {
		return
	}
	switch {
	case b.q.typ != UD:
		b.failLast(ErrNotDatagram)
		return
	case ah == nil || ah.gone.Load():
		b.failLast(ErrNoAddress)
		return
	case ah.dev != b.q.dev:
		b.failLast(ErrForeignAH)
		return
	}
	b.to = true
	switch b.q.kind {
	case kindRxe:
		b.slot.SetUD(qpn&maxQPN, qkey, ah.rxe.num, &ah.rxe.av)
	case kindMlx5:
		b.mslot.SetUD(qpn, qkey, &ah.mlx5.av)
	}
}

// ToSRQ names the SRQ of the peer's domain that takes the message, for [XRCSend]
// (ibv_wr_set_xrc_srqn).
func (b *SendBuilder) ToSRQ(number uint32) {
	if !b.begun() {
		return
	}
	if b.q.typ != XRCSend {
		b.failLast(ErrNotXRC)
		return
	}
	if b.q.kind == kindMlx5 && b.takesData() { // others have no QP of this type
		b.mslot.SetSRQ(number)
	}
}

// SGE appends memory to the data of the work request (ibv_wr_set_sge_list).
func (b *SendBuilder) SGE(sgl ...SGE) {
	if !b.begun() {
		return
	}
	if !b.takesData() {
		if len(sgl) > 0 {
			b.failLast(ErrNoData)
		}
		return
	}
	for i := range sgl {
		if sgl[i].outside {
			b.failLast(ErrSGERange)
			return
		}
		if err := b.addSGE(&sgl[i]); err != nil {
			b.failLast(err)
			return
		}
		b.data += uint64(sgl[i].Length)
	}
}

func (b *SendBuilder) addSGE(sge *SGE) error {
	switch b.q.kind {
	case kindRxe:
		if err := b.slot.AddSGE(sge.Addr, sge.Length, sge.LKey); err != nil {
			return rxeSlotErr(err)
		}
	case kindMlx5:
		rest := *sge
		if b.mslot.HeaderLeft() > 0 && rest.Length > 0 {
			var err error
			if rest, err = b.q.headerMlx5(&b.mslot, rest); err != nil {
				return err
			}
		}
		if err := b.mslot.AddSGE(rest.Addr, rest.Length, rest.LKey); err != nil {
			return mlx5SlotErr(err)
		}
	case kindSiw:
		if err := b.wslot.AddSGE(sge.Addr, sge.Length, sge.LKey); err != nil {
			return siwSlotErr(err)
		}
	}
	return nil
}

// Inline appends data that is copied now and need not be registered
// (ibv_wr_set_inline_data). It excludes SGE.
func (b *SendBuilder) Inline(data []byte) {
	if !b.begun() {
		return
	}
	switch b.op {
	case WRRDMARead, WRRDMAReadWithInv, WRAtomicCAS, WRAtomicFAA:
		b.failLast(ErrInlineUse)
		return
	}
	if !b.takesData() {
		b.failLast(ErrNoData)
		return
	}
	switch b.q.kind {
	case kindRxe:
		if err := b.slot.AddInline(data); err != nil {
			b.failLast(rxeSlotErr(err))
			return
		}
	case kindMlx5:
		head := min(b.mslot.HeaderLeft(), len(data))
		b.mslot.AddHeader(data[:head])
		if err := b.mslot.AddInline(data[head:]); err != nil {
			b.failLast(mlx5SlotErr(err))
			return
		}
	case kindSiw:
		if err := b.wslot.AddInline(data); err != nil {
			b.failLast(siwSlotErr(err))
			return
		}
	}
	b.data += uint64(len(data))
}

// takesData reports whether the work request has data of the caller's.
func (b *SendBuilder) takesData() bool {
	switch b.op {
	case WRLocalInv, WRBindMW, WRFlush, WRAtomicWrite:
		return false
	}
	return true
}

// Post posts the batch, all of it or nothing, with one doorbell (ibv_wr_complete). Errors
// are those of [QP.PostSend]. The builder is empty afterwards.
func (b *SendBuilder) Post() error {
	b.finish()
	n, err, binds := b.n, b.err, b.binds
	b.Abandon()
	if err != nil || n == 0 {
		return err
	}
	for _, bound := range binds {
		if mw, ok := b.q.dev.target(bound.mw).(*MW); ok {
			mw.setRKey(bound.rkey)
			b.q.bound.Store(true)
		}
	}
	q := b.q
	if err := q.enter(&q.sending); err != nil { // what a doorbell is about is not closed before it has rung
		return err
	}
	switch q.kind {
	case kindRxe:
		err = q.publishRxe(n, b.bytes)
	case kindMlx5:
		q.mlx5.sq.Publish()
	case kindSiw:
		err = q.publishSiw(n, b.bytes)
	default:
		err = errKind
	}
	q.sending.Unlock()
	return err
}

// Abandon drops the batch (ibv_wr_abort).
func (b *SendBuilder) Abandon() { b.n, b.err, b.binds = 0, nil, b.binds[:0] }

// add begins and completes a work request of the slice API.
func (b *SendBuilder) add(wr *SendWR) {
	switch wr.Opcode {
	case WRSend:
		b.Send(wr.ID, wr.Flags)
	case WRSendWithImm:
		b.SendImm(wr.ID, wr.Flags, wr.Imm)
	case WRSendWithInv:
		b.SendInv(wr.ID, wr.Flags, wr.InvalidateRKey)
	case WRRDMAWrite, WRRDMARead, WRRDMAReadWithInv:
		b.rdma(wr.ID, wr.Opcode, wr.Flags, wr.RemoteAddr, wr.RKey)
	case WRRDMAWriteWithImm:
		b.WriteImm(wr.ID, wr.Flags, wr.RemoteAddr, wr.RKey, wr.Imm)
	case WRAtomicCAS, WRAtomicFAA:
		b.atomic(wr.ID, wr.Opcode, wr.Flags, wr.RemoteAddr, wr.RKey, wr.CompareAdd, wr.Swap)
	case WRAtomicWrite:
		b.addAtomicWrite(wr)
		return
	case WRFlush:
		b.Flush(wr.ID, wr.Flags, wr.RemoteAddr, wr.Length, wr.RKey, wr.Placement, wr.Level)
	case WRLocalInv:
		b.LocalInv(wr.ID, wr.Flags, wr.InvalidateRKey)
	case WRBindMW:
		w, rkey := &wr.Bind, wr.RKey
		if w.MW != nil && rkey == 0 {
			rkey = IncRKey(b.windowKey(w.MW))
		}
		b.BindMW(wr.ID, wr.Flags, w.MW, rkey, w.MR, w.Addr, w.Length, w.Access)
	default:
		b.finish()
		b.fail(ErrOpcode)
	}
	if b.err != nil {
		return
	}
	if wr.AH != nil || b.q.typ == UD {
		b.To(wr.AH, wr.RemoteQPN, wr.RemoteQKey)
	}
	if b.q.typ == XRCSend {
		b.ToSRQ(wr.RemoteSRQN)
	}
	if len(wr.Inline) > 0 {
		b.Inline(wr.Inline)
	}
	if len(wr.SGL) > 0 {
		b.SGE(wr.SGL...)
	}
}

// addAtomicWrite takes the 8 bytes from Inline.
func (b *SendBuilder) addAtomicWrite(wr *SendWR) {
	var value [8]byte
	copy(value[:], wr.Inline)
	b.AtomicWrite(wr.ID, wr.Flags, wr.RemoteAddr, wr.RKey, value)
	if len(wr.Inline) != len(value) || len(wr.SGL) > 0 {
		b.failLast(ErrAtomic)
	}
}
