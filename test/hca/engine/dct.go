package engine

import (
	"maps"
	"slices"
)

// dct is a target of DC, the dynamically connected transport. It has no queues of its own: each
// initiator that sends to it gets a responder, which takes receive WQEs from the SRQ.
type dct struct {
	d      *Device
	n      uint32
	spec   DCTSpec
	pd     *pd
	cq     *cq
	srq    *wq
	counts *Counts // its counter set, or nil
	state  DCTState
	armed  bool // an event is due at the next violation of the access key
	// conns are the responders by initiator. One that has ended stays as a number, so that a late
	// packet does not connect again.
	conns      map[initiator]*dcResponder
	violations uint32
}

// initiator is a sender to a target: a DCI, or one stream of a DCI.
type initiator struct {
	from   *Device
	qpn    uint32
	stream uint16
}

// dcResponder is the target's side of a connection.
type dcResponder struct {
	conn uint32 // the connection's number
	qp   *qp    // nil if it has ended
}

// dcHeader is what packets of an initiator say about their connection.
type dcHeader struct {
	conn    uint32 // the number of the connection, also in answers
	stream  uint16
	key     uint64 // the access key of the target
	start   uint32 // the first PSN
	connect bool   // no answer has come yet: the packet connects, if none before has
}

// CreateDCT makes a target, which takes requests at once.
func (d *Device) CreateDCT(s DCTSpec) (n uint32, err error) {
	if err := d.lock("DCT"); err != nil {
		return 0, err
	}
	defer d.f.mu.Unlock()
	if err := d.checkDCT(&s); err != nil {
		return 0, err
	}
	if n, err = number(d, "DCT", firstDCTN, d.dcts); err != nil {
		return 0, err
	}
	t := &dct{d: d, n: n, spec: s, cq: d.cqs[s.CQN], srq: d.srqs[s.SRQN], conns: map[initiator]*dcResponder{}}
	if t.counts, err = d.counterSet("DCT", 0, s.CounterSet); err != nil {
		return 0, err
	}
	if t.pd, err = d.usePD("DCT", s.PD); err != nil {
		return 0, err
	}
	t.cq.refs++
	t.srq.refs++
	d.dcts[n] = t
	return n, nil
}

// checkDCT says what is wrong with a target to create.
func (d *Device) checkDCT(s *DCTSpec) error {
	bad := func(kind Kind, field, format string, args ...any) error {
		return refuse(kind, "DCT", 0, field, format, args...)
	}
	switch {
	case d.cqs[s.CQN] == nil:
		return bad(BadResource, "cqn", "CQ %#x does not exist", s.CQN)
	case d.srqs[s.SRQN] == nil:
		return bad(BadResource, "srqn_xrqn", "SRQ %#x does not exist", s.SRQN)
	case d.srqs[s.SRQN].spec.XRC:
		return bad(BadParam, "srqn_xrqn", "SRQ %#x is of XRC", s.SRQN)
	case d.pds[s.PD] == nil:
		return bad(BadResource, "pd", "PD %#x does not exist", s.PD)
	case s.MTU < 1 || s.MTU > 5:
		return bad(BadParam, "mtu", "%d", s.MTU)
	case s.Port != 1:
		return bad(BadParam, "port", "port %d of 1", s.Port)
	case int(s.PKeyIndex) >= len(d.port.PKeys):
		return bad(BadIndex, "pkey_index", "%d of %d", s.PKeyIndex, len(d.port.PKeys))
	case int(s.GIDIndex) >= len(d.port.GIDs), d.cfg.LinkLayer == Ethernet && d.port.GIDs[s.GIDIndex].Invalid:
		return bad(BadIndex, "my_addr_index", "entry %d of the GID table is empty", s.GIDIndex)
	case s.OutOfOrder && !d.cfg.Traits.hasOutOfOrder(DCI):
		return bad(BadParam, "dp_ordering_1", "set, and the card has it for RC only")
	case s.ScatterRes != 0 && s.ScatterRes != 32 && s.ScatterRes != 64:
		return bad(BadParam, "cs_res", "%d bytes", s.ScatterRes)
	}
	return nil
}

// DrainDCT ends a target's connections and takes no more requests. Executed requests are still
// answered. Then there is an event.
func (d *Device) DrainDCT(n uint32) error {
	if err := d.lock("DCT"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	t := d.dcts[n]
	if t == nil {
		return unknown("DCT", n)
	}
	if t.state != DCTActive {
		return refuse(BadState, "DCT", n, "state", "it is drained already")
	}
	t.drain()
	d.f.soon(func() {
		if d.dcts[n] == t && !d.fatal {
			t.state = DCTDrained
			d.objectEvent(EventDCTDrained, 0, n)
		}
	})
	return nil
}

// drain ends the connections.
func (t *dct) drain() {
	t.state = DCTDraining
	for _, c := range t.sorted() {
		if c.qp != nil {
			c.qp.resp.refused = true // all answers are sent
			c.qp.toError("its target is drained")
		}
	}
}

// sorted lists the connections in the order in which they began.
func (t *dct) sorted() []*dcResponder {
	return slices.SortedFunc(maps.Values(t.conns), func(a, b *dcResponder) int { return int(int32(a.conn - b.conn)) })
}

// DestroyDCT removes a target. One that is not drained is drained first.
func (d *Device) DestroyDCT(n uint32) error {
	if err := d.lock("DCT"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	t := d.dcts[n]
	if t == nil {
		return unknown("DCT", n)
	}
	if t.state == DCTActive {
		t.drain()
	}
	for _, c := range t.sorted() {
		c.end()
	}
	t.pd.refs--
	t.cq.refs--
	t.srq.refs--
	delete(d.dcts, n)
	return nil
}

// QueryDCT says what a target is like now.
func (d *Device) QueryDCT(n uint32) (DCTInfo, error) {
	if err := d.lock("DCT"); err != nil {
		return DCTInfo{}, err
	}
	defer d.f.mu.Unlock()
	t := d.dcts[n]
	if t == nil {
		return DCTInfo{}, unknown("DCT", n)
	}
	return DCTInfo{Spec: t.spec, State: t.state, Violations: t.violations}, nil
}

// ArmDCT asks for an event at the next request with a wrong access key.
func (d *Device) ArmDCT(n uint32) error {
	if err := d.lock("DCT"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	t := d.dcts[n]
	if t == nil {
		return unknown("DCT", n)
	}
	t.armed = true
	return nil
}

// receiveDC takes a packet of DC: an answer for an initiator, or a request for a target.
func (d *Device) receiveDC(p *packet) {
	switch p.kind {
	case pktAck, pktReadResp, pktAtomicResp:
		d.receiveAnswer(p)
		return
	}
	t := d.dcts[p.dest]
	switch {
	case t == nil:
		d.drop(p, "no such DCT")
	case t.state != DCTActive:
		d.drop(p, "the DCT is drained")
	case !d.pkeyMatches(t.pkey(), p.pkey):
		d.counts.PKeyViolations++
		d.drop(p, "P_Key")
	case p.kind == pktDisconnect:
		t.disconnect(p)
	case p.dc.key != t.spec.Key:
		t.violation(p)
	default:
		if q := t.responder(p); q != nil {
			q.receive(p)
		}
	}
}

// violation counts a request with a wrong access key. It is not answered.
func (t *dct) violation(p *packet) {
	t.d.drop(p, "DC access key")
	t.violations++
	if t.armed {
		t.armed = false
		t.d.objectEvent(EventDCTKeyViolation, 0, t.n)
	}
}

// responder finds the responder of a request's connection, and begins a connection if the request asks for
// that.
func (t *dct) responder(p *packet) *qp {
	who := initiator{p.from, p.src, p.dc.stream}
	c := t.conns[who]
	if c == nil {
		c = &dcResponder{}
		t.conns[who] = c
	}
	switch d := int32(p.dc.conn - c.conn); {
	case c.conn != 0 && d == 0:
		if c.qp == nil || c.qp.state != RTR {
			t.d.drop(p, "the connection has ended")
			return nil
		}
		return c.qp
	case c.conn != 0 && d < 0:
		t.d.drop(p, "of an earlier connection")
		return nil
	case !p.dc.connect:
		t.d.drop(p, "not connected")
		return nil
	}
	c.end()
	c.conn, c.qp = p.dc.conn, t.newResponder(p)
	return c.qp
}

// newResponder makes the receiving side of a connection.
func (t *dct) newResponder(p *packet) *qp {
	s := &t.spec
	back := Path{
		Port: 1, PKeyIndex: s.PKeyIndex, GRH: p.grh, PathBits: uint8(p.dlid &^ t.d.port.LID), RLID: p.slid, SGIDIndex: s.GIDIndex,
		HopLimit: s.HopLimit, TClass: s.TClass, FlowLabel: s.FlowLabel, RGID: p.sgid, RMAC: p.smac, UDPSport: p.sport, SL: p.sl,
	}
	q := &qp{
		d: t.d, n: t.n, dct: t, conn: p.dc.conn, state: RTR, pd: t.pd, recvCQ: t.cq, rq: t.srq, counts: t.counts,
		spec: QPSpec{Type: DCI, PD: s.PD, RecvCQ: s.CQN, UserIndex: s.UserIndex, NoSQ: true, RQ: RQSRQ, SRQN: s.SRQN, ScatterRes: s.ScatterRes},
		attr: QPAttr{
			Primary: back, MTU: s.MTU, RemoteQPN: p.src, RecvPSN: p.dc.start, LogRRAMax: uint8(t.d.cfg.Traits.LogMaxDCReads), MinRNRNAK: s.MinRNRNAK,
			RRE: s.RRE, RWE: s.RWE, RAE: s.RAE, OutOfOrder: s.OutOfOrder,
		},
	}
	q.resp.start(q)
	t.d.rep.events["DC connect"]++
	t.counts.count(CountDCTConnects)
	return q
}

// disconnect ends a connection that the initiator has ended.
func (t *dct) disconnect(p *packet) {
	c := t.conns[initiator{p.from, p.src, p.dc.stream}]
	if c == nil || c.conn != p.dc.conn {
		t.d.drop(p, "not connected")
		return
	}
	c.end()
}

// end forgets the responder. A message that has begun is not completed.
func (c *dcResponder) end() {
	q := c.qp
	c.qp = nil
	if q == nil {
		return
	}
	q.resp.refused = true
	q.toError("the connection has ended")
	q.dropRecv()
	if len(q.resp.out) == 0 {
		q.gone = true
	}
}

// pkey is the P_Key of a target.
func (t *dct) pkey() uint16 {
	if i := int(t.spec.PKeyIndex); i < len(t.d.port.PKeys) {
		return t.d.port.PKeys[i]
	}
	return 0
}
