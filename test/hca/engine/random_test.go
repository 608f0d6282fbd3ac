package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestRandom runs a long random conversation over a fabric that loses, doubles and
// reorders packets, beside a trivial reference: what each side's memory must hold, and
// which completions must come, in order.
func TestRandom(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomRun(t, seed, RC) })
	}
}

// TestRandomXRC is the same over XRC.
func TestRandomXRC(t *testing.T) {
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomRun(t, seed, XRC) })
	}
}

// reference is what must be.
type reference struct {
	rng    *rand.Rand
	q      *testQP
	local  *testMR
	remote *testMR
	prefix []byte // the XRC segment
	sends  []wc   // completions to come on the send side
	memory []byte // what the remote memory must hold
	back   []byte // what the local memory must hold where results go
}

const (
	readBase   = 32 << 10 // where results go in the local memory
	atomicBase = 60 << 10 // where atomics work in the remote memory
)

// op posts one random operation, and says what must come of it.
func (r *reference) op() (recv []byte, write bool) {
	rng, q := r.rng, r.q
	n := 1 + rng.IntN(2500)
	if rng.IntN(4) == 0 {
		n = 1 + rng.IntN(40)
	}
	off, to := rng.IntN(readBase-n), rng.IntN(readBase-n)
	flags := uint8(nothing)
	if rng.IntN(3) == 0 {
		flags = sig
	}
	var segs [][]byte
	if len(r.prefix) > 0 {
		segs = append(segs, r.prefix)
	}
	index := q.pc
	var op uint8
	switch rng.IntN(6) {
	case 0, 1:
		op = opSendImm
		data := r.local.data[off : off+n]
		if n <= 40 {
			q.poster(n)(op, flags|sol, uint32(n), append(segs, inlineSeg(data))...)
		} else {
			k := rng.IntN(n-1) + 1
			q.post(op, flags, uint32(n), append(segs, dataSeg(r.local.sge(off, k)), dataSeg(r.local.sge(off+k, n-k)))...)
		}
		recv = bytes.Clone(data)
	case 2:
		op = opWrite
		q.post(op, flags, 0, append(segs, raddrSeg(r.remote.va+uint64(to), r.remote.key), dataSeg(r.local.sge(off, n)))...)
		copy(r.memory[to:], r.local.data[off:off+n])
	case 3:
		op = opWriteImm
		q.post(op, flags, uint32(n), append(segs, raddrSeg(r.remote.va+uint64(to), r.remote.key), dataSeg(r.local.sge(off, n)))...)
		copy(r.memory[to:], r.local.data[off:off+n])
		recv, write = []byte{}, true
	case 4:
		op = opRead
		// Nothing that is on its way may change what is read.
		q.post(op, flags|fenced, 0, append(segs, raddrSeg(r.remote.va+uint64(readBase+to%1000), r.remote.key), dataSeg(r.local.sge(readBase+to%1000, n)))...)
		copy(r.back[readBase+to%1000:], r.memory[readBase+to%1000:][:n])
	case 5:
		op = opFAA
		at := atomicBase + rng.IntN(8)*8
		add := rng.Uint64()
		q.post(op, flags|fenced, 0, append(segs, raddrSeg(r.remote.va+uint64(at), r.remote.key), words64(add, 0), dataSeg(r.local.sge(at, 8)))...)
		old := binary.LittleEndian.Uint64(r.memory[at:])
		binary.LittleEndian.PutUint64(r.back[at:], old)
		binary.LittleEndian.PutUint64(r.memory[at:], old+add)
	}
	if flags&sig != 0 {
		r.sends = append(r.sends, wc{op: cqeReq, sendOp: op, index: index})
	}
	return recv, write
}

// poster picks BlueFlame for some of the small messages.
func (q *testQP) poster(n int) func(uint8, uint8, uint32, ...[]byte) {
	if n%2 == 0 {
		return q.blue
	}
	return q.post
}

func randomRun(t *testing.T, seed uint64, typ QPType) {
	rng := rand.New(rand.NewPCG(seed, 99))
	cfg := FabricConfig{Seed: seed}
	if seed%4 > 0 {
		cfg.Loss, cfg.Duplicate = rng.Float64()*0.1, rng.Float64()*0.1
	}
	if seed%4 > 1 {
		cfg.Delay = time.Duration(rng.IntN(100)) * time.Microsecond
	}
	f := newFabric(t, cfg)
	link := LinkLayer(seed % 2)
	ha, hb := newHost(t, f, link), newHost(t, f, link)
	ha.d.cfg.Trace, hb.d.cfg.Trace = nil, nil
	ma, mb := ha.newMR(64<<10, allAccess), hb.newMR(64<<10, allAccess)
	ma.fill(byte(seed))
	mb.fill(byte(seed) + 77)
	scq, rcq := ha.newCQ(8, 64), hb.newCQ(8, 64)
	r := &reference{rng: rng, local: ma, remote: mb, memory: bytes.Clone(mb.data), back: bytes.Clone(ma.data)}
	buf := hb.newMR(64<<10, LocalWrite)
	var recv func(i int)
	var b *testQP
	if typ == XRC {
		xrcd, err := hb.d.AllocXRCD()
		must(t, err)
		srq := hb.newSRQ(5, xrcd, rcq.n, 1)
		r.prefix = make([]byte, 16)
		binary.BigEndian.PutUint32(r.prefix, srq.n)
		b = hb.newQP(qpOptions{typ: XRC, noSQ: true, xrcd: xrcd})
		recv = func(i int) { srq.post(buf.sge(i%16*4096, 100), buf.sge(i%16*4096+100, 3900)) }
		r.q = ha.newQP(qpOptions{typ: XRC, scq: scq, logSQ: 8})
		connectRandom(r.q, b)
		randomTraffic(t, r, scq, rcq, buf, recv, func(w wc) { srq.free(w.index) })
	} else {
		r.q = ha.newQP(qpOptions{typ: RC, scq: scq, logSQ: 8})
		b = hb.newQP(qpOptions{typ: RC, rcq: rcq, logRQ: 5})
		recv = func(i int) { b.recv(buf.sge(i%16*4096, 100), buf.sge(i%16*4096+100, 3900)) }
		connectRandom(r.q, b)
		randomTraffic(t, r, scq, rcq, buf, recv, func(wc) {})
	}
	ha.clean()
	hb.clean()
}

// connectRandom connects with patience: what is lost often is tried often.
func connectRandom(a, b *testQP) {
	for _, e := range [][2]*testQP{{a, b}, {b, a}} {
		at := e[0].attr(e[1])
		// Over the end of the packet sequence numbers.
		if e[0] == a {
			at.SendPSN, at.RecvPSN = 0xffff80, 0x1234
		} else {
			at.SendPSN, at.RecvPSN = 0x1234, 0xffff80
		}
		e[0].connect(at)
	}
}

// randomTraffic posts rounds of operations and compares.
func randomTraffic(t *testing.T, r *reference, scq, rcq *testCQ, buf *testMR, recv func(i int), done func(wc)) {
	t.Helper()
	count := 0
	for round := range 40 {
		type arrival struct {
			data  []byte
			write bool
			slot  int
		}
		var arrivals []arrival
		for range 1 + r.rng.IntN(12) {
			data, write := r.op()
			if data != nil {
				recv(count)
				arrivals = append(arrivals, arrival{data, write, count % 16})
				count++
			}
		}
		r.q.h.run()
		got := scq.poll()
		if len(got) != len(r.sends) {
			t.Fatalf("round %d: %d send completions %v, want %d", round, len(got), got, len(r.sends))
		}
		for i, w := range got {
			if want := r.sends[i]; w.op != want.op || w.sendOp != want.sendOp || w.index != want.index {
				t.Fatalf("round %d: completion %d is %v of %d, want %v of %d", round, i, w, w.index, want, want.index)
			}
		}
		r.sends = nil
		in := rcq.poll()
		if len(in) != len(arrivals) {
			t.Fatalf("round %d: %d receive completions %v, want %d", round, len(in), in, len(arrivals))
		}
		for i, w := range in {
			a := arrivals[i]
			done(w)
			if a.write {
				if w.op != cqeRespWriteImm || w.imm != w.bytes {
					t.Fatalf("round %d: completion %+v", round, w)
				}
				continue
			}
			if w.op != cqeRespSendImm || int(w.bytes) != len(a.data) || !bytes.Equal(buf.data[a.slot*4096:][:len(a.data)], a.data) {
				t.Fatalf("round %d: message %d of %d bytes arrived as %+v", round, i, len(a.data), w)
			}
		}
		if !bytes.Equal(r.remote.data, r.memory) {
			t.Fatalf("round %d: the remote memory is another", round)
		}
		if !bytes.Equal(r.local.data[readBase:], r.back[readBase:]) {
			t.Fatalf("round %d: what came back is another", round)
		}
	}
	if r.q.state() != RTS {
		t.Fatalf("state %s", r.q.state())
	}
}

// TestUnreliableLoss: over UC, a message arrives whole or not at all, and in order.
func TestUnreliableLoss(t *testing.T) {
	for seed := range uint64(10) {
		f := newFabric(t, FabricConfig{Seed: seed, Loss: 0.05})
		ha, hb := newHost(t, f, InfiniBand), newHost(t, f, InfiniBand)
		ha.d.cfg.Trace, hb.d.cfg.Trace = nil, nil
		a, b := ha.newQP(qpOptions{typ: UC, logSQ: 8}), hb.newQP(qpOptions{typ: UC})
		connect(a, b)
		ma, mb := ha.newMR(16<<10, allAccess), hb.newMR(16<<10, allAccess)
		for i := range ma.data {
			ma.data[i] = byte(i / 16)
		}
		last, arrived := uint32(0), 0
		for i := uint32(1); i <= 300; i++ {
			for b.rc-uint16(arrived) < 8 {
				b.recv(mb.sge(0, 8000))
			}
			n := int(i*37%3000 + 1)
			a.post(opSendImm, sig, i, dataSeg(ma.sge(int(i), n)))
			ha.run()
			a.scq.good(1)
			for _, w := range b.rcq.poll() {
				arrived++
				if w.imm <= last || w.imm != i || int(w.bytes) != n || !bytes.Equal(mb.data[:n], ma.data[i:int(i)+n]) {
					t.Fatalf("seed %d: message %d arrived as %+v after %d", seed, i, w, last)
				}
				last = w.imm
			}
		}
		if arrived < 100 || arrived > 299 {
			t.Errorf("seed %d: %d of 300 messages arrived", seed, arrived)
		}
		ha.clean()
		hb.clean()
	}
}

// TestPacketFaults drops and doubles chosen packets.
func TestPacketFaults(t *testing.T) {
	for skip := range 8 {
		for _, action := range []PacketAction{DropPacket, DuplicatePacket} {
			p := newPair(t, InfiniBand, RC, false, qpOptions{})
			p.a.h.f.Fault(PacketFault{Skip: skip, Action: action})
			p.a.h.f.Fault(PacketFault{From: p.b.h.d, QPN: p.a.n, Count: 2, Action: action})
			binary.LittleEndian.PutUint64(p.mb.data[4096:], 5)
			p.b.recv(p.mb.sge(0, 3000))
			p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 1200)))
			p.a.post(opFAA, sig, 0, raddrSeg(p.mb.va+4096, p.mb.key), words64(1, 0), dataSeg(p.ma.sge(8000, 8)))
			p.a.post(opRead, sig, 0, raddrSeg(p.mb.va+5000, p.mb.key), dataSeg(p.ma.sge(9000, 1500)))
			p.a.h.run()
			p.a.scq.good(3)
			p.b.rcq.good(1)
			if n := binary.LittleEndian.Uint64(p.mb.data[4096:]); n != 6 {
				t.Errorf("skip %d: one was added %d times", skip, n-5)
			}
			if !bytes.Equal(p.ma.data[9000:10500], p.mb.data[5000:6500]) || !bytes.Equal(p.mb.data[:1200], p.ma.data[:1200]) {
				t.Errorf("skip %d: the data is another", skip)
			}
			p.clean()
		}
	}
}

// TestDeterministic: the same seed gives the same run, to the packet.
func TestDeterministic(t *testing.T) {
	run := func() (map[string]uint64, time.Duration) {
		f := newFabric(t, FabricConfig{Seed: 5, Loss: 0.1, Duplicate: 0.1, Delay: 50 * time.Microsecond})
		ha, hb := newHost(t, f, InfiniBand), newHost(t, f, InfiniBand)
		a, b := ha.newQP(qpOptions{typ: RC}), hb.newQP(qpOptions{typ: RC})
		connect(a, b)
		m, n := ha.newMR(32<<10, allAccess), hb.newMR(32<<10, allAccess)
		for range 20 {
			a.post(opWrite, nothing, 0, raddrSeg(n.va, n.key), dataSeg(m.sge(0, 20000)))
		}
		ha.run()
		return ha.d.Report().Packets, f.Now()
	}
	p1, t1 := run()
	p2, t2 := run()
	if fmt.Sprint(p1) != fmt.Sprint(p2) || t1 != t2 || p1["dropped: lost on the fabric"] == 0 {
		t.Errorf("%v at %v, then %v at %v", p1, t1, p2, t2)
	}
}

// TestNAK: a gap is found by the responder, without any timeout.
func TestNAK(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	p.a.edit(func(a *QPAttr) { a.Primary.AckTimeout = 0 })
	p.a.h.f.Fault(PacketFault{From: p.a.h.d, Skip: 2})
	p.b.recv(p.mb.sge(0, 3000))
	p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 3000)))
	p.a.h.run()
	p.a.scq.good(1)
	p.b.rcq.good(1)
	// The last one lost is not found without a timeout, and there is none.
	p.a.h.f.Fault(PacketFault{From: p.a.h.d})
	p.b.recv(p.mb.sge(0, 3000))
	p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 30)))
	p.a.h.run()
	p.a.scq.good(0)
	// It is found by the next one.
	p.b.recv(p.mb.sge(0, 3000))
	p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 30)))
	p.a.h.run()
	p.a.scq.good(2)
	p.b.rcq.good(2)
	p.clean()
}

// TestRetries: how often a packet is sent, and that success gives the tries back.
func TestRetries(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	p.a.edit(func(a *QPAttr) { a.RetryCount = 2 })
	send := func(lost int) wc {
		p.a.h.f.Fault(PacketFault{From: p.a.h.d, Count: lost})
		p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 10)))
		p.a.h.run()
		return p.a.scq.one()
	}
	for range 3 {
		if w := send(2); w.syndrome != 0 {
			t.Fatalf("two of three lost: %v", w)
		}
	}
	before := p.a.h.d.Report().Packets["sent"]
	if w := send(100); w.syndrome != RetryExceeded || w.vendor != vendorRetry {
		t.Errorf("all lost: %v", w)
	}
	if n := p.a.h.d.Report().Packets["sent"] - before; n != 3 {
		t.Errorf("sent %d times, want 3", n)
	}
}

// TestLateACK: an acknowledgement that comes while its request is being sent again ends that, and
// the request after it is sent from its beginning.
func TestLateACK(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	f, q := p.a.h.f, p.a.h.d.qps[p.a.n]
	f.Fault(PacketFault{From: p.b.h.d, Count: 3}) // the acknowledgements of packets 31, 39 and 40
	p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key), dataSeg(p.ma.sge(0, 40*512)))
	p.a.post(opWrite, sig, 0, raddrSeg(p.mb.va+30000, p.mb.key), dataSeg(p.ma.sge(30000, 100)))
	midway := func() bool {
		return len(q.req.flight) == 2 && q.req.flight[1].sent && q.req.at == 0 && q.req.pkt == burst
	}
	for i := 0; !midway(); i++ {
		if f.Run(1); i > 1000 {
			t.Fatal("nothing is sent again")
		}
	}
	q.response(&packet{kind: pktAck, psn: q.req.flight[0].psn + 39, syndrome: ackOK})
	p.a.h.run()
	p.a.scq.good(2)
	if !bytes.Equal(p.mb.data[:40*512], p.ma.data[:40*512]) || !bytes.Equal(p.mb.data[30000:30100], p.ma.data[30000:30100]) {
		t.Error("the data is another")
	}
	p.clean()
}
