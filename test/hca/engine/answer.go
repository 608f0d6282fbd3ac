package engine

// answer is a response to send.
type answer struct {
	kind     pktKind
	psn      uint32
	syndrome uint8
	va       uint64 // of a READ
	rkey     uint32
	length   int
	off      int
	pd       *pd
	value    uint64 // of an atomic
	counted  bool
}

// answer queues a response. Responses are sent in the order of the requests.
func (q *qp) answer(a answer) {
	r := &q.resp
	if n := len(r.out); n > 0 && a.kind == pktAck && a.syndrome == ackOK && r.out[n-1].kind == pktAck && r.out[n-1].syndrome == ackOK {
		r.out[n-1] = a // an ACK covers all requests before it
		return
	}
	r.out = append(r.out, a)
	if len(r.out) == 1 {
		q.d.f.soon(q.sendAnswers)
	}
}

// sendAnswers sends the queued responses, up to burst packets at a time.
func (q *qp) sendAnswers() {
	if q.gone || q.d.fatal {
		return
	}
	r := &q.resp
	for n := 0; len(r.out) > 0; n++ {
		if r.stalled != nil {
			return
		}
		if n == burst {
			q.d.f.soon(q.sendAnswers)
			return
		}
		if q.sendAnswer(&r.out[0]) {
			if r.out[0].counted {
				r.fetches--
			}
			r.out = r.out[1:]
		}
	}
	r.out = nil
}

// sendAnswer sends one packet of a response and reports whether it was the last.
func (q *qp) sendAnswer(a *answer) bool {
	p := q.packet(a.kind, a.psn)
	p.first, p.last, p.msn, p.syndrome = true, true, q.resp.msn, a.syndrome
	switch a.kind {
	case pktAtomicResp:
		p.data = make([]byte, 8)
		be.PutUint64(p.data, a.value)
	case pktReadResp:
		n := min(q.mtu(), a.length-a.off)
		all, why := q.d.translate(a.rkey, q, a.pd.n, a.va+uint64(a.off), uint64(n), RemoteRead)
		if why == "" && absent(all) && q.readFault(a, n) {
			return false
		}
		if why == "" {
			var err error
			if p.data, err = q.d.load(all); err != nil {
				why = err.Error()
			}
		}
		if why != "" { // the key is no longer valid
			p.kind, p.syndrome, p.data = pktAck, nakAccess, nil
			q.counts.countRefused(nakAccess)
			q.d.transmit(p)
			return true
		}
		a.off += n
		a.psn = (a.psn + 1) & psnMask
		p.first, p.last = a.off <= q.mtu(), a.off >= a.length
		q.d.transmit(p)
		return a.off >= a.length
	}
	q.d.transmit(p)
	return true
}

// duplicate answers a request that was executed already.
func (q *qp) duplicate(p *packet) {
	r := &q.resp
	switch p.kind {
	case pktSend, pktWrite:
		q.answer(answer{kind: pktAck, psn: (r.ePSN - 1) & psnMask, syndrome: ackOK})
	case pktReadReq:
		pd := q.pd
		if s := q.d.srqs[p.srqn]; q.spec.Type == XRC && s != nil {
			pd = s.pd
		}
		for _, a := range r.out {
			if a.kind == pktReadResp && psnDiff(p.psn, a.psn) >= 0 && psnDiff(p.psn, a.psn+uint32(a.length-a.off)/uint32(q.mtu())) <= 0 {
				return // its response is being sent
			}
		}
		if _, why := q.d.translate(p.rkey, q, pd.n, p.va, uint64(p.length), RemoteRead); why == "" && q.attr.RRE {
			q.answer(answer{kind: pktReadResp, psn: p.psn, va: p.va, rkey: p.rkey, length: int(p.length), pd: pd})
		}
	case pktAtomicReq:
		for _, e := range r.results {
			if e.psn == p.psn {
				q.answer(answer{kind: pktAtomicResp, psn: p.psn, value: e.value})
			}
		}
	}
}
