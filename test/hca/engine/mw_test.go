package engine

import (
	"encoding/binary"
	"errors"
	"testing"
)

// umrSegs are a UMR's control and mkey segments.
func umrSegs(flags byte, octos uint16, mask uint64, status byte, access Access, qpnKey uint32, start, length uint64) []byte {
	b := make([]byte, 48+64)
	b[0] = flags
	binary.BigEndian.PutUint16(b[4:], octos)
	binary.BigEndian.PutUint64(b[8:], mask)
	m := b[48:]
	m[0], m[2] = status, byte(access)
	binary.BigEndian.PutUint32(m[4:], qpnKey)
	binary.BigEndian.PutUint64(m[16:], start)
	binary.BigEndian.PutUint64(m[24:], length)
	return b
}

func klmSeg(m *testMR, off, n int) []byte {
	b := make([]byte, 64)
	binary.BigEndian.PutUint32(b, uint32(n))
	binary.BigEndian.PutUint32(b[4:], m.key)
	binary.BigEndian.PutUint64(b[8:], m.va+uint64(off))
	return b
}

// bindMask is the mkey mask of a bind.
const bindMask = 1<<0 | 1<<6 | 1<<13 | 1<<14 | 1<<18 | 1<<19 | 1<<20 | 1<<21 | 1<<29

// newMW makes a memory window.
func (h *host) newMW(typ2 bool) uint32 {
	h.t.Helper()
	i, err := h.d.CreateMKey(MKeySpec{PD: h.pd, QPN: NoUserIndex, Mode: ModeKLM, Access: LocalRead, Free: true, UMREnable: true, RemoteInval: typ2, Entries: 4})
	if err != nil {
		h.t.Fatal(err)
	}
	return i << 8
}

// windowPair is a pair whose b side has a window.
func windowPair(t *testing.T) (*pair, uint32) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	return p, p.b.h.newMW(true)
}

// use writes through a window, and gives the error if there was one.
func (p *pair) use(va uint64, rkey uint32, n int) Syndrome {
	p.a.h.t.Helper()
	p.a.post(opWrite, sig, 0, raddrSeg(va, rkey), dataSeg(p.ma.sge(0, n)))
	p.a.h.run()
	return p.a.scq.one().syndrome
}

// again connects the pair anew after an error.
func (p *pair) again() {
	for _, q := range []*testQP{p.a, p.b} {
		q.modify(To2Rst, 0, QPAttr{})
		q.pc, q.rc, q.half = 0, 0, 0
		clear(q.h.mem.at(q.dbr, 8))
		q.scq.poll()
		q.rcq.poll()
	}
	connect(p.a, p.b)
}

func TestWindowType1(t *testing.T) {
	p, mw := windowPair(t)
	// As ibv_bind_mw does it: no check, no QPN, a new low byte, a translation offset of 0.
	bind := func(key, next uint32, n int) {
		p.b.post(opUMR, sig, key, umrSegs(0x90, 4, bindMask, 0, RemoteRead|RemoteWrite, 0xffffff00|next, p.mb.va+100, uint64(n)), klmSeg(p.mb, 100, n))
		p.b.h.run()
		p.b.scq.good(1)
	}
	bind(mw, 1, 50)
	if s := p.use(p.mb.va+100, mw|1, 50); s != 0 {
		t.Errorf("write through a window: %s", s)
	}
	if p.mb.data[100] != p.ma.data[0] || p.mb.data[149] != p.ma.data[49] {
		t.Error("the window leads elsewhere")
	}
	if err := p.b.h.d.DestroyMKey(p.mb.key >> 8); err == nil {
		t.Error("memory under a window can be given up")
	}
	bind(mw|1, 2, 20)
	p.clean()
	if s := p.use(p.mb.va+100, mw|2, 20); s != 0 {
		t.Errorf("write through a window: %s", s)
	}
	for _, c := range []struct {
		what string
		va   uint64
		key  uint32
		n    int
	}{{"the old key", p.mb.va + 100, mw | 1, 20}, {"beyond it", p.mb.va + 100, mw | 2, 21}, {"before it", p.mb.va + 99, mw | 2, 2}} {
		if s := p.use(c.va, c.key, c.n); s != RemoteAccess {
			t.Errorf("%s: %s", c.what, s)
		}
		p.again()
	}
	// A window without length is none any more.
	p.b.post(opUMR, sig, mw|2, umrSegs(0x80, 0, 1<<29|1<<13, 0x40, 0, 0xffffff03, 0, 0))
	p.b.h.run()
	p.b.scq.good(1)
	if s := p.use(p.mb.va+100, mw|3, 1); s != RemoteAccess {
		t.Errorf("through a window that is gone: %s", s)
	}
	if err := p.b.h.d.DestroyMKey(p.mb.key >> 8); err != nil {
		t.Error(err)
	}
	p.clean()
}

func TestWindowType2(t *testing.T) {
	p, mw := windowPair(t)
	bind := func(q *testQP, key uint32, access Access) wc {
		q.post(opUMR, sig, key, umrSegs(0xa0, 4, bindMask, 0, access, q.n<<8|0x33, p.mb.va, 1000), klmSeg(p.mb, 0, 1000))
		q.h.run()
		return q.scq.one()
	}
	if w := bind(p.b, mw, RemoteWrite); w.op != cqeReq || w.sendOp != opUMR {
		t.Fatalf("bind: %v", w)
	}
	if s := p.use(p.mb.va, mw|0x33, 10); s != 0 {
		t.Errorf("write through a window: %s", s)
	}
	// Through the window of another QP.
	c, d := p.a.h.newQP(qpOptions{typ: RC}), p.b.h.newQP(qpOptions{typ: RC})
	connect(c, d)
	other := &pair{a: c, b: d, ma: p.ma, mb: p.mb}
	if s := other.use(p.mb.va, mw|0x33, 10); s != RemoteAccess {
		t.Errorf("through another QP's window: %s", s)
	}
	other.again()
	// It is not free: a second bind fails, and the QP with it.
	if w := bind(p.b, mw|0x33, RemoteWrite); w.syndrome != MWBind {
		t.Errorf("second bind: %v", w)
	}
	if p.b.state() != Err {
		t.Errorf("state %s", p.b.state())
	}
	p.again()
	// Only its own QP may invalidate it.
	inv := umrSegs(0x88, 0, 1<<29, 0x40, 0, 0xffffff00, 0, 0)
	d.post(opUMR, sig, mw|0x33, inv)
	d.h.run()
	if w := d.scq.one(); w.syndrome != MWBind {
		t.Errorf("invalidate by another QP: %v", w)
	}
	p.b.post(opUMR, sig, mw|0x33, inv)
	p.b.h.run()
	p.b.scq.good(1)
	if s := p.use(p.mb.va, mw|0x33, 10); s != RemoteAccess {
		t.Errorf("through a window that is gone: %s", s)
	}
	p.again()
	// And again, then the peer invalidates it.
	if w := bind(p.b, mw|0x33, RemoteRead); w.op != cqeReq {
		t.Fatalf("bind: %v", w)
	}
	p.b.recv(p.mb.sge(2000, 10))
	p.a.post(opSendInv, sig, mw|0x33, inlineSeg([]byte("away")))
	p.a.h.run()
	p.a.scq.good(1)
	if r := p.b.rcq.good(1)[0]; r.op != cqeRespSendInv || r.imm != mw|0x33 {
		t.Errorf("%+v", r)
	}
	// A second time there is nothing to invalidate.
	p.b.recv(p.mb.sge(2000, 10))
	p.a.post(opSendInv, sig, mw|0x33, inlineSeg([]byte("away")))
	p.a.h.run()
	if w := p.a.scq.one(); w.syndrome != RemoteAccess {
		t.Errorf("%v", w)
	}
	if r := p.b.rcq.one(); r.op != cqeRespErr || r.syndrome != LocalAccess {
		t.Errorf("%v", r)
	}
	p.clean()
}

// TestWindowRefused: what a bind can't be on.
func TestWindowRefused(t *testing.T) {
	p, mw := windowPair(t)
	ro := p.b.h.newMR(4096, LocalRead)
	for _, c := range []struct {
		what   string
		key    uint32
		access Access
		klm    []byte
	}{
		{"a key that is none", 0x77777700, RemoteRead, klmSeg(p.mb, 0, 10)},
		{"memory that is none", mw, RemoteRead, klmSeg(&testMR{va: p.mb.va, key: 0x99999900}, 0, 10)},
		{"beyond the memory", mw, RemoteRead, klmSeg(p.mb, 65530, 10)},
		{"writes to memory that can only be read", mw, RemoteWrite, klmSeg(ro, 0, 10)},
		{"a window on itself", mw, RemoteRead, klmSeg(&testMR{key: mw}, 0, 10)},
	} {
		p.b.post(opUMR, sig, c.key, umrSegs(0x80, 4, bindMask, 0, c.access, 0xffffff11, p.mb.va, 10), c.klm)
		p.b.h.run()
		if w := p.b.scq.one(); w.syndrome != MWBind {
			t.Errorf("%s: %v", c.what, w)
		}
		p.again()
	}
	p.clean()
}

// TestWindowLowByte: a window that is bound is named with its low byte, one that is free with any.
func TestWindowLowByte(t *testing.T) {
	p, mw := windowPair(t)
	bind := func(key uint32) wc {
		p.b.post(opUMR, sig, key, umrSegs(0x80, 4, bindMask, 0, RemoteRead, 0xffffff11, p.mb.va, 10), klmSeg(p.mb, 0, 10))
		p.b.h.run()
		return p.b.scq.one()
	}
	if w := bind(mw | 5); w.op != cqeReq {
		t.Errorf("a free window, by another low byte: %v", w)
	}
	if w := bind(mw | 0x11); w.op != cqeReq {
		t.Errorf("a bound window, by its low byte: %v", w)
	}
	if w := bind(mw | 5); w.syndrome != MWBind {
		t.Errorf("a bound window, by another low byte: %v", w)
	}
	p.again()
	p.clean()
}

// TestRegister: the kernel's fast registration of memory, by a list in the WQE and by one
// in memory, and its page list's change in place.
func TestRegister(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	h := p.b.h
	free, err := h.d.CreateMKey(MKeySpec{PD: h.pd, QPN: NoUserIndex, Mode: ModeMTT, Free: true, UMREnable: true, Entries: 8, LogPageSize: 12})
	must(t, err)
	addr := h.mem.alloc(4 * page)
	const mask = 1<<0 | 1<<1 | 1<<6 | 1<<8 | 1<<13 | 1<<17 | 1<<18 | 1<<19 | 1<<20 | 1<<23 | 1<<29
	access := LocalRead | LocalWrite | RemoteWrite | 1<<7 // UMR enabled
	list := words64(addr+3*page, addr+page, addr, addr+2*page, 0, 0, 0, 0)
	register := func(flags byte, key, next uint32, tail []byte) {
		t.Helper()
		u := umrSegs(flags, 4, mask, 0, access, 0xffffff00|next, 0x1234000, 4*page)
		u[48+2] |= 1 // the access mode, MTT
		u[48+59] = 12
		u[48+12] = 1 // remote invalidate
		p.b.post(opUMR, sig, key, u, tail)
		h.run()
		p.b.scq.good(1)
	}
	register(0x80|0x20, free<<8, 7, list)
	if s := p.use(0x1234000+page+5, free<<8|7, 10); s != 0 || h.mem.at(addr+page+5, 10)[0] != p.ma.data[0] {
		t.Errorf("write: %s", s)
	}
	if s := p.use(0x1234000+page-5, free<<8|7, 10); s != 0 || h.mem.at(addr+4*page-5, 5)[0] != p.ma.data[0] || h.mem.at(addr+page, 5)[4] != p.ma.data[9] {
		t.Errorf("write over the end of a page: %s", s)
	}
	// Invalidated by the peer, and registered again from a list in memory.
	p.b.recv(p.mb.sge(0, 10))
	p.a.post(opSendInv, sig, free<<8|7)
	h.run()
	p.a.scq.good(1)
	p.b.rcq.good(1)
	m := h.newMR(4096, LocalRead)
	copy(m.data, words64(addr, addr+page, addr+2*page, addr+3*page, 0, 0, 0, 0))
	register(0x20, free<<8|7, 8, dataSeg(m.sge(0, 64)))
	if s := p.use(0x1234000, free<<8|8, 10); s != 0 || h.mem.at(addr, 10)[9] != p.ma.data[9] {
		t.Errorf("write: %s", s)
	}
	// One octoword of the list, two pages, in place.
	copy(m.data, words64(addr+3*page, addr+2*page))
	u := umrSegs(0x10, 1, 0, 0, 0, 0, 0, 0)
	binary.BigEndian.PutUint16(u[6:], 1)
	p.b.post(opUMR, sig, free<<8|8, u, dataSeg(m.sge(0, 16)))
	h.run()
	p.b.scq.good(1)
	if s := p.use(0x1234000+2*page, free<<8|8, 3); s != 0 || h.mem.at(addr+3*page, 1)[0] != p.ma.data[0] {
		t.Errorf("write: %s", s)
	}
	// Local invalidate, and nothing is reached any more.
	p.b.post(opUMR, sig, free<<8|8, umrSegs(0x80, 0, 1<<29, 0x40, 0, 0, 0, 0))
	h.run()
	p.b.scq.good(1)
	if s := p.use(0x1234000, free<<8|8, 10); s != RemoteAccess {
		t.Errorf("write: %s", s)
	}
	p.clean()
	if q, err := h.d.QueryMKey(free); err != nil || !q.Free || len(q.Pages) != 8 {
		t.Errorf("%+v, %v", q, err)
	}
}

// TestRegUMR: the kernel's own QP for UMR, which has no connection.
func TestRegUMR(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, Ethernet)
	q := h.newQP(qpOptions{typ: RegUMR})
	a := QPAttr{Primary: Path{Port: 1}}
	q.connect(a)
	m := h.newMR(4096, LocalWrite)
	pd2, err := h.d.AllocPD()
	must(t, err)
	u := umrSegs(0x80, 0, 1<<7|1<<19, 0, RemoteRead, 0, 0, 0)
	binary.BigEndian.PutUint32(u[48+12:], pd2)
	q.post(opUMR, sig, m.key, u)
	h.run()
	q.scq.good(1)
	if s, err := h.d.QueryMKey(m.key >> 8); err != nil || s.PD != pd2 || s.Access != LocalWrite|RemoteRead {
		t.Errorf("%+v, %v", s, err)
	}
	var e *Error
	if err := h.d.DeallocPD(pd2); !errors.As(err, &e) || e.Kind != Busy {
		t.Errorf("a PD with a key goes away: %v", err)
	}
	h.clean()
}

// TestIndirect: a key of entries of one size, and the null key.
func TestIndirect(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	h := p.b.h
	ksm, err := h.d.CreateMKey(MKeySpec{
		PD: h.pd, QPN: NoUserIndex, Mode: ModeKSM, Access: RemoteWrite | RemoteRead, Start: 0x5000, Length: 3 * 16, LogPageSize: 4,
		KLMs: []KLM{{Key: p.mb.key, VA: p.mb.va + 100}, {Key: DumpFillLKey}, {Key: p.mb.key, VA: p.mb.va}},
	})
	must(t, err)
	if s := p.use(0x5008, ksm<<8, 40); s != 0 {
		t.Fatalf("write: %s", s)
	}
	for i, want := range p.ma.data[:8] {
		if p.mb.data[108+i] != want {
			t.Fatalf("%x", p.mb.data[100:120])
		}
	}
	if p.mb.data[0] != p.ma.data[24] || p.mb.data[15] != p.ma.data[39] {
		t.Errorf("%x", p.mb.data[:16])
	}
	p.a.post(opRead, sig, 0, raddrSeg(0x5010, ksm<<8), dataSeg(p.ma.sge(0, 16)))
	h.run()
	p.a.scq.good(1)
	if !zero(p.ma.data[:16]) {
		t.Errorf("the null key reads as %x", p.ma.data[:16])
	}
	p.clean()
}

// TestWindowBehindLoss: a bind is executed once, also if what was sent before it is sent
// again.
func TestWindowBehindLoss(t *testing.T) {
	p, _ := windowPair(t)
	mw := p.a.h.newMW(false)
	p.a.h.f.Fault(PacketFault{From: p.a.h.d})
	p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 10)))
	p.a.post(opUMR, sig, mw, umrSegs(0x80, 4, bindMask, 0, RemoteRead, 0xffffff01, p.ma.va, 100), klmSeg(p.ma, 0, 100))
	p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 10)))
	p.a.h.run()
	p.a.scq.good(3)
	p.clean()
}

// TestKeysThatStay: a key that UMR may not change, and one that the peer may not invalidate.
func TestKeysThatStay(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	h := p.b.h
	i, err := h.d.CreateMKey(MKeySpec{PD: h.pd, QPN: NoUserIndex, Mode: ModePA, Access: allAccess, Length64: true})
	must(t, err)
	p.b.post(opUMR, sig, i<<8, umrSegs(0x80, 0, 1<<29, 0x40, 0, 0, 0, 0))
	h.run()
	if w := p.b.scq.one(); w.syndrome != MWBind {
		t.Errorf("UMR of a key that allows none: %v", w)
	}
	p.again()
	p.b.recv(p.mb.sge(0, 10))
	p.a.post(opSendInv, sig, p.mb.key)
	h.run()
	if w := p.a.scq.one(); w.syndrome != RemoteAccess {
		t.Errorf("a key that may not be invalidated: %v", w)
	}
	for _, n := range []uint32{i, p.mb.key >> 8} {
		if s, err := h.d.QueryMKey(n); err != nil || s.Free {
			t.Errorf("key %#x: %+v, %v", n, s, err)
		}
	}
	p.clean()
}

// TestPieces: keys behind keys, of many small entries, are no way to fill the device's memory.
func TestPieces(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	h := p.b.h
	under := KLM{Length: 1, Key: p.mb.key, VA: p.mb.va}
	var key uint32
	for range 3 {
		list := make([]KLM, 256)
		for i := range list {
			list[i] = under
		}
		i, err := h.d.CreateMKey(MKeySpec{PD: h.pd, QPN: NoUserIndex, Mode: ModeKLM, Access: allAccess, Length: uint64(under.Length) * 256, KLMs: list})
		must(t, err)
		key = i << 8
		under = KLM{Length: under.Length * 256, Key: key}
	}
	if s := p.use(5, key, 1000); s != 0 { // a thousand pieces are none too many
		t.Errorf("%s", s)
	}
	if _, why := h.d.translate(key, nil, h.pd, 0, 1<<24, RemoteRead); why == "" {
		t.Error("an access of 16 million pieces is translated")
	}
}
