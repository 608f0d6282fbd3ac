package uverbs

// wcQueue is the queue that a completion belongs to.
type wcQueue uint8

const (
	queueUnknown wcQueue = iota
	queueSend
	queueRecv
)

// queueOf returns the queue that a failed completion belongs to. The completions of mlx5 and siw
// say so. Those of rxe do not: if the QP has a CQ for each queue, the CQ decides, see
// [CQ.failed]; otherwise the rings do, as long as only one of them holds the ID.
func (q *QP) queueOf(wc *WC) wcQueue {
	switch {
	case wc.Opcode == WCRecv || wc.Opcode == WCRecvRDMAWrite:
		return queueRecv
	case q.kind != kindRxe || q.sendCQ != q.recvCQ:
		return queueSend
	}
	send := q.sq.MayHaveFailed(wc.ID, uint32(wc.Status), uint32(WCWRFlushErr))
	recv, known := q.holdsRecv(wc.ID)
	switch {
	case q.gone.Load(): // so are the rings, perhaps since before they were read
	case send && wc.Status != WCWRFlushErr: // the send's element has this very status
		return queueSend
	case !known:
	case recv && !send:
		return queueRecv
	case send && !recv:
		return queueSend
	}
	return queueUnknown
}

// holdsRecv reports whether rxe's ring of receives holds an ID. That is not known while the ring of
// an SRQ is locked, as by a post: Resize, SetLimit and Close hold the lock during system calls, and
// Poll does not wait for them.
func (q *QP) holdsRecv(id uint64) (holds, known bool) {
	if s := q.srq; s != nil {
		if !s.post.TryLock() {
			return false, false
		}
		defer s.post.Unlock()
		return !s.gone.Load() && s.rq.Has(id), true
	}
	return q.noRecv == nil && q.rq.Has(id), true
}

// noteQueue sets the opcode of a failed completion of this CQ to WCRecv if it is that of a
// receive, where the driver has not done so.
func (c *CQ) noteQueue(q *QP, wc *WC) {
	if q.kind != kindRxe {
		return
	}
	switch {
	case q.sendCQ != q.recvCQ:
		if c == q.recvCQ {
			wc.Opcode = WCRecv
		}
	case q.queueOf(wc) == queueRecv:
		wc.Opcode = WCRecv
	}
}
