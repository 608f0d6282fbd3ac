package engine

import (
	"encoding/binary"
	"testing"

	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// sizes are lengths of messages: around the MTU of 1024, and larger than what a worker delivers at once.
var sizes = []int{0, 1, 3, 4, 1023, 1024, 1025, 2048, 5000, 65536}

func TestSend(t *testing.T) {
	for _, index := range []uint8{0, 1} { // IPv4, IPv6
		a, b := pair(t, sideOptions{}, connOptions{index: index, psn: 0xfffff0})
		for i, n := range sizes {
			want := a.fill(0, n, byte(i))
			b.recv(9, b.sge(0, n))
			a.post(signaled(5, ring.OpSend, a.sge(0, n)))
			if c := a.want(5, ring.WCSend); c.length != uint32(n) || c.flags != 0 || c.qpn != a.qp.num {
				t.Errorf("%d bytes: completion %+v", n, c)
			}
			c := b.want(9, ring.WCRecv)
			if c != (wc{id: 9, opcode: ring.WCRecv, length: uint32(n), qpn: b.qp.num, flags: ring.WCGRH, port: 1}) {
				t.Errorf("%d bytes: completion of the receive %+v", n, c)
			}
			b.holds(0, want)
		}
		a.none()
		b.none()
	}
}

func TestSendWithImmediateAndKey(t *testing.T) {
	a, b := pair(t, sideOptions{}, connOptions{})
	for _, n := range []int{0, 10, 3000} {
		want := a.fill(0, n, 3)
		b.recv(1, b.sge(0, 4000))
		wr := signaled(2, ring.OpSendImm, a.sge(0, n))
		wr.imm = 0x01020304
		a.post(wr)
		if c := a.want(2, ring.WCSend); c.flags != ring.WCWithImm {
			t.Errorf("flags %d of a SEND with immediate", c.flags)
		}
		if c := b.want(1, ring.WCRecv); c.imm != 0x01020304 || c.flags != ring.WCGRH|ring.WCWithImm || c.length != uint32(n) {
			t.Errorf("completion %+v", c)
		}
		b.holds(0, want)
	}
}

func TestScatterGather(t *testing.T) {
	a, b := pair(t, sideOptions{}, connOptions{mtu: 1})
	want := a.fill(0, 2000, 1)
	b.recv(1, b.sge(100, 7), b.sge(0, 0), b.sge(300, 600), b.sge(5000, 3000))
	a.post(signaled(2, ring.OpSend, a.sge(0, 1), a.sge(1, 255), a.sge(0, 0), a.sge(256, 1744)))
	a.want(2, ring.WCSend)
	b.want(1, ring.WCRecv)
	b.holds(100, want[:7])
	b.holds(300, want[7:607])
	b.holds(5000, want[607:])
}

func TestInline(t *testing.T) {
	a, b := pair(t, sideOptions{inline: 512}, connOptions{mtu: 1})
	data := a.fill(0, 500, 8)
	b.recv(1, b.sge(0, 500))
	a.post(sendWR{id: 2, opcode: ring.OpSend, flags: ring.SendSignaled | ring.SendInline, inline: data})
	a.want(2, ring.WCSend)
	b.want(1, ring.WCRecv)
	b.holds(0, data)
}

func TestWriteAndRead(t *testing.T) {
	a, b := pair(t, sideOptions{bufSize: 1 << 20}, connOptions{psn: 0xfffffe})
	for i, n := range append(sizes, 1<<19) {
		want := a.fill(0, n, byte(i))
		a.post(signaled(1, ring.OpWrite, a.sge(0, n)).to(b, 100))
		if c := a.want(1, ring.WCWrite); c.length != uint32(n) {
			t.Errorf("completion %+v", c)
		}
		b.holds(100, want)
		clear(a.buf)
		a.post(signaled(2, ring.OpRead, a.sge(10, n)).to(b, 100))
		if c := a.want(2, ring.WCRead); c.length != uint32(n) {
			t.Errorf("completion %+v", c)
		}
		a.holds(10, want)
		b.none()
	}
}

func TestWriteWithImmediate(t *testing.T) {
	a, b := pair(t, sideOptions{}, connOptions{})
	for _, n := range []int{0, 10, 3000} {
		want := a.fill(0, n, 3)
		b.recv(1)
		wr := signaled(2, ring.OpWriteImm, a.sge(0, n)).to(b, 500)
		wr.imm = 77
		a.post(wr)
		a.want(2, ring.WCWrite)
		if c := b.want(1, ring.WCRecvWrite); c.imm != 77 || c.length != uint32(n) {
			t.Errorf("completion %+v", c)
		}
		b.holds(500, want)
	}
}

func TestAtomics(t *testing.T) {
	a, b := pair(t, sideOptions{}, connOptions{})
	put := func(s *side, off int, v uint64) { binary.NativeEndian.PutUint64(s.buf[off:], v) }
	get := func(s *side, off int) uint64 { return binary.NativeEndian.Uint64(s.buf[off:]) }
	for _, c := range []struct {
		opcode        uint32
		before        uint64
		compare, swap uint64
		after         uint64
		wc            uint32
	}{
		{ring.OpAtomicFAA, 40, 2, 0, 42, ring.WCAtomicFAA},
		{ring.OpAtomicFAA, 1, ^uint64(0), 0, 0, ring.WCAtomicFAA},
		{ring.OpAtomicCAS, 40, 40, 50, 50, ring.WCAtomicCAS},
		{ring.OpAtomicCAS, 40, 41, 50, 40, ring.WCAtomicCAS},
	} {
		put(b, align(b), c.before)
		wr := signaled(1, c.opcode, a.sge(0, 8)).to(b, align(b))
		wr.compare, wr.swap = c.compare, c.swap
		a.post(wr)
		if got := a.want(1, c.wc); got.length != 8 {
			t.Errorf("completion %+v", got)
		}
		if get(b, align(b)) != c.after || get(a, 0) != c.before {
			t.Errorf("%+v: now %d, returned %d", c, get(b, align(b)), get(a, 0))
		}
	}
	wr := sendWR{id: 3, opcode: ring.OpAtomicWrite, flags: ring.SendSignaled | ring.SendInline, inline: []byte("12345678")}.to(b, align(b)+8)
	a.post(wr)
	a.want(3, ring.WCAtomicWrite)
	b.holds(align(b)+8, []byte("12345678"))
}

// align returns an offset in the buffer with an address that is a multiple of 8.
func align(s *side) int { return int(-s.addr(0) & 7) }
