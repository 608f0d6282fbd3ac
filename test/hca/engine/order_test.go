package engine

import (
	"bytes"
	"testing"
	"time"
)

// TestFence: a fenced WQE waits for the READs and atomics before it; another does not.
func TestFence(t *testing.T) {
	for fence, waits := range map[uint8]bool{0: false, fenceSmall << 5: false, fenceReads << 5: true, fenceStrong << 5: true, fenceBoth << 5: true} {
		p := newPair(t, InfiniBand, RC, false, qpOptions{})
		old := bytes.Clone(p.ma.data[:4000])
		p.a.post(opRead, nothing, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 4000)))
		p.a.post(opWrite, sig|fence, 0, raddrSeg(p.mb.va+8000, p.mb.key), dataSeg(p.ma.sge(0, 4000)))
		p.a.h.run()
		p.a.scq.good(1)
		want := old
		if waits {
			want = p.mb.data[:4000]
		}
		if !bytes.Equal(p.mb.data[8000:12000], want) {
			t.Errorf("fence %d: what was written is not what was read, is %v", fence>>5, !waits)
		}
		p.clean()
	}
}

// TestInitiatorDepth: an initiator keeps to its own limit, so that one that knows the
// responder's is never refused.
func TestInitiatorDepth(t *testing.T) {
	for _, depth := range []uint8{0, 1, 3} {
		p := newPair(t, InfiniBand, RC, false, qpOptions{})
		p.a.edit(func(a *QPAttr) { a.LogSRAMax = depth })
		p.b.edit(func(a *QPAttr) { a.LogRRAMax = depth })
		var last []byte
		for i := range 15 {
			if i%2 == 0 {
				last = p.a.write(opRead, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 1000)))
			} else {
				last = p.a.write(opFAA, sig, 0, raddrSeg(p.mb.va, p.mb.key), words64(1, 0), dataSeg(p.ma.sge(2000, 8)))
			}
		}
		p.a.record()
		p.a.ring(last)
		p.a.h.run()
		p.a.scq.good(15)
		if n := len(p.b.h.d.qps[p.b.n].resp.results); n > 1<<depth {
			t.Errorf("%d results of atomics are kept, and %d can be asked for again", n, 1<<depth)
		}
		p.clean()
	}
}

// TestInlineUnsignaled: the result of a READ without a completion goes to memory.
func TestInlineUnsignaled(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{scatterReq: 32})
	p.a.post(opRead, nothing, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 20)))
	p.a.h.run()
	p.a.scq.good(0)
	if !bytes.Equal(p.ma.data[:20], p.mb.data[:20]) {
		t.Error("the result is nowhere")
	}
}

// TestStrangers: packets of a QP that isn't the other end, or of another partition, are
// dropped.
func TestStrangers(t *testing.T) {
	for why, edit := range map[string]func(p *pair) func(a *QPAttr){
		"from a QP that it is not connected with": func(p *pair) func(a *QPAttr) { return func(a *QPAttr) { a.RemoteQPN = 0x4444 } },
		"P_Key": func(p *pair) func(a *QPAttr) { return func(a *QPAttr) { a.Primary.PKeyIndex = 1 } },
	} {
		p := newPair(t, InfiniBand, RC, false, qpOptions{})
		s := p.b.h.d.Port()
		s.PKeys = []uint16{0xffff, 0x8002}
		p.b.h.d.SetPort(s)
		p.b.edit(edit(p))
		p.b.recv(p.mb.sge(0, 100))
		p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 10)))
		p.a.h.run()
		if w := p.a.scq.one(); w.syndrome != RetryExceeded {
			t.Errorf("%s: %v", why, w)
		}
		p.b.rcq.good(0)
		if n := p.b.h.d.Report().Packets["dropped: "+why]; n != 8 {
			t.Errorf("%s: %d packets dropped", why, n)
		}
	}
	// Two limited members of a partition do not hear each other.
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	for _, q := range []*testQP{p.a, p.b} {
		s := q.h.d.Port()
		s.PKeys = []uint16{0x7fff}
		q.h.d.SetPort(s)
	}
	p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 10)))
	p.a.h.run()
	if w := p.a.scq.one(); w.syndrome != RetryExceeded {
		t.Errorf("%v", w)
	}
}

// TestRecordOfList: a doorbell for several WQEs whose record was not written at all.
func TestRecordOfList(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	p.a.write(opNOP, sig, 0)
	p.a.write(opNOP, sig, 0)
	p.a.ring(p.a.write(opNOP, sig, 0))
	p.a.h.broke("doorbell-record")
}

// TestDestroyBusy: nothing of a QP that is gone is executed or completed any more.
func TestDestroyBusy(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 60000)))
	q := p.a.h.newQP(qpOptions{typ: RC, scq: p.a.scq})
	q.connect(q.attr(p.b))
	if p.a.h.f.Run(20) {
		t.Fatal("20 steps are enough to send 60000 bytes")
	}
	q.post(opNOP, sig, 0)
	for _, e := range []*testQP{p.a, q} {
		must(t, e.h.d.DestroyQP(e.n))
	}
	p.a.h.run()
	p.a.scq.good(0)
	p.clean()
}

// TestFaultPicks: a fault hits the packets that it was told to.
func TestFaultPicks(t *testing.T) {
	p := newUD(t, InfiniBand, false, qpOptions{}, qpOptions{})
	p.a.h.f.Fault(PacketFault{Skip: 1, Count: 2})
	p.a.h.f.Fault(PacketFault{Skip: 4, QPN: p.b.n, From: p.a.h.d, Action: DuplicatePacket})
	for i := range 5 {
		p.b.recv(p.mb.sge(0, 100))
		p.a.post(opSendImm, nothing, uint32(i), p.a.avSeg(p.b, 0x11111111))
	}
	p.b.recv(p.mb.sge(0, 100))
	p.a.h.run()
	var got []byte
	for _, w := range p.b.rcq.poll() {
		got = append(got, byte(w.imm))
	}
	if !bytes.Equal(got, []byte{0, 3, 4, 4}) {
		t.Errorf("datagrams %v arrived", got)
	}
}

// TestLatePiece: a piece of a BlueFlame copy that comes after the QP was reset changes
// nothing of the new queue.
func TestLatePiece(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	p.a.blue(opNOP, sig, 0) // from now on copies are waited for
	p.a.h.run()
	p.a.scq.good(1)
	w := append(p.a.write(opNOP, sig, 0), make([]byte, 48)...)
	p.a.record()
	half := 0x800 + p.a.half*256
	for o := uint32(0); o < 56; o += 8 {
		p.a.h.d.UARWrite(p.a.spec.UAR, half+o, w[o:o+8])
	}
	p.again()
	p.a.h.d.UARWrite(p.a.spec.UAR, half+56, w[56:])
	p.a.h.run()
	p.a.scq.good(0)
	if i, err := p.a.h.d.QueryQP(p.a.n); err != nil || i.Attr.HWSQCounter != 0 || i.State != RTS {
		t.Errorf("%+v, %v", i, err)
	}
	p.clean()
}

// TestVLAN: GIDs of one VLAN do not reach those of another, and a completion says where a
// message came from.
func TestVLAN(t *testing.T) {
	p := newUD(t, Ethernet, false, qpOptions{}, qpOptions{})
	set := func(q *testQP, id uint16) {
		g := q.h.d.Port().GIDs[2]
		g.VLAN, g.VLANID = true, id
		must(t, q.h.d.SetGID(2, g))
	}
	send := func(n int) {
		t.Helper()
		p.b.recv(p.mb.sge(0, 100))
		av := p.a.avSeg(p.b, 0x11111111)
		av[12] = 3 << 1
		p.a.post(opSend, sig, 0, av)
		p.a.h.run()
		p.a.scq.good(1)
		for _, w := range p.b.rcq.good(n) {
			if w.raw[29]&1 != 1 || w.raw[30] != 3<<5 || w.raw[31] != 7 {
				t.Errorf("%x", w.raw)
			}
		}
	}
	set(p.a, 7)
	send(0)
	set(p.b, 8)
	send(0)
	set(p.b, 7)
	send(1)
	p.clean()
}

// TestFatalTimers: what a device had still to do when it failed is never done.
func TestFatalTimers(t *testing.T) {
	h, q, cq := lone(t, 5, 64)
	must(t, h.d.ModerateCQ(cq.n, 4, 1000))
	h.eq.poll()
	cq.arm(false)
	q.post(opNOP, sig, 0)
	h.f.RunFor(1000)
	cq.good(1)
	h.d.Fatal()
	h.run()
	if e := h.eq.poll(); len(e) != 0 {
		t.Errorf("events %v", e)
	}
}

// TestTimersInTime: a fabric that is busy does not forget its timers.
func TestTimersInTime(t *testing.T) {
	f := NewFabric(FabricConfig{})
	defer f.Close()
	done := make(chan struct{})
	var again func()
	stop := false
	again = func() {
		if !stop {
			f.soon(again)
		}
	}
	f.mu.Lock()
	f.soon(again)
	f.after(time.Millisecond, func() {
		stop = true
		close(done)
	})
	f.mu.Unlock()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("the timer did not run")
	}
}

// TestUMRRoom: a list does not outgrow its key.
func TestUMRRoom(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	for _, offset := range []uint32{1, 0xffffffff} {
		u := umrSegs(0x90, 4, bindMask, 0, RemoteRead, 0xffffff11, p.mb.va, 10)
		u[7] = byte(offset)
		if offset > 1 {
			copy(u[16:], []byte{0xff, 0xff, 0xff, 0xff})
		}
		p.b.post(opUMR, sig, p.b.h.newMW(false), u, klmSeg(p.mb, 0, 10))
		p.b.h.run()
		if w := p.b.scq.one(); w.syndrome != MWBind {
			t.Errorf("offset %#x: %v", offset, w)
		}
		p.again()
	}
	// A page list without a page size.
	i, err := p.b.h.d.CreateMKey(MKeySpec{PD: p.b.h.pd, QPN: NoUserIndex, Mode: ModeMTT, Free: true, UMREnable: true})
	must(t, err)
	p.b.post(opUMR, sig, i<<8, umrSegs(0x80, 0, 1<<29|1, 0, 0, 0, 0, 10))
	p.b.h.run()
	if w := p.b.scq.one(); w.syndrome != MWBind {
		t.Errorf("%v", w)
	}
	p.clean()
}

// TestBadPackets: packets that no requester sends, as a broken one would. They are refused,
// or dropped, and nothing is written.
func TestBadPackets(t *testing.T) {
	for name, spoil := range map[string]func(p *packet){
		"a WRITE longer than it said":      func(p *packet) { p.length = 5 },
		"a WRITE shorter than it said":     func(p *packet) { p.length = 50 },
		"a middle without a beginning":     func(p *packet) { p.first = false },
		"a response that nobody asked for": func(p *packet) { p.kind = pktReadResp },
		"a frame's kind for a QP":          func(p *packet) { p.kind = pktAtomicResp },
	} {
		p := newPair(t, InfiniBand, RC, false, qpOptions{})
		old := bytes.Clone(p.mb.data)
		h := p.b.h
		h.d.f.mu.Lock()
		q := p.a.h.d.qps[p.a.n]
		bad := q.packet(pktWrite, h.d.qps[p.b.n].resp.ePSN)
		bad.first, bad.last, bad.ackReq, bad.va, bad.rkey, bad.data, bad.length = true, true, true, p.mb.va, p.mb.key, []byte("0123456789"), 10
		spoil(bad)
		h.d.receive(bad)
		h.d.f.mu.Unlock()
		h.run()
		if !bytes.Equal(old, p.mb.data) {
			t.Errorf("%s: memory was written", name)
		}
		if refused := bad.kind == pktWrite; refused != (p.b.state() == Err) {
			t.Errorf("%s: state %s", name, p.b.state())
		}
		h.clean()
	}
}

// TestAnswersBeforeRefusal: requests before a refused one are answered.
func TestAnswersBeforeRefusal(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	p.a.write(opRead, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 50000)))
	p.a.write(opFAA, sig, 0, raddrSeg(p.mb.va+60000, p.mb.key), words64(1, 0), dataSeg(p.ma.sge(60000, 8)))
	w := p.a.write(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key^1), dataSeg(p.ma.sge(0, 10)))
	p.a.record()
	p.a.ring(w)
	p.a.h.run()
	all := p.a.scq.poll()
	if len(all) != 3 || all[0].syndrome != 0 || all[1].syndrome != 0 || all[2].syndrome != RemoteAccess || p.b.state() != Err {
		t.Errorf("%v, %s", all, p.b.state())
	}
	if !bytes.Equal(p.ma.data[:50000], p.mb.data[:50000]) {
		t.Error("the READ brought something else")
	}
	p.clean()
}
