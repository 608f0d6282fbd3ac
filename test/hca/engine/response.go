package engine

import "encoding/binary"

// response handles a packet from the responder.
func (q *qp) response(p *packet) {
	r := &q.req
	defer q.kick()
	if psnDiff(p.psn, r.ackPSN) < 0 || psnDiff(p.psn, r.sentPSN) >= 0 {
		return // acknowledged already, or never sent
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
				q.counts.count(CountSequenceNAKs)
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

// requestAt finds the request that a PSN belongs to.
func (q *qp) requestAt(psn uint32) *request {
	for _, e := range q.req.flight {
		if e.packets > 0 && psnDiff(psn, e.psn) >= 0 && psnDiff(psn, e.psn+e.packets) < 0 {
			return e
		}
	}
	return nil
}

// progress advances the oldest unacknowledged PSN and restarts the retry counters and the timer.
func (q *qp) progress(ackPSN uint32) {
	r := &q.req
	if psnDiff(ackPSN, r.ackPSN) <= 0 {
		return
	}
	r.ackPSN = ackPSN & psnMask
	r.retries, r.rnr = q.attr.RetryCount, q.attr.RNRRetry
	q.armTimer(true)
}

// acknowledge completes the requests up to and including a PSN. If the response to a READ or atomic
// among them is missing, it requests that response again and returns false.
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

// missing requests missing responses again, once. After that the timer does.
func (q *qp) missing(e *request) {
	if e.again != e.got+1 {
		e.again = e.got + 1
		q.counts.count(CountImpliedNAKs)
		q.goBack(e.psn + e.got)
	}
}

// fetched handles a response to a READ or an atomic.
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
