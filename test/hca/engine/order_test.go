package engine

import (
	"bytes"
	"testing"
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
		if err := e.h.d.DestroyQP(e.n); err != nil {
			t.Fatal(err)
		}
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
