package engine

import (
	"strings"
	"testing"
)

// TestFirstError: a request with completion mode 1 completes if it fails, but not if it succeeds or is flushed.
func TestFirstError(t *testing.T) {
	const first = 1 << 2
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	p.a.post(opWrite, first, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 10)))
	p.a.h.run()
	p.a.scq.good(0)
	for range 3 {
		p.a.post(opWrite, first, 0, raddrSeg(p.mb.va, p.mb.key^0x5500), dataSeg(p.ma.sge(0, 10)))
	}
	p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 10)))
	p.a.h.run()
	all := p.a.scq.poll()
	if len(all) != 2 || all[0].op != cqeReqErr || all[0].index != 1 || all[0].syndrome == Flushed || all[1].index != 4 || all[1].syndrome != Flushed {
		t.Errorf("completions %v, want an error of WQE 1 and a flush of WQE 4", all)
	}
	p.clean()
}

// TestWideRecord: the record of a receive queue may count beyond 16 bits if the device is not strict.
func TestWideRecord(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	ha, hb := newHost(t, f, Ethernet), newHost(t, f, Ethernet)
	sq, rq := ha.newSQ(ha.newCQ(5, 64), 5), hb.newRQ(hb.newCQ(5, 64), 4)
	hb.d.cfg.Strict = false
	hb.d.cfg.Receive = func([]byte) []Delivery { return []Delivery{{RQ: rq.n}} }
	mb := hb.newMR(4096, LocalWrite)
	for range 2 {
		rq.recv(mb.sge(0, 1000))
	}
	storeBE32(hb.mem.at(rq.dbr, 4), 0x70002)
	b := hb.d.Port().MAC
	for range 2 {
		sq.post(opSend, sig, 0, ethSegs(0, nil), inlineSeg(frame(b, ha.d.Port().MAC, false, 17, nil)))
	}
	ha.run()
	sq.scq.good(2)
	rq.rcq.good(2)
	ha.clean()
	hb.clean()
}

// TestReservedBits: a device that is not strict does not read reserved bits, where programs may keep data.
func TestReservedBits(t *testing.T) {
	for _, c := range sendRules {
		if !strings.HasSuffix(c.rule, "-reserved") {
			continue
		}
		p := newPair(t, InfiniBand, RC, false, qpOptions{})
		p.a.h.d.cfg.Strict, p.b.h.d.cfg.Strict = false, false
		p.b.recv(p.mb.sge(0, 1000))
		c.do(p)
		p.a.h.f.RunFor(20e6)
		if n := p.a.h.d.Report().Total() + p.b.h.d.Report().Total(); n != 0 {
			t.Errorf("%s: %d violations", c.name, n)
		}
	}

	h := newHost(t, newFabric(t, FabricConfig{}), InfiniBand)
	h.d.cfg.Strict = false
	srq, m := h.newSRQ(3, 0, 0, 0), h.newMR(1000, allAccess)
	a, b := h.newQP(qpOptions{typ: RC}), h.newQP(qpOptions{typ: RC, srq: srq})
	connect(a, b)
	for i := range 2 {
		srq.post(m.sge(0, 100))
		next := srq.wqe(uint16(i))
		next[0], next[1] = 0xaa, 0xbb
		copy(next[5:nextSegBytes], "of the program")
	}
	a.post(opSend, sig, 0, dataSeg(m.sge(0, 100)))
	h.run()
	a.scq.good(1)
	if got := b.rcq.poll(); len(got) != 1 || got[0].op != cqeRespSend {
		t.Errorf("completions %v, want one", got)
	}
	h.clean()
}
