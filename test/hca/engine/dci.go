package engine

// dcConn is an initiator's side of a connection of DC. A DCI has one at a time: it disconnects before it
// sends to another target.
type dcConn struct {
	n        uint32 // the number of the connection; 0 is none
	stream   uint16
	av       av
	start    uint32 // its first PSN
	answered bool   // the target is known to be connected
	route    route
}

// connect makes sure that a DCI is connected with the target of a request. It reports false if the answers
// to earlier requests are awaited first, or if the request has failed.
func (q *qp) connect(r *request) bool {
	c, w, d := &q.dci, r.w, q.d
	if c.n != 0 && c.stream == w.stream && c.av == w.av {
		return true
	}
	if psnDiff(q.req.ackPSN, r.psn) != 0 {
		return false
	}
	if w.av.grh || d.cfg.LinkLayer == Ethernet {
		if i := int(w.av.sgid); i >= len(d.port.GIDs) || d.port.GIDs[i].Invalid {
			w.refuse(LocalQPOp, "entry %d of the GID table is empty", i)
			r.fail(LocalQPOp)
			q.req.stopped = true
			return false
		}
	}
	q.hangUp()
	d.lastConn++
	*c = dcConn{n: d.lastConn, stream: w.stream, av: w.av, start: r.psn, route: w.routeOfAV()}
	return true
}

// hangUp ends the connection of a DCI. The target is told, and may miss it.
func (q *qp) hangUp() {
	if q.dci.n == 0 {
		return
	}
	q.d.transmit(q.packet(pktDisconnect, q.req.nextPSN))
	q.dci = dcConn{}
}

// dcPacket addresses a packet of DC. Those of a responder go back on its path.
func (q *qp) dcPacket(p *packet) {
	if q.dct != nil {
		p.dc.conn = q.conn
		return
	}
	c := &q.dci
	p.dest, p.route = c.av.qpn, c.route
	p.dc = dcHeader{conn: c.n, stream: c.stream, key: c.av.dcKey, start: c.start, connect: !c.answered}
}

// receiveAnswer takes an answer of a target.
func (d *Device) receiveAnswer(p *packet) {
	q := d.qps[p.dest]
	switch {
	case q == nil || q.sq != nil || q.spec.Type != DCI:
		d.drop(p, "no such DCI")
	case q.dci.n != p.dc.conn:
		d.drop(p, "of an earlier connection")
	case !d.pkeyMatches(q.pkey(), p.pkey):
		d.counts.PKeyViolations++
		d.drop(p, "P_Key")
	default:
		q.dci.answered = true
		q.receive(p)
	}
}

// streams reports whether a failed request is the end of its stream alone, and not of the DCI.
func (q *qp) streams() bool { return q.spec.Type == DCI && q.spec.LogStreams > 0 }

// streamFailed ends the stream of a failed request: its other requests are flushed. If too many streams
// have failed, so has the DCI. It reports whether the DCI goes on.
func (q *qp) streamFailed(first *request) bool {
	r := &q.req
	if !q.failed[first.w.stream] {
		if q.failed == nil {
			q.failed = map[uint16]bool{}
		}
		q.failed[first.w.stream] = true
		if len(q.failed) >= 1<<q.spec.LogFailed {
			q.toError("too many of its streams have failed: " + first.bad.String())
			return false
		}
	}
	q.d.f.cancel(&r.timer)
	q.d.f.cancel(&r.wait)
	q.hangUp()
	// The next request connects anew, at its first packet.
	r.at, r.pkt, r.stopped = 0, 0, false
	r.ackPSN = r.nextPSN
	for _, e := range r.flight {
		if e.w.stream == first.w.stream && !e.done {
			e.fail(Flushed)
		} else if !e.done && e.packets > 0 && r.ackPSN == r.nextPSN {
			r.ackPSN = e.psn
		}
	}
	r.sentPSN = r.ackPSN
	r.retries, r.rnr = q.attr.RetryCount, q.attr.RNRRetry
	q.kick()
	return true
}
