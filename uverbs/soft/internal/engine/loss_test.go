package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// Places in the buffer of a side in a traffic.
const (
	remoteSize = 1 << 15 // at the start: what the peer writes, reads and adds to
	slotSize   = 1 << 13 // behind it: a place for each request or receive under way
	slots      = 16
)

// A traffic is a side's part of a conversation with random operations. The memory of the peer is
// foreseen at the time of posting, as a connection keeps requests in order.
type traffic struct {
	s      *side
	peer   *side
	rand   *rand.Rand
	shadow []byte // of the peer's memory
	posted []expected
	done   int
	sent   [][]byte // messages for the peer's receives
	got    int      // receives of the peer that have completed

	back     *traffic // of the peer
	receives int      // that were posted for it
}

// expected is what a request must bring.
type expected struct {
	wc   uint32
	data []byte // of a READ or atomic
	slot int
}

func newTraffic(s, peer *side, r *rand.Rand) *traffic {
	align := align(peer)
	return &traffic{s: s, peer: peer, rand: r, shadow: bytes.Clone(peer.buf[align : align+remoteSize])}
}

// slot returns the place of the n-th request or receive.
func slot(n int, receive bool) int {
	at := remoteSize + 8 + n%slots*slotSize
	if receive {
		at += slots * slotSize
	}
	return at
}

// post posts a random request, if there is room.
func (t *traffic) post() {
	n := len(t.posted)
	if n-t.done >= slots || n >= 300 {
		return
	}
	s, at := t.s, slot(n, false)
	length := t.rand.IntN(slotSize)
	if t.rand.IntN(3) == 0 {
		length = t.rand.IntN(16)
	}
	off := t.rand.IntN(remoteSize-length) &^ 7
	wr := signaled(uint64(n), 0, s.sge(at, length)).to(t.peer, align(t.peer)+off)
	if t.rand.IntN(4) == 0 {
		wr.flags |= ring.SendFence
	}
	e := expected{slot: at}
	data := s.buf[at : at+length]
	switch t.rand.IntN(10) {
	case 0, 1:
		wr.opcode, e.wc = ring.OpSend, ring.WCSend
		t.randomize(data)
		t.sent = append(t.sent, bytes.Clone(data))
	case 2:
		wr.opcode, e.wc, wr.imm = ring.OpSendImm, ring.WCSend, uint32(n)
		t.randomize(data)
		t.sent = append(t.sent, bytes.Clone(data))
	case 3:
		wr.opcode, e.wc = ring.OpWrite, ring.WCWrite
		t.randomize(data)
		copy(t.shadow[off:], data)
	case 4:
		wr.opcode, e.wc = ring.OpWriteImm, ring.WCWrite
		t.randomize(data)
		copy(t.shadow[off:], data)
		t.sent = append(t.sent, nil)
	case 5, 6:
		wr.opcode, e.wc = ring.OpRead, ring.WCRead
		e.data = bytes.Clone(t.shadow[off : off+length])
	case 7:
		wr.sges = []sge{s.sge(at, 8)}
		t.atomic(&wr, &e, off)
	case 8:
		value := make([]byte, 8)
		t.randomize(value)
		wr.opcode, e.wc, wr.sges, wr.inline = ring.OpAtomicWrite, ring.WCAtomicWrite, nil, value
		wr.flags |= ring.SendInline
		copy(t.shadow[off:], value)
	case 9:
		wr.opcode, e.wc, wr.sges, wr.length, wr.flushType = ring.OpFlush, ring.WCFlush, nil, 8, 1
	}
	switch wr.opcode {
	case ring.OpWrite, ring.OpWriteImm, ring.OpAtomicFAA, ring.OpAtomicCAS, ring.OpAtomicWrite:
		wr.flags |= ring.SendFence // else a READ before it, when it is sent again, may find its data
	}
	t.posted = append(t.posted, e)
	s.post(wr)
}

// atomic makes an atomic request.
func (t *traffic) atomic(wr *sendWR, e *expected, off int) {
	before := binary.NativeEndian.Uint64(t.shadow[off:])
	e.data = bytes.Clone(t.shadow[off : off+8])
	after := before + 12345
	wr.opcode, e.wc, wr.compare = ring.OpAtomicFAA, ring.WCAtomicFAA, 12345
	if t.rand.IntN(2) == 0 {
		wr.opcode, e.wc, wr.compare, wr.swap = ring.OpAtomicCAS, ring.WCAtomicCAS, before, after
	}
	binary.NativeEndian.PutUint64(t.shadow[off:], after)
}

// receive posts receives for the peer's messages, of which the peer keeps count.
func (t *traffic) receive() {
	for t.receives-t.back.got < slots && t.rand.IntN(3) > 0 {
		t.s.recv(uint64(t.receives), t.s.sge(slot(t.receives, true), slotSize))
		t.receives++
	}
}

// randomize fills a buffer.
func (t *traffic) randomize(b []byte) {
	for i := range b {
		b[i] = byte(t.rand.Uint32())
	}
}

// reap polls the completions of a side: of its own requests, and of the peer's messages.
func (t *traffic) reap() error {
	for {
		c, ok := t.s.poll()
		if !ok {
			return nil
		}
		if c.status != StatusSuccess {
			return fmt.Errorf("completion %+v", c)
		}
		if c.opcode >= ring.WCRecv {
			if err := t.back.received(c); err != nil {
				return err
			}
			continue
		}
		e := t.posted[t.done]
		if c.id != uint64(t.done) || c.opcode != e.wc {
			return fmt.Errorf("completion %+v, want %d of %+v", c, t.done, e.wc)
		}
		if got := t.s.buf[e.slot : e.slot+len(e.data)]; !bytes.Equal(got, e.data) {
			return fmt.Errorf("request %d brings %x, want %x", t.done, got[:min(len(got), 16)], e.data[:min(len(got), 16)])
		}
		t.done++
	}
}

// received checks a receive of the peer.
func (t *traffic) received(c wc) error {
	if c.id != uint64(t.got) || t.got >= len(t.sent) {
		return fmt.Errorf("receive %+v, want %d", c, t.got)
	}
	want := t.sent[t.got]
	at := slot(t.got, true)
	if want != nil && (int(c.length) != len(want) || !bytes.Equal(t.peer.buf[at:at+len(want)], want)) {
		return fmt.Errorf("message %d differs", t.got)
	}
	t.got++
	return nil
}

// converse has two sides talk over a network that loses packets, and returns a digest of all packets.
func converse(t *testing.T, seed uint64, lose, duplicate, delay float64) uint64 {
	r := rand.New(rand.NewPCG(seed, 1))
	net := &fakeNetwork{clock: newFakeClock(), rand: rand.New(rand.NewPCG(seed, 2)), lose: lose, duplicate: duplicate, delay: delay}
	if seed%2 == 1 { // packets of the MTU and large ones in turn
		chance := rand.New(rand.NewPCG(seed, 5))
		net.large = func() bool { return chance.IntN(3) > 0 }
	}
	digest := fnv.New64()
	net.tap = func(from, to netip.Addr, b []byte) bool {
		digest.Write(b[:12])
		return true
	}
	size := remoteSize + 16 + 2*slots*slotSize
	a, b := networkPair(t, net, sideOptions{bufSize: size}, connOptions{mtu: uint8(1 + r.IntN(3)), psn: 0xfffff0, rdAtomic: uint8(1 + r.IntN(8))})
	one, two := newTraffic(a, b, r), newTraffic(b, a, r)
	one.back, two.back = two, one
	for round := 0; ; round++ {
		if round > 20000 {
			t.Fatalf("no end: %d of %d, %d of %d", one.done, len(one.posted), two.done, len(two.posted))
		}
		one.receive()
		two.receive()
		for range r.IntN(3) {
			one.post()
			two.post()
		}
		net.deliver()
		if r.IntN(4) == 0 {
			if at, ok := net.clock.next(); ok {
				net.clock.advance(at.Sub(net.clock.Now()))
			}
		}
		if err := one.reap(); err != nil {
			t.Fatal(err)
		}
		if err := two.reap(); err != nil {
			t.Fatal(err)
		}
		if len(one.posted) == 300 && one.done == 300 && len(two.posted) == 300 && two.done == 300 {
			break
		}
	}
	for _, x := range []*traffic{one, two} {
		if x.got != len(x.sent) {
			t.Errorf("%d messages of %d were received", x.got, len(x.sent))
		}
		x.peer.holds(align(x.peer), x.shadow)
	}
	if lose > 0 && net.lost == 0 {
		t.Error("nothing was lost")
	}
	return digest.Sum64()
}

// TestUnreliableNetwork: all operations keep their order and their data on a network that loses,
// duplicates and reorders packets, and every run with the same seed is the same.
func TestUnreliableNetwork(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			lose, duplicate, delay := 0.02+r.Float64()*0.1, r.Float64()*0.1, r.Float64()*0.1
			if seed == 0 {
				lose, duplicate, delay = 0, 0, 0
			}
			first := converse(t, seed, lose, duplicate, delay)
			if seed < 3 {
				if again := converse(t, seed, lose, duplicate, delay); again != first {
					t.Errorf("two runs with seed %d differ", seed)
				}
			}
		})
	}
}

// TestEachPacketLost loses one packet of a conversation after the other.
func TestEachPacketLost(t *testing.T) {
	for lost := 0; ; lost++ {
		net := &fakeNetwork{clock: newFakeClock()}
		n := 0
		net.tap = func(_, _ netip.Addr, _ []byte) bool { n++; return n-1 != lost }
		a, b := networkPair(t, net, sideOptions{bufSize: 1 << 17}, connOptions{mtu: 1, retry: 1, rnrRetry: 1})
		sent := a.fill(0, 1000, 3)
		b.recv(1, b.sge(5000, 1000))
		counter := align(b) + 20000
		binary.NativeEndian.PutUint64(b.buf[counter:], 5)
		add := signaled(5, ring.OpAtomicFAA, a.sge(50000, 8)).to(b, counter)
		add.compare = 2
		a.post(
			signaled(1, ring.OpSend, a.sge(0, 1000)),
			signaled(2, ring.OpRead, a.sge(10000, 1000)).to(b, 5000),
			signaled(3, ring.OpWrite, a.sge(0, 700)).to(b, 30000),
			signaled(4, ring.OpRead, a.sge(40000, 700)).to(b, 30000),
			add,
			signaled(6, ring.OpWrite, a.sge(0, 1)).to(b, 40000))
		net.settle()
		for id := range uint64(6) {
			if c := a.next(); c.id != id+1 || c.status != StatusSuccess {
				t.Fatalf("packet %d lost: completion %+v, want %d", lost, c, id+1)
			}
		}
		b.want(1, ring.WCRecv)
		a.holds(10000, sent)
		a.holds(40000, sent[:700])
		if got := binary.NativeEndian.Uint64(b.buf[counter:]); got != 7 {
			t.Fatalf("packet %d lost: the counter is %d, want 7", lost, got)
		}
		if n <= lost {
			return // there were no more packets
		}
	}
}

// TestLongMessagesLost: messages longer than a window and READs of several parts survive losses.
func TestLongMessagesLost(t *testing.T) {
	const size = 3*readChunk + 1000
	for seed := range uint64(20) {
		net := &fakeNetwork{clock: newFakeClock(), rand: rand.New(rand.NewPCG(seed, 4)), lose: 0.03, delay: 0.02}
		if seed%2 == 1 {
			net.large = func() bool { return net.rand.IntN(3) > 0 }
		}
		a, b := networkPair(t, net, sideOptions{bufSize: 2 * size}, connOptions{mtu: uint8(1 + seed%5), rdAtomic: 2})
		sent := a.fill(0, size, byte(seed))
		b.recv(9, b.sge(size, size))
		a.post(
			signaled(1, ring.OpWrite, a.sge(0, size)).to(b, 0), signaled(2, ring.OpRead, a.sge(size, size)).to(b, 0),
			signaled(3, ring.OpSend, a.sge(0, size)), signaled(4, ring.OpRead, a.sge(size, size)).to(b, size))
		net.settle()
		for id := range uint64(4) {
			if c := a.next(); c.id != id+1 || c.status != StatusSuccess {
				t.Fatalf("seed %d: completion %+v, want %d", seed, c, id+1)
			}
		}
		b.want(9, ring.WCRecv)
		b.holds(0, sent)
		b.holds(size, sent)
		a.holds(size, sent)
	}
}
