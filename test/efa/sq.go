package efa

// Operations of send requests.
const (
	ioSend  = 0
	ioRead  = 1
	ioWrite = 2
)

var ioNames = [...]string{"SEND", "READ", "WRITE"}

// Statuses of completions.
const (
	ioOK          = 0
	ioFlushed     = 1
	ioUnsupported = 3
	ioBadAH       = 4
	ioBadLKey     = 5
	ioTooLong     = 6
	ioRemoteAddr  = 7
	ioNoQP        = 9
	ioRNR         = 10
	ioTooShort    = 11
	ioBadStatus   = 12
	ioUnknownPeer = 14
	ioUnreachable = 15
	ioMismatch    = 18
)

var ioStatuses = map[uint8]string{
	ioOK: "ok", ioFlushed: "flushed", ioUnsupported: "unsupported operation", ioBadAH: "invalid AH", ioBadLKey: "invalid lkey",
	ioTooLong: "too long", ioRemoteAddr: "bad remote address", ioNoQP: "bad destination QP", ioRNR: "receiver not ready",
	ioTooShort: "receive too short", ioBadStatus: "bad status", ioUnknownPeer: "unknown peer", ioUnreachable: "unreachable peer",
	ioMismatch: "feature mismatch",
}

// Bits of a send request.
const (
	wqeImmediate = 1 << 4
	wqeInline    = 1 << 5
	wqeMeta      = 1 << 7

	wqePhase  = 1 << 0
	wqeFirst  = 1 << 2
	wqeLast   = 1 << 3
	wqeSignal = 1 << 4
)

// sendQueue is the state of a send queue, whose requests are in BAR 2.
type sendQueue struct {
	ring                 []byte
	bytes, depth, stride uint32
	posted, completed    uint32
	requests             map[uint16]bool // IDs of those that are not completed
	paused               []*message      // posted in the state SQD
}

// sge is a piece of registered memory.
type sge struct {
	length, key uint32
	addr        uint64
}

func parseSGE(b []byte) sge {
	return sge{length: le.Uint32(b), key: le.Uint32(b[4:]), addr: le.Uint64(b[8:])}
}

// message is a send request on its way.
type message struct {
	from      *qp
	id        uint16
	op        uint8
	hasImm    bool
	imm, qkey uint32
	to, ah    uint16
	inline    []byte // the data of a request with inline data, which has no SGEs
	local     []sge
	remote    sge
	length    uint64
	bad       uint8 // status of a request that cannot be sent
	tries     int   // how often there was no receive for it
}

// sqDoorbell says how many requests there are.
func (d *Device) sqDoorbell(q *qp, counter uint16) {
	s, p := &q.sq, &d.cfg.Personality
	n := uint32(counter - uint16(s.posted))
	d.rep.Queues["SQ doorbells"]++
	d.trace("QP %#x: send doorbell %d", q.number, counter)
	if q.state < stateRTS {
		d.violate("sq-state", "QP %#x: a send in the state %s", q.number, q.state)
		return
	}
	if n == 0 || n > s.depth-(s.posted-s.completed) {
		d.violate("sq-doorbell", "QP %#x: counter %#x after %#x, and %d of %d requests are completed", q.number, counter, s.posted, s.completed, s.posted)
		return
	}
	if p.Batch > 0 && n*s.stride > uint32(p.Batch)*64 || p.MinSQ > 0 && n > s.depth-1 {
		d.violate("sq-batch", "QP %#x: %d requests of %d bytes with one doorbell, and %d units of 64 bytes are allowed", q.number, n, s.stride, p.Batch)
	}
	var all []*message
	for range n {
		m := d.parse(q, s.ring[s.posted%s.depth*s.stride:][:s.stride])
		s.posted++
		s.requests[m.id] = true
		if q.state == stateError {
			d.sent(m, ioFlushed)
			continue
		}
		all = append(all, m)
	}
	if q.state == stateSQD {
		s.paused = append(s.paused, all...)
		return
	}
	d.f.add(all...)
}

// parse reads a request. It checks that every bit is as it must be.
func (d *Device) parse(q *qp, w []byte) *message {
	ctrl1, ctrl2, length := w[2], w[3], int(le.Uint16(w[6:]))
	m := &message{
		from: q, id: le.Uint16(w), op: ctrl1 & 15, hasImm: ctrl1&wqeImmediate != 0, imm: le.Uint32(w[8:]), qkey: le.Uint32(w[16:]),
		to: le.Uint16(w[4:]), ah: le.Uint16(w[12:]),
	}
	bad := func(rule, format string, args ...any) {
		d.violate(rule, "QP %#x: "+format+": % x", append(append([]any{q.number}, args...), w)...)
	}
	d.trace("QP %#x: send [%x]", q.number, w)
	if ctrl1&0x40 != 0 || ctrl2&0xe2 != 0 || w[14]|w[15] != 0 || !zero(w[20:32]) {
		bad("wqe-reserved", "reserved bits are set")
	}
	if ctrl1&wqeMeta == 0 || ctrl2&(wqeFirst|wqeLast|wqeSignal) != wqeFirst|wqeLast|wqeSignal {
		bad("wqe-control", "control bits %#x %#x", ctrl1, ctrl2)
	}
	if round := byte(q.sq.posted / q.sq.depth & 1); q.fresh && ctrl2&wqePhase != round {
		bad("wqe-phase", "phase %d on round %d: the request may be an old one", ctrl2&wqePhase, q.sq.posted/q.sq.depth)
	}
	if q.sq.requests[m.id] {
		bad("wqe-id", "request ID %#x is in use", m.id)
	}
	switch {
	case m.op == ioSend:
	case q.kind != typeSRD, m.op == ioRead && !d.cfg.Personality.has(capRead), m.op == ioWrite && !d.cfg.Personality.has(capWrite), m.op > ioWrite:
		m.bad = ioUnsupported
		return m
	case m.op == ioRead && m.hasImm:
		bad("wqe-control", "READ with immediate data")
	}
	d.rep.Queues[ioNames[m.op]+" requests"]++
	at := 32
	if m.op != ioSend {
		m.remote = parseSGE(w[at:])
		at += 16
	}
	if ctrl1&wqeInline != 0 {
		room := min(len(w)-at, inlineWide)
		if length > room || m.op == ioRead || m.op == ioWrite && len(w) == 64 {
			bad("wqe-inline", "%s with %d bytes of inline data", ioNames[m.op], length)
			m.bad = ioTooLong
			return m
		}
		m.inline, m.length = append([]byte{}, w[at:at+length]...), uint64(length)
	} else {
		most := sendSGEs
		if m.op != ioSend {
			most = 1
		}
		if length > most {
			bad("wqe-sges", "%s with %d SGEs", ioNames[m.op], length)
			length = most
		}
		for i := range length {
			g := parseSGE(w[at+16*i:])
			if g.key>>24 != 0 {
				bad("wqe-reserved", "lkey %#x", g.key)
			}
			m.local, m.length = append(m.local, g), m.length+uint64(g.length)
		}
	}
	if m.op != ioSend && uint64(m.remote.length) != m.length {
		bad("wqe-length", "%d bytes of remote memory and %d here", m.remote.length, m.length)
		m.bad = ioTooLong
	}
	return m
}

// zero reports whether all bytes are 0.
func zero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

// sent completes a send request.
func (d *Device) sent(m *message, status uint8) {
	q := m.from
	q.sq.completed++
	delete(q.sq.requests, m.id)
	d.rep.Queues["completions: "+ioStatuses[status]]++
	d.count(m, status)
	d.countEvent(q, sentEvents[min(m.op, ioWrite)], status)
	var e [32]byte
	le.PutUint16(e[:], m.id)
	e[2], e[3] = status, 1<<1
	if d.cfg.Personality.has(capWrite) && m.op <= ioWrite {
		e[3] |= m.op << 4
	}
	le.PutUint16(e[4:], q.number)
	d.trace("QP %#x: %s to %#x, %d bytes: %s", q.number, ioNames[min(m.op, ioWrite)], m.to, m.length, ioStatuses[status])
	d.complete(q.sendCQ, q.sendSub, e[:])
}

// count counts a send request that is completed.
func (d *Device) count(m *message, status uint8) {
	s := &d.stats
	failed := uint64(0)
	if status != ioOK {
		failed = 1
	}
	ok := m.length * (1 - failed)
	switch m.op {
	case ioSend:
		s.sends++
		s.sendBytes += ok
	case ioRead:
		s.reads++
		s.readBytes += ok
		s.readErrors += failed
		return
	case ioWrite:
		s.writes++
		s.writeBytes += ok
		s.writeErrors += failed
	}
	if failed == 0 {
		s.txPackets++
		s.txBytes += m.length
	}
}
