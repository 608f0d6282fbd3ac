package efa

import (
	"strings"
	"testing"
)

// Queues go around many times, with sends and receives of a few at a time.
func TestWrap(t *testing.T) {
	for _, personality := range []string{"plain", "first", "batch"} {
		p := newPair(t, personality, typeSRD, 0)
		id := uint16(0)
		for range 100 {
			for range 3 {
				p.qb.postRecv(id, int(id)%1000*8, 8)
				p.qa.post(p.qa.wqe(id, ioSend, p.ab, p.qb, 6, uint16(1), 32, p.a.local(int(id)%1000*8, 8)))
				id++
			}
			p.qa.ring()
			p.qa.send.wait(3)
			p.qb.recv.wait(3)
		}
		p.a.broken()
		p.b.broken()
		if r := p.a.dev.Report(); r.Queues["completions: ok"] != 300 || r.Queues["SEND requests"] != 300 {
			t.Errorf("%+v", r.Queues)
		}
	}
}

// An armed CQ writes one event, and an armed EQ raises its vector once.
func TestEvents(t *testing.T) {
	p := newPair(t, "plain", typeSRD, 0)
	cq := p.a.cq(64, 0x20, 0)
	p.qa = p.a.qp(typeSRD, 0, cq, cq).ready()
	sends := 0
	send := func() {
		p.qb.postRecv(uint16(sends), 0, 8)
		p.qa.post(p.qa.wqe(uint16(sends), ioSend, p.ab, p.qb, 6, uint16(1), 32, p.a.local(0, 8)))
		p.qa.ring()
		p.a.dev.f.Drain()
		sends++
	}
	expect := func(what string, events, vectors int) {
		t.Helper()
		if r := p.a.dev.Report(); int(r.Queues["CQ events"]) != events || p.a.interrupts[1] != vectors {
			t.Errorf("%s: %d events, %d interrupts; want %d, %d", what, r.Queues["CQ events"], p.a.interrupts[1], events, vectors)
		}
	}
	armEQ := func() { p.a.store(regEQDoorbell, eqArm|uint32(p.a.eqn)) }
	armEQ()
	send()
	expect("nothing armed", 0, 0)
	cq.poll()
	cq.ring(true)
	cq.ring(false)
	expect("armed", 0, 0)
	send()
	expect("a completion", 1, 1)
	if e := p.a.eqMem[:eqEntrySize]; e[0] != 1 || le.Uint16(e[8:]) != cq.number {
		t.Errorf("event % x", e)
	}
	send()
	expect("a second one", 1, 1)
	cq.ring(true)
	expect("armed once more with the number of the event before", 1, 1)
	cq.seen++
	cq.ring(true)
	expect("armed with completions that were not read, and the EQ is not armed", 2, 1)
	armEQ()
	expect("the EQ is armed behind its event", 2, 2)
	for cq.poll() != nil {
	}
	cq.seen++
	cq.ring(true)
	armEQ()
	expect("armed with all read", 2, 2)
	send()
	expect("a last one", 3, 3)
	for _, c := range []struct {
		op  opcode
		arg any
	}{{opDestroyQP, p.qa.handle}, {opDestroyCQ, cq.number}, {opDestroyEQ, p.a.eqn}} {
		p.a.must(c.op, 0, 4, c.arg)
	}
	armEQ() // by a handler that was late
	p.a.broken()
	p.a.store(regEQDoorbell, eqArm|60)
	p.a.broken("eq-doorbell")
}

// Each rule about doorbells and completion queues is checked.
func TestDoorbellViolations(t *testing.T) {
	bell := func(q *testQP, door uint64, v uint32) { q.c.dev.WriteBAR(barDoorbells, door, le.AppendUint32(nil, v)) }
	for _, tt := range []struct {
		rule string
		do   func(p *pair)
	}{
		{"sq-doorbell", func(p *pair) { bell(p.qa, p.qa.sqDoor, 0) }},
		{"sq-doorbell", func(p *pair) { bell(p.qa, p.qa.sqDoor, 17) }},
		{"doorbell-width", func(p *pair) { bell(p.qa, p.qa.sqDoor, 1<<16) }},
		{"doorbell-page", func(p *pair) { bell(p.qa, p.qa.sqDoor+pageSize, 1) }},
		{"doorbell-page", func(p *pair) { p.a.must(opAllocUAR, 0); bell(p.qa, p.qa.sqDoor+pageSize, 1) }},
		{"doorbell-page", func(p *pair) { bell(p.qa, p.qa.sqDoor+4, 1) }},
		{"doorbell-page", func(p *pair) { bell(p.qa, doorbellCQ+4*100, 1) }},
		{"sq-state", func(p *pair) { p.qa.modify(stateRTS, stateReset, 0); bell(p.qa, p.qa.sqDoor, 1) }},
		{"rq-state", func(p *pair) { p.qa.modify(stateRTS, stateReset, 0); bell(p.qa, p.qa.rqDoor, 1) }},
		{"rq-doorbell", func(p *pair) { bell(p.qa, p.qa.rqDoor, 17) }},
		{"rq-doorbell", func(p *pair) {
			for i := range uint16(17) {
				p.qa.postRecv(i, 0, 8)
			}
		}},
		{"rq-descriptor", func(p *pair) { bell(p.qa, p.qa.rqDoor, 1) }}, // neither first nor last
		{"rq-sges", func(p *pair) { p.qa.postRecv(1, 0, 1, 2, 1, 4, 1, 6, 1) }},
		{"rq-id", func(p *pair) { p.qa.postRecv(1, 0, 1); p.qa.postRecv(1, 0, 1) }},
		{"rq-reserved", func(p *pair) { p.a.lkey |= 1 << 24; p.qa.postRecv(1, 0, 1) }},
		{"cq-doorbell", func(p *pair) { p.qa.send.total++; p.qa.send.ring(false) }},
		{"cq-doorbell", func(p *pair) { p.qa.send.ring(true) }}, // it has no EQ
		{"llq", func(p *pair) { p.a.dev.WriteBAR(barLLQ, p.qa.llq+16*64, make([]byte, 8)) }},
		{"llq-width", func(p *pair) { p.a.dev.WriteBAR(barLLQ, p.qa.llq, make([]byte, 4)) }},
	} {
		p := newPair(t, "plain", typeSRD, 0)
		tt.do(p)
		p.a.broken(tt.rule)
	}
}

// A CQ must have room for what comes.
func TestOverrun(t *testing.T) {
	p := newPair(t, "plain", typeSRD, 0)
	cq := p.a.cq(4, 0, 0)
	p.qa = p.a.qp(typeSRD, 0, cq, p.a.cq(16, 0, 0)).ready()
	for i := range 5 {
		p.qa.post(p.qa.wqe(uint16(i), ioSend, 1, p.qb))
		p.qa.ring()
		p.a.dev.f.Drain()
		if i == 3 {
			p.a.broken()
		}
	}
	p.a.broken("cq-overrun")
}

// Some cards limit what is written before a doorbell.
func TestBatch(t *testing.T) {
	p := newPair(t, "batch", typeSRD, 0)
	for i := range 5 {
		p.qa.post(p.qa.wqe(uint16(i), ioSend, 1, p.qb))
		if i == 3 {
			p.qa.ring()
			p.a.broken()
		}
	}
	for i := range 4 {
		p.qa.post(p.qa.wqe(uint16(10+i), ioSend, 1, p.qb))
	}
	p.qa.ring()
	p.a.broken("sq-batch")
	p.a.refused(statusIllegal, "8 entries", opCreateQP, 0, 4, p.a.pd, 6, uint8(2), 24, uint32(0), 28, uint32(0), 40, uint32(512), 44, uint32(8), 56, p.a.uar)
	if one, two := p.a.ah(p.b.dev), p.a.ah(p.b.dev); one == two {
		t.Errorf("AH %d twice", one)
	}
}

// A guest that ends with its driver at work has done nothing wrong.
func TestGuestGone(t *testing.T) {
	p := newPair(t, "plain", typeSRD, 0)
	p.a.must(opSetFeature, 0, 17, uint8(featAENQ), 24, uint32(allGroups))
	p.qb.postRecv(1, 0, 8)
	p.qa.post(p.qa.wqe(1, ioSend, p.ab, p.qb, 6, uint16(1), 32, p.a.local(0, 8)))
	p.qa.ring()
	p.a.guest.mem = nil
	p.a.dev.f.Drain()
	p.a.dev.KeepAlive()
	p.qb.recv.wait(0)
	p.a.broken()
	if n := p.a.dev.Report().Queues["rings of a guest that is gone"]; n != 2 {
		t.Errorf("%d rings", n)
	}
}

// Every bit of a request is checked.
func TestRequestViolations(t *testing.T) {
	for _, tt := range []struct {
		rule string
		off  int
		or   byte
	}{
		{"wqe-reserved", 2, 0x40}, {"wqe-reserved", 3, 2}, {"wqe-reserved", 3, 0x80}, {"wqe-reserved", 14, 1}, {"wqe-reserved", 15, 1},
		{"wqe-reserved", 20, 1}, {"wqe-reserved", 31, 1}, {"wqe-reserved", 39, 1}, {"wqe-phase", 3, 1}, {"wqe-sges", 6, 3},
		{"wqe-length", 2, ioWrite}, {"wqe-control", 2, ioRead | wqeImmediate},
	} {
		p := newPair(t, "plain", typeSRD, 0, 29, uint8(0))
		w := p.qa.wqe(1, ioSend, p.ab, p.qb, 6, uint16(1), 32, p.a.local(0, 8), 48, p.a.local(0, 8))
		w[tt.off] |= tt.or
		if tt.rule == "wqe-length" {
			w[32]++
		}
		p.qa.post(w)
		p.qa.ring()
		p.qa.send.wait(1)
		p.a.broken(tt.rule)
		if v := p.a.dev.Report().Violations[0]; !strings.Contains(v.Text, "QP 0x100: ") {
			t.Errorf("%+v", v)
		}
	}
	p := newPair(t, "plain", typeSRD, 0, 29, uint8(forever))
	for range 2 { // the same request ID twice
		p.qa.post(p.qa.wqe(1, ioSend, p.ab, p.qb))
	}
	p.qa.ring()
	p.a.broken("wqe-id")
	p = newPair(t, "plain", typeSRD, 0)
	p.qa.post(p.qa.wqe(1, ioSend|wqeInline, p.ab, p.qb, 6, uint16(33)))
	p.qa.ring()
	if e := p.qa.send.wait(1)[0]; e[2] != ioTooLong {
		t.Errorf("33 bytes of inline data: % x", e)
	}
	p.a.broken("wqe-inline")
	p = newPair(t, "plain", typeSRD, 0)
	p.qa.sent++
	p.qa.ring() // nothing was written
	p.a.broken("wqe-control")
}

// FuzzStores stores anything to a card with queues: nothing may make it fail.
func FuzzStores(f *testing.F) {
	f.Add([]byte{0, 0x2c, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 2, 0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		p := newPair(t, "plain", typeSRD, 0)
		p.a.dev.cfg.Trace, p.b.dev.cfg.Trace = nil, nil
		bars := []int{barRegisters, barDoorbells, barLLQ}
		sizes := []uint64{registersSize, pageSize, llqSize}
		for i := 0; len(b) >= 6 && i < 200; i++ {
			which := int(b[0]) % 3
			off := uint64(b[1]) << (b[0] >> 6 * 2) * uint64(4) % sizes[which]
			v := le.Uint32(b[2:])
			b = b[6:]
			if off == regAQDoorbell && which == 0 { // a command, of what follows
				copy(p.a.aq[p.a.dev.admin.commands.counter%32*commandSize:], b)
				v = p.a.dev.admin.commands.counter + 1
			}
			data := le.AppendUint32(nil, v)
			if which == 2 {
				data = append(data, data...)
				off = off &^ 7
			}
			p.a.dev.WriteBAR(bars[which], off, data)
			p.a.dev.f.Drain()
		}
		p.a.dev.Report().Print(t.Output())
	})
}
