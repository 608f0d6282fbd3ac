package engine

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// fuzzTarget is a QP that gets packets, with memory that a peer may write and memory around it that
// nobody may touch.
type fuzzTarget struct {
	*side
	key    uint32 // of the middle of the buffer
	guards []byte
	r      *rand.Rand

	local, peer string // addresses
}

const (
	fuzzSize  = 1 << 14
	fuzzGuard = 1 << 12 // bytes at each end
)

// newFuzzTarget makes a QP in a state, with requests under way.
func newFuzzTarget(t testing.TB, typ QPType, state State, seed uint64) *fuzzTarget {
	clock := newFakeClock()
	net, local, peer := &fakeNetwork{clock: clock}, "10.0.0.1", "10.0.0.2"
	if seed%2 == 1 {
		net.large, local, peer = func() bool { return true }, "127.0.0.2", "127.0.0.3"
	}
	p := net.port()
	d := newDevice(t, Config{Network: p, Clock: clock, Go: func(f func()) { f() }}, local)
	p.device = d
	s := newSide(t, d, sideOptions{typ: typ, bufSize: fuzzSize})
	check(t, s.mr.Dereg())
	mr, errno := d.config.Memory.RegMR(s.pd, s.addr(fuzzGuard), fuzzSize-2*fuzzGuard, s.addr(fuzzGuard), allAccess)
	check(t, errno)
	s.mr = mr
	f := &fuzzTarget{side: s, key: mr.RKey(), r: rand.New(rand.NewPCG(seed, 5)), local: local, peer: peer}
	f.guards = s.fill(0, fuzzSize, byte(seed))
	for i := range uint64(20) {
		s.recv(i, s.sge(fuzzGuard, 2000))
	}
	switch {
	case state == Reset:
		return f
	case state == Init && typ == UD:
		check(t, s.qp.Modify(&QPAttr{State: Init, Port: 1, QKey: testQKey}, initMask|AttrQKey))
		return f
	case state == Init:
		check(t, s.qp.Modify(&QPAttr{State: Init, Port: 1, AccessFlags: allAccess}, initMask|AttrAccess))
		return f
	}
	if typ == UD {
		s.activate()
	} else {
		s.connectTo(&QP{num: 0x77}, peer, connOptions{noRTS: state < RTS, mtu: 1, rdAtomic: 2})
	}
	if state >= RTS && typ == RC {
		s.post(signaled(1, ring.OpSend, s.sge(fuzzGuard, 1000)), signaled(2, ring.OpRead, s.sge(fuzzGuard, 1000)), signaled(3, ring.OpAtomicFAA, s.sge(fuzzGuard, 8)),
			signaled(4, ring.OpWrite, s.sge(fuzzGuard, 4000)), sendWR{id: 5, opcode: ring.OpFlush})
	}
	switch {
	case state == SQE:
		if typ != RC {
			s.post(sendWR{opcode: ring.OpRead})
			s.inState(SQE)
		}
	case state > RTS:
		check(t, s.qp.Modify(&QPAttr{State: state}, AttrState))
	}
	return f
}

// packet makes a packet that is right but for some of its fields.
func (f *fuzzTarget) packet(choice []byte) []byte {
	next := func() uint32 {
		if len(choice) == 0 {
			return f.r.Uint32()
		}
		c := choice[0]
		choice = choice[1:]
		return uint32(c)
	}
	q := f.qp
	h := wire.Header{
		Opcode: transports[q.typ] | wire.Opcode(next()&0x1f), PKey: wire.DefaultPKey, DestQP: q.num, QKey: testQKey,
		AckReq: next()&1 == 0, Solicited: next()&1 == 0,
		Addr: f.addr(fuzzGuard) + uint64(next()%3)*4, RKey: f.key, Length: next() % 2048,
		Syndrome: []uint8{wire.SyndromeACK, wire.SyndromeRNR | 1, 0x60, 0x61, 0x62, 0x63, 0x40, 0xff}[next()&7], FlushType: uint8(next()), FlushLevel: uint8(next() & 1),
	}
	if h.Opcode.IsResponse() {
		h.PSN = wire.Add(q.req.una, int(next()%40)-4)
	} else {
		h.PSN = wire.Add(q.resp.psn, max(int(next()%12)-8, -4))
	}
	switch next() % 16 { // and one that is wrong
	case 0:
		h.Addr -= uint64(next() * 1000)
	case 1:
		h.Addr += uint64(next() * 1000)
	case 2:
		h.RKey += next()
	case 3:
		h.Length = next() << 24
	case 4:
		h.PSN = next() << 16
	}
	n := []int{0, 1, 8, 255, 256, 257, 512, 1000}[next()&7]
	h.Pad = uint8(wire.Padding(n))
	b := make([]byte, wire.PacketSize(h.Opcode, n))
	h.Put(b)
	if next()%8 == 0 {
		b[next()%uint32(len(b))] ^= byte(next())
	}
	return b
}

// receive gives the QP a packet as if its peer had sent it.
func (f *fuzzTarget) receive(b []byte) {
	r := f.d.NewReceiver()
	r.Packet(&Meta{From: netip.MustParseAddr(f.peer), To: netip.MustParseAddr(f.local)}, b)
	r.Flush()
}

// verify checks what must hold whatever came.
func (f *fuzzTarget) verify(t testing.TB) {
	t.Helper()
	for _, part := range [][2]int{{0, fuzzGuard}, {fuzzSize - fuzzGuard, fuzzSize}} {
		if !bytes.Equal(f.buf[part[0]:part[1]], f.guards[part[0]:part[1]]) {
			t.Fatal("memory outside of the MR has changed")
		}
	}
	for n := 0; ; n++ {
		if _, ok := f.poll(); !ok {
			break
		}
		if n > 60 {
			t.Fatal("more completions than requests")
		}
	}
	r := &f.qp.req
	if r.rdAtomics < 0 || wire.Diff(r.psn, r.una) < 0 || wire.Diff(r.end, r.psn) < 0 {
		t.Fatalf("the requester is at %+v", *r)
	}
}

// fuzzStates are the states in which QPs get packets. An RC QP is in RTS instead of SQE.
var fuzzStates = []State{Reset, Init, RTR, RTS, SQD, Err, SQE}

// FuzzPackets gives packets to QPs of each type in each state. They never panic, and never touch memory
// that the peer has no right to.
func FuzzPackets(f *testing.F) {
	for _, typ := range []QPType{RC, UC, UD} {
		for i := range fuzzStates {
			f.Add(uint8(typ), uint8(i), uint64(i), []byte{0, 4, 8, 12, 17})
		}
	}
	f.Fuzz(func(t *testing.T, typ, state uint8, seed uint64, choice []byte) {
		kind, st := []QPType{RC, UC, UD}[typ%3], fuzzStates[int(state)%len(fuzzStates)]
		if kind == UD && st == RTR {
			st = RTS
		}
		target := newFuzzTarget(t, kind, st, seed)
		for i := range 60 {
			part := choice[min(i*8, len(choice)):min(i*8+8, len(choice))]
			if i%10 == 9 { // any bytes at all
				b := make([]byte, target.r.IntN(100))
				target.randomBytes(b)
				target.receive(b)
				continue
			}
			target.receive(target.packet(part))
			if target.qp.Query().State >= RTS {
				target.d.config.Clock.(*fakeClock).advance(1)
			}
		}
		target.verify(t)
		target.d.Close()
	})
}

// randomBytes fills b, the beginning like a packet to the QP.
func (f *fuzzTarget) randomBytes(b []byte) {
	for i := range b {
		b[i] = byte(f.r.Uint32())
	}
	if len(b) >= 12 {
		h := wire.Header{Opcode: transports[f.qp.typ] | wire.Opcode(b[0]&0x1f), PKey: wire.DefaultPKey, DestQP: f.qp.num, PSN: f.qp.resp.psn}
		var head [wire.MaxHeaderSize]byte
		h.Put(head[:])
		copy(b, head[:12])
	}
}

// FuzzRequests lets a program write anything into its rings, at any time: into the elements, and with
// 255 in place of an offset into the producer index.
func FuzzRequests(f *testing.F) {
	f.Add(uint8(2), uint64(1), []byte{12, 4, 184, 255, 196, 7, 16, 8})
	f.Add(uint8(4), uint64(2), []byte{24, 4, 36, 255, 12, 2})
	f.Add(uint8(1), uint64(3), []byte{255, 4, 13, 1, 255, 100, 255, 2})
	f.Fuzz(func(t *testing.T, typ uint8, seed uint64, edits []byte) {
		kind := []QPType{RC, UC, UD}[typ%3]
		r := rand.New(rand.NewPCG(seed, 7))
		clock := newFakeClock()
		net := &fakeNetwork{clock: clock, rand: r, lose: 0.1}
		o := sideOptions{typ: kind, inline: 200, bufSize: 1 << 14}
		a, b := networkSides(t, net, o)
		wild := false
		for i := range 30 {
			wr := signaled(uint64(i), r.Uint32()%18, a.sge(0, r.IntN(3000)), a.sge(0, 9)).to(b, r.IntN(8)*8)
			wr.flags = r.Uint32() & 0xf
			wr.ah, wr.qpn, wr.qkey = 1, b.qp.num, testQKey
			if p := a.qp.sq.Producer(); !a.qp.sq.Full(p, a.qp.sq.Consumer()) {
				a.put(wr)
			}
			if p := b.qp.rq.Producer(); !b.qp.rq.Full(p, b.qp.rq.Consumer()) {
				b.recv(uint64(i), b.sge(0, 3000), b.sge(1, r.IntN(9)))
			}
			for range 3 {
				if len(edits) < 2 {
					break
				}
				x := []*ring.Ring{&a.qp.sq, &b.qp.rq}[edits[1]&1]
				if edits[0] == 255 {
					x.SetProducer(uint32(edits[1]))
					wild = true
				} else {
					e := x.Elem(x.Producer() - r.Uint32()%4)
					e[int(edits[0])%len(e)] = edits[1]
				}
				edits = edits[2:]
			}
			if r.IntN(3) == 0 {
				change(r, []*side{a, b}[r.IntN(2)].qp)
			}
			a.qp.Doorbell()
			net.deliver()
			if at, ok := clock.next(); ok && i%3 == 0 {
				clock.advance(at.Sub(clock.Now()))
			}
		}
		for n := 0; ; n++ {
			if _, ok := a.poll(); !ok {
				break
			}
			if n > 30 && !wild {
				t.Fatal("more completions than requests")
			}
		}
		a.d.Close()
		b.d.Close()
	})
}

// change changes attributes at random, in any state.
func change(r *rand.Rand, q *QP) {
	one := AttrMask(1) << r.IntN(21)
	mask := one | AttrMask(1)<<r.IntN(21)
	if r.IntN(4) > 0 {
		mask &^= AttrState
	}
	q.Modify(&QPAttr{
		State: State(r.IntN(7)), CurState: State(r.IntN(7)), PathMTU: uint8(r.IntN(6)), Port: 1, RQPSN: q.Query().RQPSN + r.Uint32()%3,
		SQPSN: q.Query().SQPSN + r.Uint32()%3, MaxRdAtomic: uint8(r.IntN(4)), MaxDestRdAtomic: uint8(r.IntN(4)), AccessFlags: r.Uint32() & 0x1f,
		DestQPN: q.Query().DestQPN, QKey: testQKey, Timeout: uint8(r.IntN(16)), RetryCount: uint8(r.IntN(8)), RNRRetry: uint8(r.IntN(8)),
	}, mask)
}

// networkSides makes two QPs of any type on a network.
func networkSides(t testing.TB, net *fakeNetwork, o sideOptions) (a, b *side) {
	if o.typ != UD {
		return networkPair(t, net, o, connOptions{mtu: 1, rdAtomic: 2})
	}
	var sides [2]*side
	for i, addr := range []string{"10.0.0.1", "10.0.0.2"} {
		p := net.port()
		d := newDevice(t, Config{Network: p, Clock: net.clock, Go: func(f func()) { f() }}, addr)
		p.device = d
		sides[i] = newSide(t, d, o)
		sides[i].activate()
	}
	sides[0].handle("10.0.0.2", nil)
	return sides[0], sides[1]
}
