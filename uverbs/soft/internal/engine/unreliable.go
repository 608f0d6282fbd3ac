package engine

import "github.com/goverbs/goverbs/uverbs/soft/internal/memory"

// requestUC handles a request on an unreliable connection. Nothing is acknowledged: a message of which
// a packet was lost is dropped.
func (q *QP) requestUC(a *arrival) {
	r, h := &q.resp, &a.header
	if r.dropping || h.PSN != r.psn {
		if r.dropping = !h.Opcode.Starts(); r.dropping {
			q.dev.stats.outOfOrder.Add(1)
			return
		}
		if !q.abandon(a, StatusRemInvReqErr) {
			return
		}
	}
	// The rest of a message that is refused here, or later, does not have the PSN that is expected.
	if !follows(r.opcode, h.Opcode) {
		q.dev.stats.refused.Add(1)
		q.abandon(a, StatusRemInvReqErr) // the classes D1 and E of the specification (do_class_d1e_error)
		return
	}
	if h.Opcode.IsWrite() && memory.Access(q.attr.AccessFlags)&memory.RemoteWrite == 0 {
		q.dev.stats.refused.Add(1)
		return
	}
	v := q.takeFor(h)
	if v == ok && !q.lengthFits(h, len(a.payload)) {
		v = invalid
	}
	if v == ok && h.Opcode.IsSend() {
		v = q.executeSend(a)
	} else if v == ok {
		v = q.executeWrite(a)
	}
	q.concludeUC(a, v)
}

// abandon gives the message under way up. Its receive stays in the queue, but one of an SRQ, which has
// left it, completes with an error. It reports false if that completion is lost.
func (q *QP) abandon(a *arrival, status Status) bool {
	q.resp.opcode = noOpcode
	if q.srq == nil {
		q.resp.free()
		return true
	}
	if !q.completeRecv(a, status) {
		q.toError()
		return false
	}
	return true
}

// concludeUC handles how a request on an unreliable connection ended. The QP goes on after a request
// that only the peer is to blame for.
func (q *QP) concludeUC(a *arrival, v verdict) {
	switch v {
	case ok:
	case overflow:
		q.toError()
	case badReceive:
		q.completeRecv(a, StatusLocQPOpErr)
		q.toError()
	case badMemory:
		q.completeRecv(a, StatusLocProtErr)
		q.toError()
	case tooLong:
		q.completeRecv(a, StatusLocLenErr)
		q.toError()
	case planned:
		q.completeRecv(a, q.resp.failure)
		q.toError()
	case notReady:
		q.dev.stats.noReceive.Add(1)
		q.abandon(a, StatusRemInvReqErr)
	case denied:
		q.dev.stats.refused.Add(1)
		q.abandon(a, StatusRemAccessErr)
	default:
		q.dev.stats.refused.Add(1)
		q.abandon(a, StatusRemInvReqErr)
	}
}

// datagram handles a request to a UD QP. One that finds no receive is lost, and one that is longer than its receive
// breaks the QP.
func (q *QP) datagram(w *worker, a *arrival) {
	if len(a.payload) > 128<<maxMTU { // nobody has a receive for it, so it must not break the QP
		q.dev.stats.refused.Add(1)
		return
	}
	switch q.takeFor(&a.header) {
	case notReady:
		q.dev.stats.noReceive.Add(1)
		return
	case badReceive:
		q.dev.stats.refused.Add(1)
		q.toError()
		return
	}
	a.from.grh(&w.grh)
	v := q.store(w.grh[:])
	if v == ok {
		v = q.store(a.payload)
	}
	switch {
	case v != ok:
	case q.recvFails():
		v = planned
	case !q.completeRecv(a, StatusSuccess):
		v = overflow
	}
	q.concludeUC(a, v)
}
