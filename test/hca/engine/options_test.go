package engine

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestOptions: an optional parameter is taken over if the mask names it, and only then.
func TestOptions(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	q := h.newQP(qpOptions{typ: RC})
	base := q.attr(q)
	q.connect(base)
	q.modify(RTS2SQD, 0, base)
	h.run()
	other := base
	other.RRE, other.RWE, other.RAE = false, false, false
	other.QKey, other.MinRNRNAK, other.LogSRAMax, other.LogRRAMax = 9, 9, 1, 1
	other.RetryCount, other.RNRRetry, other.PMState = 1, 1, PMRearm
	other.Primary.PKeyIndex, other.Primary.AckTimeout, other.Primary.RLID = 1, 5, 77
	other.Alternate = base.Primary
	for opt, got := range map[OptParam]func(a QPAttr) any{
		OptRRE: func(a QPAttr) any { return a.RRE }, OptRWE: func(a QPAttr) any { return a.RWE }, OptRAE: func(a QPAttr) any { return a.RAE },
		OptQKey: func(a QPAttr) any { return a.QKey }, OptRNRTimeout: func(a QPAttr) any { return a.MinRNRNAK }, OptSRAMax: func(a QPAttr) any { return a.LogSRAMax },
		OptRRAMax: func(a QPAttr) any { return a.LogRRAMax }, OptRetryCount: func(a QPAttr) any { return a.RetryCount }, OptRNRRetry: func(a QPAttr) any { return a.RNRRetry },
		OptPKeyIndex: func(a QPAttr) any { return a.Primary.PKeyIndex }, OptAckTimeout: func(a QPAttr) any { return a.Primary.AckTimeout },
		OptPrimary: func(a QPAttr) any { return a.Primary.RLID }, OptAltPath: func(a QPAttr) any { return a.Alternate.RLID },
	} {
		before, err := h.d.QueryQP(q.n)
		must(t, err)
		q.modify(SQD2SQD, 0, other)
		if same, _ := h.d.QueryQP(q.n); fmt.Sprint(same) != fmt.Sprint(before) {
			t.Errorf("%#x: taken over without being named: %+v", opt, same.Attr)
		}
		if opt == OptQKey && got(before.Attr) != base.QKey {
			t.Errorf("%v", before.Attr)
		}
		q.modify(SQD2SQD, opt, other)
		after, _ := h.d.QueryQP(q.n)
		if got(after.Attr) != got(other) {
			t.Errorf("%#x: %v, want %v", opt, got(after.Attr), got(other))
		}
	}
	q.modify(SQD2SQD, OptPMState, other)
	if i, _ := h.d.QueryQP(q.n); i.Attr.PMState != PMArmed {
		t.Errorf("migration state %d", i.Attr.PMState)
	}
	h.clean()
}

// TestMove: a QP can take another SRQ and another CQ for what it receives.
func TestMove(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	one, two := h.newSRQ(3, 0, 0, 0), h.newSRQ(3, 0, 0, 0)
	cq := h.newCQ(4, 64)
	q := h.newQP(qpOptions{typ: UD, srq: one})
	q.connect(q.attr(q))
	a := q.attr(q)
	a.SRQN, a.RecvCQ = two.n, cq.n
	refused(t, h.d.ModifyQP(q.n, RTS2RTS, OptSRQN, QPAttr{SRQN: 1}), BadResource, "srqn_rmpn_xrqn")
	refused(t, h.d.ModifyQP(q.n, RTS2RTS, OptRecvCQ, QPAttr{RecvCQ: 1}), BadResource, "cqn_rcv")
	q.modify(RTS2RTS, OptSRQN|OptRecvCQ, a)
	m := h.newMR(page, allAccess)
	at := two.post(m.sge(0, 100))
	q.post(opSend, sig, 0, q.avSeg(q, 0x11111111))
	h.run()
	q.rcq.good(0)
	if w := cq.good(1)[0]; w.index != at {
		t.Errorf("%+v", w)
	}
	if err := h.d.DestroySRQ(one.n); err != nil {
		t.Error(err)
	}
	if err := h.d.DestroyCQ(q.rcq.n); err != nil {
		t.Error(err)
	}
	refused(t, h.d.DestroySRQ(two.n), Busy, "")
	refused(t, h.d.DestroyCQ(cq.n), Busy, "")
	h.clean()
}

// TestFailSRQ: its catastrophe is an event, and senders learn that it can't receive.
func TestFailSRQ(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	srq := h.newSRQ(3, 0, 0, 0)
	a, b := h.newQP(qpOptions{typ: RC}), h.newQP(qpOptions{typ: RC, srq: srq})
	connect(a, b)
	srq.post()
	h.eq.poll()
	must(t, h.d.FailSRQ(srq.n))
	if ev := h.eq.asyncEvents(); len(ev) != 1 || ev[0] != "SRQ_CATAS_ERROR" {
		t.Errorf("events %v", ev)
	}
	if s, err := h.d.QuerySRQ(srq.n); err != nil || !s.Failed {
		t.Errorf("%+v, %v", s, err)
	}
	a.post(opSend, sig, 0)
	h.run()
	if w := a.scq.one(); w.syndrome != RemoteOp || b.state() != Err {
		t.Errorf("%v, state %s", w, b.state())
	}
	if ev := h.eq.asyncEvents(); !slices.Contains(ev, "WQ_CATAS_ERROR") {
		t.Errorf("events %v", ev)
	}
	h.clean()
}

// TestLimits: a device is full at some time, and numbers come back.
func TestLimits(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	h.d.cfg.MaxQPs = 2
	cq := h.newCQ(4, 64)
	q := h.newQP(qpOptions{typ: RC, scq: cq, rcq: cq})
	h.newQP(qpOptions{typ: RC, scq: cq, rcq: cq})
	_, err := h.d.CreateQP(q.spec)
	refused(t, err, Limit, "")
	must(t, h.d.DestroyQP(q.n))
	h.d.next["QP"] = maxNumber - 16
	for range 5 { // over the end of the numbers
		n, err := h.d.CreateQP(q.spec)
		if err != nil || n > maxNumber-16 {
			t.Fatalf("%#x, %v", n, err)
		}
		must(t, h.d.DestroyQP(n))
	}
	for {
		if _, err = h.d.CreateEQ(EQSpec{Buf: Buffer{Pages: pages(h.eq.addr, page), PageSize: page}, Log: 2}); err != nil {
			break
		}
	}
	refused(t, err, Limit, "")
	var got int
	for {
		if _, err = h.d.AllocXRCD(); err != nil {
			break
		}
		got++
	}
	refused(t, err, Limit, "")
	if got != 32 {
		t.Errorf("%d XRC domains", got)
	}
	h.clean()
}

// TestQueryEQ: what it was created with, and where it stands.
func TestQueryEQ(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	h.eq.poll()
	h.eq.arm()
	s, producer, consumer, armed, err := h.d.QueryEQ(h.eq.n)
	if err != nil || s.Log != h.eq.log || producer != h.eq.ci || consumer != h.eq.ci || !armed {
		t.Errorf("%+v %d %d %v %v", s, producer, consumer, armed, err)
	}
	_, _, _, _, err = h.d.QueryEQ(99)
	refused(t, err, BadResource, "")
}

// TestConfigure: a fabric becomes bad, and good again.
func TestConfigure(t *testing.T) {
	p := newPair(t, InfiniBand, UC, false, qpOptions{})
	send := func() (arrived int) {
		for i := range 50 {
			p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va+uint64(i), p.mb.key), inlineSeg([]byte{byte(i) | 0x80}))
			p.a.h.run()
			p.a.scq.good(1)
			if p.mb.data[i] == byte(i)|0x80 {
				arrived++
			}
			p.mb.data[i] = 0
		}
		return arrived
	}
	f := p.a.h.f
	if n := send(); n != 50 {
		t.Errorf("%d of 50 arrived", n)
	}
	f.Configure(FabricConfig{Loss: 1})
	if n := send(); n != 0 {
		t.Errorf("%d of 50 arrived over a fabric that loses all", n)
	}
	f.Configure(FabricConfig{Delay: time.Millisecond})
	before := f.Now()
	if n := send(); n != 50 || f.Now() == before {
		t.Errorf("%d of 50 arrived, after %v", n, f.Now()-before)
	}
	p.clean()
}

// TestCollapsed: all completions go to the first entry.
func TestCollapsed(t *testing.T) {
	h, _, cq := lone(t, 3, 64)
	s := cq.spec()
	s.Collapsed = true
	n, err := h.d.CreateCQ(s)
	must(t, err)
	cq.n = n
	q := h.newQP(qpOptions{typ: RC, scq: cq})
	q.connect(q.attr(q))
	for i := range 20 {
		q.post(opNOP, sig, 0)
		h.run()
		b := h.mem.at(cq.addr, 64)
		if b[63]>>4 != cqeReq || int(b[61]) != i || b[63]&1 != byte(i>>3&1) {
			t.Fatalf("completion %d: %x", i, b)
		}
	}
	h.clean()
}

// TestNew: what a device can't be made without.
func TestNew(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	for _, c := range []Config{{Fabric: f}, {Memory: newArena(page)}, {Fabric: f, Memory: newArena(page), CQEVersion: 2}} {
		if d, err := New(c); err == nil || d != nil {
			t.Errorf("%+v makes a device", c)
		}
	}
	d, err := New(Config{Fabric: f, Memory: newArena(page)})
	must(t, err)
	d.Close()
	var e *Error
	if err := d.DeallocPD(5); !errors.As(err, &e) {
		t.Errorf("%v", err)
	}
}

// TestResetMidway: a WQE that a message had begun to fill when its QP was reset is the
// driver's again.
func TestResetMidway(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	srq := h.newSRQ(1, 0, 0, 0)
	m := h.newMR(40000, allAccess)
	a, b := h.newQP(qpOptions{typ: RC}), h.newQP(qpOptions{typ: RC, srq: srq})
	connect(a, b)
	i := srq.post(m.sge(0, 40000))
	a.post(opSend, sig, 0, dataSeg(m.sge(0, 40000)))
	if f.Run(40) {
		t.Fatal("40 steps are enough for 40000 bytes")
	}
	a.modify(To2Rst, 0, QPAttr{})
	b.modify(To2Rst, 0, QPAttr{})
	h.run()
	srq.free(i)
	srq.post(m.sge(0, 40000))
	srq.free(1)
	srq.post(m.sge(0, 40000))
	a.pc, a.half = 0, 0
	clear(h.mem.at(a.dbr, 8))
	connect(a, b)
	for range 2 {
		a.post(opSend, sig, 0, dataSeg(m.sge(0, 10)))
	}
	h.run()
	a.scq.good(2)
	b.rcq.good(2)
	h.clean()
}

// TestOwnPortDown: nothing leaves a port that is down.
func TestOwnPortDown(t *testing.T) {
	p := newUD(t, InfiniBand, false, qpOptions{}, qpOptions{})
	s := p.a.h.d.Port()
	s.State = LinkDown
	p.a.h.d.SetPort(s)
	p.b.recv(p.mb.sge(0, 100))
	p.a.post(opSend, sig, 0, p.a.avSeg(p.b, 0x11111111))
	p.a.h.run()
	p.a.scq.good(1)
	p.b.rcq.good(0)
}

// TestEthernetReceive: a broadcast does not come back to who sent it, and a receive WQE
// with a bad key stops its queue.
func TestEthernetReceive(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	ha, hb := newHost(t, f, Ethernet), newHost(t, f, Ethernet)
	sq, rq := ha.newSQ(ha.newCQ(5, 64), 5), hb.newRQ(hb.newCQ(5, 64), 4)
	came := map[*host]int{}
	for _, h := range []*host{ha, hb} {
		h.d.cfg.Receive = func([]byte) []Delivery {
			came[h]++
			return []Delivery{{RQ: rq.n}}
		}
	}
	rq.recv(sge{&testMR{key: 0x99999900}, 0, 100})
	for range 2 {
		sq.post(opSend, sig, 0, ethSegs(0, nil), inlineSeg(frame([6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, [6]byte{2}, false, 17, nil)))
	}
	ha.run()
	if came[ha] != 0 || came[hb] != 2 {
		t.Errorf("frames came %d and %d times, want 0 and 2", came[ha], came[hb])
	}
	if w := rq.rcq.one(); w.op != cqeRespErr || w.syndrome != LocalProt {
		t.Errorf("%v", w)
	}
	if s, err := hb.d.QueryRQ(rq.n); err != nil || s.State != WQError {
		t.Errorf("%+v, %v", s, err)
	}
	if n := hb.d.Report().Packets["dropped: the receive queue is not ready"]; n != 1 {
		t.Errorf("%d frames dropped", n)
	}
	ha.clean()
	hb.clean()
}

// must fails a test on an error.
func must(tb testing.TB, errs ...error) {
	tb.Helper()
	for _, err := range errs {
		if err != nil {
			tb.Fatal(err)
		}
	}
}
