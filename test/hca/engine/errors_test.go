package engine

import (
	"errors"
	"slices"
	"testing"
)

// errorCompletions are requests that fail, and how.
var errorCompletions = []struct {
	name     string
	setup    func(p *pair)
	post     func(p *pair)
	status   Syndrome
	recv     Syndrome // of the responder's receive WQE; 0 is none
	event    string   // of the responder
	violates bool     // a driver would not post this
}{
	{"local length: an atomic into 4 bytes", nil, func(p *pair) {
		p.a.post(opFAA, sig, 0, raddrSeg(p.mb.va, p.mb.key), words64(1, 0), dataSeg(p.ma.sge(0, 4)))
	}, LocalLength, 0, "", false},
	{"local length: longer than the longest message", func(p *pair) { p.a.edit(func(a *QPAttr) { a.LogMsgMax = 10 }) }, func(p *pair) {
		p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 1025)))
	}, LocalLength, 0, "", false},
	{"local QP operation: an opcode that the service has not", nil, func(p *pair) {
		p.a.post(0x1f, sig, 0)
	}, LocalQPOp, 0, "", true},
	{"local protection: no such key", nil, func(p *pair) {
		p.a.post(opSend, sig, 0, dataSeg(sge{&testMR{va: p.ma.va, key: 0xeeeeee00}, 0, 10}))
	}, LocalProt, 0, "", false},
	{"local protection: the low byte", nil, func(p *pair) {
		p.a.post(opSend, sig, 0, dataSeg(sge{&testMR{va: p.ma.va, key: p.ma.key ^ 1}, 0, 10}))
	}, LocalProt, 0, "", false},
	{"local protection: beyond the end", nil, func(p *pair) {
		p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(65530, 10)))
	}, LocalProt, 0, "", false},
	{"local protection: the result of a READ in memory that can't be written", nil, func(p *pair) {
		ro := p.a.h.newMR(4096, LocalRead)
		p.a.post(opRead, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(ro.sge(0, 10)))
	}, LocalProt, 0, "", false},
	{"remote access: no such key", nil, func(p *pair) {
		p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, 0xeeeeee00), dataSeg(p.ma.sge(0, 10)))
	}, RemoteAccess, 0, "WQ_ACCESS_ERROR", false},
	{"remote access: beyond the end", nil, func(p *pair) {
		p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va+65530, p.mb.key), dataSeg(p.ma.sge(0, 10)))
	}, RemoteAccess, 0, "WQ_ACCESS_ERROR", false},
	{"remote access: READ of memory that can't be read", nil, func(p *pair) {
		m := p.b.h.newMR(4096, LocalWrite|RemoteWrite)
		p.a.post(opRead, sig, 0, raddrSeg(m.va, m.key), dataSeg(p.ma.sge(0, 10)))
	}, RemoteAccess, 0, "WQ_ACCESS_ERROR", false},
	{"remote access: an atomic on memory for none", nil, func(p *pair) {
		m := p.b.h.newMR(4096, LocalWrite|RemoteWrite|RemoteRead)
		p.a.post(opFAA, sig, 0, raddrSeg(m.va, m.key), words64(1, 0), dataSeg(p.ma.sge(0, 8)))
	}, RemoteAccess, 0, "WQ_ACCESS_ERROR", false},
	{"remote access: a key of another PD", nil, func(p *pair) {
		pd, _ := p.b.h.d.AllocPD()
		old := p.b.h.pd
		p.b.h.pd = pd
		m := p.b.h.newMR(4096, allAccess)
		p.b.h.pd = old
		p.a.post(opWrite, sig, 0, raddrSeg(m.va, m.key), dataSeg(p.ma.sge(0, 10)))
	}, RemoteAccess, 0, "WQ_ACCESS_ERROR", false},
	{"remote invalid request: writes are not allowed", func(p *pair) { p.b.edit(func(a *QPAttr) { a.RWE = false }) }, func(p *pair) {
		p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 10)))
	}, RemoteInvalidReq, 0, "WQ_INVAL_REQ_ERROR", false},
	{"remote invalid request: reads are not allowed", func(p *pair) { p.b.edit(func(a *QPAttr) { a.RRE = false }) }, func(p *pair) {
		p.a.post(opRead, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 10)))
	}, RemoteInvalidReq, 0, "WQ_INVAL_REQ_ERROR", false},
	{"remote invalid request: atomics are not allowed", func(p *pair) { p.b.edit(func(a *QPAttr) { a.RAE = false }) }, func(p *pair) {
		p.a.post(opCAS, sig, 0, raddrSeg(p.mb.va, p.mb.key), words64(1, 0), dataSeg(p.ma.sge(0, 8)))
	}, RemoteInvalidReq, 0, "WQ_INVAL_REQ_ERROR", false},
	{"remote invalid request: an atomic that is not aligned", nil, func(p *pair) {
		p.a.post(opFAA, sig, 0, raddrSeg(p.mb.va+4, p.mb.key), words64(1, 0), dataSeg(p.ma.sge(0, 8)))
	}, RemoteInvalidReq, 0, "WQ_INVAL_REQ_ERROR", false},
	{"remote invalid request: more READs than the responder takes", func(p *pair) {
		p.a.edit(func(a *QPAttr) { a.LogSRAMax = 4 })
		p.b.edit(func(a *QPAttr) { a.LogRRAMax = 0 })
	}, func(p *pair) {
		var last []byte
		for range 3 {
			last = p.a.write(opRead, nothing, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 10)))
		}
		p.a.record()
		p.a.ring(last)
	}, RemoteInvalidReq, 0, "WQ_INVAL_REQ_ERROR", false},
	{"remote invalid request: a message longer than its WQE", func(p *pair) { p.b.recv(p.mb.sge(0, 9)) }, func(p *pair) {
		p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 10)))
	}, RemoteInvalidReq, LocalLength, "", false},
	{"remote operation: a WQE with a bad key", func(p *pair) { p.b.recv(sge{&testMR{va: p.mb.va, key: 0xeeeeee00}, 0, 100}) }, func(p *pair) {
		p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 10)))
	}, RemoteOp, LocalProt, "", false},
	{"retries exceeded: nobody answers", func(p *pair) { p.b.modify(To2Rst, 0, QPAttr{}) }, func(p *pair) {
		p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 10)))
	}, RetryExceeded, 0, "", false},
	{"RNR retries exceeded", func(p *pair) { p.a.edit(func(a *QPAttr) { a.RNRRetry = 3 }) }, func(p *pair) {
		p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 10)))
	}, RNRExceeded, 0, "", false},
	{"RNR retries exceeded at a WRITE with immediate", func(p *pair) { p.a.edit(func(a *QPAttr) { a.RNRRetry = 1 }) }, func(p *pair) {
		p.a.post(opWriteImm, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 3000)))
	}, RNRExceeded, 0, "", false},
}

// TestErrorCompletions provokes each error as a program can, on a connection.
func TestErrorCompletions(t *testing.T) {
	for _, c := range errorCompletions {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, InfiniBand, RC, false, qpOptions{})
			if c.setup != nil {
				c.setup(p)
			}
			p.b.h.eq.poll()
			p.a.post(opNOP, nothing, 0) // something before it, which does not complete
			c.post(p)
			p.a.post(opNOP, nothing, 0) // and after it, which is flushed
			p.a.h.run()
			all := slices.DeleteFunc(p.a.scq.poll(), func(w wc) bool { return w.op == cqeReq })
			if len(all) < 2 || all[0].syndrome != c.status || all[0].op != cqeReqErr || all[0].vendor != vendorOf(c.status) || all[0].srqn != 0x77 || all[0].qpn != p.a.n {
				t.Fatalf("completions %v, want %s", all, c.status)
			}
			for _, w := range all[1:] {
				if w.syndrome != Flushed {
					t.Errorf("completion %v after the error", w)
				}
			}
			if p.a.state() != Err {
				t.Errorf("state %s", p.a.state())
			}
			got := p.b.rcq.poll()
			if c.recv != 0 && (len(got) != 1 || got[0].op != cqeRespErr || got[0].syndrome != c.recv) || c.recv == 0 && len(got) != 0 {
				t.Errorf("receive completions %v", got)
			}
			ev := p.b.h.eq.asyncEvents()
			if c.event != "" && !slices.Contains(ev, c.event) || c.event == "" && len(ev) != 0 {
				t.Errorf("events %v, want %q", ev, c.event)
			}
			if c.violates {
				p.a.h.broke("wqe-opcode")
			} else {
				p.clean()
			}
		})
	}
}

// edit connects a QP anew with other attributes. Those of its peer stay.
func (q *testQP) edit(fn func(a *QPAttr)) {
	q.h.t.Helper()
	i, err := q.h.d.QueryQP(q.n)
	if err != nil {
		q.h.t.Fatal(err)
	}
	a := i.Attr
	fn(&a)
	q.modify(To2Rst, 0, QPAttr{})
	q.connect(a)
}

// TestUnreliableErrors: UC does not learn what the responder refuses, and stops its send
// queue alone for errors of its own.
func TestUnreliableErrors(t *testing.T) {
	p := newPair(t, InfiniBand, UC, false, qpOptions{})
	p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, 0xeeeeee00), dataSeg(p.ma.sge(0, 2000)))
	p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 2000))) // no receive WQE: dropped
	p.a.h.run()
	p.a.scq.good(2)
	p.b.recv(p.mb.sge(0, 3000))
	p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(1, 2000)))
	p.a.h.run()
	p.a.scq.good(1)
	if r := p.b.rcq.good(1)[0]; r.bytes != 2000 || p.mb.data[1999] != p.ma.data[2000] {
		t.Errorf("%+v", r)
	}
	p.a.post(opSend, nothing, 0, dataSeg(p.ma.sge(65535, 2)))
	p.a.post(opNOP, nothing, 0)
	p.a.h.run()
	all := p.a.scq.poll()
	if len(all) != 2 || all[0].syndrome != LocalProt || all[1].syndrome != Flushed || p.a.state() != SQErr {
		t.Errorf("%v, state %s", all, p.a.state())
	}
	if p.b.state() != RTS {
		t.Errorf("the peer is in %s", p.b.state())
	}
	p.a.modify(SQErr2RTS, OptRWE, p.a.attr(p.b))
	p.a.post(opNOP, sig, 0)
	p.a.h.run()
	p.a.scq.good(1)
	p.clean()
}

// TestRNR: a message waits for a receive WQE, for ever if the retries are 7.
func TestRNR(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 100)))
	p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 2000)))
	p.a.h.f.RunFor(20e6)
	p.a.scq.good(1)
	n := p.b.h.d.Report().Packets["dropped: no receive WQE"]
	if n < 10 {
		t.Errorf("tried %d times", n)
	}
	p.b.recv(p.mb.sge(0, 3000))
	p.a.h.run()
	p.a.scq.good(1)
	p.b.rcq.good(1)
	p.clean()
}

// TestFlush: one completion for each WQE, in order, and for those posted afterwards.
func TestFlush(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	for i := range 5 {
		p.b.recv(p.mb.sge(0, 10))
		p.b.post(opSend, nothing, 0, dataSeg(p.mb.sge(i, 300)), dataSeg(p.mb.sge(0, 10)), dataSeg(p.mb.sge(0, 10)))
	}
	p.b.modify(To2Err, 0, QPAttr{})
	p.b.h.run()
	check := func(c *testCQ, n int, op uint8) {
		t.Helper()
		all := c.poll()
		if len(all) != n {
			t.Fatalf("%d completions %v, want %d", len(all), all, n)
		}
		for _, w := range all {
			if w.op != op || w.syndrome != Flushed {
				t.Errorf("completion %v", w)
			}
		}
	}
	check(p.b.scq, 5, cqeReqErr)
	check(p.b.rcq, 5, cqeRespErr)
	p.b.recv(p.mb.sge(0, 10))
	p.b.post(opNOP, nothing, 0)
	p.b.h.run()
	check(p.b.scq, 1, cqeReqErr)
	check(p.b.rcq, 1, cqeRespErr)
	p.b.modify(To2Err, 0, QPAttr{}) // once more
	p.b.recv(p.mb.sge(0, 10))
	p.b.h.run()
	check(p.b.rcq, 1, cqeRespErr)
	p.again()
	p.b.recv(p.mb.sge(0, 10))
	p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 10)))
	p.a.h.run()
	p.a.scq.good(1)
	p.b.rcq.good(1)
	p.clean()
}

// TestDrain: in SQD what is under way ends, an event says so, and nothing new begins.
func TestDrain(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 60000)))
	p.a.h.f.RunFor(0)
	a := p.a.attr(p.b)
	a.SQDrained = true
	p.a.modify(RTS2SQD, 0, a)
	p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 10)))
	p.a.h.run()
	p.a.scq.good(1)
	if ev := p.a.h.eq.asyncEvents(); len(ev) != 1 || ev[0] != "SQ_DRAINED" {
		t.Errorf("events %v", ev)
	}
	if i, _ := p.a.h.d.QueryQP(p.a.n); i.State != SQD || i.Draining {
		t.Errorf("%+v", i)
	}
	p.a.modify(SQD2SQD, OptRRE, a)
	p.a.modify(SQD2RTS, 0, a)
	p.a.h.run()
	p.a.scq.good(1)
	p.clean()
}

// TestCommEst: a packet before the QP is in RTS is an event, once.
func TestCommEst(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	a, b := h.newQP(qpOptions{typ: RC}), h.newQP(qpOptions{typ: RC})
	a.connect(a.attr(b))
	at := b.attr(a)
	b.modify(Rst2Init, 0, at)
	b.modify(Init2RTR, 0, at)
	for range 2 {
		b.recv()
		a.post(opSend, sig, 0)
	}
	h.eq.poll()
	h.run()
	b.rcq.good(2)
	if ev := h.eq.asyncEvents(); len(ev) != 1 || ev[0] != "COMM_EST" {
		t.Errorf("events %v", ev)
	}
}

// TestMigration: the alternate path is taken when the primary one does not answer.
func TestMigration(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	a := p.a.attr(p.b)
	a.Alternate = a.Primary
	a.PMState = PMRearm
	p.a.modify(RTS2RTS, OptAltPath|OptPMState, a)
	s := p.b.h.d.Port()
	old := s.LID
	s.LID = 0x77
	p.b.h.d.SetPort(s)
	p.a.h.eq.poll()
	p.b.recv(p.mb.sge(0, 100))
	p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 10)))
	// The alternate path leads to the LID that the port has again by then.
	p.a.h.f.RunFor(30e6)
	s.LID = old
	p.b.h.d.SetPort(s)
	p.a.h.run()
	p.a.scq.good(1)
	if ev := p.a.h.eq.asyncEvents(); len(ev) != 1 || ev[0] != "PATH_MIG" {
		t.Errorf("events %v", ev)
	}
	if i, _ := p.a.h.d.QueryQP(p.a.n); i.Attr.PMState != PMMigrated {
		t.Errorf("migration state %d", i.Attr.PMState)
	}
}

// TestTransitions tries every transition from every state.
func TestTransitions(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	q, r := h.newQP(qpOptions{typ: RC}), h.newQP(qpOptions{typ: RC})
	a := q.attr(r)
	to := map[QPState][]Transition{
		Reset: {}, Init: {Rst2Init}, RTR: {Rst2Init, Init2RTR}, RTS: {Rst2Init, Init2RTR, RTR2RTS},
		SQD: {Rst2Init, Init2RTR, RTR2RTS, RTS2SQD}, Err: {To2Err},
	}
	for s, way := range to {
		for tr := range transitions {
			q.modify(To2Rst, 0, QPAttr{})
			for _, w := range way {
				q.modify(w, 0, a)
			}
			if q.state() != s {
				t.Fatalf("state %s, want %s", q.state(), s)
			}
			err := h.d.ModifyQP(q.n, tr, 0, a)
			var e *Error
			allowed := slices.Contains(transitions[tr].from, s)
			if allowed && (err != nil || q.state() != transitions[tr].to) || !allowed && (!errors.As(err, &e) || e.Kind != BadQPState || q.state() != s) {
				t.Errorf("%s from %s: %v, state %s", tr, s, err, q.state())
			}
		}
	}
	h.clean()
}

// TestInjected: any completion can be made to fail.
func TestInjected(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	must(t, p.a.h.d.FailWQE(p.a.n, false, 2, RemoteAborted, 0x93))
	for range 4 {
		p.a.post(opNOP, sig, 0)
	}
	p.a.h.run()
	all := p.a.scq.poll()
	if len(all) != 4 || all[1].op != cqeReq || all[2].syndrome != RemoteAborted || all[2].vendor != 0x93 || all[3].syndrome != Flushed {
		t.Errorf("%v", all)
	}
	p.again()
	must(t, p.b.h.d.FailWQE(p.b.n, true, 1, LocalAccess, 0x94))
	for range 3 {
		p.b.recv(p.mb.sge(0, 10))
		p.a.post(opSend, sig, 0)
	}
	p.a.h.run()
	all = p.b.rcq.poll()
	if len(all) != 3 || all[0].op != cqeRespSend || all[1].syndrome != LocalAccess || all[1].vendor != 0x94 || all[2].syndrome != Flushed {
		t.Errorf("%v", all)
	}
	if all = p.a.scq.poll(); len(all) != 3 || all[1].syndrome != RemoteOp {
		t.Errorf("%v", all)
	}
	p.again()
	p.b.h.eq.poll()
	must(t, p.b.h.d.FailQP(p.b.n))
	if ev := p.b.h.eq.asyncEvents(); len(ev) != 1 || ev[0] != "WQ_CATAS_ERROR" || p.b.state() != Err {
		t.Errorf("%v, %s", ev, p.b.state())
	}
	must(t, p.a.h.d.FailCQ(p.a.scq.n))
	if ev := p.a.h.eq.asyncEvents(); !slices.Contains(ev, "CQ_ERROR") || p.a.state() != Err {
		t.Errorf("%v, %s", ev, p.a.state())
	}
	p.b.h.eq.poll()
	p.again()
	must(t, p.b.h.d.FailCQOf(p.b.n))
	if ev := p.b.h.eq.asyncEvents(); !slices.Contains(ev, "CQ_ERROR") || p.b.state() != Err {
		t.Errorf("%v, %s", ev, p.b.state())
	}
	for _, err := range []error{p.a.h.d.FailWQE(1, false, 0, 1, 1), p.a.h.d.FailQP(1), p.a.h.d.FailMigration(1), p.a.h.d.FailCQ(1), p.a.h.d.FailCQOf(1), p.a.h.d.FailSRQ(1), p.a.h.d.FailRQ(1)} {
		var e *Error
		if !errors.As(err, &e) || e.Kind != BadResource {
			t.Errorf("%v", err)
		}
	}
	p.clean()
}

// TestFatal: a device that has failed does nothing and refuses every command, until it is
// reset.
func TestFatal(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	p.b.recv(p.mb.sge(0, 10))
	p.b.h.d.Fatal()
	p.a.post(opSend, sig, 0)
	p.b.post(opNOP, sig, 0)
	p.a.h.run()
	if w := p.a.scq.one(); w.syndrome != RetryExceeded {
		t.Errorf("%v", w)
	}
	if all := p.b.scq.poll(); len(all) != 0 {
		t.Errorf("%v", all)
	}
	var e *Error
	if _, err := p.b.h.d.AllocPD(); !errors.As(err, &e) || e.Kind != BadSysState {
		t.Errorf("%v", err)
	}
	p.b.h.d.Reset()
	if _, err := p.b.h.d.AllocPD(); err != nil {
		t.Error(err)
	}
	if err := p.b.h.d.DestroyQP(p.b.n); err == nil {
		t.Error("a QP survives a reset")
	}
	p.clean()
}

// TestPortEvents: the port goes down and up, and packets are lost in between.
func TestPortEvents(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	p.a.h.eq.poll()
	s := p.a.h.d.Port()
	s.State = LinkDown
	p.a.h.d.SetPort(s)
	p.b.recv(p.mb.sge(0, 10))
	p.a.post(opSend, sig, 0)
	p.a.h.f.RunFor(10e6)
	p.a.scq.good(0)
	s.State = LinkActive
	p.a.h.d.SetPort(s)
	p.a.h.run()
	p.a.scq.good(1)
	p.b.rcq.good(1)
	s.PKeys = append(s.PKeys, 0x9999)
	p.a.h.d.SetPort(s)
	var subs []uint8
	for _, e := range p.a.h.eq.poll() {
		if e.typ == EventPortChange && e.data[8]>>4 == 1 {
			subs = append(subs, e.subtype)
		}
	}
	if !slices.Equal(subs, []uint8{PortDown, PortActive, PortPKey}) {
		t.Errorf("port events %v", subs)
	}
}
