package engine

import (
	"encoding/binary"
	"math/bits"
)

// responder is the receiving side of a connection.
type responder struct {
	ePSN uint32 // expected next
	msn  uint32 // counts completed messages
	nak  bool   // the peer goes back already: packets ahead are not answered

	active bool    // a message has begun
	kind   pktKind // what it is
	recv   *rwqe   // the WQE that it goes into
	off    int     // how far it is
	va     uint64  // of a WRITE
	rkey   uint32
	length uint32
	skip   bool // UC: the rest of a broken message

	out     []answer   // answers to send, in order
	paging  *pageFault // pages for the next request are awaited
	stalled *pageFault // pages for the first answer are awaited
	refused bool       // the last of them is a NAK that ends the connection
	fetches int        // READs and atomics among them
	results []result   // of atomics, to be given again
	place   placing    // what of a WRITE is not in memory yet
}

// result is what an atomic has found.
type result struct {
	psn   uint32
	value uint64
}

// start begins to receive, at RTR.
func (r *responder) start(q *qp) {
	*r = responder{ePSN: q.attr.RecvPSN}
}

// request takes a request of the peer.
func (q *qp) request(p *packet) {
	if q.resp.place.wait != nil {
		q.resp.place.queue = append(q.resp.place.queue, p)
		return
	}
	if !q.reliable() {
		q.requestUC(p)
		return
	}
	r := &q.resp
	switch d := psnDiff(p.psn, r.ePSN); {
	case d > 0:
		q.counts.count(CountOutOfSequence)
		if !r.nak {
			r.nak = true
			q.answer(answer{kind: pktAck, psn: r.ePSN, syndrome: nakSeq})
		}
		return
	case d < 0:
		q.counts.count(CountDuplicates)
		q.duplicate(p)
		return
	}
	if r.paging != nil {
		q.d.drop(p, notPresent)
		return
	}
	r.nak = false
	q.process(p)
}

// requestUC takes a packet of an unreliable connection: a gap breaks a message, and the
// next one is taken again.
func (q *qp) requestUC(p *packet) {
	r := &q.resp
	if p.kind != pktSend && p.kind != pktWrite {
		q.d.drop(p, "no operation of UC")
		return
	}
	gap := psnDiff(p.psn, r.ePSN) != 0
	r.ePSN = (p.psn + 1) & psnMask
	if gap && r.active {
		r.active, r.skip = false, true
	}
	if p.first {
		r.active, r.skip = false, false
	} else if gap || r.skip || !r.active {
		r.skip = true
		q.d.drop(p, "UC: a packet of a message before it is missing")
		return
	}
	r.ePSN = p.psn
	q.process(p)
}

// process executes the expected request.
func (q *qp) process(p *packet) {
	r := &q.resp
	if p.first == r.active || r.active && p.kind != r.kind {
		q.refuseRequest(p, nakInvalid, EventInvalReq, "a packet that does not follow the one before")
		return
	}
	pd, srq := q.pd, q.rq
	if q.spec.Type == XRC {
		srq = q.d.srqs[p.srqn]
		if srq == nil || !srq.spec.XRC || srq.xrcd != q.xrcd {
			q.refuseRequest(p, nakInvalid, EventInvalReq, hex("no XRC SRQ of its domain has number ", p.srqn))
			return
		}
		pd = srq.pd
	}
	switch p.kind {
	case pktSend:
		q.processSend(p, pd, srq)
	case pktWrite:
		q.processWrite(p, pd, srq)
	case pktReadReq:
		q.processRead(p, pd)
	case pktAtomicReq:
		q.processAtomic(p, pd)
	default:
		q.d.drop(p, "no request")
	}
}

// accept says that a packet was executed.
func (q *qp) accept(p *packet) {
	r := &q.resp
	q.counts.countRequest(p)
	r.ePSN = (p.psn + 1) & psnMask
	r.active = !p.last
	if p.last {
		r.msn = (r.msn + 1) & psnMask
	}
	if p.ackReq && (p.kind == pktSend || p.kind == pktWrite) {
		q.answer(answer{kind: pktAck, psn: p.psn, syndrome: ackOK})
	}
}

// needRecv makes sure that the message has a receive WQE. Without one it answers RNR.
func (q *qp) needRecv(p *packet, w *wq) bool {
	r := &q.resp
	if r.recv != nil {
		return true
	}
	if w != nil && w.failed {
		q.refuseRequest(p, nakOp, EventWQCatas, "its receive queue has failed")
		return false
	}
	var ok bool
	if w != nil {
		r.recv, ok = w.takeFor(q)
	}
	if !ok {
		q.d.drop(p, "no receive WQE")
		q.counts.count(CountOutOfBuffer)
		if q.reliable() {
			r.nak = true // what follows comes again anyway
			q.answer(answer{kind: pktAck, psn: p.psn, syndrome: ackRNR | q.attr.MinRNRNAK&0x1f})
		} else {
			r.active, r.skip = false, true
			r.ePSN = (p.psn + 1) & psnMask
		}
		return false
	}
	if f := q.fault(true); f != nil {
		q.recvFailed(r.recv, Syndrome(f.syndrome), f.vendor)
		q.refuseRequest(p, nakOp, 0, "fault injected")
		return false
	}
	return true
}

// processSend takes a packet of a SEND.
func (q *qp) processSend(p *packet, pd *pd, w *wq) {
	r := &q.resp
	if p.first {
		r.off = 0
	}
	if !q.needRecv(p, w) {
		return
	}
	r.kind, r.active = pktSend, true
	cq := q.cqOf(r.recv)
	var inline []byte
	if p.first && p.last && len(p.data) > 0 && len(p.data) <= cq.inlineRoom(q.spec.ScatterRes) {
		inline = p.data
		if r.recv.room(q.d) < len(p.data) {
			q.recvFailed(r.recv, LocalLength, vendorLocalLen)
			q.refuseRequest(p, nakInvalid, 0, "a message longer than its receive WQE")
			return
		}
	} else if s, why := q.d.scatterRecv(q, r.recv, pd, r.off, p.data); s != 0 {
		if why == notPresent && q.recvFault(p, r.recv, r.off) {
			r.active = !p.first
			return
		}
		q.recvFailed(r.recv, s, vendorOf(s))
		nak := uint8(nakOp)
		if s == LocalLength {
			nak = nakInvalid
		}
		q.refuseRequest(p, nak, 0, why)
		return
	}
	r.off += len(p.data)
	if p.last {
		if p.invalidate {
			if why := q.d.invalidate(p.imm, q, pd); why != "" {
				q.recvFailed(r.recv, LocalAccess, vendorLocalProt)
				q.refuseRequest(p, nakAccess, 0, why)
				return
			}
		}
		op := uint8(cqeRespSend)
		if p.invalidate {
			op = cqeRespSendInv
		} else if p.hasImm {
			op = cqeRespSendImm
		}
		q.recvDone(p, op, r.off, inline)
	}
	q.accept(p)
}

// processWrite takes a packet of a WRITE.
func (q *qp) processWrite(p *packet, pd *pd, w *wq) {
	r := &q.resp
	if p.first {
		if !q.attr.RWE {
			q.refuseRequest(p, nakInvalid, EventInvalReq, "the QP allows no remote writes")
			return
		}
		r.off, r.va, r.rkey, r.length = 0, p.va, p.rkey, p.length
		if _, why := q.d.translate(p.rkey, q, pd.n, p.va, uint64(p.length), RemoteWrite); why != "" {
			q.refuseRequest(p, nakAccess, EventAccessError, why)
			return
		}
	}
	if r.off+len(p.data) > int(r.length) || p.last && r.off+len(p.data) != int(r.length) {
		q.refuseRequest(p, nakInvalid, EventInvalReq, "a WRITE of another length than it said")
		return
	}
	if p.hasImm && !q.needRecv(p, w) {
		return
	}
	all, why := q.d.translate(r.rkey, q, pd.n, r.va+uint64(r.off), uint64(len(p.data)), RemoteWrite)
	if why == "" && absent(all) && q.writeFault(p, r.rkey, r.va, r.off, int(r.length)) {
		return
	}
	if why == "" && q.placeLater(p) {
		return
	}
	if why == "" {
		if err := q.d.store(all, p.data); err != nil {
			why = err.Error()
		}
	}
	if why != "" {
		q.refuseRequest(p, nakAccess, EventAccessError, why)
		return
	}
	if p.last && q.placeRest(p, pd) {
		return
	}
	q.written(p)
}

// written says that a packet of a WRITE was executed.
func (q *qp) written(p *packet) {
	r := &q.resp
	r.kind, r.off = pktWrite, r.off+len(p.data)
	if p.hasImm {
		q.recvDone(p, cqeRespWriteImm, r.off, nil)
	}
	q.accept(p)
}

// tooMany reports whether the initiator has more READs and atomics under way than this
// QP has resources for.
func (q *qp) tooMany() bool { return q.resp.fetches >= 1<<q.attr.LogRRAMax }

// processRead takes the request of a READ.
func (q *qp) processRead(p *packet, pd *pd) {
	if !q.attr.RRE {
		q.refuseRequest(p, nakInvalid, EventInvalReq, "the QP allows no remote reads")
		return
	}
	if q.tooMany() {
		q.refuseRequest(p, nakInvalid, EventInvalReq, "more READs and atomics at once than log_rra_max allows")
		return
	}
	if _, why := q.d.translate(p.rkey, q, pd.n, p.va, uint64(p.length), RemoteRead); why != "" {
		q.refuseRequest(p, nakAccess, EventAccessError, why)
		return
	}
	q.resp.fetches++
	q.answer(answer{kind: pktReadResp, psn: p.psn, va: p.va, rkey: p.rkey, length: int(p.length), pd: pd, counted: true})
	q.accept(p)
	packets := uint32(max(1, (int(p.length)+q.mtu()-1)/q.mtu()))
	q.resp.ePSN = (p.psn + packets) & psnMask
}

// processAtomic executes an atomic.
func (q *qp) processAtomic(p *packet, pd *pd) {
	if !q.attr.RAE {
		q.refuseRequest(p, nakInvalid, EventInvalReq, "the QP allows no remote atomics")
		return
	}
	if p.va%8 != 0 {
		q.refuseRequest(p, nakInvalid, EventInvalReq, "an atomic on an address that is no multiple of 8")
		return
	}
	if q.tooMany() {
		q.refuseRequest(p, nakInvalid, EventInvalReq, "more READs and atomics at once than log_rra_max allows")
		return
	}
	all, why := q.d.translate(p.rkey, q, pd.n, p.va, 8, RemoteAtomic)
	if why == "" && absent(all) && q.writeFault(p, p.rkey, p.va, 0, 8) {
		return
	}
	var old []byte
	if why == "" {
		var err error
		if old, err = q.d.load(all); err != nil {
			why = err.Error()
		}
	}
	if why != "" {
		q.refuseRequest(p, nakAccess, EventAccessError, why)
		return
	}
	v := binary.LittleEndian.Uint64(old) // the driver chose the host's order (atomic_req_8B_endianness_mode)
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], atomicResult(p.op, v, p.args))
	if err := q.d.store(all, b[:]); err != nil {
		q.refuseRequest(p, nakAccess, EventAccessError, err.Error())
		return
	}
	r := &q.resp
	r.results = append(r.results, result{p.psn, v})
	if keep := 1 << q.attr.LogRRAMax; len(r.results) > keep {
		r.results = r.results[len(r.results)-keep:]
	}
	r.fetches++
	q.answer(answer{kind: pktAtomicResp, psn: p.psn, value: v, counted: true})
	q.accept(p)
}

// atomicResult is what an atomic leaves in memory.
func atomicResult(op uint8, old uint64, args [4]uint64) uint64 {
	value, cmp, swapMask, cmpMask := args[0], args[1], args[2], args[3]
	switch op {
	case opCAS, opMaskedCAS:
		if old&cmpMask == cmp&cmpMask {
			return old&^swapMask | value&swapMask
		}
		return old
	case opMaskedFAA:
		return maskedAdd(old, value, swapMask)
	}
	return old + value
}

// maskedAdd adds fields whose highest bits the mask marks: no carry leaves a field.
func maskedAdd(a, b, boundary uint64) uint64 {
	if boundary == 0 {
		return a + b
	}
	var out uint64
	low := 0
	for low < 64 {
		high := 63
		if m := boundary >> low; m != 0 {
			high = low + bits.TrailingZeros64(m)
		}
		mask := ^uint64(0) >> (63 - (high - low)) << low
		out |= (a&mask + b&mask) & mask
		low = high + 1
	}
	return out
}

// refuseRequest is an error of the responder: a NAK, an event if the driver learns of it
// in no other way, and the end of the connection. UC has no NAKs: it drops a message that
// it does not allow.
func (q *qp) refuseRequest(p *packet, nak uint8, event EventType, why string) {
	q.d.drop(p, "refused: "+why)
	if event != 0 {
		q.counts.countRefused(nak)
	}
	if !q.reliable() && event != 0 {
		q.resp.active, q.resp.skip, q.resp.ePSN = false, true, (p.psn+1)&psnMask
		return
	}
	if q.reliable() {
		// Earlier requests are answered first, although the QP has failed by then.
		q.answer(answer{kind: pktAck, psn: p.psn, syndrome: nak})
		q.resp.refused = true
	}
	if event != 0 {
		q.eventOf(event)
	}
	q.toError("a request was refused: " + why)
}
