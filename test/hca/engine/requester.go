package engine

const (
	windowPackets = 256 // how many packets may be unacknowledged
	windowWQEs    = 64  // how many WQEs may be fetched and not completed
	ackEvery      = 32  // packets of a long message between two that ask for an ACK
	burst         = 32  // packets that a QP sends before it is another one's turn
)

// request is a send WQE that is executed.
type request struct {
	w       *sendWQE
	psn     uint32
	packets uint32 // how many PSNs it takes; 0 if it is local
	got     uint32 // responses that have come, of a READ or atomic
	again   uint32 // got+1 when the missing ones were requested again
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
	if q.failed[w.stream] {
		w.bad = Flushed
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
			if q.streams() && (q.state == RTS || q.state == SQD) {
				if q.streamFailed(first) {
					continue
				}
				return false
			}
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
	if q.spec.Type == DCI && !q.connect(r) {
		return false
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
	p := &packet{
		kind: kind, service: q.spec.Type, dest: q.attr.RemoteQPN, src: q.n, psn: psn & psnMask, pkey: q.pkey(),
		route: q.routeOf(&q.attr.Primary),
	}
	if q.spec.Type == DCI {
		q.dcPacket(p)
	}
	return p
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
