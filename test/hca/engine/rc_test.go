package engine

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// pair is two QPs that are connected, and memory on either side.
type pair struct {
	a, b   *testQP
	ma, mb *testMR
}

// newPair connects two QPs of one service on two devices, or on one.
func newPair(t *testing.T, link LinkLayer, typ QPType, one bool, o qpOptions) *pair {
	t.Helper()
	return newPairWith(t, link, typ, one, o, Traits{})
}

// newPairWith is newPair on devices with traits.
func newPairWith(t *testing.T, link LinkLayer, typ QPType, one bool, o qpOptions, traits Traits) *pair {
	t.Helper()
	f := newFabric(t, FabricConfig{Seed: 1})
	ha := newHostWith(t, f, link, traits)
	hb := ha
	if !one {
		hb = newHostWith(t, f, link, traits)
	}
	o.typ = typ
	p := &pair{a: ha.newQP(o), b: hb.newQP(o), ma: ha.newMR(64<<10, allAccess), mb: hb.newMR(64<<10, allAccess)}
	p.ma.fill(1)
	p.mb.fill(100)
	connect(p.a, p.b)
	return p
}

func (p *pair) clean() {
	p.a.h.t.Helper()
	p.a.h.clean()
	if p.b.h != p.a.h {
		p.b.h.clean()
	}
}

// everywhere runs a test on both link layers, between two devices and within one.
func everywhere(t *testing.T, fn func(t *testing.T, link LinkLayer, one bool)) {
	for _, c := range []struct {
		name string
		link LinkLayer
		one  bool
	}{{"IB", InfiniBand, false}, {"IB loopback", InfiniBand, true}, {"RoCE", Ethernet, false}, {"RoCE loopback", Ethernet, true}} {
		t.Run(c.name, func(t *testing.T) { fn(t, c.link, c.one) })
	}
}

// sizes around the MTU of 512 and the limits of inline scatter.
var sizes = []int{1, 31, 32, 33, 64, 65, 511, 512, 513, 1024, 5000, 20000}

func TestSend(t *testing.T) {
	everywhere(t, func(t *testing.T, link LinkLayer, one bool) {
		for _, typ := range []QPType{RC, UC} {
			for _, scatter := range []int{0, 32, 64} {
				p := newPair(t, link, typ, one, qpOptions{scatterRes: scatter, rcq: nil})
				for i, n := range sizes {
					p.b.recv(p.mb.sge(7, 3), p.mb.sge(1000, 30000))
					p.a.post(opSendImm, sig|sol, 0xabcd0000+uint32(i), dataSeg(p.ma.sge(i, n)))
					p.a.h.run()
					s := p.a.scq.good(1)[0]
					r := p.b.rcq.good(1)[0]
					if s.op != cqeReq || s.index != uint16(i) || s.sendOp != opSendImm || s.srqn != 0x77 || s.qpn != p.a.n {
						t.Errorf("send completion %+v", s)
					}
					if r.op != cqeRespSendImm || r.bytes != uint32(n) || r.imm != 0xabcd0000+uint32(i) || r.index != uint16(i) || r.inline == nil && r.flags&0xffffff != p.a.n {
						t.Errorf("receive completion %+v", r)
					}
					got := append(bytes.Clone(p.mb.data[7:10]), p.mb.data[1000:]...)
					if r.inline != nil {
						got = r.inline
					}
					if inline := n <= min(scatter, 32); inline != (r.inline != nil) {
						t.Errorf("%d bytes with scatter %d: inline is %v", n, scatter, r.inline != nil)
					}
					if !bytes.Equal(got[:n], p.ma.data[i:i+n]) {
						t.Errorf("%s: %d bytes did not arrive as sent", typ, n)
					}
				}
				p.clean()
			}
		}
	})
}

// TestInline64 sends what a CQE of 128 bytes has room for.
func TestInline64(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	cq := h.newCQ(4, 128)
	o := qpOptions{typ: RC, rcq: cq, scq: cq, scatterRes: 64, scatterReq: 64}
	a, b := h.newQP(o), h.newQP(o)
	connect(a, b)
	ma, mb := h.newMR(4096, allAccess), h.newMR(4096, allAccess)
	ma.fill(3)
	for i, n := range []int{1, 32, 33, 64, 65} {
		b.recv(mb.sge(0, 4096))
		a.post(opSend, nothing, 0, dataSeg(ma.sge(i, n)))
		h.run()
		r := cq.one()
		got := r.inline
		if n > 64 {
			got = mb.data
		}
		if len(got) < n || !bytes.Equal(got[:n], ma.data[i:i+n]) || n <= 64 && n > 32 != (len(r.inline) == 64) {
			t.Errorf("%d bytes: inline %d, %x", n, len(r.inline), got)
		}
		a.post(opRead, sig, 0, raddrSeg(ma.va, ma.key), dataSeg(mb.sge(2000, n)))
		h.run()
		w := cq.one()
		if n <= 64 && !bytes.Equal(w.inline[:n], ma.data[:n]) || n > 64 && !bytes.Equal(mb.data[2000:2000+n], ma.data[:n]) {
			t.Errorf("READ of %d bytes: %x", n, w.raw)
		}
	}
	h.clean()
}

func TestInlineData(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	for i, n := range []int{1, 12, 13, 28, 100, 300} {
		p.b.recv(p.mb.sge(0, 1000))
		post := p.a.post
		if i%2 == 0 && n <= 224 {
			post = p.a.blue
		}
		post(opSend, sig, 0, inlineSeg(p.ma.data[i:i+n]))
		p.a.h.run()
		p.a.scq.good(1)
		if r := p.b.rcq.good(1)[0]; r.bytes != uint32(n) || !bytes.Equal(p.mb.data[:n], p.ma.data[i:i+n]) {
			t.Errorf("%d bytes inline: %+v", n, r)
		}
	}
	if r := p.a.h.d.Report(); r.Doorbells["BlueFlame"] != 3 || r.Doorbells["8 bytes"] != 3 {
		t.Errorf("doorbells %v", r.Doorbells)
	}
	p.clean()
}

func TestWrite(t *testing.T) {
	everywhere(t, func(t *testing.T, link LinkLayer, one bool) {
		for _, typ := range []QPType{RC, UC} {
			p := newPair(t, link, typ, one, qpOptions{})
			for i, n := range sizes {
				p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va+5, p.mb.key), dataSeg(p.ma.sge(i, n)))
				p.a.h.run()
				p.a.scq.good(1)
				p.b.rcq.good(0)
				if !bytes.Equal(p.mb.data[5:5+n], p.ma.data[i:i+n]) {
					t.Errorf("%s: WRITE of %d bytes did not arrive", typ, n)
				}
				p.b.recv()
				p.a.post(opWriteImm, sig, uint32(i), raddrSeg(p.mb.va+3, p.mb.key), dataSeg(p.ma.sge(i+1, n)))
				p.a.h.run()
				p.a.scq.good(1)
				if r := p.b.rcq.good(1)[0]; r.op != cqeRespWriteImm || r.imm != uint32(i) || r.bytes != uint32(n) || !bytes.Equal(p.mb.data[3:3+n], p.ma.data[i+1:i+1+n]) {
					t.Errorf("%s: WRITE_IMM of %d bytes: %+v", typ, n, r)
				}
			}
			// No bytes: the key does not matter.
			p.a.post(opWrite, sig, 0, raddrSeg(0, 0))
			p.a.h.run()
			p.a.scq.good(1)
			p.clean()
		}
	})
}

func TestRead(t *testing.T) {
	everywhere(t, func(t *testing.T, link LinkLayer, one bool) {
		for _, scatter := range []int{0, 32} {
			p := newPair(t, link, RC, one, qpOptions{scatterReq: scatter})
			for i, n := range sizes {
				p.a.post(opRead, sig, 0, raddrSeg(p.mb.va+uint64(i), p.mb.key), dataSeg(p.ma.sge(100, 1)), dataSeg(p.ma.sge(30000, n)))
				if n == 1 {
					p.a.pc-- // a list that is as long as what is read
					p.a.post(opRead, sig, 0, raddrSeg(p.mb.va+uint64(i), p.mb.key), dataSeg(p.ma.sge(30000, n)))
				}
				p.a.h.run()
				w := p.a.scq.poll()
				if n == 1 {
					continue
				}
				if len(w) != 1 || w[0].op != cqeReq || w[0].bytes != uint32(n+1) {
					t.Fatalf("READ of %d bytes: %v", n+1, w)
				}
				got := append(bytes.Clone(p.ma.data[100:101]), p.ma.data[30000:30000+n]...)
				if w[0].inline != nil {
					got = w[0].inline[:n+1]
				}
				if (w[0].inline != nil) != (n+1 <= scatter) || !bytes.Equal(got, p.mb.data[i:i+n+1]) {
					t.Errorf("READ of %d bytes brought something else", n+1)
				}
			}
		}
	})
}

func TestAtomics(t *testing.T) {
	everywhere(t, func(t *testing.T, link LinkLayer, one bool) {
		p := newPair(t, link, RC, one, qpOptions{})
		le := binary.LittleEndian
		target := p.mb.data[64:]
		at := raddrSeg(p.mb.va+64, p.mb.key)
		result := p.ma.sge(256, 8)
		for _, c := range []struct {
			name      string
			op        uint8
			args      []uint64
			old, want uint64
		}{
			{"add", opFAA, []uint64{5, 0}, 42, 47},
			{"add that wraps", opFAA, []uint64{2, 0}, ^uint64(0), 1},
			{"swap", opCAS, []uint64{77, 42}, 42, 77},
			{"no swap", opCAS, []uint64{77, 42}, 43, 43},
			{"masked swap", opMaskedCAS, []uint64{0xff, 0x1200, 0xf, 0xff00}, 0x1234, 0x123f},
			{"no masked swap", opMaskedCAS, []uint64{0xff, 0x1300, 0xf, 0xff00}, 0x1234, 0x1234},
			{"add in fields", opMaskedFAA, []uint64{0x0101, 0x8080}, 0x00ff, 0x0100},
			{"add in one field", opMaskedFAA, []uint64{0x0101, 0}, 0x00ff, 0x0200},
		} {
			le.PutUint64(target, c.old)
			p.a.post(c.op, sig, 0, at, words64(c.args...), dataSeg(result))
			p.a.h.run()
			w := p.a.scq.good(1)[0]
			if got := le.Uint64(p.ma.data[256:]); w.bytes != 8 || got != c.old || le.Uint64(target) != c.want {
				t.Errorf("%s: found %#x, left %#x; want %#x and %#x", c.name, got, le.Uint64(target), c.old, c.want)
			}
		}
		p.clean()
	})
}

// TestUnsignaled: completions for those that ask for one, with the index of their WQE.
func TestUnsignaled(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	for range 3 {
		for i := range 5 {
			flags := uint8(nothing)
			if i == 4 {
				flags = sig
			}
			p.a.post(opWrite, flags, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 10)))
		}
		p.a.post(opNOP, nothing, 0)
	}
	p.a.h.run()
	all := p.a.scq.good(3)
	for i, w := range all {
		if w.index != uint16(i*6+4) {
			t.Errorf("completion %d is for WQE %d", i, w.index)
		}
	}
	p.clean()
}

// TestWrap sends far more than the rings have room for, in WQEs of all sizes, so that they
// wrap in every way.
func TestWrap(t *testing.T) {
	p := newPair(t, Ethernet, RC, false, qpOptions{logSQ: 4, logRQ: 2})
	for i := range 1500 {
		n := i * 13 % 700
		p.b.recv(p.mb.sge(0, 2000))
		post := p.a.post
		if n < 200 && i%3 == 0 {
			post = p.a.blue
		}
		segs := [][]byte{inlineSeg(p.ma.data[i : i+n+1])}
		post(opSend, sig, 0, segs...)
		p.a.h.run()
		p.a.scq.good(1)
		if r := p.b.rcq.good(1)[0]; int(r.bytes) != n+1 || !bytes.Equal(p.mb.data[:n+1], p.ma.data[i:i+n+1]) {
			t.Fatalf("message %d of %d bytes: %+v", i, n+1, r)
		}
	}
	p.clean()
}

// TestList posts several WQEs with one doorbell.
func TestList(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	for range 10 {
		var last []byte
		for i := range 8 {
			p.b.recv(p.mb.sge(i*1000, 1000))
			last = p.a.write(opSend, sig, 0, dataSeg(p.ma.sge(i*100, 600)), dataSeg(p.ma.sge(0, 4)), dataSeg(p.ma.sge(9, 4)))
		}
		p.a.record()
		p.a.ring(last)
		p.a.h.run()
		p.a.scq.good(8)
		p.b.rcq.good(8)
	}
	p.clean()
}
