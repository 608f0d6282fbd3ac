package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

func TestSRQ(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	srq := h.newSRQ(3, 0, 0, 0)
	cq := h.newCQ(6, 64)
	ma, mb := h.newMR(4096, allAccess), h.newMR(8192, allAccess)
	ma.fill(5)
	var senders, receivers []*testQP
	for i := range 2 {
		a, b := h.newQP(qpOptions{typ: RC}), h.newQP(qpOptions{typ: RC, srq: srq, rcq: cq, index: 0x100 + uint32(i)})
		connect(a, b)
		senders, receivers = append(senders, a), append(receivers, b)
	}
	where := map[uint16]int{}
	for i := range 7 {
		where[srq.post(mb.sge(i*1000, 1000))] = i * 1000
	}
	for i := range 200 {
		s := senders[i*i%2]
		s.post(opSend, sig, 0, dataSeg(ma.sge(i, 600)))
		h.run()
		s.scq.good(1)
		r := cq.good(1)[0]
		if r.srqn != receivers[i*i%2].spec.UserIndex || r.qpn != receivers[i*i%2].n {
			t.Fatalf("completion %+v", r)
		}
		at := where[r.index]
		if !bytes.Equal(mb.data[at:at+600], ma.data[i:i+600]) {
			t.Fatalf("message %d did not arrive in the WQE that it says", i)
		}
		srq.free(r.index)
		delete(where, r.index)
		where[srq.post(mb.sge(at, 1000))] = at
	}
	h.clean()
}

// TestCQEVersion0: without user indexes a completion carries the SRQ's number.
func TestCQEVersion0(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	srq := h.newSRQ(3, 0, 0, 0)
	a, b := h.newQP(qpOptions{typ: RC, index: NoUserIndex}), h.newQP(qpOptions{typ: RC, srq: srq, index: NoUserIndex})
	connect(a, b)
	srq.post()
	a.post(opSend, sig, 0)
	h.run()
	if s, r := a.scq.one(), b.rcq.one(); s.srqn != 0 || r.srqn != srq.n {
		t.Errorf("%#x and %#x, want 0 and %#x", s.srqn, r.srqn, srq.n)
	}
}

func TestSRQLimit(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	srq := h.newSRQ(3, 0, 0, 0)
	a, b := h.newQP(qpOptions{typ: RC}), h.newQP(qpOptions{typ: RC, srq: srq})
	connect(a, b)
	for range 5 {
		srq.post()
	}
	must(t, h.d.ArmSRQ(srq.n, 4))
	h.eq.asyncEvents()
	send := func() []string {
		a.post(opSend, sig, 0)
		h.run()
		a.scq.good(1)
		return h.eq.asyncEvents()
	}
	if got := send(); len(got) != 0 { // 4 left
		t.Errorf("events %v", got)
	}
	if got := send(); len(got) != 1 || got[0] != "SRQ_RQ_LIMIT" { // 3 left
		t.Errorf("events %v", got)
	}
	if got := send(); len(got) != 0 {
		t.Errorf("the limit event comes again: %v", got)
	}
	if s, err := h.d.QuerySRQ(srq.n); err != nil || s.Limit != 0 {
		t.Errorf("limit %d, %v", s.Limit, err)
	}
	// Armed above what is left: at once.
	must(t, h.d.ArmSRQ(srq.n, 7))
	if got := h.eq.asyncEvents(); len(got) != 1 || got[0] != "SRQ_RQ_LIMIT" {
		t.Errorf("events %v", got)
	}
	b.modify(To2Err, 0, QPAttr{})
	if got := h.eq.asyncEvents(); !slices.Contains(got, "SRQ_LAST_WQE") {
		t.Errorf("events %v", got)
	}
	var e *Error
	if err := h.d.ArmSRQ(srq.n, 8); !errors.As(err, &e) || e.Kind != BadParam || e.Field != "lwm" {
		t.Errorf("%v", err)
	}
	h.clean()
}

func TestXRC(t *testing.T) {
	everywhere(t, func(t *testing.T, link LinkLayer, one bool) {
		f := newFabric(t, FabricConfig{})
		ha := newHost(t, f, link)
		hb := ha
		if !one {
			hb = newHost(t, f, link)
		}
		xrcd, err := hb.d.AllocXRCD()
		must(t, err)
		cq := hb.newCQ(5, 64)
		srq := hb.newSRQ(3, xrcd, cq.n, 0x4321)
		other := hb.newSRQ(3, xrcd, cq.n, 0x4322)
		ini := ha.newQP(qpOptions{typ: XRC})
		tgt := hb.newQP(qpOptions{typ: XRC, noSQ: true, xrcd: xrcd})
		connect(ini, tgt)
		ma, mb := ha.newMR(8192, allAccess), hb.newMR(8192, allAccess)
		ma.fill(8)
		xrc := func(s *testSRQ) []byte {
			b := make([]byte, 16)
			binary.BigEndian.PutUint32(b, s.n)
			return b
		}
		for i, s := range []*testSRQ{srq, other, srq} {
			at := s.post(mb.sge(0, 3000))
			ini.post(opSendImm, sig, 5, xrc(s), dataSeg(ma.sge(i, 2000)))
			ha.run()
			ini.scq.good(1)
			r := cq.good(1)[0]
			if r.srqn != s.spec.UserIndex || r.index != at || r.qpn != tgt.n || r.op != cqeRespSendImm || !bytes.Equal(mb.data[:2000], ma.data[i:i+2000]) {
				t.Errorf("completion %+v", r)
			}
		}
		ini.post(opWrite, sig, 0, xrc(srq), raddrSeg(mb.va+9, mb.key), inlineSeg([]byte("written")))
		ini.post(opRead, sig, 0, xrc(srq), raddrSeg(mb.va+9, mb.key), dataSeg(ma.sge(4000, 7)))
		ini.post(opFAA, sig|fenced, 0, xrc(srq), raddrSeg(mb.va+4096, mb.key), words64(3, 0), dataSeg(ma.sge(4096, 8)))
		ha.run()
		ini.scq.good(3)
		if string(mb.data[9:16]) != "written" || string(ma.data[4000:4007]) != "written" || mb.data[4096] != 3 {
			t.Error("RDMA over XRC left something else")
		}
		ha.clean()
		hb.clean()
		// An SRQ that is none of the domain.
		basic := hb.newSRQ(3, 0, 0, 0)
		ini.post(opSend, sig, 0, xrc(basic))
		ha.run()
		if w := ini.scq.one(); w.syndrome != RemoteInvalidReq {
			t.Errorf("completion %v", w)
		}
		if err := hb.d.DeallocXRCD(xrcd); err == nil {
			t.Error("a domain in use can be removed")
		}
	})
}

// TestSRQBroken: a list that leads out of the ring, and back into what hardware holds.
func TestSRQBroken(t *testing.T) {
	for _, c := range []struct {
		rule  string
		wreck func(s *testSRQ)
	}{
		{"srq-next", func(s *testSRQ) { binary.BigEndian.PutUint16(s.wqe(0)[2:], 8) }},
		{"srq-reserved", func(s *testSRQ) { s.wqe(0)[9] = 1 }},
		{"srq-reserved", func(s *testSRQ) { s.wqe(0)[1] = 1 }},
		{"rq-record", func(s *testSRQ) { binary.BigEndian.PutUint32(s.h.mem.at(s.dbr, 4), 9) }},
		{"rq-record-reserved", func(s *testSRQ) { binary.BigEndian.PutUint32(s.h.mem.at(s.dbr, 4), 1<<16|uint32(s.count)) }},
		{"srq-ownership", func(s *testSRQ) {
			binary.BigEndian.PutUint16(s.wqe(0)[2:], 0)
			// The second message begins before the first, which has WQE 0, is complete.
		}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			f := newFabric(t, FabricConfig{})
			h := newHost(t, f, InfiniBand)
			srq := h.newSRQ(3, 0, 0, 0)
			m := h.newMR(40000, allAccess)
			a, b := h.newQP(qpOptions{typ: RC}), h.newQP(qpOptions{typ: RC, srq: srq})
			a2, b2 := h.newQP(qpOptions{typ: RC}), h.newQP(qpOptions{typ: RC, srq: srq})
			connect(a, b)
			connect(a2, b2)
			for range 3 {
				srq.post(m.sge(0, 40000))
			}
			c.wreck(srq)
			a.post(opSend, sig, 0, dataSeg(m.sge(0, 40000)))
			a2.post(opSend, sig, 0, dataSeg(m.sge(0, 40000)))
			h.f.RunFor(1 << 30)
			h.broke(c.rule)
			if c.rule != "srq-reserved" && c.rule != "rq-record-reserved" && !slices.Contains(h.eq.asyncEvents(), "SRQ_CATAS_ERROR") {
				t.Error("no event says that the SRQ has failed")
			}
		})
	}
}
