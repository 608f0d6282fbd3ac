package engine

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"
)

// frail is memory of which one access to a page fails.
type frail struct {
	*arena
	page uint64
	n    int // accesses to the page so far
	bad  int // which of them fails, from 1; 0 is none
}

func (m *frail) Bytes(addr uint64, n int) ([]byte, error) {
	if addr/page == m.page/page {
		if m.n++; m.n == m.bad {
			return nil, errors.New("no memory there now")
		}
	}
	return m.arena.Bytes(addr, n)
}

// TestAtomicNotStored: an atomic operation whose result can't be stored is refused.
func TestAtomicNotStored(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	target := p.mb.va - vaBase
	m := &frail{arena: p.b.h.mem, page: target}
	p.b.h.d.cfg.Memory = m
	fetch := func() wc {
		p.a.post(opFAA, sig, 0, raddrSeg(p.mb.va, p.mb.key), words64(1, 0), dataSeg(p.ma.sge(0, 8)))
		p.a.h.run()
		return p.a.scq.one()
	}
	if w := fetch(); w.op != cqeReq {
		t.Fatalf("completion %v", w)
	}
	before := binary.LittleEndian.Uint64(p.b.h.mem.at(target, 8))
	m.bad = 2 * m.n // the last access is the one that stores
	if w := fetch(); w.syndrome != RemoteAccess {
		t.Errorf("completion %v, want an access error", w)
	}
	if got := binary.LittleEndian.Uint64(p.b.h.mem.at(target, 8)); got != before {
		t.Errorf("the word is %#x, was %#x", got, before)
	}
	if all := p.b.h.eq.asyncEvents(); !slices.Contains(all, EventAccessError.String()) || p.b.state() != Err {
		t.Errorf("state %s, events %v", p.b.state(), all)
	}
}

// TestXRCDomain: what comes for an XRC SRQ reaches memory of the SRQ's PD, not of the QP's.
func TestXRCDomain(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	ha, hb := newHost(t, f, InfiniBand), newHost(t, f, InfiniBand)
	xrcd, err := hb.d.AllocXRCD()
	must(t, err)
	ofQP, ofSRQ := hb.pd, uint32(0)
	if ofSRQ, err = hb.d.AllocPD(); err != nil {
		t.Fatal(err)
	}
	mQP := hb.newMR(page, allAccess)
	hb.pd = ofSRQ
	srq, mSRQ := hb.newSRQ(3, xrcd, hb.newCQ(5, 64).n, 0x4321), hb.newMR(page, allAccess)
	hb.pd = ofQP
	ma := ha.newMR(page, allAccess)
	for _, c := range []struct {
		name string
		m    *testMR
		want Syndrome
	}{{"the SRQ's", mSRQ, 0}, {"the QP's", mQP, RemoteAccess}} {
		ini, tgt := ha.newQP(qpOptions{typ: XRC}), hb.newQP(qpOptions{typ: XRC, noSQ: true, xrcd: xrcd})
		connect(ini, tgt)
		to := make([]byte, 16)
		binary.BigEndian.PutUint32(to, srq.n)
		ini.post(opWrite, sig, 0, to, raddrSeg(c.m.va, c.m.key), dataSeg(ma.sge(0, 10)))
		ha.run()
		if w := ini.scq.one(); w.syndrome != c.want {
			t.Errorf("a WRITE to memory of %s PD: %v", c.name, w)
		}
	}
}

// TestCQRecordGone: a CQ whose doorbell record can't be read fails, and says so.
func TestCQRecordGone(t *testing.T) {
	h, q, cq := lone(t, 4, 64)
	h.d.cqs[cq.n].spec.DBR = 8
	q.post(opNOP, sig, 0)
	h.run()
	var failed []event
	for _, e := range h.eq.poll() {
		if e.typ == EventCQError {
			failed = append(failed, e)
		}
	}
	if len(failed) != 1 || binary.BigEndian.Uint32(failed[0].data[:]) != cq.n || failed[0].data[11] != 2 {
		t.Errorf("events %v, want one of CQ %#x with syndrome 2", failed, cq.n)
	}
	if s, err := h.d.QueryCQ(cq.n); err != nil || !s.Failed || q.state() != Err {
		t.Errorf("%+v, %v, the QP is in %s", s, err, q.state())
	}
	h.broke("cq-record-memory")
}

// TestGSIPartitions: QP1 takes packets of each of the port's partitions, and of no other; a QP
// takes those of its own.
func TestGSIPartitions(t *testing.T) {
	for _, c := range []struct {
		typ   QPType
		index uint16
		comes bool
	}{{QP1, 0, true}, {QP1, 1, true}, {QP1, 2, false}, {UD, 0, true}, {UD, 1, false}, {UD, 2, false}} {
		f := newFabric(t, FabricConfig{})
		ha, hb := newHost(t, f, InfiniBand), newHost(t, f, InfiniBand)
		set := func(h *host, keys ...uint16) {
			s := h.d.Port()
			s.PKeys = keys
			h.d.SetPort(s)
		}
		set(ha, 0xffff, 0x8002, 0x8003)
		set(hb, 0xffff, 0x8002, 0x8004)
		a, b := ha.newQP(qpOptions{typ: UD}), hb.newQP(qpOptions{typ: c.typ})
		attr := a.attr(b)
		attr.Primary.PKeyIndex, attr.QKey = c.index, gsiQKey
		a.connect(attr)
		attr = b.attr(a)
		attr.QKey = gsiQKey
		b.connect(attr)
		m := hb.newMR(page, allAccess)
		b.recv(m.sge(0, 300))
		av := a.avSeg(b, gsiQKey)
		if c.typ == QP1 {
			binary.BigEndian.PutUint32(av[8:], 0x80000001)
		}
		a.post(opSend, sig, 0, av, inlineSeg(make([]byte, 20)))
		ha.run()
		a.scq.good(1)
		all := b.rcq.poll()
		if (len(all) == 1) != c.comes {
			t.Errorf("%s, a packet with P_Key %d: completions %v", c.typ, c.index, all)
		}
		if want := uint32(ha.d.Port().PKeys[c.index]); c.comes && c.typ == QP1 && all[0].imm != want {
			t.Errorf("the P_Key of the completion is %#x, want %#x", all[0].imm, want)
		}
	}
}

// TestEventsOfSQ: the event of an Ethernet send queue says that it is about one.
func TestEventsOfSQ(t *testing.T) {
	for _, sq := range []bool{false, true} {
		h := newHost(t, newFabric(t, FabricConfig{}), Ethernet)
		var q *testQP
		want := byte(0) // MLX5_EVENT_QUEUE_TYPE_QP
		if sq {
			q, want = h.newSQ(h.newCQ(5, 64), 4), 2 // MLX5_EVENT_QUEUE_TYPE_SQ
		} else {
			q = h.newQP(qpOptions{})
			q.connect(q.attr(q))
		}
		must(t, h.d.FailQP(q.n))
		h.run()
		all := h.eq.poll()
		if len(all) != 1 || all[0].typ != EventWQCatas || all[0].object() != q.n || all[0].data[20] != want {
			t.Errorf("events %+v, want one of queue %#x, type %d", all, q.n, want)
		}
	}
}

// TestViolationNames: a violation of a QP's own receive queue names the QP, and one of an SRQ none.
func TestViolationNames(t *testing.T) {
	for _, shared := range []bool{false, true} {
		f := newFabric(t, FabricConfig{})
		h := newHost(t, f, InfiniBand)
		var o qpOptions
		if shared {
			o.srq = h.newSRQ(3, 0, 0, 0)
		}
		a, b := h.newQP(qpOptions{}), h.newQP(o)
		connect(a, b)
		dbr, want := b.dbr, b.n
		if shared {
			o.srq.post()
			dbr, want = o.srq.dbr, 0
		} else {
			b.recv()
		}
		storeBE32(h.mem.at(dbr, 4), 0x10001)
		a.post(opSend, sig, 0)
		h.run()
		h.broke("rq-record-reserved")
		for _, v := range h.d.Report().Violations {
			if v.QPN != want {
				t.Errorf("shared %v: the violation names QP %#x, want %#x: %s", shared, v.QPN, want, v.Text)
			}
		}
	}
}

// TestFatalWords: a device that has failed says so, of an object that has no number yet.
func TestFatalWords(t *testing.T) {
	h := newHost(t, newFabric(t, FabricConfig{}), InfiniBand)
	h.d.Fatal()
	_, err := h.d.AllocPD()
	var e *Error
	if !errors.As(err, &e) || *e != (Error{Kind: BadSysState, Object: "PD", Reason: "the device has had a fatal error"}) {
		t.Errorf("%+v", err)
	}
}

// TestVendorSyndromes compares the vendor's syndromes with those that users of cards report.
func TestVendorSyndromes(t *testing.T) {
	for s, want := range map[Syndrome]uint8{
		RetryExceeded: 0x81, RNRExceeded: 0x87, RemoteAccess: 0x88, RemoteOp: 0x89, RemoteInvalidReq: 0x8a, LocalProt: 0x51,
		LocalLength: 0x69, LocalQPOp: 0x67, MWBind: 0xd4, Flushed: 0xf4,
	} {
		if got := vendorOf(s); got != want {
			t.Errorf("%s has vendor syndrome %#x, want %#x", s, got, want)
		}
	}
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	p.b.recv(p.mb.sge(0, 10))
	p.b.modify(To2Err, 0, QPAttr{})
	p.a.h.run()
	if w := p.b.rcq.one(); w.syndrome != Flushed || w.vendor != 0xf9 {
		t.Errorf("a receive that was flushed: %v, vendor syndrome %#x, want 0xf9", w, w.vendor)
	}
}

// TestUARReadWaits: a load from a UAR page waits for whoever has the fabric's lock, as it writes
// to the report.
func TestUARReadWaits(t *testing.T) {
	h := newHost(t, newFabric(t, FabricConfig{}), InfiniBand)
	h.f.mu.Lock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.d.UARRead(0x100, 0x800, 8)
	}()
	select {
	case <-done:
		t.Error("a UAR page was read without the lock")
	case <-time.After(50 * time.Millisecond):
	}
	h.f.mu.Unlock()
	<-done
	h.broke("uar-read")
}
