package uverbs

import (
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/mmio/siw"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// siwOpcodes are siw's numbers of the operations.
var siwOpcodes = [len(opcodeSet{})]uint8{
	WRRDMAWrite: siw.Write, WRSend: siw.Send, WRSendWithInv: siw.SendInv, WRRDMARead: siw.Read,
	WRRDMAReadWithInv: siw.ReadInv, WRLocalInv: siw.LocalInv,
}

// siwSent returns the operation for siw's number.
func siwSent(op uint8) WROpcode {
	for o, n := range siwOpcodes {
		if n == op && siwOps[o] {
			return WROpcode(o)
		}
	}
	return WROpcode(0xff)
}

// siwSendFlags converts the flags to siw's.
func siwSendFlags(f SendFlags) uint8 {
	return uint8(f&SendFence)*(siw.Fence/uint8(SendFence)) | uint8(f&SendSignaled)*(siw.Signaled/uint8(SendSignaled)) |
		uint8(f&SendSolicited)*(siw.Solicited/uint8(SendSolicited))
}

// encodeSiw writes work requests into the free slots of the send ring, beginning with slot first,
// and returns their bytes of data. It returns errNeedsBuilder for an operation that is not in ops.
//
// Preconditions: the queue has room for them.
func (q *QP) encodeSiw(first int, wrs []SendWR, ops uint32) (bytes uint64, err error) {
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
		if len(wr.SGL) == 1 && len(wr.Inline) == 0 && sq.MaxSGE() > 0 { // the usual case
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

// ringSiw publishes n slots and rings the doorbell, if the kernel needs it. The caller holds
// sending. The kernel does not read the ring of a QP in error any more. Then ringSiw completes the
// work requests itself, after those that the kernel has left in the ring.
func (q *QP) ringSiw(n int, bytes uint64) error {
	if ib.QPState(q.state.Load()) == ib.QPErr {
		q.sendCQ.makeFlushed(q.qpn, WCSend, append(q.siw.sq.Recall(), idsOf(n, q.siw.sq.ID)...))
		return nil
	}
	if q.dev.imported {
		q.siw.sq.FromPages(n)
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
		if errno == syscall.ENOTCONN && q.movingToErr.Load() { // Modify flushes them
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

// batchSiw returns how many of n slots, at least 1, may be published before the doorbell is rung.
// If a slot may not follow another one, batchSiw copies its data into the slot, if the data is
// memory of this program.
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
			return postErr(i, err)
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

// postRecvsSiw posts receives to the QP. The caller holds receiving.
func (q *QP) postRecvsSiw(wrs []RecvWR) error {
	err := fillRecvsSiw(q.siw.rq, wrs)
	if err == nil {
		q.publishRecvsSiw(len(wrs))
	}
	return err
}

// publishRecvsSiw publishes n receives, for which siw has no doorbell. On a QP in error it
// completes them itself, like ringSiw.
func (q *QP) publishRecvsSiw(n int) {
	if ib.QPState(q.state.Load()) == ib.QPErr {
		q.recvCQ.makeFlushed(q.qpn, WCRecv, append(q.siw.rq.Recall(), idsOf(n, q.siw.rq.ID)...))
		return
	}
	q.siw.rq.Publish(n)
}

// generatedWCs are completions that the library generates for work requests that the kernel does
// not complete.
type generatedWCs struct {
	some atomic.Bool // list is not empty
	mu   sync.Mutex
	list []WC // guarded by mu
}

// makeFlushed completes work requests of a QP as flushed; op is WCRecv for receives. They follow
// the completions that are in the ring now. They raise no event.
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

// waiting returns the number of completions.
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

// pollSiw is Poll for siw. Generated completions must follow those that the kernel had put into the
// ring when they were generated. So pollSiw counts them, reads the ring, and takes no more than it
// has counted: another goroutine may move a QP to QPErr meanwhile.
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
	if c.closed.Load() { // the ring may have been unmapped before it was read
		return 0, c.errClosed()
	}
	return n, nil
}

// repeatedFlush reports whether a completion is the second one for a flushed READ. The kernel
// flushes the next READ to be sent twice when a QP enters the error state: with those that were
// sent, and as the next one (siw_sq_flush of Linux 6.1 to 7.2).
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

// moveToErr moves a QP to QPErr after a work request has failed. The kernel may have only closed
// the connection, which leaves posted work requests in the rings. After the command they are
// flushed, see qpModified.
func (c *CQ) moveToErr(qpn uint32) {
	q, ok := c.qps.Load(qpn)
	if !ok || q.State() == ib.QPErr || q.acquireState() != nil {
		return
	}
	defer q.releaseState()
	if q.State() != ib.QPErr { // still
		// Modify would record the program as the cause. An error means that the kernel refuses.
		_ = q.modify(QPAttr{State: ib.QPErr}, AttrState)
	}
}

// armSiw arms the CQ for any completion. siw does not know which messages are solicited, and would
// raise no event for them.
func (c *CQ) armSiw() error {
	c.siw.ring.Arm()
	return nil
}
