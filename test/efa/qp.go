package efa

// Types of QPs.
const (
	typeUD  = 1
	typeSRD = 2
)

// state is a QP's.
type state uint32

// The states.
const (
	stateReset state = iota
	stateInit
	stateRTR
	stateRTS
	stateSQD
	stateSQE
	stateError
)

func (s state) String() string {
	return [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}[s]
}

// firstHandle tells handles of QPs from their numbers.
const firstHandle = 0x10000

// forever is the number of RNR retries that never ends. SRD has it unless MODIFY_QP says otherwise.
const forever = 7

// qp is a queue pair.
type qp struct {
	number, index uint16
	handle        uint32
	kind          uint8
	uar           uint16
	pd            *pd
	dev           *Device
	sendCQ        *cq
	recvCQ        *cq
	sendSub       uint16
	recvSub       uint16
	unsolicited   bool // receives of RDMA WRITE with immediate need no receive request

	state     state
	qkey, psn uint32
	rnrRetry  uint8
	fresh     bool // it was not reset

	sq sendQueue
	rq receiveQueue

	counters [10]*counter // of its events
}

func (d *Device) createQP(c *command) *failure {
	p, kind, flags, page := d.pds[c.u16(4)], c.u8(6), c.u8(7), c.u16(56)
	send, recv := d.cqs[uint16(c.u32(24))], d.cqs[uint16(c.u32(28))]
	q := &qp{kind: kind, uar: page, pd: p, dev: d, sendCQ: send, recvCQ: recv, unsolicited: flags&4 != 0, fresh: true, rnrRetry: forever}
	q.sq = sendQueue{bytes: c.u32(40), depth: c.u32(44), requests: map[uint16]bool{}}
	q.rq = receiveQueue{base: c.u64(16), depth: c.u32(48) / descriptorSize}
	switch {
	case kind != typeUD && kind != typeSRD:
		return illegal("type %d", kind)
	case flags&^uint8(4) != 0 || q.unsolicited && (kind != typeSRD || !d.cfg.Personality.has(capUnsolicited)):
		return illegal("flags %#x of a QP of type %d", flags, kind)
	case p == nil:
		return illegal("PD %d does not exist", c.u16(4))
	case d.uars[page] == nil:
		return illegal("UAR %d does not exist", page)
	case send == nil || recv == nil || c.u32(24)|c.u32(28) >= maxCQs:
		return illegal("CQs %d and %d, of which one does not exist", c.u32(24), c.u32(28))
	case send.uar != page || recv.uar != page:
		return illegal("UAR %d, and the CQs have %d and %d", page, send.uar, recv.uar)
	case c.u8(58) > 15:
		return illegal("service level %d", c.u8(58))
	}
	if f := d.checkRings(q, c.u32(48), c.u32(52)); f != nil {
		return f
	}
	n, ok := unused(d.qps, 0, maxQPs)
	if !ok {
		return refuse(statusNoResources, "there are %d QPs", maxQPs)
	}
	// The number has a part that is unique, and one that tells it from QPs that had that part before.
	d.born[n]++
	d.last.handle++
	q.index, q.number, q.handle = n, n|d.born[n]<<8, firstHandle+d.last.handle
	q.sq.ring = make([]byte, q.sq.bytes)
	q.sendSub, q.recvSub = send.subRing(), recv.subRing()
	d.qps[n] = q
	p.users++
	d.uars[page].users++
	send.users++
	recv.users++
	c.put32(8, q.handle)
	c.put16(12, q.number)
	c.put16(16, q.sendSub)
	c.put16(18, q.recvSub)
	c.put32(20, uint32(page)*pageSize+doorbellSQ+4*uint32(n))
	c.put32(24, uint32(page)*pageSize+doorbellRQ+4*uint32(n))
	c.put32(28, uint32(n)*maxLLQ)
	return nil
}

// checkRings checks the sizes of a QP's queues.
func (d *Device) checkRings(q *qp, recvBytes, recvs uint32) *failure {
	s, r := &q.sq, &q.rq
	if s.depth > 0 {
		s.stride = s.bytes / s.depth
	}
	switch {
	case s.depth&(s.depth-1) != 0 || s.depth > maxSQDepth || s.depth < uint32(d.cfg.Personality.MinSQ):
		return illegal("a send queue of %d entries", s.depth)
	case s.stride*s.depth != s.bytes || s.depth > 0 && s.stride != 64 && s.stride != 128:
		return illegal("a send queue of %d bytes for %d entries", s.bytes, s.depth)
	case r.depth*descriptorSize != recvBytes || r.depth&(r.depth-1) != 0 || r.depth > maxRQDepth || recvs > r.depth:
		return illegal("a receive queue of %d bytes for %d requests", recvBytes, recvs)
	case (r.depth == 0) != (r.base == 0):
		return illegal("a receive queue of %d bytes at %#x", recvBytes, r.base)
	case r.depth == 0:
		return nil
	}
	return d.ringMemory(r.base, recvBytes)
}

// byHandle finds a QP by the handle at byte off of a command.
func (d *Device) byHandle(c *command, off int) (*qp, *failure) {
	for _, q := range d.qps {
		if q.handle == c.u32(off) {
			return q, nil
		}
	}
	return nil, illegal("no QP has the handle %#x", c.u32(off))
}

func (d *Device) destroyQP(c *command) *failure {
	q, f := d.byHandle(c, 4)
	if f != nil {
		return f
	}
	d.f.forget(q)
	for _, n := range q.counters {
		if n != nil {
			n.users--
		}
	}
	q.pd.users--
	d.uars[q.uar].users--
	q.sendCQ.users--
	q.recvCQ.users--
	delete(d.qps, q.index)
	return nil
}

// Bits of the mask of MODIFY_QP.
const (
	maskState = 1 << iota
	maskCurrent
	maskQKey
	maskPSN
	maskNotify
	maskRNR
	maskAll = 1<<iota - 1
)

// transitions are the changes of state that are allowed, with the bits of the mask that they need and may have, besides
// the states. Every state leads to RESET and, but for RESET, to ERR.
var transitions = map[[2]state][2]uint32{
	{stateReset, stateInit}: {maskQKey, 0},
	{stateInit, stateInit}:  {0, maskQKey},
	{stateInit, stateRTR}:   {0, maskQKey},
	{stateRTR, stateRTS}:    {maskPSN, maskQKey | maskRNR},
	{stateRTS, stateRTS}:    {0, maskQKey},
	{stateRTS, stateSQD}:    {0, maskNotify},
	{stateSQD, stateRTS}:    {0, maskQKey},
	{stateSQD, stateSQD}:    {0, maskQKey},
	{stateSQE, stateRTS}:    {0, maskQKey},
}

func (d *Device) modifyQP(c *command) *failure {
	q, f := d.byHandle(c, 8)
	if f != nil {
		return f
	}
	mask, next := c.u32(4), q.state
	if mask&maskState != 0 {
		next = state(c.u32(12))
	}
	switch {
	case mask&^uint32(maskAll) != 0 || next > stateError:
		return illegal("mask %#x, state %d", mask, next)
	case mask&maskCurrent != 0 && state(c.u32(16)) != q.state:
		return illegal("the current state is %s, not %d", q.state, c.u32(16))
	}
	bits := mask &^ (maskState | maskCurrent)
	rule, ok := transitions[[2]state{q.state, next}]
	if next == stateReset || next == stateError && q.state != stateReset {
		rule, ok = [2]uint32{}, true
	}
	switch retry := c.u8(29); {
	case !ok || bits&rule[0] != rule[0] || bits&^(rule[0]|rule[1]) != 0:
		return illegal("from %s to %s with mask %#x", q.state, next, mask)
	case bits&maskRNR != 0 && (!d.cfg.Personality.has(capRNRRetry) || q.kind != typeSRD || retry > forever):
		return illegal("%d RNR retries of a QP of type %d", retry, q.kind)
	case bits&maskRNR != 0:
		q.rnrRetry = retry
	}
	if bits&maskQKey != 0 {
		q.qkey = c.u32(20)
	}
	if bits&maskPSN != 0 {
		q.psn = c.u32(24)
	}
	d.enter(q, next)
	return nil
}

// enter brings a QP into a state.
func (d *Device) enter(q *qp, next state) {
	before := q.state
	q.state = next
	switch {
	case next == stateReset:
		d.f.forget(q)
		q.sq = sendQueue{ring: q.sq.ring, bytes: q.sq.bytes, depth: q.sq.depth, stride: q.sq.stride, requests: map[uint16]bool{}}
		q.rq = receiveQueue{base: q.rq.base, depth: q.rq.depth}
		q.qkey, q.psn, q.rnrRetry, q.fresh = 0, 0, forever, false
	case next == stateError && before != stateError:
		for _, m := range d.f.forget(q) {
			d.sent(m, ioFlushed)
		}
		d.flushReceives(q)
	case before == stateSQD && next == stateRTS:
		d.f.add(q.sq.paused...)
		q.sq.paused = nil
	}
}

func (d *Device) queryQP(c *command) *failure {
	q, f := d.byHandle(c, 4)
	if f != nil {
		return f
	}
	c.put32(8, uint32(q.state))
	c.put32(12, q.qkey)
	c.put32(16, q.psn)
	if q.state == stateSQD && int(q.sq.posted-q.sq.completed) > len(q.sq.paused) {
		c.answer[20] = 1 // it drains
	}
	c.answer[21] = q.rnrRetry
	return nil
}
