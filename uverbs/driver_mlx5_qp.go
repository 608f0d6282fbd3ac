package uverbs

import (
	"errors"
	"math/bits"
	"sync/atomic"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// mlx5QP is the mlx5 part of a QP.
type mlx5QP struct {
	sq *mlx5.SendQueue // nil if there is none
	rq *mlx5.RecvQueue // nil if there is none

	mlx5TableEntry
	send mlx5.SendSize
	recv mlx5.RecvSize
	rec  mlx5.Record
	reg  *mlx5Register
	lent bool // reg belongs to the thread domain

	streams    bool // of a DCI
	outOfOrder bool // QPOptions.OutOfOrder

	tis    uint32 // the TIS of a QP for raw packets
	hasTIS bool   // if its number is known

	eceWanted atomic.Uint32 // options of SetECE, for the next MODIFY_QP; 0 is none
	eceHas    atomic.Uint32 // the device's last answer
}

// mlx5Transports are the formats of WQEs by QP type.
var mlx5Transports = [ib.DCT + 1]mlx5.Transport{ib.RC: mlx5.Connected, ib.UC: mlx5.Connected, ib.UD: mlx5.Datagram, ib.XRCSend: mlx5.XRC, ib.RawPacket: mlx5.Raw, ib.DCI: mlx5.DC}

func (dr mlx5Driver) prepareQP(q *QP, s *qpSpec) (u udata, err error) {
	m := q.dev.mlx5
	x := &q.mlx5
	*x = mlx5QP{mlx5TableEntry: mlx5TableEntry{owner: mlx5Owner{qp: q, srq: q.srq}, index: mlx5.NoUserIndex}, outOfOrder: s.OutOfOrder}
	size := m.SizeRecv
	if s.OutOfOrder {
		if err := dr.hasOutOfOrder(q.dev); err != nil {
			return udata{}, err
		}
		size = m.SizeRecvOutOfOrder
	}
	if s.Type == ib.XRCRecv && s.open == 0 { // it has no queues; an SRQ has its completions
		in := mlx5.QPRequest{ECE: m.ECE}
		if !m.UserIndex {
			in.UserIndex = mlx5.NoUserIndex
		}
		return udata{in: in.Encode(), out: make([]byte, mlx5.QPRespSize)}, nil
	}
	if s.open != 0 {
		return udata{}, nil
	}
	if s.Type == ib.UD { // its completions need to know the link layer
		if _, err := q.dev.facts(1); err != nil {
			return udata{}, err
		}
	}
	x.streams = s.dc != nil && s.dc.Streams > 0
	if s.Type == ib.RawPacket { // its second ring has an address of its own
		if err := q.dev.cmd.untranslated("CREATE_QP for raw packets"); err != nil {
			return udata{}, err
		}
	}
	if s.Type == ib.RawPacket && !m.UserIndex { // mlx5_ib refuses it with EINVAL
		return udata{}, &FeatureError{Feature: "CREATE_QP for raw packets on a card without user indices in completions", Driver: dr.name()}
	}
	if s.IndTable != nil { // it has no queues, either
		return udata{in: mlx5.EncodeRSS(s.RXHash.Key, uint64(s.RXHash.Fields)), out: make([]byte, mlx5.QPRespSize)}, nil
	}
	if s.hasSendQueue() {
		x.send, err = m.SizeSend(mlx5Transports[s.Type], s.MaxSendWR, s.MaxSendSGE, s.MaxInline)
	}
	if err == nil && s.hasRecvQueue() {
		x.recv, err = size(s.MaxRecvWR, s.MaxRecvSGE)
	}
	if err != nil {
		return udata{}, mlx5Size("CreateQP", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dr.freeQP(q))
		}
	}()
	if err = q.mapMlx5(s.Type == ib.RawPacket); err != nil {
		return udata{}, err
	}
	if x.rec, err = m.records.Take(); err != nil {
		return udata{}, err
	}
	if err = x.register(m); err != nil {
		return udata{}, err
	}
	if s.pd != nil && s.pd.mlx5 != nil {
		x.reg, x.lent = s.pd.mlx5, true
	} else if x.reg, err = m.uars.take(); err != nil {
		return udata{}, err
	}
	req := mlx5.QPRequest{
		Buf: addrOf(q.sqRegion.Bytes()), Record: x.rec, Send: x.send, Recv: x.recv, UserIndex: x.index, InlineScatter: s.InlineRecv, ECE: m.ECE,
	}
	if s.dc != nil {
		req.DC = mlx5.Initiator
		req.LogStreams, req.LogFailed = uint8(bits.Len(uint(s.dc.Streams)>>1)), uint8(bits.Len(uint(s.dc.Failed)>>1))
	}
	if s.Type == ib.RawPacket {
		req.Buf, req.SendBuf = 0, req.Buf
		if q.rqRegion != nil {
			req.Buf = addrOf(q.rqRegion.Bytes())
		}
	}
	if x.reg != nil {
		req.UAR, req.HasUAR = x.reg.uar, true
	}
	return udata{in: req.Encode(), out: make([]byte, mlx5.QPRespSize)}, nil
}

// mapMlx5 allocates memory for the rings: one piece, or two if apart is set.
func (q *QP) mapMlx5(apart bool) (err error) {
	x := &q.mlx5
	if apart && x.recv.Entries > 0 {
		if q.rqRegion, err = mapRingMemory(x.recv.Bytes()); err != nil {
			return err
		}
		q.sqRegion, err = mapRingMemory(x.send.Bytes())
		return err
	}
	q.sqRegion, err = mapRingMemory(x.recv.Bytes() + x.send.Bytes())
	return err
}

func (mlx5Driver) mapQP(q *QP, u udata) (err error) {
	m, x := q.dev.mlx5, &q.mlx5
	q.caps = QPCaps{
		MaxSendWR: x.send.MaxWR, MaxSendSGE: x.send.MaxSGE, MaxInline: x.send.MaxInline,
		MaxRecvWR: orDefault(x.recv.InUse, x.recv.Entries), MaxRecvSGE: x.recv.MaxSGE,
	}
	var number uint32
	if u.out != nil { // nil for an opened QP
		var ece uint32
		if number, ece, err = mlx5.DecodeQP(u.out); err != nil {
			return err
		}
		x.eceHas.Store(ece)
		x.tis, x.hasTIS = mlx5.DecodeTIS(u.out)
	}
	if q.sqRegion == nil {
		return nil
	}
	if x.reg == nil {
		if x.reg, err = m.uars.choose(number); err != nil {
			return err
		}
	}
	recv := q.sqRegion.Bytes()
	send := recv
	if q.rqRegion != nil { // a raw packet QP has two buffers
		recv = q.rqRegion.Bytes()
	} else {
		send = recv[x.recv.Bytes():]
	}
	if x.recv.Entries > 0 {
		if q.mlx5.rq, err = mlx5.NewRecvQueue(recv, x.recv, x.rec); err != nil {
			return err
		}
		if q.typ == ib.RawPacket {
			q.mlx5.rq.Hold()
		}
	}
	if x.send.Blocks > 0 {
		q.mlx5.sq, err = mlx5.NewSendQueue(send, x.send, mlx5Transports[q.typ], q.qpn, x.rec, x.reg.Register)
		if err != nil {
			return err
		}
		if q.typ == ib.RawPacket && m.EthHeader > 0 {
			q.mlx5.sq.WantHeader(m.EthHeader)
		}
	}
	x.owner.sq = x.sq
	if q.typ == ib.RC && q.srq == nil {
		x.owner.rq = x.rq
	}
	x.registerNumber(m, q.qpn)
	return nil
}

func (mlx5Driver) freeQP(q *QP) error {
	m, x := q.dev.mlx5, &q.mlx5
	q.cleanCQsMlx5()
	x.unregister(m)
	m.records.Give(x.rec)
	if !x.lent {
		m.uars.give(x.reg)
	}
	x.rec, x.reg = mlx5.Record{}, nil
	return mmio.RetireAll(q.sqRegion, q.rqRegion)
}

// cleanCQsMlx5 removes the QP's completions from its CQs.
func (q *QP) cleanCQsMlx5() {
	if !q.mlx5.registered {
		return
	}
	var few [2]*CQ
	for _, cq := range q.cqs(few[:0]) {
		cq.cleanMlx5(&q.mlx5.owner)
	}
}

// qpModified empties the queues of a QP that was reset, and starts the receive queue of a raw
// packet QP in state RTR. Nothing is posted to a QP in RESET, but a batch of the builder may end.
func (mlx5Driver) qpModified(q *QP, _, to ib.QPState) {
	switch to {
	case ib.QPRTR:
		if q.typ == ib.RawPacket && q.mlx5.rq != nil {
			q.receiving.Lock()
			q.mlx5.rq.Release()
			q.receiving.Unlock()
		}
	case ib.QPReset:
		q.cleanCQsMlx5() // before the locks of the sides
		q.sending.Lock()
		if q.mlx5.sq != nil {
			q.mlx5.sq.Reset()
		}
		q.sending.Unlock()
		q.receiving.Lock()
		if q.mlx5.rq != nil {
			q.mlx5.rq.Reset()
			if q.typ == ib.RawPacket {
				q.mlx5.rq.Hold()
			}
		}
		q.receiving.Unlock()
	}
}

// encodeMlx5 writes work requests into the send queue, after those of the batch that are already
// there. SENDs, WRITEs and READs with their data in one piece, the most frequent work requests, are written
// by one call each. It returns errNeedsBuilder for an operation that is not in ops. That ops is 0 means that
// the QP is neither RC nor UC: all but correct SENDs, WRITEs and READs need the builder then.
//
// Preconditions: the queue has room for them.
func (q *QP) encodeMlx5(wrs []SendWR, ops uint32) error {
	for i := range wrs {
		wr := &wrs[i]
		if q.putMlx5(wr) {
			continue
		}
		if !q.isSlotMlx5(wr, ops) {
			return errNeedsBuilder
		}
		if err := q.encodeSlotMlx5(wr, uint8(wr.Flags|q.always)); err != nil {
			return err
		}
	}
	return nil
}

// putMlx5 writes a SEND, WRITE or READ with data in one piece, and reports whether it did. It leaves all that
// is wrong, and the less frequent work requests, to encodeSlotMlx5.
func (q *QP) putMlx5(wr *SendWR) bool {
	if wr.Opcode > WRRDMARead || wr.Flags > sendFlagsAll || uint32(q.plain|q.addressed)>>(wr.Opcode&31)&1 == 0 {
		return false
	}
	sq, m, ah := q.mlx5.sq, mlx5.NewMeta(mlx5.Op(wr.Opcode), uint8(wr.Flags|q.always), wr.Imm), wr.AH
	if q.addressed != 0 {
		switch {
		case ah == nil || ah.dev != q.dev || ah.closed.Load():
			return false
		case q.typ == ib.UD:
			sq.ToQP(wr.RemoteQPN, wr.RemoteQKey, &ah.mlx5.av)
		case wr.DCStream != 0 && !q.mlx5.streams:
			return false
		default:
			sq.ToDCT(wr.RemoteQPN, wr.DCAccessKey, &ah.mlx5.av)
			m = m.WithStream(wr.DCStream)
		}
	} else if ah != nil {
		return false
	}
	switch {
	case len(wr.SGL) == 0 && len(wr.Inline) > 0:
		return wr.Opcode != WRRDMARead && sq.PutInline(wr.ID, m, wr.RemoteAddr, wr.RKey, wr.Inline)
	case len(wr.SGL) == 0:
		return sq.PutSGE(wr.ID, m, wr.RemoteAddr, wr.RKey, 0, 0, 0)
	case len(wr.SGL) == 1 && len(wr.Inline) == 0:
		e := &wr.SGL[0]
		return !e.outside && sq.PutSGE(wr.ID, m, wr.RemoteAddr, wr.RKey, e.Addr, e.Length, e.LKey)
	}
	return false
}

// isSlotMlx5 reports whether encodeSlotMlx5 can encode a work request without further checks.
func (q *QP) isSlotMlx5(wr *SendWR, ops uint32) bool {
	switch {
	case ops == allOps:
		return true
	case ops == 0:
		return wr.Opcode <= WRRDMARead && q.ops[wr.Opcode] && wr.Flags <= sendFlagsAll && q.check(wr) == nil
	case wr.AH != nil || !wr.opIn(ops):
		return false
	case wr.Opcode == WRCompareSwap || wr.Opcode == WRFetchAdd:
		return len(wr.Inline) == 0 && checkAtomic(wr.SGL, wr.RemoteAddr) == nil
	}
	return len(wr.Inline) == 0 || wr.Opcode != WRRDMARead
}

// encodeSlotMlx5 writes a work request of any kind.
func (q *QP) encodeSlotMlx5(wr *SendWR, flags uint8) error {
	var s mlx5.SendSlot
	q.mlx5.sq.Start(&s, wr.ID, mlx5.Op(wr.Opcode), flags)
	switch wr.Opcode {
	case WRSendWithImm:
		s.SetImm(wr.Imm)
	case WRSendWithInv:
		s.SetInvalidate(wr.InvalidateRKey)
	case WRRDMAWrite, WRRDMARead:
		s.SetRDMA(wr.RemoteAddr, wr.RKey)
	case WRRDMAWriteWithImm:
		s.SetRDMA(wr.RemoteAddr, wr.RKey)
		s.SetImm(wr.Imm)
	case WRCompareSwap, WRFetchAdd:
		s.SetAtomic(wr.RemoteAddr, wr.CompareAdd, wr.Swap, wr.RKey)
	case WRLocalInv:
		s.SetLocalInv(wr.InvalidateRKey)
	case WRBindMW:
		if err := q.encodeBindMlx5(&s, &wr.Bind); err != nil {
			return err
		}
	}
	switch {
	case q.typ == ib.DCI:
		if wr.DCStream != 0 && !q.mlx5.streams {
			return errNoStreams
		}
		if wr.Opcode.takesData() {
			s.SetDC(wr.RemoteQPN, wr.DCAccessKey, wr.DCStream, &wr.AH.mlx5.av)
		}
	case wr.AH != nil:
		s.SetUD(wr.RemoteQPN, wr.RemoteQKey, &wr.AH.mlx5.av)
	}
	if q.typ == ib.XRCSend && wr.Opcode.takesData() {
		s.SetSRQ(wr.RemoteSRQN)
	}
	if err := q.encodeDataMlx5(&s, wr); err != nil {
		return err
	}
	if s.HeaderLeft() > 0 {
		return errHeader
	}
	s.Finish()
	return nil
}

// encodeBindMlx5 adds the arguments of a bind. It checks the MR's rights, because the device does
// not.
func (q *QP) encodeBindMlx5(s *mlx5.SendSlot, b *BindInfo) error {
	if b.MR.Access()&AccessMWBind == 0 {
		return errBindRight
	}
	keys := q.builder.keys
	err := s.SetBind(&mlx5.Window{
		Key: keys.from, NewKey: keys.to, Type2: b.MW.typ == MWType2, LKey: b.MR.lkey, Addr: b.Addr, Length: b.Length, Access: uint32(b.Access),
	})
	if err == mlx5.ErrTooLong {
		return errBindLength
	}
	return mlx5SlotErr(err)
}

// encodeDataMlx5 adds the data of a work request. If the adapter needs the beginning of the frame
// in the WQE, it is copied there.
func (q *QP) encodeDataMlx5(s *mlx5.SendSlot, wr *SendWR) (err error) {
	if len(wr.Inline) > 0 {
		head := min(s.HeaderLeft(), len(wr.Inline))
		s.AddHeader(wr.Inline[:head])
		if err := s.AddInline(wr.Inline[head:]); err != nil {
			return mlx5SlotErr(err)
		}
	}
	for i := range wr.SGL {
		e := wr.SGL[i]
		if e.outside {
			return ErrSGERange
		}
		if s.HeaderLeft() > 0 && e.Length > 0 {
			if e, err = q.headerMlx5(s, e); err != nil {
				return err
			}
		}
		if err := s.AddSGE(e.Addr, e.Length, e.LKey); err != nil {
			return mlx5SlotErr(err)
		}
	}
	return nil
}

// postRecvsMlx5 posts receives to a QP or a WQ.
func postRecvsMlx5(rq *mlx5.RecvQueue, wrs []RecvWR) error {
	if !rq.Room(len(wrs)) {
		return roomErr(len(wrs), rq.Cap(), nil)
	}
	for i := range wrs {
		s := rq.Slot(i, wrs[i].ID)
		if err := addSGEsMlx5(&s, wrs[i].SGL); err != nil {
			return postErr(i, err)
		}
		s.Finish()
	}
	if len(wrs) > 0 {
		rq.Publish(len(wrs))
	}
	return nil
}

// addSGEsMlx5 adds the memory of a receive to its slot.
func addSGEsMlx5(s *mlx5.RecvSlot, sgl []SGE) error {
	for _, sge := range sgl {
		if sge.outside {
			return ErrSGERange
		}
		if err := s.AddSGE(sge.Addr, sge.Length, sge.LKey); err != nil {
			return mlx5SlotErr(err)
		}
	}
	return nil
}

// headerMlx5 copies the beginning of the frame from the memory of an SGE into the WQE. It returns
// the SGE for the rest.
func (q *QP) headerMlx5(s *mlx5.SendSlot, e SGE) (SGE, error) {
	n := min(uint32(s.HeaderLeft()), e.Length)
	mr, mem, ok := q.dev.mrs.find(e.Addr, n, e.LKey)
	if !ok || mr.pd != q.pd {
		return e, errHeader
	}
	s.AddHeader(mem)
	e.Addr += uint64(n)
	e.Length -= n
	return e, nil
}

// mlx5SlotErr converts an error of a slot to the exported one.
func mlx5SlotErr(err error) error {
	switch err {
	case mlx5.ErrTooManySGE:
		return ErrTooManySGE
	case mlx5.ErrTooLong:
		return errTooLong
	case mlx5.ErrInlineTooLong:
		return ErrInlineTooLong
	case mlx5.ErrMixedData:
		return errInlineUse
	}
	return err
}

// modifyUdataMlx5 has options until a MODIFY_QP has passed them to the device, as libmlx5 does.
func (q *QP) modifyUdataMlx5() udata {
	ece, outOfOrder := q.mlx5.eceWanted.Load(), q.mlx5.outOfOrder
	if ece == 0 && !outOfOrder {
		return udata{}
	}
	u := udata{in: mlx5.EncodeModifyQP(ece, outOfOrder), out: make([]byte, mlx5.ModifyQPRespSize)}
	if outOfOrder && q.State() == ib.QPReset { // a later MODIFY_QP fails with EOPNOTSUPP for another reason
		u.unsupported = noOutOfOrder(q.typ)
	}
	return u
}

func (q *QP) modifyAnswerMlx5(u udata) error {
	sent := mlx5.SentECE(u.in)
	if sent == 0 {
		return nil
	}
	_, ece, err := mlx5.DecodeModifyQP(u.out)
	if err != nil {
		return err
	}
	if q.mlx5.eceWanted.CompareAndSwap(sent, 0) { // SetECE may have set others meanwhile
		q.mlx5.eceHas.Store(ece)
	}
	return nil
}
