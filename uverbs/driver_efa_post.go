package uverbs

import (
	"cmp"
	"fmt"

	"github.com/goverbs/goverbs/mmio/efa"
)

// Causes of a [PostError] that only efa has.
var (
	errNoFence   = &wrong{"Flags", "this device has no SendFence: its requests are in no order; poll the completions of those before"}
	errQPN16     = &wrong{"RemoteQPN", "numbers of QPs have 16 bits on this device"}
	errKey24     = &wrong{"SGL", "an lkey has more than 24 bits, which no MR of this device has"}
	errEmptyRecv = &wrong{"SGL", "a receive needs at least one SGE on this device"}
	errRDMASGE   = &reason{"RDMA takes one SGE on this device", ErrTooManySGE}
	errNarrow    = &reason{"inline data of a WRITE needs a QP with a MaxInline of more than 32", errInlineUse}
)

// efaFlags are the flags that a request may have.
const efaFlags = SendSignaled | SendSolicited

// setLimitsEfa sets the limits of the operations that the QP has.
func (q *QP) setLimitsEfa(most uint32) {
	for op := range q.efa.limits {
		switch {
		case !q.ops[op]:
		case op == int(WRSend) || op == int(WRSendWithImm):
			q.efa.limits[op] = uint64(most) + 1
		default:
			q.efa.limits[op] = uint64(q.dev.efa.MaxRDMASize) + 1
		}
	}
}

// putEfa writes a work request with one SGE or inline data into the queue, as its request i. It returns false, and
// leaves it to encodeSlotEfa, if the work request is of another kind or wrong.
//
// Preconditions: the queue has room for it.
func (q *QP) putEfa(i int, wr *SendWR) bool {
	op, ah := wr.Opcode, wr.AH
	if op >= WROpcode(len(efaLimits{})) || wr.Flags&^efaFlags != 0 || ah == nil || ah.dev != q.dev {
		return false
	}
	if ah.closed.Load() || wr.RemoteQPN > 0xffff {
		return false
	}
	sq, limit := q.efa.sq, q.efa.limits[op]
	m := efa.NewMeta(efa.Op(op)|quietEfa(wr.Flags|q.always), wr.RKey)
	to := efa.NewPeer(wr.RemoteQKey, uint16(wr.RemoteQPN), ah.efa).WithImm(wr.Imm)
	if n := len(wr.Inline); n != 0 {
		return len(wr.SGL) == 0 && uint64(n) < limit && sq.PutInline(i, wr.ID, m, to, wr.RemoteAddr, &wr.Inline[0], n)
	}
	if len(wr.SGL) != 1 {
		return false
	}
	e := &wr.SGL[0]
	return uint64(e.Length) < limit && !e.outside && sq.Put(i, wr.ID, m, to, wr.RemoteAddr, e.Addr, efa.NewLocal(e.Length, e.LKey))
}

// encodeEfa writes work requests into the queue, as its requests from first on. It returns errNeedsBuilder for an
// operation that is not in ops, or an address that the builder must look at.
//
// Preconditions: the queue has room for them.
func (q *QP) encodeEfa(first int, wrs []SendWR, ops uint32) error {
	for i := range wrs {
		if q.putEfa(first+i, &wrs[i]) {
			continue
		}
		if err := q.encodeSlotEfa(first+i, &wrs[i], ops); err != nil {
			return err
		}
	}
	return nil
}

// encodeSlotEfa writes a work request of any kind.
func (q *QP) encodeSlotEfa(i int, wr *SendWR, ops uint32) error {
	if !wr.opIn(ops) || wr.AH == nil || wr.AH.dev != q.dev || wr.AH.closed.Load() {
		return errNeedsBuilder
	}
	if wr.RemoteQPN > 0xffff {
		return &reason{fmt.Sprintf("%s: %d, allowed: 0 to 65535", errQPN16, wr.RemoteQPN), errQPN16}
	}
	if wr.Flags&SendFence != 0 {
		return errNoFence
	}
	rdma, what := false, "the MTU of the port"
	if wr.Opcode != WRSend && wr.Opcode != WRSendWithImm {
		rdma, what = true, "max_rdma_size of the device"
	}
	if bytes, limit := sglBytes(wr.SGL)+uint64(len(wr.Inline)), q.efa.limits[wr.Opcode&7]; bytes >= limit {
		return &reason{fmt.Sprintf("%s: %d bytes, allowed: up to %d, %s", errTooLong, bytes, limit-1, what), errTooLong}
	}
	s := q.efa.sq.Slot(i)
	s.Start(wr.ID, efa.Op(wr.Opcode)|quietEfa(wr.Flags|q.always), efa.NewPeer(wr.RemoteQKey, uint16(wr.RemoteQPN), wr.AH.efa).WithImm(wr.Imm))
	if rdma {
		s.SetRDMA(wr.RemoteAddr, wr.RKey)
	}
	if len(wr.Inline) > 0 {
		if len(wr.SGL) > 0 {
			return errInlineUse
		}
		if err := s.AddInline(wr.Inline); err != nil {
			return efaErr(err, rdma)
		}
	}
	for j := range wr.SGL {
		e := &wr.SGL[j]
		if e.outside {
			return ErrSGERange
		}
		if err := s.AddSGE(e.Addr, e.Length, e.LKey); err != nil {
			return efaErr(err, rdma)
		}
	}
	s.Finish()
	return nil
}

// efaErrs are the errors of queues with the exported ones.
var efaErrs = map[error]error{
	efa.ErrTooManySGE: ErrTooManySGE, efa.ErrTooLong: errTooLong, efa.ErrKey: errKey24, efa.ErrNoSGE: errEmptyRecv,
	efa.ErrInlineTooLong: ErrInlineTooLong, efa.ErrInlineOp: errNarrow, efa.ErrMixedData: errInlineUse,
}

// efaErr converts an error of a queue to the exported one.
func efaErr(err error, rdma bool) error {
	if rdma && err == efa.ErrTooManySGE {
		return errRDMASGE
	}
	return cmp.Or(efaErrs[err], err)
}

// postRecvsEfa posts receives. The caller holds receiving.
func postRecvsEfa(rq *efa.RecvQueue, wrs []RecvWR) error {
	if len(wrs) == 0 {
		return nil
	}
	if !rq.Room(len(wrs)) {
		return roomErr(len(wrs), rq.Cap(), nil)
	}
	rq.Begin()
	for i := range wrs {
		wr := &wrs[i]
		if len(wr.SGL) == 1 { // the usual case
			if e := &wr.SGL[0]; !e.outside && rq.Put(i, wr.ID, e.Addr, e.Length, e.LKey) == nil {
				continue
			}
		}
		if err := encodeRecvEfa(rq.Slot(i, wr.ID), wr.SGL); err != nil {
			return postErr(i, err)
		}
	}
	rq.Publish(len(wrs))
	return nil
}

// encodeRecvEfa fills a receive.
func encodeRecvEfa(s efa.RecvSlot, sgl []SGE) error {
	for _, e := range sgl {
		if e.outside {
			return ErrSGERange
		}
		if err := s.AddSGE(e.Addr, e.Length, e.LKey); err != nil {
			return efaErr(err, false)
		}
	}
	return efaErr(s.Finish(), false)
}

// efaStatus is what a status of a completion means, for the verbs and in words. sure says that the words say all;
// otherwise the memory of the request may say more.
type efaStatus struct {
	status WCStatus
	sure   bool
	text   string
}

// efaStatuses are the statuses of completions (efa_io_comp_status), with the statuses of verbs that libefa makes of them.
var efaStatuses = [...]efaStatus{
	efa.StatusFlushed:         {WCWRFlushErr, false, "flushed, as the QP is in an error state, or the QP or the AH was closed"},
	efa.StatusInternalError:   {WCLocQPOpErr, true, "internal error of the QP"},
	efa.StatusUnsupportedOp:   {WCLocQPOpErr, true, "the device or the QP does not support the operation"},
	efa.StatusInvalidAH:       {WCLocQPOpErr, true, "the AH does not exist in the PD of the QP: it may be of another PD, or closed"},
	efa.StatusInvalidLKey:     {WCLocProtErr, false, "invalid lkey"},
	efa.StatusBadLength:       {WCLocLenErr, false, "the message is too long"},
	efa.StatusRemoteAddress:   {WCRemAccessErr, false, "the peer's memory does not permit it"},
	efa.StatusRemoteAbort:     {WCRemAbortErr, true, "the peer has reset the connection"},
	efa.StatusRemoteQPN:       {WCRemInvRDReqErr, true, "the peer has no such QP, or the QP is not ready to receive; compare RemoteQPN and RemoteQKey with the peer's"},
	efa.StatusRemoteRNR:       {WCRNRRetryExcErr, true, "the peer has posted no receive; RNRRetry limits the attempts"},
	efa.StatusRemoteLength:    {WCRemInvReqErr, true, "the peer's receive is too short"},
	efa.StatusRemoteStatus:    {WCBadRespErr, true, "the peer has answered with an unknown status"},
	efa.StatusUnresponsive:    {WCRespTimeoutErr, true, "the peer does not answer any more; it may have stopped, or its security group may not let it answer"},
	efa.StatusUnknownPeer:     {WCRemOpErr, true, "the peer has no AH for this side, which RDMA needs: it must create one in the PD of its QP"},
	efa.StatusUnreachable:     {WCRespTimeoutErr, true, "the peer has never answered; likely on AWS: a security group that does not admit itself, another subnet or zone"},
	efa.StatusFeatureMismatch: {WCRemInvReqErr, true, "the peer does not support a feature of the request"},
}

// verbsStatus returns the verbs' status.
func (efaDriver) verbsStatus(s uint8) WCStatus {
	if int(s) < len(efaStatuses) && efaStatuses[s].text != "" {
		return efaStatuses[s].status
	}
	return WCGeneralErr
}

func (efaDriver) vendorText(code uint32) (text string, sure bool) {
	if code >= uint32(len(efaStatuses)) || efaStatuses[code].text == "" {
		return "", false
	}
	s := &efaStatuses[code]
	return fmt.Sprintf("status %d of the device: %s", code, s.text), s.sure
}

// Results of plainEfa: mu is unlocked; other rings may have completions; the next completion is for otherEfa.
const efaDone, efaRings, efaOther = 0, 1, 2

// pollEfa is Poll for efa.
func (c *CQ) pollEfa(wcs []WC) (int, error) {
	x := c.efa
	x.mu.Lock()
	n, rest := c.plainEfa(wcs)
	for done := rest == efaDone || x.bad != nil; !done; {
		if n, done = c.otherEfa(wcs, n, rest); !done {
			more := 0
			more, rest = c.plainEfa(wcs[n:])
			n, done = n+more, rest == efaDone
		}
	}
	if rest == efaDone {
		return n, nil
	}
	x.ring.Turn() // the next Poll begins with another ring
	x.ring.Release()
	var err error
	if n == 0 {
		err, x.bad = x.bad, nil
	}
	x.mu.Unlock()
	if c.closed.Load() {
		return 0, c.errClosed()
	}
	return n, err
}

// plainEfa moves completions of successful requests of the QP of the last completion into wcs, and drops those of
// requests without SendSignaled: the device completes every request. On amd64 it calls no function before the doorbell,
// so that the compiler keeps its variables in registers. The caller has locked mu.
func (c *CQ) plainEfa(wcs []WC) (int, int) {
	x, n := c.efa, uint(0)
	if x.bad != nil {
		return 0, efaOther
	}
	ring, sq, rq, number := x.ring.Ring(), x.last.sq, x.last.rq, x.last.qpn
	for n < uint(len(wcs)) {
		wc := &wcs[n]
		e, ok := ring.Look()
		if !ok {
			break
		}
		if uint32(e.QPN()) != number || c.qps.changes.Load() != x.last.seen {
			return int(n), efaOther
		}
		if id := e.ReqID(); e.Outcome() == efa.Sent {
			if sq == nil || sq.Stale(id) {
				return int(n), efaOther
			}
			var p efa.Posted
			if p = sq.At(id); !p.Waits() {
				return int(n), efaOther
			}
			ring.Advance()
			op := p.Op()
			if op&efa.Quiet != 0 {
				sq.Take(p)
				continue
			}
			*wc = WC{}
			if op == efa.Read {
				wc.ByteLen = p.Length()
			}
			wc.ID, wc.Opcode = sq.Take(p), efaCompleted[op%8]
		} else {
			if e.Outcome() != efa.Received || rq == nil || rq.Stale(id) {
				return int(n), efaOther
			}
			var p efa.Posted
			if p = rq.At(id); !p.Waits() {
				return int(n), efaOther
			}
			ring.Advance()
			*wc = WC{}
			wc.Opcode = WCRecv
			s := e.Source() // before the request is taken
			wc.ByteLen, wc.SrcQP, wc.SLID = s.Length, uint32(s.QPN), s.AH
			if e.IsWrite() {
				wc.Opcode = WCRecvRDMAWrite
			}
			if e.HasImm() {
				wc.Imm, wc.Flags = s.Imm, WCWithImm
			}
			wc.ID = rq.Take(p)
		}
		wc.QPN = number
		n++
	}
	if x.several || c.closed.Load() { // a CQ that is closed may have been unmapped before it was read
		return int(n), efaRings
	}
	x.ring.ReleaseOne()
	x.mu.Unlock()
	return int(n), efaDone
}

// otherEfa handles the next completion, if plainEfa has left it, or makes plainEfa ready for it. wcs has n completions
// already; the first result is how many it has then. The second one is true if Poll ends. The caller has locked mu.
func (c *CQ) otherEfa(wcs []WC, n, rest int) (int, bool) {
	x := c.efa
	if n == len(wcs) {
		return n, true
	}
	ring := x.ring.Ring()
	e, ok := ring.Look()
	if rest == efaRings || !ok { // even if this ring has one by now
		for range x.ring.Rings() - 1 {
			x.ring.Turn()
			if _, ok := x.ring.Ring().Look(); ok {
				return n, false
			}
		}
		return n, true
	}
	number, changes := uint32(e.QPN()), c.qps.changes.Load() // before the table
	if number == x.last.qpn && changes == x.last.seen {
		ring.Advance()
		if c.takeEfa(e, &wcs[n]) {
			n++
		}
		return n, x.bad != nil
	}
	x.last = lastEfa{qpn: noQPN}
	if q, ok := c.qps.Load(number); !ok { // closed
		ring.Advance()
	} else {
		x.last = lastEfa{qpn: number, seen: changes}
		if q.sendCQ == c {
			x.last.sq = q.efa.sq
		}
		if q.recvCQ == c {
			x.last.rq, x.last.unsolicited = q.efa.rq, q.efa.unsolicited
		}
	}
	return n, false
}

// takeEfa handles a completion of the last QP that pollEfa has left, and reports whether the program gets it.
func (c *CQ) takeEfa(e efa.CQE, wc *WC) bool {
	x, code, kind, id := &c.efa.last, e.Status(), e.Kind(), e.ReqID()
	ok, stale := false, false
	*wc = WC{Status: efaDriver{}.verbsStatus(code), VendorErr: uint32(code), QPN: x.qpn}
	switch {
	case kind == efa.KindSend && x.sq != nil:
		if code != efa.StatusOK {
			var op efa.Op
			wc.ID, op, _, ok = x.sq.Complete(id)
			wc.Opcode = efaCompleted[op%8]
		}
		stale = x.sq.Stale(id)
	case kind == efa.KindRecv && x.unsolicited && e.Unsolicited(): // it has no request
		s := e.Source()
		if code == efa.StatusOK {
			wc.Status = WCSuccess
		}
		wc.Opcode, wc.ByteLen, wc.SrcQP, wc.SLID = WCRecvRDMAWrite, s.Length, uint32(s.QPN), s.AH
		if e.HasImm() {
			wc.Imm, wc.Flags = s.Imm, WCWithImm
		}
		return true
	case kind == efa.KindRecv && x.rq != nil && !e.Unsolicited():
		if code != efa.StatusOK {
			wc.Opcode = WCRecv
			wc.ID, ok = x.rq.Complete(id)
		}
		stale = x.rq.Stale(id)
	}
	if !ok && !stale {
		c.efa.bad = fmt.Errorf("%w: a completion of QP %d is for no request that was posted: request ID %#x, status %d", ErrCQOverrun, x.qpn, id, code)
	}
	return ok
}

// efaCompleted are the operations of completions, by those of requests. WCSend is 0.
var efaCompleted = [8]WCOpcode{WRRDMAWrite: WCRDMAWrite, WRRDMAWriteWithImm: WCRDMAWrite, WRRDMARead: WCRDMARead}

// armEfa arms the CQ for any completion: the device does not know which messages are solicited.
func (c *CQ) armEfa() error {
	x := c.efa
	x.mu.Lock()
	defer x.mu.Unlock()
	for ; x.told != x.events.Load(); x.told++ {
		x.ring.Event()
	}
	x.ring.Arm()
	return nil
}

func (efaDriver) findRequest(q *QP, id uint64) (sentWR, bool) {
	if q.efa == nil {
		return sentWR{}, false
	}
	q.sendCQ.efa.mu.Lock() // a Reset replaces the queue
	i, ok := q.efa.sq.Find(id)
	q.sendCQ.efa.mu.Unlock()
	s := sentWR{op: WROpcode(i.Op &^ efa.Quiet), length: i.Length, sges: efaSGEs(i.SGEs), qpn: i.Peer.QPN(), qkey: i.Peer.QKey(), ah: i.Peer.AH(), raddr: i.RemoteAddr, rkey: i.RKey}
	return s, ok
}

func (efaDriver) findReceive(q *QP, id uint64) ([]SGE, bool) {
	if q.efa == nil || q.efa.rq == nil {
		return nil, false
	}
	sges, ok := q.efa.rq.Find(id)
	return efaSGEs(sges), ok
}

// efaSGEs converts the memory of a request.
func efaSGEs(all []efa.SGEInfo) (sges []SGE) {
	for _, e := range all {
		sges = append(sges, SGE{Addr: e.Addr, Length: e.Length, LKey: e.LKey})
	}
	return sges
}

func (efaDriver) postedRecvs(q *QP) int { return q.efa.rq.Posted() }
