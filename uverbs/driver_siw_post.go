package uverbs

import (
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/mmio/siw"
)

// siwOpcodes are siw's numbers of the operations that it has.
var siwOpcodes = [len(opcodeSet{})]uint8{
	WRRDMAWrite: siw.Write, WRSend: siw.Send, WRSendWithInv: siw.SendInv, WRRDMARead: siw.Read,
	WRRDMAReadWithInv: siw.ReadInv, WRLocalInv: siw.LocalInv,
}

// siwSent is the inverse.
func siwSent(op uint8) WROpcode {
	for o, n := range siwOpcodes {
		if n == op && siwOps[o] {
			return WROpcode(o)
		}
	}
	return WROpcode(0xff)
}

// siwSendFlags puts the flags where siw has them.
func siwSendFlags(f SendFlags) uint8 {
	return uint8(f&SendFence)*(siw.Fence/uint8(SendFence)) | uint8(f&SendSignaled)*(siw.Signaled/uint8(SendSignaled)) |
		uint8(f&SendSolicited)*(siw.Solicited/uint8(SendSolicited))
}

// encodeSiw writes work requests into the free slots of the send ring, from the first-th on, and
// returns how many bytes of data they have. Those whose operation is not in ops need the builder.
//
// Preconditions: the queue has room for them.
func (q *QP) encodeSiw(first int, wrs []SendWR, ops uint16) (bytes uint64, err error) {
	sq, always := q.siw.sq, q.always
	for i := range wrs {
		wr := &wrs[i]
		if !wr.opIn(ops) || wr.AH != nil {
			return 0, errNeedsBuilder
		}
		raddr, rkey := wr.RemoteAddr, wr.RKey
		switch wr.Opcode {
		case WRSend:
			raddr, rkey = 0, 0
		case WRSendWithInv, WRLocalInv:
			raddr, rkey = 0, wr.InvalidateRKey
		}
		op, flags := siwOpcodes[wr.Opcode], siwSendFlags(wr.Flags|always)
		if len(wr.SGL) == 1 && len(wr.Inline) == 0 && sq.MaxSGE() > 0 { // as most are
			e := &wr.SGL[0]
			if e.outside {
				return 0, ErrSGERange
			}
			sq.Put(first+i, wr.ID, op, flags, raddr, rkey, e.Addr, e.Length, e.LKey)
			bytes += uint64(e.Length)
			continue
		}
		s := sq.Slot(first + i)
		s.Start(wr.ID, op, flags)
		s.SetRDMA(raddr, rkey)
		if len(wr.Inline) > 0 {
			if err := s.AddInline(wr.Inline); err != nil {
				return 0, siwSlotErr(err)
			}
			bytes += uint64(len(wr.Inline))
		}
		for j := range wr.SGL {
			e := &wr.SGL[j]
			if e.outside {
				return 0, ErrSGERange
			}
			if err := s.AddSGE(e.Addr, e.Length, e.LKey); err != nil {
				return 0, siwSlotErr(err)
			}
			bytes += uint64(e.Length)
		}
	}
	return bytes, nil
}

// ringSiw hands n slots to the kernel and rings the doorbell, if the kernel has to be told.
// The caller holds the QP. Of a QP in error the kernel does not look at the ring any more: they
// complete here, and so does first what it has left there.
func (q *QP) ringSiw(n int, bytes uint64) error {
	if QPState(q.state.Load()) == QPErr {
		q.sendCQ.makeFlushed(q.qpn, WCSend, append(q.siw.sq.Recall(), idsOf(n, q.siw.sq.ID)...))
		return nil
	}
	var errno syscall.Errno
	for n > 0 && errno == 0 {
		together := q.batchSiw(n)
		n -= together
		if !q.siw.sq.Publish(together) {
			continue
		}
		// The doorbell transmits.
		errno = q.doorbell.Issue(bytes > shortDoorbell)
		if errno == syscall.ENOTCONN && q.movingToErr.Load() { // Modify has them flushed
			errno = 0
		}
	}
	if errno == 0 {
		return nil
	}
	if n > 0 {
		q.siw.sq.Publish(n)
	}
	q.siw.sq.Missed()
	hint := "the work requests are in the queue, but the device was not told"
	switch errno {
	case syscall.ENOTCONN:
		hint += "; the QP is not connected"
	case syscall.EINVAL:
		hint += "; one of them may be a READ over a connection that was set up without READs (InitiatorDepth)"
	}
	return q.dev.cmd.fail("POST_SEND", errno, hint)
}

// batchSiw returns how many of n slots, 1 at least, may be handed over before the doorbell is rung.
// What may not be behind another one gets its data into the slot, if that is memory of this program's.
func (q *QP) batchSiw(n int) int {
	i := 1
	for {
		if i = q.siw.sq.Copied(i, n); i >= n {
			return n
		}
		mr, data, ok := q.dev.mrs.find(q.siw.sq.Local(i))
		if !ok || mr.pd != q.pd || !q.siw.sq.Enclose(i, data) {
			return i
		}
		i++
	}
}

// idsOf returns the IDs of n slots.
func idsOf(n int, id func(int) uint64) []uint64 {
	ids := make([]uint64, n)
	for i := range ids {
		ids[i] = id(i)
	}
	return ids
}

// fillRecvsSiw writes receives to the ring, without publishing them.
func fillRecvsSiw(rq *siw.RecvQueue, wrs []RecvWR) error {
	if !rq.Room(len(wrs)) {
		return roomErr(len(wrs), rq.Cap(), nil)
	}
	for i := range wrs {
		if err := fillRecvSiw(rq, i, wrs[i].ID, wrs[i].SGL); err != nil {
			return &PostError{Index: i, Err: err}
		}
	}
	return nil
}

// fillRecvSiw writes a receive into the i-th free slot.
//
// Preconditions: the queue has room for i+1 work requests.
func fillRecvSiw(rq *siw.RecvQueue, i int, id uint64, sgl []SGE) error {
	s := rq.Slot(i)
	s.Start(id)
	for _, sge := range sgl {
		if sge.outside {
			return ErrSGERange
		}
		if err := s.AddSGE(sge.Addr, sge.Length, sge.LKey); err != nil {
			return siwSlotErr(err)
		}
	}
	return nil
}

// postRecvsSiw posts receives to the QP.
func (q *QP) postRecvsSiw(wrs []RecvWR) error {
	if err := q.lockSide(&q.receiving); err != nil {
		return err
	}
	err := fillRecvsSiw(q.siw.rq, wrs)
	if err == nil {
		q.publishRecvsSiw(len(wrs))
	}
	q.receiving.Unlock()
	return err
}

// publishRecvsSiw hands n receives to the kernel, which has no doorbell for them. Those of a QP in
// error complete here, as sends do.
func (q *QP) publishRecvsSiw(n int) {
	if QPState(q.state.Load()) == QPErr {
		q.recvCQ.makeFlushed(q.qpn, WCRecv, append(q.siw.rq.Recall(), idsOf(n, q.siw.rq.ID)...))
		return
	}
	q.siw.rq.Publish(n)
}

// generatedWCs are completions that the library makes, of what the kernel does not complete.
type generatedWCs struct {
	some atomic.Bool // there are any
	mu   sync.Mutex
	list []WC // guarded by mu
}

// makeFlushed completes work requests of a QP as flushed, receives if op is [WCRecv]. They follow
// what is in the ring by now. No event tells of them.
func (c *CQ) makeFlushed(qpn uint32, op WCOpcode, ids []uint64) {
	if len(ids) == 0 {
		return
	}
	m := &c.siw.generated
	m.mu.Lock()
	for _, id := range ids {
		m.list = append(m.list, WC{ID: id, Status: WCWRFlushErr, Opcode: op, QPN: qpn})
	}
	m.some.Store(true)
	m.mu.Unlock()
}

// waiting returns how many there are.
func (m *generatedWCs) waiting() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.list)
}

// take moves completions into wcs.
func (m *generatedWCs) take(wcs []WC) int {
	m.mu.Lock()
	n := copy(wcs, m.list)
	m.list = m.list[n:]
	if len(m.list) == 0 {
		m.list = nil
		m.some.Store(false)
	}
	m.mu.Unlock()
	return n
}

// siwStatuses are the statuses of siw's completions.
var siwStatuses = [...]WCStatus{
	siw.StatusSuccess: WCSuccess, siw.StatusLocLenErr: WCLocLenErr, siw.StatusLocProtErr: WCLocProtErr,
	siw.StatusLocQPOpErr: WCLocQPOpErr, siw.StatusWRFlushErr: WCWRFlushErr, siw.StatusBadRespErr: WCBadRespErr,
	siw.StatusLocAccessErr: WCLocAccessErr, siw.StatusRemAccessErr: WCRemAccessErr,
	siw.StatusRemInvReqErr: WCRemInvReqErr, siw.StatusGeneralErr: WCGeneralErr,
}

// siwWCOpcodes are the operations of siw's completions.
var siwWCOpcodes = [...]WCOpcode{
	siw.Write: WCRDMAWrite, siw.Read: WCRDMARead, siw.ReadInv: WCRDMARead, siw.Send: WCSend, siw.SendInv: WCSend,
	siw.Recv: WCRecv, siw.LocalInv: WCLocalInv,
}

// pollSiw is Poll for siw. What the library has completed follows what the kernel had put into the
// ring by then, so the ring is looked at between counting and taking it: a QP may be brought into
// error right now.
func (c *CQ) pollSiw(wcs []WC) (int, error) {
	ring, n := c.siw.ring, 0
	for made := 0; ; {
		for n < len(wcs) {
			e, ok := ring.Next()
			if !ok {
				break
			}
			wc := &wcs[n]
			*wc = WC{ID: e.WRID(), Status: WCGeneralErr, ByteLen: e.ByteLen(), QPN: e.QPN()}
			if s := int(e.Status()); s < len(siwStatuses) {
				wc.Status = siwStatuses[s]
			}
			if op := int(e.Opcode()); op < len(siwWCOpcodes) {
				wc.Opcode = siwWCOpcodes[op]
			}
			ring.Release()
			switch {
			case wc.Status != WCSuccess:
				if c.repeatedFlush(wc) {
					continue
				}
				c.failed(wc)
				c.moveToErr(wc.QPN)
			case wc.Opcode == WCRecv && c.awaitFirstRecv.Load() != 0:
				if q, ok := c.qps.Load(wc.QPN); ok {
					q.firstRecvDone()
				}
			}
			n++
		}
		if n == len(wcs) || !c.siw.generated.some.Load() {
			break
		}
		taken := wcs[n:][:c.siw.generated.take(wcs[n:min(n+made, len(wcs))])]
		for i := range taken {
			c.failed(&taken[i])
		}
		n += len(taken)
		made = c.siw.generated.waiting()
	}
	if c.closed.Load() { // so is the ring, perhaps since before it was read
		return 0, c.errClosed()
	}
	return n, nil
}

// repeatedFlush reports whether a completion tells once more of a READ that is flushed. If that is
// the next to be sent when the QP is brought into error, the kernel has it among those that have
// been sent as well, and completes it as such and as the next (siw_sq_flush of Linux 6.1 to 7.2).
func (c *CQ) repeatedFlush(wc *WC) bool {
	q, ok := c.qps.Load(wc.QPN)
	if !ok || wc.Opcode == WCRecv {
		return false
	}
	f := &q.siw.flushed
	again := f.has && f.id == wc.ID && wc.Opcode == WCRDMARead && !q.siw.sq.ReadsInARow(wc.ID)
	f.has, f.id = !again && wc.Opcode == WCRDMARead && wc.Status == WCWRFlushErr, wc.ID
	return again
}

// moveToErr brings a QP into error, one of whose work requests has failed. The kernel has done so,
// or has only closed the connection and would leave what is posted where it is: once it was told,
// all of it is flushed, see qpModified.
func (c *CQ) moveToErr(qpn uint32) {
	if q, ok := c.qps.Load(qpn); ok && q.State() != QPErr {
		// Not Modify: the program did not ask for it. It fails if the QP is being closed.
		q.modify(QPAttr{State: QPErr}, AttrState)
	}
}

// armSiw arms the CQ. siw has no word of which messages its sender has marked as solicited: it
// would wake nobody for them, so that any completion does.
func (c *CQ) armSiw() error {
	c.siw.ring.Arm()
	return nil
}
