package engine

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
)

// guard is memory that says what was touched outside of it.
type guard struct {
	*arena
	outside int
}

func (g *guard) Bytes(addr uint64, n int) ([]byte, error) {
	b, err := g.arena.Bytes(addr, n)
	if err != nil {
		g.outside++
		return nil, errors.New("outside")
	}
	return b, nil
}

// garbageHost is a device whose queues a fuzzer fills.
func garbageHost(t *testing.T, typ QPType, eth bool) (*host, *testQP) {
	link := InfiniBand
	if typ == UD || eth {
		link = Ethernet
	}
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, link)
	q := h.newQP(qpOptions{typ: typ})
	if typ == RegUMR {
		q.connect(QPAttr{Primary: Path{Port: 1}})
	} else {
		q.connect(q.attr(q)) // with itself
	}
	return h, q
}

// FuzzWQE executes WQEs of any bytes: whatever they say, nothing panics, the fabric comes
// to rest, and no byte outside of the keys' memory changes but for the completions.
func FuzzWQE(f *testing.F) {
	types := []QPType{RC, UC, UD, XRC, QP1, RegUMR}
	for i := range types {
		for op := range opNames {
			w := make([]byte, 256)
			w[3], w[7], w[11] = op, 12, sig
			f.Add(uint8(i), w)
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, w []byte) {
		if len(w) < 16 || len(w) > 1008 {
			return
		}
		h, q := garbageHost(t, types[int(kind)%len(types)], kind >= 128)
		runGarbage(t, h, q, w)
	})
}

// runGarbage posts a WQE, made right only so far that hardware looks at it.
func runGarbage(t *testing.T, h *host, q *testQP, w []byte) {
	w = append([]byte(nil), w[:len(w)&^15]...)
	w[1], w[2] = byte(q.pc>>8), byte(q.pc)
	binary.BigEndian.PutUint32(w[4:], q.n<<8|uint32(len(w)/16))
	m := h.newMR(page, allAccess)
	q.recv(m.sge(0, page))
	canary := h.mem.alloc(page)
	for i := range h.mem.at(canary, page) {
		h.mem.at(canary, page)[i] = byte(i)
	}
	q.put(w)
	q.record()
	q.ring(w)
	h.run()
	_ = describeSend(q.spec.Type, w)
	for i, b := range h.mem.at(canary, page) {
		if b != byte(i) {
			t.Fatal("memory without a key was written")
		}
	}
	all := q.scq.poll()
	if len(all) > 1 {
		t.Fatalf("%d completions of one WQE", len(all))
	}
	i, err := h.d.QueryQP(q.n)
	must(t, err)
	if i.State == RTS && w[11]&8 != 0 && len(all) != 1 {
		t.Fatalf("no completion of a signaled WQE: %s", describeSend(q.spec.Type, w))
	}
	h.d.DestroyQP(q.n)
}

// TestGarbage does the same with WQEs that are nearly right: bytes of good ones, changed.
func TestGarbage(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	n := 4000
	if testing.Short() {
		n = 400
	}
	types := []QPType{RC, UC, UD, XRC, QP1, RegUMR}
	for range n {
		h, q := garbageHost(t, types[rng.IntN(len(types))], false)
		h.d.cfg.Trace = nil
		m := h.newMR(page, allAccess)
		segs := [][]byte{raddrSeg(m.va, m.key), dataSeg(m.sge(0, 100)), inlineSeg(make([]byte, 40)), q.avSeg(q, 0x11111111), umrSegs(0x80, 4, bindMask, 0, allAccess, q.n<<8, m.va, 100), klmSeg(m, 0, 100), words64(1, 2)}
		w := make([]byte, 16)
		for range rng.IntN(5) {
			w = append(w, segs[rng.IntN(len(segs))]...)
		}
		ops := []byte{opNOP, opSend, opSendImm, opSendInv, opWrite, opWriteImm, opRead, opCAS, opFAA, opMaskedCAS, opMaskedFAA, opUMR, opLocalInv}
		w[3], w[11] = ops[rng.IntN(len(ops))], sig
		binary.BigEndian.PutUint32(w[12:], m.key)
		for range rng.IntN(6) {
			w[rng.IntN(len(w))] ^= 1 << rng.IntN(8)
		}
		runGarbage(t, h, q, w)
	}
}

// FuzzUAR makes stores of any kind to UAR pages: nothing panics.
func FuzzUAR(f *testing.F) {
	f.Add(uint32(0x20), []byte{0, 0, 0, 0, 0, 0, 4, 0})
	f.Add(uint32(0x40), []byte{4, 0, 0, 0})
	f.Add(uint32(0x800), []byte{0, 0, 0, 0, 0, 0, 0x40, 1, 0, 0, 0, 8, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, offset uint32, data []byte) {
		if len(data) > 512 {
			return
		}
		h, q := garbageHost(t, RC, false)
		for i := 0; i <= len(data); i += 8 {
			h.d.UARWrite(q.spec.UAR, offset+uint32(i), data[i:min(i+8, len(data))])
			h.d.UARWrite(0x101, offset, data)
		}
		h.d.UARRead(1, offset, len(data))
		h.run()
		h.d.DestroyQP(q.n)
	})
}

// FuzzQueues puts any bytes where the device reads queues of the driver: receive WQEs,
// SRQ lists and doorbell records.
func FuzzQueues(f *testing.F) {
	f.Add([]byte{0, 0, 0, 5}, []byte{0, 1, 0, 0}, uint16(1))
	f.Fuzz(func(t *testing.T, record, wqe []byte, count uint16) {
		fab := newFabric(t, FabricConfig{})
		h := newHost(t, fab, InfiniBand)
		srq := h.newSRQ(3, 0, 0, 0)
		m := h.newMR(page, allAccess)
		a, b, c := h.newQP(qpOptions{typ: RC}), h.newQP(qpOptions{typ: RC, srq: srq}), h.newQP(qpOptions{typ: RC})
		connect(a, b)
		c.connect(c.attr(c))
		srq.post(m.sge(0, 100))
		c.recv(m.sge(0, 100))
		copy(h.mem.at(srq.addr, 8<<6), wqe)
		copy(h.mem.at(c.addr, 64), wqe)
		copy(h.mem.at(srq.dbr, 4), record)
		copy(h.mem.at(c.dbr, 4), record)
		for range count%4 + 1 {
			a.post(opSend, sig, 0, dataSeg(m.sge(0, 10)))
			c.post(opSend, sig, 0, dataSeg(m.sge(0, 10)))
		}
		fab.RunFor(1e6)
		b.modify(To2Err, 0, QPAttr{})
		c.modify(To2Err, 0, QPAttr{})
		fab.RunFor(1e6)
	})
}

// TestMemoryOutside: keys and WQEs whose bus addresses lead nowhere are errors.
func TestMemoryOutside(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	g := &guard{arena: h.mem}
	h.d.cfg.Memory = g
	a := h.newQP(qpOptions{typ: RC})
	a.connect(a.attr(a))
	pa, err := h.d.CreateMKey(MKeySpec{PD: h.pd, QPN: NoUserIndex, Mode: ModePA, Access: allAccess, Length64: true})
	must(t, err)
	nowhere := &testMR{key: pa << 8, va: 1 << 50}
	if g.outside > 0 {
		t.Errorf("%d addresses outside before", g.outside)
	}
	a.post(opSend, sig, 0, dataSeg(nowhere.sge(0, 10)))
	h.run()
	if w := a.scq.one(); w.syndrome != LocalProt || g.outside == 0 {
		t.Errorf("%v, %d addresses outside", w, g.outside)
	}
	h.clean()
}
