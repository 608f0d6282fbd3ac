package engine

import (
	"github.com/goverbs/goverbs/uverbs/soft/internal/memory"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// noOpcode is the opcode of a responder between two messages.
const noOpcode wire.Opcode = 0xff

// A responder carries out the requests that a QP receives.
type responder struct {
	head     uint32 // oldest receive in the receive queue, without an SRQ
	psn      uint32 // expected
	ackPSN   uint32 // expected after the last request that was not a READ
	msn      uint32
	opcode   wire.Opcode // of the packet before in the same message, or noOpcode
	sentNAK  bool        // that the PSN is not the expected one
	dropping bool        // UC: the rest of the message

	recv   *receive // taken for the message under way, or nil
	spare  *receive // for the next message, or nil
	target target   // of the WRITE under way

	mostReads  int          // READs and atomics that may be under way
	remembered []remembered // those that may have to be answered again; nil before the first one
	nextSlot   int          // oldest of them
	answers    uint32       // READs and atomics that are answered
	batch      uint64       // of the worker that has brought the last one
	before     uint32       // answers when it began to do so
	reading    *remembered  // a READ whose response is being sent, or nil
	busy       bool         // a worker sends the response in several rounds
	waiting    []byte       // packets that came meanwhile, each behind its length

	lastAck ackPlace // the acknowledgement that was generated last
	unsent  unsent   // the response that was generated last

	needed    uint64 // receives that packets have needed while there was a plan of faults
	completed uint64 // receives that are complete
	since     uint64 // those when the plan was set
	failure   Status // with which a plan has the receive under way complete
}

// A target is the remote memory that a message names.
type target struct {
	addr   uint64 // of the next byte
	key    uint32
	left   uint32 // bytes that have not come
	length uint32 // bytes in all
}

// A receive is a receive that a message has taken.
type receive struct {
	wr     ring.Recv
	cursor sgeCursor
	at     uint32 // bytes that are stored
}

// reset prepares the responder for a new connection.
func (r *responder) reset() {
	r.msn, r.opcode = 0, noOpcode
	r.needed, r.completed, r.since, r.failure = 0, 0, 0, StatusSuccess
	r.answers, r.batch, r.before = 0, 0, 0
	r.sentNAK, r.dropping = false, false
	for i := range r.remembered {
		r.remembered[i].kind = forgotten
	}
}

// drop releases the resources of the message under way.
func (r *responder) drop() {
	r.free()
	r.reading, r.waiting = nil, nil
}

// free gives the receive under way back.
func (r *responder) free() {
	if r.recv != nil {
		r.spare, r.recv = r.recv, nil
	}
}

// remember sets how many READs and atomics may be under way, and forgets those that there are.
func (r *responder) remember(n int) {
	r.mostReads, r.remembered, r.nextSlot, r.reading = n, nil, 0, nil
}

// A verdict says how a request ended.
type verdict uint8

const (
	ok            verdict = iota
	notReady              // there is no receive
	invalid               // it cannot be, or not in this order
	denied                // it has no right to the memory
	badReceive            // the receive is no work request
	badMemory             // the memory of the receive cannot be used
	tooLong               // the message is longer than the receive
	badInvalidate         // the key cannot be invalidated
	overflow              // the completion was lost
	planned               // the plan of faults has the receive fail
)

// An arrival is a packet that has come.
type arrival struct {
	header  wire.Header
	payload []byte
	from    *source
	last    uint32 // PSN of a request, of a large one that of the last packet that it stands for
	answers uint32 // of a READ or atomic: how many were answered when it came
}

// request handles a request (rxe_receiver). The caller holds mu.
func (q *QP) request(w *worker, a *arrival) {
	w.received = w.received || a.header.Opcode.CompletesRecv()
	if q.state == Err {
		q.dev.stats.refusedState.Add(1)
		return
	}
	a.last = a.header.PSN
	if n := len(a.payload); n > q.mtu && q.typ == RC {
		a.last = wire.Add(a.last, q.packets(uint32(n))-1)
	}
	switch q.typ {
	case RC:
		q.requestRC(w, a)
	case UC:
		q.requestUC(a)
	default:
		q.datagram(w, a)
	}
}

// requestRC handles a request on a reliable connection.
func (q *QP) requestRC(w *worker, a *arrival) {
	r, h := &q.resp, &a.header
	switch diff := wire.Diff(h.PSN, r.psn); {
	case diff > 0:
		q.dev.stats.outOfOrder.Add(1)
		if !r.sentNAK {
			r.sentNAK = true
			q.dev.stats.outOfSequence.Add(1)
			q.acknowledge(w, wire.SyndromeSequence, r.psn)
		}
		return
	case diff < 0:
		q.dev.stats.duplicates.Add(1)
		q.duplicate(w, a)
		return
	}
	r.sentNAK = false
	q.conclude(w, a, q.execute(w, a))
}

// execute checks a request in the order of rxe and carries it out.
func (q *QP) execute(w *worker, a *arrival) verdict {
	h := &a.header
	if !follows(q.resp.opcode, h.Opcode) || !q.grants(h) || h.Opcode.Operation() == wire.Flush && !validFlush(h) {
		return invalid
	}
	if needsSlot(h.Opcode) && q.tooMany(a) {
		return invalid
	}
	if v := q.takeFor(h); v != ok {
		return v
	}
	if !q.lengthFits(h, len(a.payload)) {
		return invalid
	}
	switch op := h.Opcode.Operation(); {
	case h.Opcode.IsSend():
		return q.executeSend(a)
	case h.Opcode.IsWrite():
		return q.executeWrite(a)
	case op == wire.ReadRequest:
		return q.executeRead(w, h)
	case h.Opcode.IsAtomic():
		return q.executeAtomic(w, h)
	case op == wire.AtomicWrite:
		return q.executeAtomicWrite(w, a)
	default:
		return q.executeFlush(w, h)
	}
}

// follows reports whether a packet may come after another one: a message is not interrupted, and
// begins with its first packet (check_op_seq).
func follows(before, op wire.Opcode) bool {
	if before != noOpcode && !before.Ends() {
		return !op.Starts() && op.IsSend() == before.IsSend() && op.IsWrite() == before.IsWrite()
	}
	return op.Starts()
}

// grants reports whether the QP lets its peer do what a request asks for (check_qp_attr_access).
func (q *QP) grants(h *wire.Header) bool {
	need := memory.Access(0)
	switch op := h.Opcode.Operation(); {
	case op == wire.ReadRequest:
		need = memory.RemoteRead
	case h.Opcode.IsWrite(), op == wire.AtomicWrite:
		need = memory.RemoteWrite
	case h.Opcode.IsAtomic():
		need = memory.RemoteAtomic
	case op == wire.Flush:
		need = flushAccess(h)
	}
	return memory.Access(q.attr.AccessFlags)&need == need
}

// needsSlot reports whether a request counts as a READ or atomic, of which a QP may permit none.
func needsSlot(op wire.Opcode) bool {
	return op.IsReadRequest() || op.IsAtomic() || op == wire.AtomicWrite
}

// validFlush reports whether a FLUSH says what to flush and how far.
func validFlush(h *wire.Header) bool {
	const types = wire.FlushGlobal | wire.FlushPersistent
	return h.FlushType != 0 && h.FlushType&^types == 0 && h.FlushLevel <= wire.FlushMR
}

// flushAccess returns the rights that a FLUSH needs.
func flushAccess(h *wire.Header) (need memory.Access) {
	if h.FlushType&wire.FlushGlobal != 0 {
		need |= memory.FlushGlobal
	}
	if h.FlushType&wire.FlushPersistent != 0 {
		need |= memory.FlushPersistent
	}
	return need
}

// takeFor takes a receive, if the request needs one.
func (q *QP) takeFor(h *wire.Header) verdict {
	if !h.Opcode.NeedsRecv() {
		return ok
	}
	r := &q.resp
	r.free()
	if p := q.planNow(); p != nil {
		r.needed++
		if p.NotReady(q.num, r.needed-1) {
			return notReady
		}
	}
	if r.spare == nil {
		r.spare = new(receive)
	}
	rc := r.spare
	rc.cursor, rc.at = sgeCursor{}, 0
	switch taken, malformed := q.take(&rc.wr); {
	case malformed:
		return badReceive
	case !taken:
		return notReady
	}
	r.recv, r.spare = rc, nil
	return ok
}

// take reads the oldest receive. One of the QP's own queue stays there until it is complete.
func (q *QP) take(w *ring.Recv) (ok, malformed bool) {
	if q.srq != nil {
		return q.srq.take(w)
	}
	if q.resp.head == q.rq.Producer() {
		return false, false
	}
	if !q.rq.ReadRecv(q.resp.head, w, q.caps.MaxRecvSGE) {
		return false, true
	}
	return true, false
}

// lengthFits checks the amount of data in a packet (rxe_resp_check_length).
func (q *QP) lengthFits(h *wire.Header, n int) bool {
	if h.Opcode.HasRETH() && h.Length > MaxMessage {
		return false
	}
	most := q.mtu
	if q.typ == RC && q.path.large && (h.Opcode.IsSend() || h.Opcode.IsWrite()) {
		most = udp.LargePayload
	}
	switch {
	case !h.Opcode.HasPayload():
		return true
	case h.Opcode.Only():
		return n <= most
	case h.Opcode.Last():
		return n > 0 && n <= most
	}
	return n > 0 && n <= most && n%q.mtu == 0
}

// executeSend stores the data of a packet of a SEND.
func (q *QP) executeSend(a *arrival) verdict {
	if v := q.store(a.payload); v != ok {
		return v
	}
	if a.header.Opcode.HasInv() && !q.dev.config.Memory.Invalidate(q.ref(), a.header.InvKey) {
		return badInvalidate
	}
	return q.executed(a)
}

// store appends data to the receive under way.
func (q *QP) store(data []byte) verdict {
	if len(data) == 0 {
		return ok
	}
	rc := q.resp.recv
	if rc == nil {
		return badReceive
	}
	if uint64(rc.at)+uint64(len(data)) > uint64(rc.wr.Length) {
		return tooLong
	}
	pd := q.pd
	if q.srq != nil { // which may serve QPs of several PDs
		pd = q.srq.pd
	}
	if q.scatter(pd, rc.wr.SGEs[:rc.wr.NumSGE], &rc.cursor, rc.at, data) != memory.OK {
		return badMemory
	}
	rc.at += uint32(len(data))
	return ok
}

// executeWrite stores the data of a packet of a WRITE. If there is none, address and key are not
// looked at.
func (q *QP) executeWrite(a *arrival) verdict {
	h, t := &a.header, &q.resp.target
	if h.Opcode.HasRETH() {
		*t = target{addr: h.Addr, key: h.RKey, left: h.Length, length: h.Length}
		if q.dev.config.Memory.CheckRemote(q.ref(), t.key, t.addr, uint64(t.left), memory.RemoteWrite) != memory.OK {
			return denied
		}
	}
	if n := uint32(len(a.payload)); n > t.left || n == t.left != h.Opcode.Ends() {
		return invalid
	}
	if len(a.payload) > 0 && q.dev.config.Memory.WriteRemote(q.ref(), t.key, t.addr, a.payload) != memory.OK {
		return denied
	}
	t.addr += uint64(len(a.payload))
	t.left -= uint32(len(a.payload))
	return q.executed(a)
}

// executed advances the responder behind a packet and completes the receive, if there is one.
func (q *QP) executed(a *arrival) verdict {
	r, h := &q.resp, &a.header
	if h.Opcode.CompletesRecv() && q.recvFails() {
		return planned
	}
	if h.Opcode.Ends() {
		r.msn = wire.Add(r.msn, 1)
	}
	r.psn = wire.Add(a.last, 1)
	r.ackPSN, r.opcode = r.psn, h.Opcode
	if h.Opcode.CompletesRecv() && !q.completeRecv(a, StatusSuccess) {
		return overflow
	}
	return ok
}

// conclude acknowledges a request on a reliable connection, or says how it failed. A failure of the
// request moves the QP to the error state.
func (q *QP) conclude(w *worker, a *arrival, v verdict) {
	h := &a.header
	switch v {
	case ok:
		if h.AckReq && (h.Opcode.IsSend() || h.Opcode.IsWrite()) {
			q.acknowledge(w, wire.SyndromeACK, a.last)
		}
	case notReady:
		q.dev.stats.notReady.Add(1)
		q.acknowledge(w, wire.SyndromeRNR|q.attr.MinRNRTimer&wire.SyndromeCodeMask, h.PSN)
	case invalid:
		q.refuse(w, a, wire.SyndromeInvalidRequest, StatusRemInvReqErr)
	case denied:
		if !h.Opcode.HasImm() { // there is no receive to tell it by
			q.raise(EventAccessErr)
		}
		q.refuse(w, a, wire.SyndromeRemoteAccess, StatusRemAccessErr)
	case badReceive:
		q.refuse(w, a, wire.SyndromeRemoteOp, StatusLocQPOpErr)
	case badMemory:
		q.refuse(w, a, wire.SyndromeRemoteOp, StatusLocProtErr)
	case tooLong:
		q.refuse(w, a, wire.SyndromeInvalidRequest, StatusLocLenErr)
	case planned:
		q.refuse(w, a, wire.SyndromeRemoteOp, q.resp.failure)
	case badInvalidate: // the data has arrived
		syndrome := wire.SyndromeACK
		if !h.AckReq {
			syndrome = noSyndrome
		}
		q.refuse(w, a, syndrome, StatusRemInvReqErr)
	case overflow:
		q.toError()
	}
}

// noSyndrome is a syndrome that no packet has.
const noSyndrome = 0xff

// refuse completes the receive under way with an error, answers the request, and moves the QP to the
// error state. If the completion is lost there is no answer.
func (q *QP) refuse(w *worker, a *arrival, syndrome uint8, status Status) {
	psn := a.header.PSN
	if syndrome == wire.SyndromeACK {
		psn = a.last
	}
	if q.completeRecv(a, status) && syndrome != noSyndrome {
		q.acknowledge(w, syndrome, psn)
	}
	q.toError()
}

// completeRecv completes the receive under way, if there is one. It reports false if the completion is
// lost (do_complete of rxe_resp.c).
func (q *QP) completeRecv(a *arrival, status Status) bool {
	rc := q.resp.recv
	if rc == nil {
		return true
	}
	q.resp.completed++
	h := &a.header
	e := ring.Completion{WRID: rc.wr.WRID, Status: uint32(status), QPN: q.num}
	switch status {
	case StatusSuccess:
		q.dev.stats.receives.Add(1)
		e.Opcode, e.ByteLen, e.Flags, e.PortNum = ring.WCRecv, rc.at, ring.WCGRH, q.attr.Port
		if h.Opcode.HasImm() {
			e.ImmOrKey = netOrder(h.Imm)
			e.Flags |= ring.WCWithImm
			if h.Opcode.IsWrite() {
				e.Opcode, e.ByteLen = ring.WCRecvWrite, q.resp.target.length
			}
		}
		if h.Opcode.HasInv() {
			e.ImmOrKey = h.InvKey
			e.Flags |= ring.WCWithInvalidate
		}
		if h.Opcode.HasDETH() {
			e.SrcQP = h.SrcQP
		}
	case q.resp.failure:
		e.VendorErr = ring.Injected(true, q.resp.completed-1-q.resp.since)
	}
	q.resp.free()
	if q.srq == nil {
		q.resp.head = q.rq.Next(q.resp.head)
		q.rq.SetConsumer(q.resp.head)
	}
	return q.post(q.recvCQ, &e, h.Solicited)
}

// flushRecvs flushes the receive queue. An SRQ keeps its receives for others, apart from the one that a message
// under way has taken.
func (q *QP) flushRecvs() {
	r := &q.resp
	if q.srq != nil && r.recv != nil {
		q.post(q.recvCQ, &ring.Completion{WRID: r.recv.wr.WRID, Status: uint32(StatusFlushErr), QPN: q.num}, false)
	}
	r.free()
	r.reading = nil
	if q.srq != nil {
		return
	}
	for producer := q.rq.Producer(); r.head != producer; r.head = q.rq.Next(r.head) {
		q.post(q.recvCQ, &ring.Completion{WRID: q.rq.RecvID(r.head), Status: uint32(StatusFlushErr), QPN: q.num}, false)
	}
	q.rq.SetConsumer(r.head)
}
