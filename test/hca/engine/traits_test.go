package engine

import (
	"bytes"
	"slices"
	"testing"
)

// TestRegisterSizes: the halves of registers lie elsewhere, and are as long as a BlueFlame copy can
// be.
func TestRegisterSizes(t *testing.T) {
	for _, log := range []uint{8, 9} {
		p := newPairWith(t, InfiniBand, RC, false, qpOptions{}, Traits{LogBF: log})
		p.a.reg = 3
		for range 5 { // the first copy is not waited for
			p.b.recv(p.mb.sge(0, 1000))
			p.a.blue(opSend, sig, 0, inlineSeg(p.ma.data[:100]))
			p.a.h.run()
			p.a.scq.good(1)
		}
		p.clean()
		if n := p.a.h.d.Report().Doorbells["BlueFlame"]; n != 5 {
			t.Errorf("registers of 2^%d bytes: %d BlueFlame copies, want 5", log, n)
		}
		p.b.recv(p.mb.sge(0, 1000))
		w := p.a.write(opSend, sig, 0, inlineSeg(p.ma.data[:236])) // four blocks
		p.a.record()
		for o := 0; o < 1<<log/2; o += 8 {
			p.a.h.d.UARWrite(p.a.spec.UAR, p.a.bf()+uint32(o), w[o:o+8])
		}
		p.a.h.run()
		if log == 8 {
			p.a.h.broke("bf-size")
		} else {
			p.clean()
		}
	}
	p := newPairWith(t, InfiniBand, RC, false, qpOptions{}, Traits{LogBF: 8})
	p.a.reg = 4
	p.a.post(opNOP, sig, 0)
	p.a.h.broke("uar-offset")
}

// TestNoBlueFlame: a copy is not executed, which is how the kernel finds out, and must not come
// after that.
func TestNoBlueFlame(t *testing.T) {
	p := newPairWith(t, InfiniBand, RC, false, qpOptions{}, Traits{NoBlueFlame: true})
	for range 4 {
		w := p.a.write(opNOP, nothing, 0)
		p.a.record()
		w[11] |= sig
		w = append(w, make([]byte, 48)...)
		for o := 0; o < 64; o += 8 {
			p.a.h.d.UARWrite(p.a.spec.UAR, p.a.bf()+uint32(o), w[o:o+8])
		}
		p.a.half ^= 1
		p.a.h.run()
	}
	if all := p.a.scq.poll(); len(all) != 0 {
		t.Errorf("copies were executed: %v", all)
	}
	p.clean()
	p.b.recv(p.mb.sge(0, 1000))
	p.a.blue(opSend, sig, 0, inlineSeg(p.ma.data[:30]))
	p.a.h.run()
	p.a.scq.good(1)
	p.a.h.broke("bf-absent")
}

// TestLimitedWQEs: WQEs that are too long, and operations that the device has not.
func TestLimitedWQEs(t *testing.T) {
	traits := Traits{MaxSendWQE: 128, NoAtomics: true}
	p := newPairWith(t, InfiniBand, RC, false, qpOptions{}, traits)
	p.b.recv(p.mb.sge(0, 1000))
	p.a.post(opSend, sig, 0, inlineSeg(p.ma.data[:108]))
	p.a.h.run()
	p.a.scq.good(1)
	p.clean()
	p.a.post(opSend, sig, 0, inlineSeg(p.ma.data[:109]))
	p.a.h.run()
	if w := p.a.scq.one(); w.syndrome != LocalQPOp {
		t.Errorf("a WQE of 144 bytes: %v", w)
	}
	p.a.h.broke("wqe-size")

	p = newPairWith(t, InfiniBand, RC, false, qpOptions{}, traits)
	p.a.post(opFAA, sig, 0, raddrSeg(p.mb.va, p.mb.key), words64(1, 0), dataSeg(p.ma.sge(0, 8)))
	p.a.h.run()
	if w := p.a.scq.one(); w.syndrome != LocalQPOp {
		t.Errorf("an atomic operation: %v", w)
	}
	p.a.h.broke("wqe-atomic")
}

// TestLimitedObjects: queues that are too large, and more objects than there are.
func TestLimitedObjects(t *testing.T) {
	h := newHostWith(t, newFabric(t, FabricConfig{}), InfiniBand, Traits{LogMaxQPSize: 6, LogMaxSRQSize: 5, LogMaxCQSize: 7, MaxCQs: 3, MaxSRQs: 2, MaxMKeys: 2})
	cq := h.newCQ(7, 64)
	h.newQP(qpOptions{logSQ: 6, logRQ: 4, scq: cq, rcq: cq})
	h.newSRQ(5, 0, 0, 0)
	for _, c := range []struct {
		name   string
		kind   Kind
		field  string
		create func() error
	}{
		{"send queue", BadParam, "log_sq_size", func() error {
			_, err := h.d.CreateQP(QPSpec{LogSQ: 7, LogRQStride: 4, SendCQ: cq.n, RecvCQ: cq.n})
			return err
		}},
		{"receive queue", BadParam, "log_rq_size", func() error {
			_, err := h.d.CreateQP(QPSpec{LogRQ: 7, LogRQStride: 4, SendCQ: cq.n, RecvCQ: cq.n})
			return err
		}},
		{"SRQ", BadParam, "log_wq_sz", func() error { _, err := h.d.CreateSRQ(SRQSpec{Log: 6, LogStride: 5}); return err }},
		{"CQ", BadParam, "log_cq_size", func() error { _, err := h.d.CreateCQ(CQSpec{Log: 8, EntrySize: 64}); return err }},
		{"CQs", Limit, "", func() error { h.newCQ(3, 64); h.newCQ(3, 64); _, err := h.d.CreateCQ(cq.spec()); return err }},
		{"SRQs", Limit, "", func() error { s := h.newSRQ(5, 0, 0, 0); _, err := h.d.CreateSRQ(s.spec); return err }},
		{"memory keys", Limit, "", func() error {
			h.newMW(true)
			h.newMW(true)
			_, err := h.d.CreateMKey(MKeySpec{PD: h.pd, Mode: ModeKLM, Free: true})
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) { refused(t, c.create(), c.kind, c.field) })
	}
	h.clean()
}

// TestGRHRequired: a port that wants a GRH drops what comes without one.
func TestGRHRequired(t *testing.T) {
	p := newPairWith(t, InfiniBand, RC, false, qpOptions{}, Traits{GRHRequired: true})
	p.a.post(opSend, sig, 0)
	p.b.recv()
	p.a.h.run()
	if w := p.a.scq.one(); w.syndrome != RetryExceeded {
		t.Errorf("a SEND without a GRH: %v", w)
	}
	if n := p.b.h.d.Report().Packets["dropped: no GRH, which the port requires"]; n == 0 {
		t.Errorf("packets %v", p.b.h.d.Report().Packets)
	}

	p = newPairWith(t, InfiniBand, RC, false, qpOptions{}, Traits{GRHRequired: true})
	withGRH(p)
	p.b.recv()
	p.a.post(opSend, sig, 0)
	p.a.h.run()
	p.a.scq.good(1)
	p.b.rcq.good(1)
	p.clean()
}

// withGRH connects a pair anew, by GIDs.
func withGRH(p *pair) {
	for _, q := range []*testQP{p.a, p.b} {
		q.modify(To2Rst, 0, QPAttr{})
	}
	for _, c := range [][2]*testQP{{p.a, p.b}, {p.b, p.a}} {
		a := c[0].attr(c[1])
		a.Primary.GRH, a.Primary.RGID = true, c[1].h.d.Port().GIDs[0].Addr
		c[0].connect(a)
	}
}

// TestSharedLID: of two devices with one LID the GID says which is meant, and without a GRH it is
// the first.
func TestSharedLID(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	ha, hb := newHostWith(t, f, InfiniBand, Traits{SharedLID: true}), newHostWith(t, f, InfiniBand, Traits{SharedLID: true})
	hb.newQP(qpOptions{}) // so that the QPs' numbers differ
	p := &pair{a: ha.newQP(qpOptions{}), b: hb.newQP(qpOptions{})}
	connect(p.a, p.b)
	for _, h := range []*host{p.a.h, p.b.h} {
		s := h.d.Port()
		s.LID = 7
		h.d.SetPort(s)
	}
	withGRH(p)
	for range 3 {
		p.b.recv()
		p.a.recv()
		p.a.post(opSend, sig, 0)
		p.b.post(opSend, sig, 0)
		p.a.h.run()
		p.a.scq.good(1)
		p.b.scq.good(1)
		p.a.rcq.good(1)
		p.b.rcq.good(1)
	}
	for _, h := range []*host{p.a.h, p.b.h} {
		for what, n := range h.d.Report().Packets {
			if what != "sent" {
				t.Errorf("%d packets %s", n, what)
			}
		}
	}
	// Packets of a to the LID come back to a, which has no such QP.
	for _, q := range []*testQP{p.a, p.b} {
		q.modify(To2Rst, 0, QPAttr{})
		q.pc, q.rc, q.half = 0, 0, 0
	}
	connect(p.a, p.b)
	p.a.post(opSend, sig, 0)
	p.a.h.run()
	if w := p.a.scq.one(); w.syndrome != RetryExceeded {
		t.Errorf("a SEND to a shared LID without a GRH: %v", w)
	}
	if n := p.a.h.d.Report().Packets["dropped: no such QP"]; n == 0 {
		t.Errorf("packets %v", p.a.h.d.Report().Packets)
	}
}

// noisy are the places of bytes in CQEs that differ from run to run.
func noisy(all [][]byte) (at []int) {
	for i := range all[0] {
		if slices.ContainsFunc(all, func(b []byte) bool { return b[i] != all[0][i] }) {
			at = append(at, i)
		}
	}
	return at
}

// span lists places from one to another.
func span(ranges ...[2]int) (out []int) {
	for _, r := range ranges {
		for i := r[0]; i <= r[1]; i++ {
			out = append(out, i)
		}
	}
	return out
}

// TestNoise: with other seeds the bytes of CQEs differ that have no meaning, and no others.
func TestNoise(t *testing.T) {
	send := func(p *pair) wc {
		p.b.recv(p.mb.sge(0, 100))
		p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 100)))
		p.a.h.run()
		return p.a.scq.good(1)[0]
	}
	read := func(p *pair) wc {
		p.a.post(opRead, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 100)))
		p.a.h.run()
		return p.a.scq.good(1)[0]
	}
	for _, c := range []struct {
		name string
		o    func(h *host) qpOptions
		do   func(p *pair) wc
		want []int
	}{
		{"SEND", nil, send, span([2]int{0, 31}, [2]int{36, 47}, [2]int{62, 62})},
		{"READ", nil, read, span([2]int{0, 31}, [2]int{36, 43}, [2]int{62, 62})},
		{"atomic", nil, func(p *pair) wc {
			p.a.post(opFAA, sig, 0, raddrSeg(p.mb.va, p.mb.key), words64(1, 0), dataSeg(p.ma.sge(0, 8)))
			p.a.h.run()
			return p.a.scq.good(1)[0]
		}, span([2]int{0, 31}, [2]int{36, 47}, [2]int{62, 62})},
		{"receive", nil, func(p *pair) wc { send(p); return p.b.rcq.good(1)[0] },
			span([2]int{0, 16}, [2]int{18, 19}, [2]int{28, 28}, [2]int{40, 43}, [2]int{62, 62})},
		{"READ of 128 bytes", func(h *host) qpOptions { cq := h.newCQ(5, 128); return qpOptions{scq: cq, rcq: cq} }, read,
			span([2]int{0, 95}, [2]int{100, 107}, [2]int{126, 126})},
		{"data in the CQE", func(h *host) qpOptions { return qpOptions{scatterReq: 32} }, func(p *pair) wc {
			p.a.post(opRead, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 20)))
			p.a.h.run()
			w := p.a.scq.good(1)[0]
			if !bytes.Equal(w.inline[:20], p.mb.data[:20]) {
				t.Errorf("the data in the CQE are %x", w.inline)
			}
			return w
		}, span([2]int{20, 31}, [2]int{36, 43}, [2]int{62, 62})},
		{"error", nil, func(p *pair) wc {
			p.a.post(opRead, sig, 0, raddrSeg(p.mb.va, 0x99), dataSeg(p.ma.sge(0, 100)))
			p.a.h.run()
			w := p.a.scq.one()
			if w.syndrome != RemoteAccess || w.vendor != vendorRemAccess {
				t.Errorf("completion %v, vendor %#x", w, w.vendor)
			}
			return w
		}, span([2]int{0, 31}, [2]int{36, 53}, [2]int{62, 62})},
		{"mark of a resize", nil, func(p *pair) wc {
			cq := p.a.scq
			next := *cq
			next.addr = cq.h.cqBuffer(cq.log, cq.size)
			must(t, cq.h.d.ResizeCQ(cq.n, next.spec()))
			return wc{raw: slices.Clone(cq.h.mem.at(cq.addr, 64))}
		}, span([2]int{0, 62})},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all [][]byte
			for seed := range uint64(24) {
				f := newFabric(t, FabricConfig{Seed: 1})
				ha, hb := newHostWith(t, f, InfiniBand, Traits{Noise: seed}), newHostWith(t, f, InfiniBand, Traits{Noise: seed})
				var o qpOptions
				if c.o != nil {
					o = c.o(ha)
				}
				p := &pair{a: ha.newQP(o), b: hb.newQP(qpOptions{}), ma: ha.newMR(page, allAccess), mb: hb.newMR(page, allAccess)}
				p.mb.fill(9)
				connect(p.a, p.b)
				all = append(all, c.do(p).raw)
				p.clean()
			}
			if got := noisy(all); !slices.Equal(got, c.want) {
				t.Errorf("bytes %v differ, want %v", got, c.want)
			}
		})
	}
}

// TestSRQFaults: the WQE of an SRQ ends with an error where pages are missing, the message comes
// again into another one, and the index of the first is the device's until the fault is resolved.
func TestSRQFaults(t *testing.T) {
	const n = 600
	for _, early := range []bool{false, true} {
		var srq *testSRQ
		p, _, b := newPagedPairWith(t, Traits{SRQFaults: true}, func(h *host) *testSRQ { srq = h.newSRQ(2, 0, 0, 0); return srq })
		at := srq.post(b.sge(0, n))
		p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, n)))
		f := b.one()
		if f.Type != faultRMP || f.WQ != srq.n || f.index != at || f.committed != 0 {
			t.Errorf("the fault: %+v", f)
		}
		w := p.b.rcq.one()
		if w.op != cqeRespErr || w.syndrome != RemoteAborted || w.vendor != 0x93 || w.index != at || w.srqn != p.b.spec.UserIndex {
			t.Errorf("completion %v, vendor %#x, of WQE %d", w, w.vendor, w.index)
		}
		if p.b.state() != RTS {
			t.Errorf("the QP is in %s", p.b.state())
		}
		again := srq.post(b.sge(0, n))
		if early {
			// The driver gives the index to a message of another QP while the page is awaited.
			q, r := p.a.h.newQP(qpOptions{}), p.b.h.newQP(qpOptions{srq: srq})
			connect(q, r)
			b.give(0, pageAll)
			srq.free(at)
			for range 3 { // until it is that index's turn
				srq.post(p.mb.sge(0, n))
			}
			for range 4 {
				q.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 10)))
			}
			p.a.h.run()
			q.scq.good(4)
			p.b.h.broke("srq-fault-reuse")
			continue
		}
		b.give(0, pageAll)
		b.resume(f, false)
		p.a.scq.good(1)
		if r := p.b.rcq.good(1)[0]; r.index != again || r.bytes != n || !bytes.Equal(b.data[:n], p.ma.data[:n]) {
			t.Errorf("completion of WQE %d, %d bytes, want %d, %d", r.index, r.bytes, again, n)
		}
		// Now the index may be used.
		srq.free(at)
		srq.free(again)
		for range 3 {
			srq.post(b.sge(0, n))
			p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, n)))
		}
		p.a.h.run()
		p.a.scq.good(3)
		p.b.rcq.good(3)
		p.clean()
	}
}

// TestSRQFaultFails: a fault that can't be resolved ends the connection, without another completion
// of its WQE.
func TestSRQFaultFails(t *testing.T) {
	var srq *testSRQ
	p, _, b := newPagedPairWith(t, Traits{SRQFaults: true}, func(h *host) *testSRQ { srq = h.newSRQ(2, 0, 0, 0); return srq })
	srq.post(b.sge(0, 10))
	p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 10)))
	f := b.one()
	p.b.rcq.one()
	b.resume(f, true)
	if w := p.a.scq.one(); w.syndrome != RemoteOp {
		t.Errorf("the SEND: %v", w)
	}
	if all := p.b.rcq.poll(); len(all) != 0 || p.b.state() != Err {
		t.Errorf("state %s, completions %v", p.b.state(), all)
	}
	p.clean()
}

// TestReorderRecvs: receive WQEs complete in another order, each with what came into it, and none
// twice.
func TestReorderRecvs(t *testing.T) {
	reorderRecvs(t, newPairWith(t, InfiniBand, RC, false, qpOptions{logRQ: 5}, Traits{ReorderRecvs: true, Noise: 3}))
}

// TestOutOfOrder: a QP does so by itself if the driver wants it to, which must leave half of its ring free.
func TestOutOfOrder(t *testing.T) {
	p := newPairWith(t, InfiniBand, RC, false, qpOptions{logRQ: 5, unordered: true}, Traits{Noise: 3})
	reorderRecvs(t, p)
	p = newPairWith(t, InfiniBand, RC, false, qpOptions{logRQ: 3, unordered: true}, Traits{})
	for i := range 5 {
		p.b.recv(p.mb.sge(i*64, 64))
	}
	p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 64)))
	p.a.h.run()
	p.b.h.broke("rq-unordered-depth")
}

// TestOutOfOrderTypes: a card may do so for RC only, and no card does so for raw packets.
func TestOutOfOrderTypes(t *testing.T) {
	for _, only := range []bool{false, true} {
		p := newPairWith(t, InfiniBand, RC, false, qpOptions{}, Traits{OutOfOrderRC: only})
		h := p.a.h
		for _, typ := range []QPType{RC, XRC, DCI} {
			x := h.newQP(qpOptions{typ: typ, rq: RQNone})
			at := p.a.attr(p.b)
			at.OutOfOrder = true
			x.modify(Rst2Init, 0, at)
			err := h.d.ModifyQP(x.n, Init2RTR, 0, at)
			if only && typ != RC {
				refused(t, err, BadParam, "dp_ordering_1")
			} else if err != nil {
				t.Errorf("type %d, for RC only %t: %v", typ, only, err)
			}
		}
		s := h.dctSpec(h.newSRQ(5, 0, 0, 0), h.newCQ(7, 64), 0x99)
		s.OutOfOrder = true
		if _, err := h.d.CreateDCT(s); only {
			refused(t, err, BadParam, "dp_ordering_1")
		} else if err != nil {
			t.Errorf("a DCT: %v", err)
		}
	}
	if new(Traits).hasOutOfOrder(RegUMR) {
		t.Error("the queue of UMRs may be out of order")
	}
}

// reorderRecvs sends messages whose receives complete in another order.
func reorderRecvs(t *testing.T, p *pair) {
	t.Helper()
	const n = 64
	where := map[uint16]int{}
	posted := uint16(0)
	post := func(at int) {
		where[posted&31] = at
		p.b.recv(p.mb.sge(at, n))
		posted++
	}
	for i := range 8 {
		post(i * n)
	}
	turned, last := 0, uint16(0)
	for i := range 200 {
		p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(i, n)))
		p.a.h.run()
		p.a.scq.good(1)
		r := p.b.rcq.good(1)[0]
		at, ok := where[r.index&31]
		if !ok || !bytes.Equal(p.mb.data[at:at+n], p.ma.data[i:i+n]) {
			t.Fatalf("message %d completes WQE %d, which has other data", i, r.index)
		}
		delete(where, r.index&31)
		if int16(r.index-last) < 0 {
			turned++
		}
		last = r.index
		post(at)
	}
	if turned < 10 {
		t.Errorf("%d of 200 completions out of order", turned)
	}
	p.clean()
	// All that is posted is flushed, in whatever order.
	p.b.modify(To2Err, 0, QPAttr{})
	p.a.h.run()
	if all := p.b.rcq.poll(); len(all) != 8 {
		t.Errorf("%d receives were flushed, want 8", len(all))
	}
	p.clean()
}

// TestReorderWrites: the last packet of a WRITE is in memory before the others, and all are when it
// completes.
func TestReorderWrites(t *testing.T) {
	p := newPairWith(t, InfiniBand, RC, false, qpOptions{}, Traits{ReorderWrites: true})
	const n = 5*512 + 100 // the pair's MTU is 512
	early := 0
	for i := range 20 {
		p.mb.fill(byte(200 + i))
		old := bytes.Clone(p.mb.data)
		p.b.recv()
		p.a.post(opWriteImm, sig, 7, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(i, n)))
		p.a.post(opRead, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(8192, n))) // must see all of it
		for range 100 {
			p.a.h.f.RunFor(placeDelay / 20)
			if bytes.Equal(p.mb.data[n-50:n], p.ma.data[i+n-50:i+n]) && bytes.Equal(p.mb.data[:512], old[:512]) {
				early++
				if all := append(p.a.scq.poll(), p.b.rcq.poll()...); len(all) != 0 {
					t.Fatalf("completions %v of a WRITE that is not in memory", all)
				}
			}
		}
		p.a.h.run()
		p.a.scq.good(2)
		if r := p.b.rcq.good(1)[0]; r.bytes != n {
			t.Errorf("%d bytes, want %d", r.bytes, n)
		}
		if !bytes.Equal(p.mb.data[:n], p.ma.data[i:i+n]) || !bytes.Equal(p.ma.data[8192:8192+n], p.ma.data[i:i+n]) {
			t.Fatal("the data are not what was written")
		}
	}
	if early == 0 {
		t.Error("the last packet never was in memory before the first")
	}
	// A connection that ends meanwhile, or a key, takes what was not placed with it.
	p.mb.fill(1)
	p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, n)))
	p.a.h.f.RunFor(placeDelay / 2)
	must(t, p.b.h.d.DestroyMKey(p.mb.key>>8))
	p.a.h.run()
	if w := p.a.scq.one(); w.syndrome != RemoteAccess {
		t.Errorf("a WRITE whose key went away: %v", w)
	}
	p.clean()
}
