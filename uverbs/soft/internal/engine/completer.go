package engine

import (
	"encoding/binary"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft/internal/memory"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// completionOpcodes are the opcodes of completions by those of work requests (wr_to_wc_opcode).
var completionOpcodes = [...]uint32{
	ring.OpWrite: ring.WCWrite, ring.OpWriteImm: ring.WCWrite,
	ring.OpSend: ring.WCSend, ring.OpSendImm: ring.WCSend, ring.OpSendInv: ring.WCSend,
	ring.OpRead: ring.WCRead, ring.OpAtomicCAS: ring.WCAtomicCAS, ring.OpAtomicFAA: ring.WCAtomicFAA,
	ring.OpLocalInv: ring.WCLocalInv, ring.OpBindMW: ring.WCBindMW,
	ring.OpFlush: ring.WCFlush, ring.OpAtomicWrite: ring.WCAtomicWrite,
}

// completeHead completes the request at head. Success is reported only for requests with the flag
// for it (do_complete of rxe_comp.c). vendor is the device's own code of an error. It reports false
// if the completion is lost: the QP is in state ERR.
func (q *QP) completeHead(status Status, vendor uint32) bool {
	r := &q.req
	s := r.slots.at(r.head)
	e := ring.Completion{WRID: s.wrID, Status: uint32(status), VendorErr: vendor, QPN: q.num}
	tell := q.sigAll || s.flags&ring.SendSignaled != 0 || status != StatusSuccess
	if tell && status == StatusSuccess {
		e.Opcode, e.ByteLen = completionOpcodes[s.opcode], s.length
		if s.opcode == ring.OpSendImm || s.opcode == ring.OpWriteImm {
			e.Flags = ring.WCWithImm
		}
	}
	if s.rdAtomic {
		r.rdAtomics--
	}
	if s.opcode == ring.OpSend || s.opcode == ring.OpSendImm || s.opcode == ring.OpSendInv {
		q.dev.stats.sends.Add(1)
	}
	*s = sendState{}
	r.completed++
	r.number++
	passed := r.next == r.head // it was to be sent again
	r.head = q.sq.Next(r.head)
	if passed {
		r.next, r.offset = r.head, 0
	}
	q.sq.SetConsumer(r.head)
	if tell && !q.post(q.sendCQ, &e, false) {
		q.toError()
		return false
	}
	return true
}

// post adds a completion to a CQ of the QP. It reports false if the CQ is in error and the completion is lost. The
// caller moves the QP to state ERR.
func (q *QP) post(c *CQ, e *ring.Completion, solicited bool) bool {
	if c.post(e, solicited) {
		return true
	}
	if !q.fatal {
		q.fatal = true
		q.raise(EventQPFatal)
	}
	return false
}

// completeDone completes the requests at head that are done.
func (q *QP) completeDone() {
	for q.req.slots.at(q.req.head).state == done && q.succeed() {
	}
}

// failHead completes the oldest request with an error and stops the send queue, and with it a reliable connection.
// Other QPs still receive. vendor is the device's own code of the error.
func (q *QP) failHead(status Status, vendor uint32) {
	q.sq.SetSendStatus(q.req.head, uint32(status))
	q.failedSend = q.req.head
	switch told := q.completeHead(status, vendor); {
	case q.typ == RC:
		q.toError()
	case told:
		q.state, q.draining = SQE, false
		q.flushSends()
	}
}

// response handles an acknowledgement or a response to a READ or atomic (rxe_completer). The caller
// holds mu.
func (q *QP) response(w *worker, h *wire.Header, payload []byte) {
	if q.state == Err || wire.Diff(h.PSN, q.req.end) >= 0 || wire.Diff(h.PSN, q.req.una) < 0 && !q.lateNAK(h) {
		q.dev.stats.staleResponse.Add(1) // of something that is complete, or was not sent
		return
	}
	switch op := h.Opcode.Operation(); {
	case op == wire.Acknowledge:
		q.acknowledged(h)
	case op == wire.AtomicAcknowledge:
		q.atomicResponse(w, h)
	case h.Opcode.IsReadResponse():
		q.readResponse(w, h, payload)
	}
	if q.state != Err {
		q.checkDrained()
		if q.req.retry || q.req.next != q.sq.Producer() {
			w.wake(q)
		}
	}
}

// lateNAK reports whether a packet says that a READ failed of which a part has come: some responders
// name the PSN of the request.
func (q *QP) lateNAK(h *wire.Header) bool {
	s := q.req.slots.at(q.req.head)
	return h.Opcode.Operation() == wire.Acknowledge && wire.TypeOf(h.Syndrome) == wire.NAK && h.Syndrome != wire.SyndromeSequence &&
		s.state == assigned && s.opcode == ring.OpRead && wire.Diff(h.PSN, s.first) >= 0
}

// acknowledged handles an ACK or a NAK.
func (q *QP) acknowledged(h *wire.Header) {
	switch wire.TypeOf(h.Syndrome) {
	case wire.ACK:
		q.advance(wire.Add(h.PSN, 1))
	case wire.RNRNAK:
		q.dev.stats.receivedNotReady.Add(1)
		if q.advance(h.PSN) {
			q.notReady(h)
		}
	case wire.NAK:
		q.negative(h)
	default:
		q.dev.stats.oddResponse.Add(1)
	}
}

// negative handles a NAK. It acknowledges all packets before its own.
func (q *QP) negative(h *wire.Header) {
	if !q.advance(h.PSN) || q.req.slots.at(q.req.head).state != assigned {
		return
	}
	switch h.Syndrome {
	case wire.SyndromeSequence:
		q.dev.stats.receivedSequence.Add(1)
		q.lost()
	case wire.SyndromeInvalidRequest:
		q.failHead(StatusRemInvReqErr, 0)
	case wire.SyndromeRemoteAccess:
		q.failHead(StatusRemAccessErr, 0)
	default:
		q.failHead(StatusRemOpErr, 0)
	}
}

// lost makes the QP send the unacknowledged packets again, once until there is progress, unless it
// already waits to do so.
func (q *QP) lost() {
	if !q.req.retryStarted && !q.req.rnrWait {
		q.sendAgain()
	}
}

// notReady handles an RNR NAK: the QP waits and sends again, if it has not done so too often.
func (q *QP) notReady(h *wire.Header) {
	r := &q.req
	if r.slots.at(r.head).state != assigned {
		return
	}
	if r.rnrLeft == 0 {
		q.dev.stats.rnrExceeded.Add(1)
		q.failHead(StatusRNRRetryErr, 0)
		return
	}
	if r.rnrLeft != noLimit {
		r.rnrLeft--
	}
	r.rnrWait = true
	q.deadlines.clear(retryDeadline)
	q.deadlines.after(q, rnrDeadline, max(ib.RNRTimer(h.Syndrome).Duration(), leastTimeout))
}

// advance takes all packets before a PSN for acknowledged and completes their requests. It reports
// false if one of these is a READ or atomic without its response, which has been lost, or completes with
// an error.
func (q *QP) advance(psn uint32) bool {
	r := &q.req
	moved := false
	for {
		s := r.slots.at(r.head)
		if s.state == done {
			if !q.succeed() {
				return false
			}
			continue
		}
		if s.state == posted || wire.Diff(psn, r.una) <= 0 {
			break
		}
		if s.answered() {
			if moved {
				q.progressed()
			}
			q.lost()
			return false
		}
		if wire.Diff(psn, s.last) <= 0 { // a part of its packets
			r.una, moved = psn, true
			break
		}
		r.una, moved = wire.Add(s.last, 1), true
		if !q.succeed() {
			return false
		}
	}
	if moved {
		q.progressed()
	}
	return true
}

// progressed resets the retry counters and the timer, as something has been acknowledged.
func (q *QP) progressed() {
	r := &q.req
	r.retriesLeft, r.rnrLeft, r.retryStarted = q.attr.RetryCount, q.attr.RNRRetry, false
	q.awaitAcknowledgement()
	if wire.Diff(r.psn, r.una) < 0 { // it was going to repeat packets that are acknowledged now
		q.rewind()
	}
}

// atomicResponse handles the response to an atomic.
func (q *QP) atomicResponse(w *worker, h *wire.Header) {
	advanced := q.advance(h.PSN)
	s := q.req.slots.at(q.req.head)
	if !advanced || s.state != assigned || s.first != h.PSN || s.opcode != ring.OpAtomicCAS && s.opcode != ring.OpAtomicFAA {
		q.dev.stats.oddResponse.Add(1)
		return
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], h.Original)
	q.readData(w, s, 0, b[:])
}

// readResponse handles a packet of a response to a READ, and the acknowledgement of a FLUSH or an
// ATOMIC WRITE, which looks like one without data. A packet out of order is ignored, but shows that
// packets were lost. Data in answer to another request ends the connection.
func (q *QP) readResponse(w *worker, h *wire.Header, payload []byte) {
	r := &q.req
	advanced := q.advance(h.PSN)
	s := r.slots.at(r.head)
	if !advanced || s.state != assigned || wire.Diff(h.PSN, s.first) < 0 {
		q.dev.stats.oddResponse.Add(1)
		return
	}
	if s.opcode == ring.OpFlush || s.opcode == ring.OpAtomicWrite {
		q.advance(wire.Add(h.PSN, 1))
		return
	}
	if s.opcode != ring.OpRead { // check_ack of rxe_comp.c
		q.dev.stats.oddResponse.Add(1)
		q.failHead(StatusFatalErr, 0)
		return
	}
	if wire.Diff(h.PSN, s.last) > 0 {
		q.dev.stats.oddResponse.Add(1)
		return
	}
	at := uint32(wire.Diff(h.PSN, s.first)) * uint32(q.mtu)
	if want := min(uint32(q.mtu), s.length-min(at, s.length)); uint32(len(payload)) != want {
		q.dev.stats.oddResponse.Add(1) // the peer has another MTU
		return
	}
	q.readData(w, s, at, payload)
}

// readData stores a part of the data of the READ at head.
func (q *QP) readData(w *worker, s *sendState, at uint32, payload []byte) {
	psn := q.req.una
	if len(payload) > 0 {
		if !w.loadRead(q) {
			q.failHead(StatusLocProtErr, 0)
			return
		}
		if q.scatter(q.pd, w.read.SGEs[:w.read.NumSGE], &w.readCursor, at, payload) != memory.OK {
			q.failHead(StatusLocProtErr, 0)
			return
		}
	}
	q.answeredTo(psn, psn == s.last)
}

// answeredTo acknowledges a PSN of the READ or atomic at head, and completes it if that was all.
func (q *QP) answeredTo(psn uint32, all bool) {
	q.req.una = wire.Add(psn, 1)
	if all && q.succeed() {
		q.completeDone()
	}
	if q.state != Err {
		q.progressed()
	}
}

// loadRead reads the work request at head, unless w has read it before. It reports false if the
// program wrote nonsense.
func (w *worker) loadRead(q *QP) bool {
	key := sendKey{q, q.req.completed}
	if w.readKey == key {
		return true
	}
	w.readKey = sendKey{}
	if !q.sq.ReadSend(q.req.head, &w.read, q.caps.MaxSendSGE) {
		return false
	}
	w.readKey, w.readCursor = key, sgeCursor{}
	return true
}
