package engine

import (
	"errors"
	"maps"
	"testing"
)

// counts are the counters that are not 0.
type counts map[Counter]uint32

// newCounters makes a counter set.
func (h *host) newCounters() uint8 {
	h.t.Helper()
	n, err := h.d.AllocCounters()
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}

// counted reads a counter set, which is cleared.
func (h *host) counted(set uint8) counts {
	h.t.Helper()
	now, err := h.d.QueryCounters(set, true)
	if err != nil {
		h.t.Fatal(err)
	}
	all := counts{}
	for c, n := range now {
		if n != 0 {
			all[Counter(c)] = n
		}
	}
	return all
}

// wantCounts checks what a counter set has counted since it was read.
func (h *host) wantCounts(what string, set uint8, want counts) {
	h.t.Helper()
	if got := h.counted(set); !maps.Equal(got, want) {
		h.t.Errorf("%s: counted %v, want %v", what, got, want)
	}
}

// countBy makes a counter set count a QP that is in RTS.
func (q *testQP) countBy(set uint8) {
	q.h.t.Helper()
	q.modify(RTS2RTS, OptCounterSet, QPAttr{CounterSet: set})
}

// TestCountRequests: the responder counts requests of each kind, however many packets they have, and its
// requester does not.
func TestCountRequests(t *testing.T) {
	for name, traits := range map[string]Traits{"in order": {}, "out of order": {ReorderWrites: true}} {
		t.Run(name, func(t *testing.T) {
			p := newPairWith(t, InfiniBand, RC, false, qpOptions{}, traits)
			sa, sb := p.a.h.newCounters(), p.b.h.newCounters()
			p.a.countBy(sa)
			p.b.countBy(sb)
			for _, n := range []int{1, 512, 5000} {
				p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, n)))
				p.a.post(opRead, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, n)))
				p.a.post(opRead, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, n)))
				p.b.recv(p.mb.sge(0, 8000))
				p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, n)))
				p.a.h.run()
			}
			p.a.post(opFAA, sig, 0, raddrSeg(p.mb.va, p.mb.key), words64(1, 0), dataSeg(p.ma.sge(0, 8)))
			p.a.h.run()
			p.a.scq.good(13)
			p.a.h.wantCounts("requester", sa, counts{})
			p.b.h.wantCounts("responder", sb, counts{CountWrites: 3, CountReads: 6, CountAtomics: 1})
			p.b.rcq.good(3)
			p.clean()
		})
	}
}

// TestCountErrors: what both sides count of each error that a program can make.
func TestCountErrors(t *testing.T) {
	flushed := func(more counts) counts {
		all := counts{CountReqCQEErrors: 2, CountReqFlushErrors: 1} // the request, and the one after it
		maps.Copy(all, more)
		return all
	}
	want := map[string][2]counts{
		"local length: an atomic into 4 bytes":                        {flushed(counts{CountReqLengthErrors: 1})},
		"local protection: no such key":                               {flushed(counts{CountReqProtErrors: 1})},
		"remote access: no such key":                                  {flushed(counts{CountReqAccessErrors: 1}), {CountRespAccessErrors: 1}},
		"remote access: READ of memory that can't be read":            {flushed(counts{CountReqAccessErrors: 1}), {CountRespAccessErrors: 1}},
		"remote invalid request: writes are not allowed":              {flushed(counts{CountReqInvalidErrors: 1}), {CountRespInvalidErrors: 1}},
		"remote invalid request: a message longer than its WQE":       {flushed(counts{CountReqInvalidErrors: 1}), {CountRespCQEErrors: 1, CountRespLengthErrors: 1}},
		"remote operation: a WQE with a bad key":                      {flushed(counts{CountReqOperationErrors: 1}), {CountRespCQEErrors: 1, CountRespProtErrors: 1}},
		"retries exceeded: nobody answers":                            {flushed(counts{CountRetriesExceeded: 1, CountTimeouts: 7})},
		"RNR retries exceeded":                                        {flushed(counts{CountRNRRetriesExceeded: 1, CountRNRNAKs: 3}), {CountOutOfBuffer: 4}},
		"RNR retries exceeded at a WRITE with immediate":              {flushed(counts{CountRNRRetriesExceeded: 1, CountRNRNAKs: 1}), {CountOutOfBuffer: 2, CountWrites: 1}},
		"remote invalid request: more READs than the responder takes": {flushed(counts{CountReqInvalidErrors: 1, CountReqFlushErrors: 2, CountReqCQEErrors: 3}), {CountRespInvalidErrors: 1, CountReads: 1}},
	}
	for _, c := range errorCompletions {
		want, ok := want[c.name]
		if !ok {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, InfiniBand, RC, false, qpOptions{})
			sa, sb := p.a.h.newCounters(), p.b.h.newCounters()
			if c.setup != nil {
				c.setup(p)
			}
			p.a.countBy(sa)
			if p.b.state() == RTS {
				p.b.countBy(sb)
			}
			c.post(p)
			p.a.post(opNOP, nothing, 0)
			p.a.h.run()
			p.a.h.wantCounts("requester", sa, want[0])
			p.b.h.wantCounts("responder", sb, want[1])
			p.b.rcq.poll()
			p.a.scq.poll()
			p.clean()
		})
	}
}

// TestCountLateRefusal: a READ was taken, and its key is gone before all of the answer is sent.
func TestCountLateRefusal(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	sa, sb := p.a.h.newCounters(), p.b.h.newCounters()
	p.a.countBy(sa)
	p.b.countBy(sb)
	p.a.post(opRead, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 60000)))
	for taken := false; !taken; p.a.h.f.Run(1) {
		now, err := p.b.h.d.QueryCounters(sb, false)
		must(t, err)
		taken = now[CountReads] == 1
	}
	must(t, p.b.h.d.DestroyMKey(p.mb.key>>8))
	p.a.h.run()
	p.a.h.wantCounts("requester", sa, counts{CountReqCQEErrors: 1, CountReqAccessErrors: 1})
	p.b.h.wantCounts("responder", sb, counts{CountReads: 1, CountRespAccessErrors: 1})
	p.clean()
}

// TestCountFlushes: receives and sends that are flushed are errors, too.
func TestCountFlushes(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	set := p.b.h.newCounters()
	p.b.countBy(set)
	p.b.recv(p.mb.sge(0, 10))
	p.b.recv(p.mb.sge(0, 10))
	p.b.modify(To2Err, 0, QPAttr{})
	p.b.post(opNOP, sig, 0)
	p.b.h.run()
	p.b.h.wantCounts("flushed", set, counts{CountRespCQEErrors: 2, CountRespFlushErrors: 2, CountReqCQEErrors: 1, CountReqFlushErrors: 1})
}

// TestCountLosses: both sides count what a lost or doubled packet leads to.
func TestCountLosses(t *testing.T) {
	write := func(n int) func(p *pair) {
		return func(p *pair) {
			p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, n)))
		}
	}
	for _, c := range []struct {
		name       string
		skip       int  // packets to the side before the one that is hit
		toA        bool // the packet goes to the requester
		action     PacketAction
		post       func(p *pair)
		req, reply counts
	}{
		{"the last packet", 1, false, DropPacket, write(1000), counts{CountTimeouts: 1}, counts{CountWrites: 1, CountDuplicates: 1}},
		{"a packet in the middle", 1, false, DropPacket, write(1500), counts{CountSequenceNAKs: 1}, counts{CountWrites: 1, CountOutOfSequence: 1}},
		{"two packets after a gap", 0, false, DropPacket, write(1500), counts{CountSequenceNAKs: 1}, counts{CountWrites: 1, CountOutOfSequence: 2}},
		{"a request twice", 0, false, DuplicatePacket, write(10), counts{}, counts{CountWrites: 1, CountDuplicates: 1}},
		{"an acknowledgement", 0, true, DropPacket, write(10), counts{CountTimeouts: 1}, counts{CountWrites: 1, CountDuplicates: 1}},
		{"the answer to a READ before another", 0, true, DropPacket, func(p *pair) {
			for range 2 {
				p.a.post(opRead, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 10)))
			}
		}, counts{CountImpliedNAKs: 1}, counts{CountReads: 2, CountDuplicates: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, InfiniBand, RC, false, qpOptions{})
			sa, sb := p.a.h.newCounters(), p.b.h.newCounters()
			p.a.countBy(sa)
			p.b.countBy(sb)
			to := p.b.n
			if c.toA {
				to = p.a.n
			}
			from := p.a.h.d
			if c.toA {
				from = p.b.h.d
			}
			p.a.h.f.Fault(PacketFault{From: from, QPN: to, Skip: c.skip, Action: c.action})
			c.post(p)
			p.a.h.run()
			p.a.h.wantCounts("requester", sa, c.req)
			p.b.h.wantCounts("responder", sb, c.reply)
			p.clean()
		})
	}
}

// TestCountDatagrams: a datagram without a receive WQE is counted.
func TestCountDatagrams(t *testing.T) {
	p := newUD(t, InfiniBand, false, qpOptions{}, qpOptions{})
	set := p.b.h.newCounters()
	p.b.countBy(set)
	for range 3 {
		p.a.post(opSend, sig, 0, p.a.avSeg(p.b, 0x11111111), dataSeg(p.ma.sge(0, 10)))
	}
	p.b.recv(p.mb.sge(0, 100))
	p.a.h.run()
	p.b.h.wantCounts("datagrams", set, counts{CountOutOfBuffer: 2})
	p.a.scq.good(3)
	p.b.rcq.good(1)
	p.clean()
}

// TestCountDC: a target counts its connections and what comes over them.
func TestCountDC(t *testing.T) {
	a, b := dcPair(t, InfiniBand, false, FabricConfig{})
	ma, mb := a.newMR(8192, allAccess), b.newMR(8192, allAccess)
	set := b.newCounters()
	srq, cq := b.newSRQ(5, 0, 0, 0), b.newCQ(7, 64)
	s := b.dctSpec(srq, cq, 0x99)
	s.CounterSet = set
	n, err := b.d.CreateDCT(s)
	must(t, err)
	dci := a.newDCI(0, 0)
	to := dci.dcSeg(&testDCT{h: b, n: n, srq: srq, cq: cq}, dcKey)
	dci.post(opWrite, sig, 0, to, raddrSeg(mb.va, mb.key), dataSeg(ma.sge(0, 3000)))
	dci.post(opRead, sig, 0, to, raddrSeg(mb.va, mb.key), dataSeg(ma.sge(0, 10)))
	a.run()
	dci.scq.good(2)
	b.wantCounts("target", set, counts{CountDCTConnects: 1, CountWrites: 1, CountReads: 1})
	s.CounterSet = set + 1
	if _, err := b.d.CreateDCT(s); !refusedAs(err, BadResource) {
		t.Errorf("a DCT with a counter set that does not exist: %v", err)
	}
}

// TestCountFrames: a frame without a receive WQE is counted.
func TestCountFrames(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, Ethernet)
	cq := h.newCQ(4, 64)
	r := h.newRQ(cq, 4)
	set := h.newCounters()
	count := func(n uint32, set uint8) error {
		return h.d.ModifyRQ(n, WQReady, WQReady, RQChange{CounterSet: &set})
	}
	must(t, count(r.n, set))
	if s, err := h.d.QueryRQ(r.n); err != nil || s.CounterSet != set {
		t.Errorf("RQ %+v, %v", s, err)
	}
	h.d.f.mu.Lock()
	h.d.rqs[r.n].deliver(h.d, &packet{kind: pktEth, data: make([]byte, 64)}, 0)
	h.d.f.mu.Unlock()
	h.wantCounts("frames", set, counts{CountOutOfBuffer: 1})
	if err := count(r.n, set+1); !refusedAs(err, BadResource) {
		t.Errorf("a counter set that does not exist: %v", err)
	}
	if err := count(r.n+1, set); !refusedAs(err, BadResource) {
		t.Errorf("an RQ that does not exist: %v", err)
	}
}

// refusedAs reports whether a command was refused for a reason.
func refusedAs(err error, kind Kind) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == kind
}

// TestCounterSets: a QP is in the set of its last transition, sets are apart, and QPs in a set that is gone
// are counted nowhere, also if its number is given out again.
func TestCounterSets(t *testing.T) {
	p := newPair(t, InfiniBand, RC, true, qpOptions{})
	h := p.b.h
	one, two := h.newCounters(), h.newCounters()
	write := func() {
		t.Helper()
		p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 10)))
		h.run()
		p.a.scq.good(1)
	}
	write()
	p.b.countBy(one)
	write()
	p.b.countBy(two)
	write()
	write()
	p.b.modify(RTS2RTS, 0, QPAttr{CounterSet: one}) // not named by the mask
	write()
	if now, err := h.d.QueryCounters(two, false); err != nil || now[CountWrites] != 3 {
		t.Errorf("counted %v, %v", now, err)
	}
	h.wantCounts("first", one, counts{CountWrites: 1})
	h.wantCounts("second", two, counts{CountWrites: 3})
	h.wantCounts("cleared", two, counts{})
	if i, err := h.d.QueryQP(p.b.n); err != nil || i.Attr.CounterSet != two {
		t.Errorf("%+v, %v", i.Attr, err)
	}

	must(t, h.d.DeallocCounters(two))
	if again := h.newCounters(); again != two {
		t.Fatalf("set %d, want %d", again, two)
	}
	write()
	h.wantCounts("again", two, counts{})
	p.b.countBy(0)
	write()
	h.wantCounts("no set", 0, counts{})

	for what, err := range map[string]error{
		"query":    second(h.d.QueryCounters(77, false)),
		"dealloc":  h.d.DeallocCounters(77),
		"of none":  h.d.DeallocCounters(0),
		"modify":   h.d.ModifyQP(p.b.n, RTS2RTS, OptCounterSet, QPAttr{CounterSet: 77}),
		"of an RQ": second(h.d.CreateRQ(RQSpec{CQN: p.b.rcq.n, CounterSet: 77})),
	} {
		if !refusedAs(err, BadResource) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for range MaxCounterSets - 2 {
		h.newCounters()
	}
	if _, err := h.d.AllocCounters(); !refusedAs(err, Limit) {
		t.Errorf("one more than there are: %v", err)
	}
	p.clean()
}

func second[T any](_ T, err error) error { return err }
