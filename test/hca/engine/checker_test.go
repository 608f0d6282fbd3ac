package engine

import (
	"encoding/binary"
	"testing"
)

// sendRules breaks each rule about send queues once.
var sendRules = []struct {
	name, rule string
	do         func(p *pair)
}{
	{"index in the WQE alone", "wqe-index", func(p *pair) {
		w := p.a.write(opNOP, sig, 0)
		p.a.record()
		p.a.ring(w)
		p.a.block(p.a.pc - 1)[2] ^= 1
	}},
	{"QPN in the WQE alone", "wqe-qpn", func(p *pair) {
		w := p.a.write(opNOP, sig, 0)
		p.a.record()
		good := append([]byte(nil), w...)
		p.a.ring(good)
		p.a.block(p.a.pc - 1)[6] ^= 1
	}},
	{"opcode modifier", "wqe-opmod", spoil(func(w []byte) { w[0] = 1 })},
	{"signature byte", "wqe-reserved", spoil(func(w []byte) { w[8] = 1 })},
	{"flags", "wqe-reserved", spoil(func(w []byte) { w[11] |= 1 })},
	{"size's upper bits", "wqe-reserved", spoil(func(w []byte) { w[7] |= 0x40 })},
	{"remote address segment", "wqe-reserved", func(p *pair) {
		r := raddrSeg(p.mb.va, p.mb.key)
		r[15] = 1
		p.a.post(opWrite, sig, 0, r, dataSeg(p.ma.sge(0, 10)))
	}},
	{"UMR control segment", "wqe-reserved", func(p *pair) {
		u := umrSegs(0x80, 0, 1<<29, 0x40, 0, 0, 0, 0)
		u[40] = 1
		p.a.post(opUMR, sig, p.a.h.newMW(false), u)
	}},
	{"mkey status", "wqe-reserved", func(p *pair) {
		p.a.post(opUMR, sig, p.a.h.newMW(false), umrSegs(0x80, 0, 1<<29, 0xc0, 0, 0, 0, 0))
	}},
	{"fence mode", "wqe-fence", spoil(func(w []byte) { w[11] |= 7 << 5 })},
	{"no opcode", "wqe-opcode", func(p *pair) { p.a.post(0x3f, sig, 0) }},
	{"PSV", "wqe-not-modelled", func(p *pair) { p.a.post(opSetPSV, sig, 0, make([]byte, 32)) }},
	{"LSO", "wqe-not-modelled", func(p *pair) { p.a.post(opLSO, sig, 0, make([]byte, 32)) }},
	{"UMR of signatures", "wqe-not-modelled", func(p *pair) {
		p.a.post(opUMR, sig, p.a.h.newMW(false), umrSegs(0x80, 0, 1<<12, 0, 0, 0, 0, 0))
	}},
	{"UMR flags", "wqe-umr-flags", func(p *pair) {
		p.a.post(opUMR, sig, p.a.h.newMW(false), umrSegs(0x81, 0, 0, 0, 0, 0, 0, 0))
	}},
	{"UMR mask", "wqe-umr-mask", func(p *pair) {
		p.a.post(opUMR, sig, p.a.h.newMW(false), umrSegs(0x80, 0, 1<<40, 0, 0, 0, 0, 0))
	}},
	{"UMR list that is not padded", "wqe-umr-size", func(p *pair) {
		p.a.post(opUMR, sig, p.a.h.newMW(false), umrSegs(0x80, 1, 1, 0, 0, 0, 0, 10), klmSeg(p.ma, 0, 10))
	}},
	{"no remote address", "wqe-size", func(p *pair) { p.a.post(opWrite, sig, 0) }},
	{"inline longer than the WQE", "wqe-size", postSend([]byte{0x80, 0, 0, 100, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})},
	{"inline without data", "wqe-inline", postSend([]byte{0x80, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})},
	{"inline beyond 1023", "wqe-inline", postSend([]byte{0x80, 0, 4, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})},
	{"inline for a result", "wqe-inline", func(p *pair) {
		p.a.post(opRead, sig, 0, raddrSeg(p.mb.va, p.mb.key), inlineSeg([]byte("xy")))
	}},
	{"no length", "wqe-data-zero", postSend(make([]byte, 16))},
	{"size 0 in a doorbell", "wqe-ds", spoil(func(w []byte) { w[7] = 0 })},
	{"size that leads beyond", "wqe-ds", func(p *pair) {
		p.a.write(opNOP, sig, 0)
		p.a.block(p.a.pc - 1)[7] = 9
		w := p.a.write(opNOP, sig, 0)
		p.a.record()
		p.a.ring(w)
	}},
	{"QPN that is none", "doorbell-qpn", spoil(func(w []byte) { binary.BigEndian.PutUint32(w[4:], 0x777777<<8|2) })},
	{"UAR of another", "doorbell-uar", func(p *pair) {
		w := p.a.write(opNOP, sig, 0)
		p.a.record()
		p.a.h.d.UARWrite(p.a.spec.UAR+0x55, 0x800, w[:8])
	}},
	{"another register", "doorbell-register", func(p *pair) {
		p.a.post(opNOP, sig, 0)
		p.a.reg = 1
		p.a.post(opNOP, sig, 0)
	}},
	{"in the reset state", "doorbell-state", func(p *pair) {
		q := p.a.h.newQP(qpOptions{typ: RC})
		q.post(opNOP, sig, 0)
	}},
	{"doorbell before its record", "doorbell-record", func(p *pair) {
		w := p.a.write(opNOP, sig, 0)
		p.a.ring(w)
		p.a.record()
	}},
	{"twice", "doorbell-index", func(p *pair) {
		w := p.a.write(opNOP, sig, 0)
		p.a.record()
		p.a.ring(w)
		p.a.ring(w)
	}},
	{"more than the ring", "sq-ownership", func(p *pair) {
		for range 63 {
			p.a.post(opNOP, nothing, 0)
		}
		w := p.a.write(opNOP, sig, 0)
		binary.BigEndian.PutUint32(p.a.h.mem.at(p.a.dbr+4, 4), uint32(p.a.pc+1))
		p.a.ring(w)
	}},
	{"doorbell that is not the WQE", "doorbell-ctrl", func(p *pair) {
		w := p.a.write(opNOP, sig, 0)
		p.a.record()
		w[3] = opSend
		p.a.ring(w)
	}},
	{"4 bytes", "doorbell-width", func(p *pair) {
		w := p.a.write(opNOP, sig, 0)
		p.a.record()
		p.a.h.d.UARWrite(p.a.spec.UAR, 0x800, w[:4])
		p.a.h.d.UARWrite(p.a.spec.UAR, 0x804, w[4:8])
	}},
	{"changed while hardware has it", "sq-changed", func(p *pair) {
		p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 10)))
		p.a.h.f.RunFor(1000)
		p.a.block(p.a.pc - 1)[20] ^= 1
		p.b.recv(p.mb.sge(0, 10))
	}},
	{"record that can't be read", "sq-record-memory", func(p *pair) {
		p.a.h.d.qps[p.a.n].spec.DBR = 8
		p.a.post(opNOP, sig, 0)
	}},
	{"where no doorbell is", "uar-offset", storeUAR(0x100)},
	{"beyond the page", "uar-range", storeUAR(4092)},
	{"UAR read", "uar-read", func(p *pair) { p.a.h.d.UARRead(p.a.spec.UAR, 0x800, 8) }},
	{"inline in a receive WQE", "rq-inline", func(p *pair) {
		p.b.recv(p.mb.sge(0, 10))
		p.b.h.mem.at(p.b.addr+64, 1)[0] = 0x80
		p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 10)))
	}},
	{"receive entry without length", "rq-data-zero", func(p *pair) {
		p.b.recv(p.mb.sge(0, 0))
		p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 10)))
	}},
	{"receive record ahead of the ring", "rq-record", func(p *pair) {
		binary.BigEndian.PutUint32(p.b.h.mem.at(p.b.dbr, 4), 18)
		p.a.post(opSend, sig, 0)
	}},
	{"receive record with more than 16 bits", "rq-record-reserved", func(p *pair) {
		p.b.recv()
		p.b.h.mem.at(p.b.dbr, 4)[1] = 1
		p.a.post(opSend, sig, 0)
	}},
	{"receive WQE that is changed while hardware has it", "rq-changed", func(p *pair) {
		p.b.recv(p.mb.sge(0, 20000))
		p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 20000)))
		for i := 0; p.b.h.d.qps[p.b.n].resp.recv == nil && i < 10000; i++ {
			p.a.h.f.Run(1)
		}
		p.b.h.mem.at(p.b.addr+64+8, 1)[0] ^= 1 // the ring's second WQE
	}},
	{"SRQ's number", "wqe-xrc", func(p *pair) {
		q, r := p.a.h.newQP(qpOptions{typ: XRC}), p.a.h.newQP(qpOptions{typ: XRC})
		connect(q, r)
		q.post(opSend, sig, 0, []byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	}},
	{"short address vector on Ethernet", "wqe-av", func(p *pair) {
		f := newFabric(p.a.h.t, FabricConfig{})
		h := newHost(p.a.h.t, f, Ethernet)
		q := h.newQP(qpOptions{typ: UD})
		q.connect(q.attr(q))
		q.post(opSend, sig, 0, make([]byte, 16))
		p.a.h, p.b.h = h, h
	}},
	{"address vector", "wqe-reserved", func(p *pair) {
		q := p.a.h.newQP(qpOptions{typ: UD})
		q.connect(q.attr(q))
		av := q.avSeg(q, 0)
		av[4] = 1
		q.post(opSend, sig, 0, av)
	}},
	{"extended address vector", "wqe-reserved", func(p *pair) {
		q := p.a.h.newQP(qpOptions{typ: UD})
		q.connect(q.attr(q))
		av := q.avSeg(q, 0)
		av[16] = 1
		q.post(opSend, sig, 0, av)
	}},
}

// spoil returns a step that posts a WQE that fn has changed after the good one was written.
func spoil(fn func(w []byte)) func(p *pair) {
	return func(p *pair) {
		w := p.a.write(opSend, sig, 0, dataSeg(p.ma.sge(0, 10)))
		fn(p.a.block(p.a.pc - 1))
		fn(w)
		p.a.record()
		p.a.ring(w)
	}
}

// postSend returns a step that posts a SEND with data segments.
func postSend(segs ...[]byte) func(p *pair) {
	return func(p *pair) { p.a.post(opSend, sig, 0, segs...) }
}

// storeUAR returns a step that writes 8 bytes at an offset of the UAR.
func storeUAR(off uint32) func(p *pair) {
	return func(p *pair) { p.a.h.d.UARWrite(p.a.spec.UAR, off, make([]byte, 8)) }
}

// TestRules breaks each rule about send queues once. Everything that the same test does before is
// right, and breaks no rule.
func TestRules(t *testing.T) {
	for _, c := range sendRules {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, InfiniBand, RC, false, qpOptions{})
			p.a.h.t, p.b.h.t = t, t
			p.b.recv(p.mb.sge(0, 1000))
			p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 100)))
			p.a.h.run()
			p.a.scq.good(1)
			p.clean()
			p.b.rcq.good(1)
			c.do(p)
			p.a.h.f.RunFor(20e6)
			h := p.a.h
			if h.d.Report().Total() == 0 {
				h = p.b.h
			}
			h.broke(c.rule)
		})
	}
}

// blueFlameCopies are right copies through the BlueFlame register, and wrong ones with the rule that they break.
var blueFlameCopies = []struct {
	name, rule string
	do         func(p *pair)
	blue       uint64
}{
	{"whole", "", func(p *pair) { copyPiece(p.a, writeInline(p, 60), 0, 128) }, 1},
	{"interrupted for longer than the device waits", "", func(p *pair) {
		w := writeInline(p, 60)
		copyPiece(p.a, w, 0, 40)
		p.a.h.f.RunFor(1e9)
		copyPiece(p.a, w, 40, 128)
	}, 1},
	{"in stores of 64 bytes", "", func(p *pair) {
		w := writeInline(p, 100)
		p.a.h.d.UARWrite(p.a.spec.UAR, 0x800+p.a.half*256, w[:64])
		p.a.h.d.UARWrite(p.a.spec.UAR, 0x800+p.a.half*256+64, w[64:128])
	}, 1},
	{"a doorbell alone where copies were", "", func(p *pair) {
		copyPiece(p.a, writeInline(p, 60), 0, 128)
		p.a.half ^= 1
		p.b.recv(p.mb.sge(0, 1000))
		p.b.recv(p.mb.sge(0, 1000))
		copyPiece(p.a, writeInline(p, 60), 0, 8)
		p.a.half ^= 1
		copyPiece(p.a, writeInline(p, 60), 0, 128)
	}, 2},
	{"two registers in turn", "", func(p *pair) {
		q := p.a.h.newQP(qpOptions{typ: RC})
		r := p.b.h.newQP(qpOptions{typ: RC})
		connect(q, r)
		a := writeInline(p, 60)
		b := q.write(opNOP, sig, 0)
		q.record()
		b = append(b, make([]byte, 48)...)
		copyPiece(p.a, a, 0, 64)
		copyPiece(q, b, 0, 32)
		copyPiece(p.a, a, 64, 128)
		copyPiece(q, b, 32, 64)
	}, 2},
	{"the kernel's test of write combining", "", func(p *pair) {
		var copied int
		for range 8 {
			w := p.a.write(opNOP, nothing, 0)
			p.a.record()
			w[11] |= sig
			w = append(w, make([]byte, 48)...)
			w[30] = 0x55 // behind the WQE
			copyPiece(p.a, w, 0, 64)
			p.a.half ^= 1
			p.a.h.run()
			copied += len(p.a.scq.poll())
		}
		// The first copy through a register is not waited for.
		if copied != 7 {
			p.a.h.t.Errorf("%d of 8 copies were executed", copied)
		}
	}, 8},
	{"data that differs", "bf-data", func(p *pair) {
		w := writeInline(p, 60)
		w[70] ^= 1
		copyPiece(p.a, w, 0, 128)
	}, 1},
	{"a piece that is left out", "bf-order", func(p *pair) {
		w := writeInline(p, 60)
		copyPiece(p.a, w, 0, 64)
		copyPiece(p.a, w, 72, 80)
	}, 1},
	{"a piece without a beginning", "bf-stray", func(p *pair) {
		copyPiece(p.a, writeInline(p, 60), 16, 24)
	}, 0},
	{"one that ends early", "bf-short", func(p *pair) {
		w := writeInline(p, 60)
		copyPiece(p.a, w, 0, 64)
		p.a.half ^= 1
		p.a.post(opNOP, sig, 0)
	}, 1},
	{"the same half again", "bf-alternation", func(p *pair) {
		p.b.recv(p.mb.sge(0, 1000))
		copyPiece(p.a, writeInline(p, 60), 0, 128)
		copyPiece(p.a, writeInline(p, 60), 0, 128)
	}, 2},
	{"larger than a half", "bf-size", func(p *pair) {
		w := writeInline(p, 300)
		copyPiece(p.a, w, 0, 16)
	}, 1},
}

// copyPiece copies a part of a WQE into the BlueFlame register with stores of 8 bytes.
func copyPiece(q *testQP, w []byte, from, to int) {
	for o := from; o < to; o += 8 {
		q.h.d.UARWrite(q.spec.UAR, 0x800+q.half*256+uint32(o), w[o:o+8])
	}
}

// writeInline writes a SEND of n bytes inline and its record. It returns the WQE, padded to 256 bytes.
func writeInline(p *pair, n int) []byte {
	w := p.a.write(opSend, sig, 0, inlineSeg(p.ma.data[:n]))
	p.a.record()
	return append(w, make([]byte, 256-len(w)%256)...)
}

// TestBlueFlame: copies of every size, whole and in pieces, and the rules about them.
func TestBlueFlame(t *testing.T) {
	for _, c := range blueFlameCopies {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, InfiniBand, RC, false, qpOptions{})
			p.a.h.t = t
			p.b.recv(p.mb.sge(0, 1000))
			c.do(p)
			p.a.h.run()
			if c.rule != "" {
				p.a.h.broke(c.rule)
			} else {
				p.clean()
				for _, w := range p.a.scq.poll() {
					if w.op != cqeReq {
						t.Errorf("completion %v", w)
					}
				}
			}
			if n := p.a.h.d.Report().Doorbells["BlueFlame"]; n != c.blue {
				t.Errorf("%d BlueFlame copies were counted, want %d", n, c.blue)
			}
		})
	}
}
