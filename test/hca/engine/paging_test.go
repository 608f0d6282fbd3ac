package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

// pager is memory whose pages the driver gives to the device when it asks for them.
type pager struct {
	*testMR
	addr uint64
	eq   *testEQ
	umr  *testQP // the driver's own, for the list of pages
	list *testMR
}

// newPager makes memory of n bytes, no page of which is there, and a queue for page faults.
func (h *host) newPager(n int) *pager {
	h.t.Helper()
	p := &pager{eq: h.newEQOf(6, 1<<EventPageFault), umr: h.newQP(qpOptions{typ: RegUMR}), list: h.newMR(page, LocalRead)}
	p.umr.connect(QPAttr{Primary: Path{Port: 1}})
	p.addr = h.mem.alloc(n)
	p.testMR = &testMR{h: h, va: vaBase + p.addr, data: h.mem.at(p.addr, n)}
	i, err := h.d.CreateMKey(MKeySpec{
		Variant: 0x5a, PD: h.pd, QPN: NoUserIndex, Mode: ModeMTT, Access: allAccess, Start: p.va, Length: uint64(n), LogPageSize: 12,
		Pages: make([]uint64, n/page), UMREnable: true, PageFaults: true,
	})
	if err != nil {
		h.t.Fatal(err)
	}
	p.key = i<<8 | 0x5a
	return p
}

// give sets the flags of eight pages from a multiple of eight on; 0 takes them away.
func (p *pager) give(first int, flags uint64) {
	p.h.t.Helper()
	for i := range 8 {
		var e uint64
		if flags != 0 {
			e = p.addr + uint64(first+i)*page | flags
		}
		binary.BigEndian.PutUint64(p.list.data[8*i:], e)
	}
	u := umrSegs(umrOffset|umrCheckFree, 4, 0, 0, 0, 0, 0, 0)
	binary.BigEndian.PutUint16(u[6:], uint16(first/2))
	p.umr.post(opUMR, sig, p.key, u, dataSeg(p.list.sge(0, 64)))
	p.h.run()
	p.umr.scq.good(1)
}

// fault is a page fault's event.
type fault struct {
	PageFault
	rdma              bool
	index             uint16
	committed, packet int
	rkey              uint32
	va                uint64
	n                 int
}

// one takes exactly one page fault.
func (p *pager) one() fault {
	p.h.t.Helper()
	p.h.run()
	all := p.eq.poll()
	if len(all) != 1 || all[0].typ != EventPageFault {
		p.h.t.Fatalf("events %v, want one page fault", all)
	}
	b := all[0].data[:]
	last := binary.BigEndian.Uint32(b[24:])
	f := fault{rdma: all[0].subtype == 1, committed: int(binary.BigEndian.Uint32(b)), packet: int(binary.BigEndian.Uint16(b[10:]))}
	f.Type, f.WQ = uint8(last>>24), last&0xffffff
	if f.rdma {
		f.Token, f.rkey, f.n, f.va = f.WQ, binary.BigEndian.Uint32(b[4:]), int(binary.BigEndian.Uint32(b[12:])), binary.BigEndian.Uint64(b[16:])
	} else {
		f.Token, f.index = binary.BigEndian.Uint32(b[12:]), binary.BigEndian.Uint16(b[6:])
	}
	return f
}

// resume goes on after a page fault.
func (p *pager) resume(f fault, failed bool) {
	p.h.t.Helper()
	if err := p.h.d.ResumePageFault(f.PageFault, failed); err != nil {
		p.h.t.Fatal(err)
	}
	p.h.run()
}

// newPagedPair is a pair whose requests wait for ever, and memory on demand on either side.
func newPagedPair(t *testing.T) (p *pair, a, b *pager) {
	t.Helper()
	return newPagedPairWith(t, Traits{}, nil)
}

// newPagedPairWith is newPagedPair on devices with traits; the receiver may take its WQEs from an SRQ.
func newPagedPairWith(t *testing.T, traits Traits, srq func(h *host) *testSRQ) (p *pair, a, b *pager) {
	t.Helper()
	f := newFabric(t, FabricConfig{Seed: 1})
	ha, hb := newHostWith(t, f, InfiniBand, traits), newHostWith(t, f, InfiniBand, traits)
	var ob qpOptions
	if srq != nil {
		ob.srq = srq(hb)
	}
	p = &pair{a: ha.newQP(qpOptions{}), b: hb.newQP(ob), ma: ha.newMR(64<<10, allAccess), mb: hb.newMR(64<<10, allAccess)}
	p.ma.fill(1)
	p.mb.fill(100)
	aa, ab := p.a.attr(p.b), p.b.attr(p.a)
	aa.Primary.AckTimeout, ab.Primary.AckTimeout = 0, 0
	p.a.connect(aa)
	p.b.connect(ab)
	return p, ha.newPager(16 * page), hb.newPager(16 * page)
}

const pageAll = 3

// faultBytes is the length of the messages that have page faults: from the middle of one page into
// the next.
const faultBytes = 5000

// TestPageFaults checks the page faults of each operation, and that the request completes once the
// driver has given the pages.
func TestPageFaults(t *testing.T) {
	p, a, b := newPagedPair(t)
	sendFaults(t, p, a, b)
	writeFault(t, p, b)
	readFaults(t, p, a, b)
	atomicFault(t, p, b)
	if all := slices.Concat(a.eq.poll(), b.eq.poll()); len(all) != 0 {
		t.Errorf("more page faults: %v", all)
	}
	// The packets that found no page: two of the SEND, one of the WRITE, one of the atomic.
	if n := b.h.d.Report().Packets["dropped: "+notPresent]; n != 4 {
		t.Errorf("%d packets are told as dropped", n)
	}
	p.clean()
}

// sendFaults sends from memory that is not present to memory that is not present.
func sendFaults(t *testing.T, p *pair, a, b *pager) {
	a.fill(3)
	p.b.recv(b.sge(2000, faultBytes))
	p.a.post(opSend, sig, 0, dataSeg(a.sge(100, faultBytes)))
	f := a.one()
	if f.rdma || f.Type != 1 || f.WQ != p.a.n || f.index != 0 || f.committed != 0 {
		t.Errorf("the sender's fault: %+v", f)
	}
	p.idle(t, "a SEND")
	a.give(0, 1) // may be read
	a.resume(f, false)
	f = b.one()
	if f.rdma || f.Type != 2 || f.WQ != p.b.n || f.index != 0 || f.committed != 0 || f.packet != 512 {
		t.Errorf("the receiver's fault: %+v", f)
	}
	p.idle(t, "a SEND")
	b.give(0, 1)
	b.resume(f, false)
	f = b.one() // may not be written
	b.give(0, pageAll)
	b.resume(f, false)
	p.a.scq.good(1)
	if r := p.b.rcq.good(1)[0]; r.bytes != faultBytes || !bytes.Equal(b.data[2000:][:faultBytes], a.data[100:][:faultBytes]) {
		t.Errorf("what was received is not what was sent: %+v", r)
	}
}

// TestDCPageFault sends from memory that is not present to a target of DC.
func TestDCPageFault(t *testing.T) {
	a, b := dcPair(t, InfiniBand, false, FabricConfig{})
	dci, dct, from, mb := a.newDCI(0, 0), b.newDCT(0x99), a.newPager(16*page), b.newMR(8192, allAccess)
	from.fill(3)
	dct.srq.post(mb.sge(0, faultBytes))
	dci.post(opSend, sig, 0, dci.dcSeg(dct, dcKey), dataSeg(from.sge(100, faultBytes)))
	f := from.one()
	if f.rdma || f.Type != 1 || f.WQ != dci.n || f.index != 0 || f.committed != 0 {
		t.Errorf("the fault: %+v", f)
	}
	from.give(0, 1)
	from.resume(f, false)
	dci.scq.good(1)
	if dct.cq.good(1); !bytes.Equal(mb.data[:faultBytes], from.data[100:][:faultBytes]) {
		t.Error("what was received is not what was sent")
	}
	a.clean()
	b.clean()
}

// writeFault writes into memory whose pages were taken away again.
func writeFault(t *testing.T, p *pair, b *pager) {
	b.give(0, 0)
	p.a.post(opWrite, sig, 0, raddrSeg(b.va+3000, b.key), dataSeg(p.ma.sge(7, faultBytes)))
	f := b.one()
	if !f.rdma || f.Type != 6 || f.WQ != p.b.n || f.rkey != b.key || f.va != b.va+3000 || f.n != faultBytes || f.committed != 0 || f.packet != 512 {
		t.Errorf("the fault of a WRITE: %+v", f)
	}
	p.idle(t, "a WRITE")
	b.give(0, pageAll)
	b.resume(f, false)
	p.a.scq.good(1)
	if !bytes.Equal(b.data[3000:][:faultBytes], p.ma.data[7:][:faultBytes]) {
		t.Error("a WRITE is not there")
	}
}

// readFaults reads memory that is not present into memory that is not present.
func readFaults(t *testing.T, p *pair, a, b *pager) {
	a.give(0, 0)
	b.give(0, 0)
	p.a.post(opRead, sig, 0, raddrSeg(b.va+2000, b.key), dataSeg(a.sge(100, faultBytes)))
	f := a.one()
	if f.rdma || f.Type != 3 || f.WQ != p.a.n || f.index != 2 {
		t.Errorf("the fault of a READ's result: %+v", f)
	}
	a.give(0, pageAll)
	a.resume(f, false)
	f = b.one()
	if !f.rdma || f.Type != 4 || f.WQ != p.b.n || f.rkey != b.key || f.va != b.va+2000 || f.n != faultBytes {
		t.Errorf("the fault of a READ: %+v", f)
	}
	b.give(0, 1)
	b.resume(f, false)
	p.a.scq.good(1)
	if !bytes.Equal(a.data[100:][:faultBytes], b.data[2000:][:faultBytes]) {
		t.Error("a READ has brought something else")
	}
}

// atomicFault executes an atomic on a page that may only be read.
func atomicFault(t *testing.T, p *pair, b *pager) {
	p.a.post(opFAA, sig, 0, raddrSeg(b.va+8, b.key), words64(5, 0), dataSeg(p.ma.sge(0, 8)))
	old := binary.LittleEndian.Uint64(b.data[8:])
	f := b.one()
	if !f.rdma || f.Type != 6 || f.n != 8 || f.va != b.va+8 {
		t.Errorf("the fault of an atomic: %+v", f)
	}
	b.give(0, pageAll)
	b.resume(f, false)
	p.a.scq.good(1)
	if now := binary.LittleEndian.Uint64(b.data[8:]); now != old+5 || binary.LittleEndian.Uint64(p.ma.data) != old {
		t.Errorf("an atomic made %#x of %#x", now, old)
	}
}

// idle fails if a request of the pair is complete, because its pages are not there yet.
func (p *pair) idle(t *testing.T, what string) {
	t.Helper()
	if all := append(p.a.scq.poll(), p.b.rcq.poll()...); len(all) != 0 {
		t.Fatalf("%s is complete before its pages are there: %v", what, all)
	}
}

// TestPageFaultsFail: what the driver can't give fails the request, as memory without a key does.
func TestPageFaultsFail(t *testing.T) {
	for name, tt := range map[string]struct {
		post    func(p *pair, a, b *pager)
		atB     bool // whose fault it is
		a, b    Syndrome
		nothing bool // B's receive WQE has no completion of its own
	}{
		"SEND":    {func(p *pair, a, b *pager) { p.a.post(opSend, sig, 0, dataSeg(a.sge(0, 9))) }, false, LocalProt, 0, true},
		"receive": {func(p *pair, a, b *pager) { p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 9))) }, true, RemoteOp, LocalProt, false},
		"WRITE": {func(p *pair, a, b *pager) {
			p.a.post(opWrite, sig, 0, raddrSeg(b.va, b.key), dataSeg(p.ma.sge(0, 9)))
		}, true, RemoteAccess, Flushed, false},
		"READ": {func(p *pair, a, b *pager) {
			p.a.post(opRead, sig, 0, raddrSeg(b.va, b.key), dataSeg(p.ma.sge(0, 9)))
		}, true, RemoteAccess, Flushed, false},
		"result": {func(p *pair, a, b *pager) {
			p.a.post(opRead, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(a.sge(0, 9)))
		}, false, LocalProt, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, a, b := newPagedPair(t)
			p.b.recv(b.sge(0, 100))
			tt.post(p, a, b)
			at := a
			if tt.atB {
				at = b
			}
			at.resume(at.one(), true)
			if w := p.a.scq.one(); w.syndrome != tt.a {
				t.Errorf("the request: %v, want %s", w, tt.a)
			}
			if all := p.b.rcq.poll(); tt.nothing != (len(all) == 0) || !tt.nothing && all[0].syndrome != tt.b {
				t.Errorf("the receive: %v, want %s", all, tt.b)
			}
			p.clean()
		})
	}
}

// TestPageFaultResume: only what waits goes on, and nothing of a QP that is gone.
func TestPageFaultResume(t *testing.T) {
	p, a, _ := newPagedPair(t)
	p.a.post(opSend, sig, 0, dataSeg(a.sge(0, 9)))
	f := a.one()
	for name, bad := range map[string]PageFault{
		"type":  {Type: 3, Token: f.Token, WQ: f.WQ},
		"token": {Type: f.Type, Token: f.Token + 1, WQ: f.WQ},
		"queue": {Type: f.Type, Token: f.Token, WQ: f.WQ + 1},
	} {
		var e *Error
		if err := a.h.d.ResumePageFault(bad, false); !errors.As(err, &e) {
			t.Errorf("another %s: %v", name, err)
		}
	}
	must(t, a.h.d.DestroyQP(p.a.n))
	a.resume(f, false)
	if err := a.h.d.ResumePageFault(f.PageFault, false); err == nil {
		t.Error("a page fault is resolved twice")
	}
	p.clean()
}

// TestPageFaultUnheard: without a queue for page faults memory that is not there is an error.
func TestPageFaultUnheard(t *testing.T) {
	p, a, _ := newPagedPair(t)
	must(t, a.h.d.DestroyEQ(a.eq.n))
	p.a.post(opSend, sig, 0, dataSeg(a.sge(0, 9)))
	a.h.run()
	if w := p.a.scq.one(); w.syndrome != LocalProt {
		t.Errorf("%v", w)
	}
	p.clean()
}

// TestPageFaultBehind: the null key behind a key of entries of one size is a page fault of that key, until an
// entry leads to a key.
func TestPageFaultBehind(t *testing.T) {
	p, _, b := newPagedPair(t)
	h := b.h
	const size = 12
	ksm, err := h.d.CreateMKey(MKeySpec{
		PD: h.pd, QPN: NoUserIndex, Mode: ModeKSM, Access: allAccess, Length64: true, LogPageSize: size, UMREnable: true,
		KLMs: []KLM{{Key: NullLKey}, {Key: NullLKey}, {Key: NullLKey}, {Key: NullLKey}},
	})
	must(t, err)
	p.a.post(opWrite, sig, 0, raddrSeg(2<<size|5, ksm<<8), dataSeg(p.ma.sge(7, 900)))
	f := b.one()
	if !f.rdma || f.Type != 6 || f.rkey != ksm<<8 || f.va != 2<<size|5 {
		t.Errorf("the fault of the null key: %+v", f)
	}
	b.give(0, pageAll)
	copy(b.list.data, words64(uint64(b.key), b.va))
	u := umrSegs(umrOffset|umrCheckFree, 1, 0, 0, 0, 0, 0, 0)
	binary.BigEndian.PutUint16(u[6:], 2)
	b.umr.post(opUMR, sig, ksm<<8, u, dataSeg(b.list.sge(0, 16)))
	h.run()
	b.umr.scq.good(1)
	b.resume(f, false)
	p.a.scq.good(1)
	if !bytes.Equal(b.data[5:][:900], p.ma.data[7:][:900]) {
		t.Error("a WRITE is not there")
	}
	// Used itself the null key is none.
	p.a.post(opWrite, sig, 0, raddrSeg(0, NullLKey), dataSeg(p.ma.sge(7, 9)))
	h.run()
	if w := p.a.scq.one(); w.syndrome != RemoteAccess {
		t.Errorf("the null key itself: %v", w)
	}
	p.clean()
}
