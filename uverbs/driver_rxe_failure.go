package uverbs

import (
	"sync"

	"github.com/goverbs/goverbs/mmio/rxe"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

func (rxeDriver) findRequest(q *QP, id uint64) (sentWR, bool) {
	if q.kind != kindRxe { // it has no send queue
		return sentWR{}, false
	}
	q.rxe.ids.mu.Lock()
	defer q.rxe.ids.mu.Unlock()
	i, ok := q.rxe.sq.Find(&q.rxe.ids.send, id, q.typ == ib.UD)
	return sentRxe(&i), ok
}

func (rxeDriver) failedRequest(q *QP) (WC, sentWR, bool) {
	if q.kind != kindRxe {
		return WC{}, sentWR{}, false
	}
	id, status, i, ok := q.rxe.sq.FindFailed(uint32(WCWRFlushErr), q.typ == ib.UD)
	return WC{ID: id, Status: WCStatus(status), QPN: q.qpn}, sentRxe(&i), ok
}

// vendorText explains the code of a software device. The kernel's rxe does not set codes.
func (rxeDriver) vendorText(code uint32) (text string, injected bool) {
	if code == rxe.VendorInjected {
		return "injected by the faults of this software device", true
	}
	return "", false
}

// sentRxe converts the contents of a ring element.
func sentRxe(i *rxe.SendInfo) sentWR {
	s := sentWR{op: WROpcode(i.Opcode), length: i.Length, qpn: i.RemoteQPN, raddr: i.RemoteAddr, rkey: i.RKey, mwRKey: i.MWRKey}
	switch s.op {
	case WRBindMW:
		s.bind = &binding{addr: i.Bind.Addr, length: i.Bind.Length, lkey: i.Bind.LKey, access: Access(i.Bind.Access)}
	case WRLocalInv:
		s.invalid, s.windowOnly = &i.Invalid, true
	}
	for _, e := range i.SGEs {
		s.sges = append(s.sges, SGE{Addr: e.Addr, Length: e.Length, LKey: e.LKey})
	}
	return s
}

// idIndexes find work requests of a failed QP by ID.
type idIndexes struct {
	mu         sync.Mutex
	send, recv rxe.IDIndex // guarded by mu
}

// queueOf searches both rings for the ID, because rxe's completions do not name the queue. The
// queue is known if only one ring holds the ID, or if the send element has the status of the
// completion.
func (rxeDriver) queueOf(q *QP, wc WC) diag.Queue {
	if q.kind != kindRxe {
		return diag.SendQueue
	}
	flushed := wc.Status == WCWRFlushErr // Linux 6.12 and later do not store this status in the element
	q.rxe.ids.mu.Lock()
	defer q.rxe.ids.mu.Unlock()
	send := flushed && q.rxe.sq.Has(&q.rxe.ids.send, wc.ID) || !flushed && q.rxe.sq.HasFailed(wc.ID, uint32(wc.Status))
	recv, known := q.holdsRecv(wc.ID)
	switch {
	case q.closed.Load(): // the rings may have been unmapped before they were read
	case send && !flushed:
		return diag.SendQueue
	case !known:
	case recv && !send:
		return diag.RecvQueue
	case send && !recv:
		return diag.SendQueue
	}
	return diag.UnknownQueue
}

// holdsRecv reports whether rxe's receive ring holds an ID. It is not known while the ring of an
// SRQ is locked: Resize, SetLimit and Close hold that lock during system calls, and Poll does not
// wait for them. The caller holds q.rxe.ids.mu.
func (q *QP) holdsRecv(id uint64) (holds, known bool) {
	if s := q.srq; s != nil {
		if !s.post.TryLock() {
			return false, false
		}
		defer s.post.Unlock()
		return !s.closed.Load() && s.rxe.rq.Has(&s.rxe.ids, id), true
	}
	return q.noRecv == nil && q.rxe.rq.Has(&q.rxe.ids.recv, id), true
}

func (rxeDriver) postedRecvs(q *QP) int {
	switch s := q.srq; {
	case s != nil:
		s.post.Lock()
		defer s.post.Unlock()
		if !s.closed.Load() {
			return s.rxe.rq.Posted()
		}
	case q.noRecv == nil:
		return q.rxe.rq.Posted()
	}
	return 0
}
