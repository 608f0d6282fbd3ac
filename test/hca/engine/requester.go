package engine

import (
	"encoding/binary"
	"time"
)

const (
	windowPackets = 256 // how many packets may be unacknowledged
	windowWQEs    = 64  // how many WQEs may be fetched and not completed
	ackEvery      = 32  // packets of a long message between two that ask for an ACK
	burst         = 32  // packets that a QP sends before it is another one's turn
)

// shortestTimeout is how long a requester waits for an answer at least, in real time: the
// model and the guests share the processors.
const shortestTimeout = 20 * time.Millisecond

// shortestRNR is the same after an RNR NAK: a driver that posts late shall find a processor.
const shortestRNR = 200 * time.Microsecond

// request is a send WQE that is executed.
type request struct {
	w       *sendWQE
	psn     uint32
	packets uint32 // how many PSNs it takes; 0 if it is local
	got     uint32 // responses that have come, of a READ or atomic
	again   uint32 // got+1 when the missing ones were asked for again
	sent    bool   // its last packet was sent
	done    bool
	bad     Syndrome
	vendor  uint8
}

// requester is the sending side of a connection.
type requester struct {
	nextPSN uint32 // of the next new packet
	ackPSN  uint32 // the oldest that is not acknowledged
	sentPSN uint32 // after the last that was ever sent
	flight  []*request
	at      int        // the request to send, in flight
	pkt     uint32     // its next packet
	retries uint8      // left
	rnr     uint8      // left
	timer   *timer     // waits for an answer
	wait    *timer     // waits after an RNR NAK
	paging  *pageFault // pages are awaited
	stopped bool       // a request can't be executed: nothing comes after it
}

// start begins to send, at RTS.
func (r *requester) start(q *qp) {
	a := &q.attr
	r.nextPSN, r.ackPSN, r.sentPSN = a.SendPSN, a.SendPSN, a.SendPSN
	r.retries, r.rnr = a.RetryCount, a.RNRRetry
	q.kick()
}

// mtu is the size of the QP's packets.
func (q *qp) mtu() int {
	if q.datagram() {
		return mtuBytes(q.d.port.MTU)
	}
	return mtuBytes(q.attr.MTU)
}

// runSends fetches WQEs and sends their packets.
func (q *qp) runSends() {
	r := &q.req
	for n := 0; n < burst; n++ {
		if !q.settle() || r.wait != nil {
			return
		}
		if r.at == len(r.flight) {
			if r.stopped || len(r.flight) >= windowWQEs || q.state != RTS {
				break
			}
			w := q.fetch()
			if w == nil {
				break
			}
			r.flight = append(r.flight, q.newRequest(w))
		}
		if !q.sendNext(r.flight[r.at]) {
			break
		}
		if n == burst-1 {
			q.kick()
		}
	}
	if q.settle() {
		q.armTimer(false)
	}
}

// newRequest gives a WQE its packets.
func (q *qp) newRequest(w *sendWQE) *request {
	r := &request{w: w, psn: q.req.nextPSN}
	if f := q.fault(false); f != nil {
		w.bad, r.vendor = Syndrome(f.syndrome), f.vendor
	}
	if w.bad != 0 {
		r.fail(w.bad)
		return r
	}
	switch w.op {
	case opNOP, opUMR, opLocalInv:
		return r
	}
	r.packets = uint32(max(1, (w.size+q.mtu()-1)/q.mtu()))
	if q.datagram() {
		r.packets = 1
	}
	q.req.nextPSN = (q.req.nextPSN + r.packets) & psnMask
	return r
}

// fail says that a request can't be executed.
func (r *request) fail(s Syndrome) {
	r.bad, r.done = s, true
	if r.vendor == 0 {
		r.vendor = vendorOf(s)
	}
}

// settle completes requests in order. It reports whether the QP still sends.
func (q *qp) settle() bool {
	r := &q.req
	for len(r.flight) > 0 && r.flight[0].done {
		first := r.flight[0]
		r.flight = r.flight[1:]
		if r.at > 0 {
			r.at--
		} else {
			r.pkt = 0 // it was being sent again
		}
		if first.bad != 0 {
			first.w.fail(first.bad, first.vendor)
			q.sendFailed(first)
			return false
		}
		n := 0
		if first.w.fetches() {
			n = first.w.size
		}
		first.w.complete(n)
		if q.state != RTS && q.state != SQD {
			return false // a CQ that has failed takes the QP with it
		}
	}
	return true
}

// sendFailed is what an error completion does to the QP.
func (q *qp) sendFailed(r *request) {
	if q.state != RTS && q.state != SQD {
		return
	}
	if q.reliable() || q.spec.Type == RegUMR {
		q.toError("a send failed: " + r.bad.String())
		return
	}
	q.quiet()
	q.setState(SQErr, "a send failed: "+r.bad.String())
	q.flushSends()
}

// blocked reports whether a request must wait for those before it.
func (q *qp) blocked(r *request) bool {
	fetching := 0
	for _, e := range q.req.flight[:q.req.at] {
		if e.done {
			continue
		}
		if e.w.fetches() {
			fetching++
		}
		if r.w.fence == fenceStrong {
			return true
		}
	}
	if fetching > 0 && (r.w.fence == fenceReads || r.w.fence == fenceBoth) {
		return true
	}
	return r.w.fetches() && fetching >= 1<<q.attr.LogSRAMax
}

// sendNext sends the next packet of a request. It reports false if it must wait, or if
// there is nothing to send any more.
func (q *qp) sendNext(r *request) bool {
	s := &q.req
	if s.paging != nil {
		return false
	}
	if r.bad != 0 {
		s.stopped = true
		return false
	}
	if r.done { // acknowledged, or executed, before it was gone back to
		s.at, s.pkt = s.at+1, 0
		return true
	}
	if s.pkt == 0 && q.blocked(r) {
		return false
	}
	if r.packets == 0 {
		if why := q.local(r.w); r.w.bad != 0 {
			r.fail(r.w.bad)
			q.d.trace(TraceEvent{Kind: TraceDrop, QPN: q.n, Text: why})
			s.stopped = true
			return true
		}
		r.sent, r.done = true, true
		s.at++
		return true
	}
	psn := (r.psn + s.pkt) & psnMask
	if q.reliable() && psnDiff(psn, s.ackPSN) >= windowPackets {
		return false
	}
	var ok bool
	pkt := s.pkt
	switch {
	case q.datagram():
		ok = q.sendDatagram(r)
		s.pkt++
	case r.w.fetches():
		ok = q.sendFetch(r)
		s.pkt = r.packets
	default:
		ok = q.sendPart(r, psn)
		s.pkt++
	}
	if s.paging != nil {
		s.pkt = pkt
		return false
	}
	if !ok {
		s.stopped = true
		return true
	}
	if psnDiff(psn, s.sentPSN) >= 0 {
		s.sentPSN = (psn + 1) & psnMask
	}
	if s.pkt >= r.packets {
		r.sent = true
		s.at, s.pkt = s.at+1, 0
		if !q.reliable() {
			r.done = true
			s.ackPSN = s.nextPSN
		}
		// The responses of a READ take PSNs of their own.
		if end := (r.psn + r.packets) & psnMask; psnDiff(end, s.sentPSN) > 0 {
			s.sentPSN = end
		}
	}
	return true
}

// packet begins a packet of the QP.
func (q *qp) packet(kind pktKind, psn uint32) *packet {
	return &packet{
		kind: kind, service: q.spec.Type, dest: q.attr.RemoteQPN, src: q.n, psn: psn & psnMask, pkey: q.pkey(),
		route: q.routeOf(&q.attr.Primary),
	}
}

// sendPart sends a packet of a SEND or WRITE.
func (q *qp) sendPart(r *request, psn uint32) bool {
	w, i := r.w, q.req.pkt
	off := int(i) * q.mtu()
	n := min(q.mtu(), w.size-off)
	data, why := w.gather(off, n)
	if why == notPresent && q.sendFault(r, faultSend, off) {
		return false
	}
	if why != "" {
		w.refuse(LocalProt, "%s", why)
		r.fail(LocalProt)
		return false
	}
	kind := pktSend
	if w.op == opWrite || w.op == opWriteImm {
		kind = pktWrite
	}
	p := q.packet(kind, psn)
	p.first, p.last, p.data, p.srqn = i == 0, i == r.packets-1, data, w.srqn
	p.va, p.rkey, p.length = w.raddr, w.rkey, uint32(w.size)
	p.ackReq = p.last || i%ackEvery == ackEvery-1
	if p.last {
		p.solicited, p.imm = w.solicited, w.imm
		p.hasImm = w.op == opSendImm || w.op == opWriteImm
		p.invalidate = w.op == opSendInv
	}
	q.d.transmit(p)
	return true
}

// sendFetch sends the request packet of a READ or an atomic, from the first response that
// is missing.
func (q *qp) sendFetch(r *request) bool {
	w := r.w
	psn := r.psn + r.got
	off := int(r.got) * q.mtu()
	_, why := w.extents(off, w.size-off, LocalWrite)
	if why == notPresent && q.sendFault(r, faultFetch, off) {
		return false
	}
	if why != "" {
		w.refuse(LocalProt, "%s", why)
		r.fail(LocalProt)
		return false
	}
	p := q.packet(pktReadReq, psn)
	p.first, p.last, p.ackReq, p.srqn = true, true, true, w.srqn
	p.va, p.rkey, p.length = w.raddr+uint64(off), w.rkey, uint32(w.size-off)
	if w.atomic() {
		p.kind, p.op, p.length = pktAtomicReq, w.op, 8
		p.args = [4]uint64{w.swapAdd, w.compare, w.swapMask, w.cmpMask}
	}
	q.d.transmit(p)
	return true
}

// extents finds the memory behind a part of the data segments.
func (w *sendWQE) extents(off, n int, need Access) ([]extent, string) {
	var out []extent
	pos := 0
	for _, s := range w.segs {
		from, to := max(off, pos), min(off+n, pos+int(s.n))
		if from < to {
			var why string
			out, why = w.q.d.walk(out, s.lkey, w.q, w.q.pd.n, s.addr+uint64(from-pos), uint64(to-from), need, 0)
			if why != "" {
				return nil, why
			}
		}
		pos += int(s.n)
	}
	if absent(out) {
		return nil, notPresent
	}
	return out, ""
}

// gather reads a part of the data that a WQE sends.
func (w *sendWQE) gather(off, n int) ([]byte, string) {
	out := make([]byte, 0, n)
	pos := 0
	for _, s := range w.segs {
		from, to := max(off, pos), min(off+n, pos+int(s.n))
		pos += int(s.n)
		if from >= to {
			continue
		}
		start := pos - int(s.n)
		if s.is {
			out = append(out, s.inline[from-start:to-start]...)
			continue
		}
		all, why := w.q.d.translate(s.lkey, w.q, w.q.pd.n, s.addr+uint64(from-start), uint64(to-from), LocalRead)
		if why != "" {
			return nil, why
		}
		b, err := w.q.d.load(all)
		if err != nil {
			return nil, err.Error()
		}
		out = append(out, b...)
	}
	return out, ""
}

// armTimer starts to wait for an answer, or goes on waiting.
func (q *qp) armTimer(again bool) {
	r := &q.req
	if again {
		q.d.f.cancel(&r.timer)
	}
	code := q.attr.Primary.AckTimeout & 0x1f
	if !q.reliable() || r.timer != nil || r.wait != nil || r.paging != nil || code == 0 || r.ackPSN == r.sentPSN {
		return
	}
	wait := 4096 * time.Nanosecond << code
	if !q.d.f.cfg.Manual {
		wait = max(wait, shortestTimeout)
	}
	r.timer = q.d.f.after(wait, func() {
		r.timer = nil
		if !q.gone && !q.d.fatal && (q.state == RTS || q.state == SQD) {
			q.timeout()
		}
	})
}

// timeout sends again what was not acknowledged.
func (q *qp) timeout() {
	if q.retry() {
		q.goBack(q.req.ackPSN)
	}
	q.kick()
}

// retry counts one more attempt. If there is none left, it takes the other path, or fails
// the oldest request.
func (q *qp) retry() bool {
	r := &q.req
	if r.retries > 0 {
		r.retries--
		return true
	}
	if q.attr.PMState == PMArmed && q.attr.Alternate != (Path{}) {
		q.migrate()
		r.retries = q.attr.RetryCount
		return true
	}
	q.failOldest(RetryExceeded)
	return false
}

// failOldest fails the oldest request that is not done.
func (q *qp) failOldest(s Syndrome) {
	for _, e := range q.req.flight {
		if !e.done {
			e.fail(s)
			q.req.stopped = true
			break
		}
	}
	q.kick()
}

// migrate takes the alternate path.
func (q *qp) migrate() {
	q.attr.Primary, q.attr.PMState = q.attr.Alternate, PMMigrated
	q.attr.Alternate = Path{}
	q.eventOf(EventPathMig)
}

// goBack sends again from a PSN on.
func (q *qp) goBack(psn uint32) {
	r := &q.req
	for i, e := range r.flight {
		if e.packets == 0 || psnDiff(psn, e.psn+e.packets) >= 0 {
			continue
		}
		if i > r.at || i == r.at && psnDiff(psn, e.psn+r.pkt) >= 0 {
			return // it was not sent yet
		}
		r.at, r.pkt = i, uint32(max(psnDiff(psn, e.psn), 0))
		if e.w.fetches() {
			r.pkt = 0
		}
		return
	}
}

// progress says that something was acknowledged.
func (q *qp) progress(ackPSN uint32) {
	r := &q.req
	if psnDiff(ackPSN, r.ackPSN) <= 0 {
		return
	}
	r.ackPSN = ackPSN & psnMask
	r.retries, r.rnr = q.attr.RetryCount, q.attr.RNRRetry
	q.armTimer(true)
}

// acknowledge completes what was acknowledged up to and with a PSN. A READ or atomic
// before it whose response did not come is asked for again; then it reports false.
func (q *qp) acknowledge(psn uint32) bool {
	r := &q.req
	for _, e := range r.flight {
		if e.packets == 0 || e.done {
			continue
		}
		if e.w.fetches() {
			if psnDiff(psn, e.psn+e.got) >= 0 {
				q.progress(e.psn + e.got)
				q.missing(e)
				return false
			}
			break
		}
		if psnDiff(psn, e.psn+e.packets-1) < 0 {
			break
		}
		e.done = true
	}
	q.progress(psn + 1)
	return true
}

// missing asks for the responses that are missing again, once: after that the timer does.
func (q *qp) missing(e *request) {
	if e.again != e.got+1 {
		e.again = e.got + 1
		q.goBack(e.psn + e.got)
	}
}

// requestAt finds the request that a PSN belongs to.
func (q *qp) requestAt(psn uint32) *request {
	for _, e := range q.req.flight {
		if e.packets > 0 && psnDiff(psn, e.psn) >= 0 && psnDiff(psn, e.psn+e.packets) < 0 {
			return e
		}
	}
	return nil
}

// response takes an answer of the responder.
func (q *qp) response(p *packet) {
	r := &q.req
	defer q.kick()
	if psnDiff(p.psn, r.ackPSN) < 0 || psnDiff(p.psn, r.sentPSN) >= 0 {
		return // of what is acknowledged already, or was never sent
	}
	if p.kind != pktAck {
		q.fetched(p)
		return
	}
	switch p.syndrome & 0x60 {
	case 0:
		q.acknowledge(p.psn)
	case ackRNR:
		q.rnrNAK(p)
	case ackNAK:
		before := r.ackPSN
		if !q.acknowledge(p.psn - 1) {
			return
		}
		switch p.syndrome {
		case nakSeq:
			if r.ackPSN != before || q.retry() {
				q.goBack(p.psn)
			}
			return
		}
		bad := map[uint8]Syndrome{nakInvalid: RemoteInvalidReq, nakAccess: RemoteAccess, nakOp: RemoteOp}[p.syndrome]
		if e := q.requestAt(p.psn); e != nil && bad != 0 {
			e.fail(bad)
			r.stopped = true
		}
	}
}

// rnrNAK waits as long as the responder says, and tries again.
func (q *qp) rnrNAK(p *packet) {
	r := &q.req
	if !q.acknowledge(p.psn-1) || r.wait != nil {
		return
	}
	if q.attr.RNRRetry != 7 {
		if r.rnr == 0 {
			if e := q.requestAt(p.psn); e != nil {
				e.fail(RNRExceeded)
				r.stopped = true
			}
			return
		}
		r.rnr--
	}
	q.goBack(p.psn)
	q.d.f.cancel(&r.timer)
	wait := rnrTime(p.syndrome & 0x1f)
	if !q.d.f.cfg.Manual {
		wait = max(wait, shortestRNR)
	}
	r.wait = q.d.f.after(wait, func() {
		r.wait = nil
		q.kick()
	})
}

// rnrTime is the time that an RNR NAK's code stands for (InfiniBand specification, table
// of the RNR NAK timer field).
func rnrTime(code uint8) time.Duration {
	times := [32]int{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
		6144, 8192, 12288, 16384, 24576, 32768, 49152}
	return time.Duration(times[code&31]) * 10 * time.Microsecond
}

// fetched takes a response of a READ or an atomic.
func (q *qp) fetched(p *packet) {
	e := q.requestAt(p.psn)
	if e == nil || e.done || !e.w.fetches() || q.req.paging != nil {
		return
	}
	if want := e.psn + e.got; psnDiff(p.psn, want) != 0 {
		if psnDiff(p.psn, want) > 0 && q.acknowledge(e.psn-1) {
			q.missing(e)
		}
		return
	}
	if !q.acknowledge(e.psn - 1) {
		return
	}
	w := e.w
	off := int(e.got) * q.mtu()
	if n := min(q.mtu(), w.size-off); len(p.data) != n || w.atomic() != (p.kind == pktAtomicResp) {
		e.fail(BadResponse)
		q.req.stopped = true
		return
	}
	data := p.data
	if w.atomic() {
		data = make([]byte, 8)
		binary.LittleEndian.PutUint64(data, be.Uint64(p.data)) // memory has the host's order
	}
	if w.signaled && w.size > 0 && w.size <= q.sendCQ.inlineRoom(q.spec.ScatterReq) {
		w.inlined = data
	} else if s, why := w.scatter(off, data); s != 0 {
		if why == notPresent && q.sendFault(e, faultFetch, off) {
			return
		}
		w.refuse(s, "%s", why)
		e.fail(s)
		q.req.stopped = true
		return
	}
	e.got++
	if e.got == e.packets {
		e.done = true
	}
	q.progress(p.psn + 1)
}

// scatter writes a part of the data that a WQE fetches.
func (w *sendWQE) scatter(off int, data []byte) (Syndrome, string) {
	all, why := w.extents(off, len(data), LocalWrite)
	if why != "" {
		return LocalProt, why
	}
	if err := w.q.d.store(all, data); err != nil {
		return LocalProt, err.Error()
	}
	return 0, ""
}
