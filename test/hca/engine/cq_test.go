package engine

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

// lone is a QP that posts NOPs, for tests of what is behind it.
func lone(t *testing.T, log uint, size int) (*host, *testQP, *testCQ) {
	t.Helper()
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	cq := h.newCQ(log, size)
	q := h.newQP(qpOptions{typ: RC, scq: cq})
	q.connect(q.attr(q))
	return h, q, cq
}

func (q *testQP) nops(n int) {
	for range n {
		q.post(opNOP, sig, 0)
	}
	q.h.run()
}

// completions counts the completion events of a CQ.
func (h *host) completions(c *testCQ) (n int) {
	for _, e := range h.eq.poll() {
		if e.typ == EventComp && e.object() == c.n {
			n++
			c.sn = (c.sn + 1) & 3
		}
	}
	return n
}

func TestArm(t *testing.T) {
	h, q, cq := lone(t, 5, 64)
	q.nops(1)
	if n := h.completions(cq); n != 0 {
		t.Errorf("%d events that nobody asked for", n)
	}
	cq.poll()
	for range 10 { // over the sequence number's end
		cq.arm(false)
		if n := h.completions(cq); n != 0 {
			t.Errorf("%d events without a completion", n)
		}
		q.nops(3)
		if n := h.completions(cq); n != 1 {
			t.Errorf("%d events, want 1", n)
		}
		cq.good(3)
	}
	// A completion that came before the CQ was armed.
	q.nops(1)
	cq.arm(false)
	if n := h.completions(cq); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
	cq.good(1)
	// Armed again before the event was taken: it is on its way already.
	cq.arm(false)
	q.nops(1)
	cq.good(1)
	cq.arm(false)
	q.nops(1)
	if n := h.completions(cq); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
	h.clean()
}

// TestArmSolicited: an error, or a completion of a solicited message.
func TestArmSolicited(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	cq, h := p.b.rcq, p.b.h
	send := func(flags uint8) {
		p.b.recv(p.mb.sge(0, 100))
		p.a.post(opSend, flags, 0, dataSeg(p.ma.sge(0, 10)))
		h.run()
		p.a.scq.poll()
	}
	cq.arm(true)
	send(sig)
	if n := h.completions(cq); n != 0 {
		t.Errorf("%d events of a message that is not solicited", n)
	}
	send(sig | sol)
	if n := h.completions(cq); n != 1 {
		t.Errorf("%d events of a solicited message", n)
	}
	cq.good(2)
	send(sig | sol)
	cq.arm(true) // it came before
	if n := h.completions(cq); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
	cq.good(1)
	cq.arm(true)
	p.b.recv(p.mb.sge(0, 1))
	p.b.modify(To2Err, 0, QPAttr{})
	if n := h.completions(cq); n != 1 {
		t.Errorf("%d events of an error", n)
	}
	p.clean()
}

func TestModeration(t *testing.T) {
	h, q, cq := lone(t, 5, 64)
	must(t, h.d.ModerateCQ(cq.n, 4, 1000))
	cq.arm(false)
	post := func(n int) {
		for range n {
			q.post(opNOP, sig, 0)
		}
		h.f.RunFor(1000)
	}
	post(3)
	if n := h.completions(cq); n != 0 {
		t.Errorf("%d events after 3 of 4", n)
	}
	post(1)
	if n := h.completions(cq); n != 1 {
		t.Errorf("%d events after 4", n)
	}
	cq.good(4)
	cq.arm(false)
	post(1)
	h.f.RunFor(2e6)
	if n := h.completions(cq); n != 1 {
		t.Errorf("%d events after the time", n)
	}
	h.clean()
}

func TestResize(t *testing.T) {
	for _, c := range []struct {
		from, to uint
		size     int
	}{{4, 6, 64}, {6, 4, 128}, {5, 5, 64}, {3, 7, 128}} {
		h, q, cq := lone(t, c.from, 64)
		index := uint16(0)
		for range 40 { // over the ring's end several times
			q.nops(3)
			if all := cq.good(3); all[2].index != index+2 {
				t.Fatalf("completion for %d, want %d", all[2].index, index+2)
			}
			index += 3
		}
		q.nops(5) // these stay
		next := *cq
		next.log, next.size = c.to, c.size
		next.addr = h.cqBuffer(c.to, c.size)
		must(t, h.d.ResizeCQ(cq.n, next.spec()))
		q.nops(4)
		// The content of the old buffer, up to the entry that says that it goes on elsewhere.
		if all := cq.good(5); all[0].index != index {
			t.Errorf("completion for %d, want %d", all[0].index, index)
		}
		next.ci = cq.ci
		if all := next.good(4); all[3].index != index+8 {
			t.Errorf("completion for %d, want %d", all[3].index, index+8)
		}
		if s, err := h.d.QueryCQ(cq.n); err != nil || s.Log != c.to || s.EntrySize != c.size || s.Producer != next.ci {
			t.Errorf("%+v, %v", s, err)
		}
		h.clean()
	}
}

func TestResizeRefused(t *testing.T) {
	h, q, cq := lone(t, 4, 64)
	q.nops(8)
	small := *cq
	small.log = 3
	var e *Error
	if err := h.d.ResizeCQ(cq.n, small.spec()); !errors.As(err, &e) || e.Kind != BadSize {
		t.Errorf("into a ring that is too small: %v", err)
	}
	s := small.spec()
	s.Buf.Pages = nil
	if err := h.d.ResizeCQ(cq.n, s); !errors.As(err, &e) || e.Kind != BadParam || e.Field != "pas" {
		t.Errorf("without pages: %v", err)
	}
	if err := h.d.ResizeCQ(1, s); !errors.As(err, &e) || e.Kind != BadResource {
		t.Errorf("%v", err)
	}
	cq.good(8)
	h.clean()
}

func TestOverrun(t *testing.T) {
	h, q, cq := lone(t, 3, 64)
	cq.arm(false)
	q.nops(9)
	h.broke("cq-overrun")
	ev := h.eq.poll()
	i := slices.IndexFunc(ev, func(e event) bool { return e.typ == EventCQError })
	if i < 0 || binary.BigEndian.Uint32(ev[i].data[:]) != cq.n || ev[i].data[11] != 1 || q.state() != Err {
		t.Errorf("events %v, state %s", ev, q.state())
	}
	if s, err := h.d.QueryCQ(cq.n); err != nil || !s.Failed {
		t.Errorf("%+v, %v", s, err)
	}
	var e *Error
	if err := h.d.ResizeCQ(cq.n, cq.spec()); !errors.As(err, &e) || e.Kind != BadState {
		t.Errorf("%v", err)
	}
}

// TestIgnoreOverrun: with oi nobody looks at the consumer index.
func TestIgnoreOverrun(t *testing.T) {
	h, q, cq := lone(t, 3, 64)
	s := cq.spec()
	s.IgnoreOverrun = true
	n, err := h.d.CreateCQ(s)
	must(t, err)
	cq.n = n
	cq.quiet = true
	r := h.newQP(qpOptions{typ: RC, scq: cq})
	r.connect(r.attr(q))
	for range 5 {
		r.nops(5)
		cq.good(5)
	}
	h.clean()
}

// cqRules breaks each rule about CQs and EQs once.
var cqRules = []struct {
	name, rule string
	do         func(h *host, q *testQP, cq *testCQ)
}{
	{"consumer ahead of the producer", "cq-consumer", func(h *host, q *testQP, cq *testCQ) {
		binary.BigEndian.PutUint32(h.mem.at(cq.dbr, 4), cq.ci+1)
		q.nops(1)
	}},
	{"consumer ahead of the producer, when it is armed", "cq-consumer", func(h *host, q *testQP, cq *testCQ) {
		binary.BigEndian.PutUint32(h.mem.at(cq.dbr, 4), cq.ci+1)
		cq.arm(false)
	}},
	{"consumer ahead of the producer, at last", "cq-consumer", func(h *host, q *testQP, cq *testCQ) {
		n, err := h.d.CreateCQ(h.d.cqs[cq.n].spec)
		if err != nil {
			h.t.Fatal(err)
		}
		binary.BigEndian.PutUint32(h.mem.at(cq.dbr, 4), 1)
		if err := h.d.DestroyCQ(n); err != nil {
			h.t.Fatal(err)
		}
	}},
	{"consumer that goes back", "cq-consumer-back", func(h *host, q *testQP, cq *testCQ) {
		q.nops(3)
		cq.good(3)
		q.nops(1)
		h.clean()
		binary.BigEndian.PutUint32(h.mem.at(cq.dbr, 4), cq.ci-1)
		q.nops(1)
	}},
	{"consumer with more than 24 bits", "cq-record-reserved", func(h *host, q *testQP, cq *testCQ) {
		binary.BigEndian.PutUint32(h.mem.at(cq.dbr, 4), 1<<24|cq.ci)
		q.nops(1)
	}},
	{"buffer that is gone", "cq-memory", func(h *host, q *testQP, cq *testCQ) {
		h.d.cqs[cq.n].spec.Buf.Pages[0] = 0
		q.nops(1)
	}},
	{"record that is gone", "cq-record-memory", func(h *host, q *testQP, cq *testCQ) {
		h.d.cqs[cq.n].spec.DBR = 0
		q.nops(1)
	}},
	{"arm: record that is gone", "cq-record-memory", func(h *host, q *testQP, cq *testCQ) {
		h.d.cqs[cq.n].spec.DBR = 0
		cq.arm(false)
	}},
	{"arm in two halves", "cq-doorbell-width", func(h *host, q *testQP, cq *testCQ) {
		h.d.UARWrite(cq.uar, 0x20, make([]byte, 4))
	}},
	{"arm's second half", "cq-doorbell-width", func(h *host, q *testQP, cq *testCQ) {
		h.d.UARWrite(cq.uar, 0x24, make([]byte, 4))
	}},
	{"arm of no CQ", "cq-doorbell-number", func(h *host, q *testQP, cq *testCQ) {
		cq.n += 77
		cq.arm(false)
	}},
	{"arm on another UAR", "cq-doorbell-uar", func(h *host, q *testQP, cq *testCQ) {
		cq.uar++
		cq.arm(false)
	}},
	{"arm's reserved bits", "cq-arm-reserved", func(h *host, q *testQP, cq *testCQ) { cq.armWord(1<<25 | cq.ci) }},
	{"arm's consumer", "cq-arm-consumer", func(h *host, q *testQP, cq *testCQ) { cq.armWord(cq.ci + 1) }},
	{"sequence number ahead", "cq-arm-sequence", func(h *host, q *testQP, cq *testCQ) { cq.armWord(2<<28 | cq.ci) }},
	{"sequence number behind, without an event", "cq-arm-sequence", func(h *host, q *testQP, cq *testCQ) { cq.armWord(3<<28 | cq.ci) }},
	{"arm before its record", "cq-arm-record", func(h *host, q *testQP, cq *testCQ) {
		word := cq.ci
		var b [8]byte
		binary.BigEndian.PutUint32(b[:], word)
		binary.BigEndian.PutUint32(b[4:], cq.n)
		h.d.UARWrite(cq.uar, 0x20, b[:])
	}},
	{"arm of another kind than the record", "cq-arm-kind", func(h *host, q *testQP, cq *testCQ) {
		cq.armBeside(1<<24|cq.ci, cq.ci)
		h.clean() // yet
		cq.arm(false)
	}},
	{"arm of another kind than the record, at last", "cq-arm-kind", func(h *host, q *testQP, cq *testCQ) {
		spec := h.d.cqs[cq.n].spec
		binary.BigEndian.PutUint32(h.mem.at(cq.dbr, 4), 0) // both have the record
		n, err := h.d.CreateCQ(spec)
		if err != nil {
			h.t.Fatal(err)
		}
		other := *cq
		other.n = n
		other.armBeside(1<<24, 0)
		h.clean()
		if err := h.d.DestroyCQ(n); err != nil {
			h.t.Fatal(err)
		}
	}},
	{"EQ doorbell of 8 bytes", "eq-doorbell-width", func(h *host, q *testQP, cq *testCQ) { h.d.UARWrite(h.eq.uar, 0x40, make([]byte, 8)) }},
	{"EQ that is none", "eq-doorbell-number", func(h *host, q *testQP, cq *testCQ) {
		h.d.UARWrite(h.eq.uar, 0x40, []byte{0x99, 0, 0, 0})
	}},
	{"EQ on another UAR", "eq-doorbell-uar", func(h *host, q *testQP, cq *testCQ) {
		h.eq.uar++
		h.eq.arm()
	}},
	{"EQ consumer ahead", "eq-consumer", func(h *host, q *testQP, cq *testCQ) {
		h.eq.ci++
		h.eq.arm()
	}},
	{"EQ that is full", "eq-overrun", func(h *host, q *testQP, cq *testCQ) {
		for range 257 {
			if err := h.d.PostEQE(h.eq.n, EventCmd, 0, nil); err != nil {
				h.t.Fatal(err)
			}
		}
	}},
	{"EQ buffer that is gone", "eq-memory", func(h *host, q *testQP, cq *testCQ) {
		h.d.eqs[h.eq.n].spec.Buf.Pages[0] = 0
		if err := h.d.PostEQE(h.eq.n, EventCmd, 0, nil); err != nil {
			h.t.Fatal(err)
		}
	}},
}

// TestCQRules breaks each rule about CQs and EQs once.
func TestCQRules(t *testing.T) {
	for _, c := range cqRules {
		t.Run(c.name, func(t *testing.T) {
			h, q, cq := lone(t, 5, 64)
			h.t = t
			q.nops(3)
			cq.good(3)
			h.eq.poll()
			h.clean()
			c.do(h, q, cq)
			h.broke(c.rule)
		})
	}
}

// TestEQ: an armed queue interrupts once, and one that has entries at once.
func TestEQ(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	h.eq.poll()
	post := func() {
		must(t, h.d.PostEQE(h.eq.n, EventCmd, 3, []byte{1, 2, 3, 4}))
	}
	post()
	if h.irqs != 0 {
		t.Error("an interrupt of a queue that is not armed")
	}
	h.eq.arm()
	if h.irqs != 1 {
		t.Errorf("%d interrupts, want 1: an entry was there", h.irqs)
	}
	if e := h.eq.poll(); len(e) != 1 || e[0].typ != EventCmd || e[0].subtype != 3 || e[0].data[3] != 4 {
		t.Errorf("%v", e)
	}
	h.eq.arm()
	post()
	post()
	if h.irqs != 2 {
		t.Errorf("%d interrupts, want 2", h.irqs)
	}
	for range 300 { // over the ring's end
		h.eq.poll()
		post()
	}
	if !h.d.PostEvent(EventPortChange, PortRereg, nil) || h.d.PostEvent(EventPageFault, 0, nil) {
		t.Error("an event goes to the queues that asked for it")
	}
	h.clean()
}

// TestCQArmTwice: a driver that arms twice may have written the second record before the card
// sees the first doorbell.
func TestCQArmTwice(t *testing.T) {
	h, q, cq := lone(t, 5, 64)
	h.t = t
	q.nops(3)
	cq.good(3)
	cq.armBeside(1<<24|cq.ci, cq.ci)
	cq.armBeside(1<<24|cq.ci, 1<<24|cq.ci)
	cq.arm(false)
	h.clean()
}

// armBeside writes an arm doorbell while the record has another word.
func (q *testCQ) armBeside(record, word uint32) {
	binary.BigEndian.PutUint32(q.h.mem.at(q.dbr+4, 4), record)
	var b [8]byte
	binary.BigEndian.PutUint32(b[:], word)
	binary.BigEndian.PutUint32(b[4:], q.n)
	q.h.d.UARWrite(q.uar, 0x20, b[:])
}

// TestForgivenViolations: a rule that a test breaks on purpose is counted and is no violation.
func TestForgivenViolations(t *testing.T) {
	h, _, cq := lone(t, 5, 64)
	h.t = t
	cq.armWord(cq.ci + 1)
	cq.armWord(1<<25 | cq.ci)
	if n := h.d.Forgive("cq-arm-consumer"); n != 1 {
		t.Errorf("forgave %d, want 1", n)
	}
	r := h.d.Report()
	if r.Forgiven["cq-arm-consumer"] != 1 || r.Broken["cq-arm-consumer"] != 0 || r.Broken["cq-arm-reserved"] != 1 {
		t.Errorf("forgiven %v, broken %v", r.Forgiven, r.Broken)
	}
	for _, v := range r.Violations {
		if v.Rule != "cq-arm-reserved" {
			t.Errorf("still there: %+v", v)
		}
	}
	if n := h.d.Forgive("cq-arm-consumer"); n != 0 {
		t.Errorf("forgave %d more", n)
	}
	h.broke("cq-arm-reserved")
}
