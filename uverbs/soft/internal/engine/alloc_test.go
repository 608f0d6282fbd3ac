package engine

import (
	"fmt"
	"testing"

	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// TestAllocs: messages between devices of one host allocate nothing. TestAllocs of package soft has sockets.
func TestAllocs(t *testing.T) {
	a, b := pair(t, sideOptions{}, connOptions{})
	c, d := udPair(t, sideOptions{})
	ah := c.handle("10.0.0.1", nil)
	recv := func(s *side, n int) func() { e := []sge{s.sge(0, n)}; return func() { s.recv(1, e...) } }
	post := func(s *side, wr sendWR) func() { list := []sendWR{wr}; return func() { s.post(list...) } }
	const messages = 1000
	add := signaled(1, ring.OpAtomicFAA, a.sge(0, 8)).to(b, align(b))
	for name, steps := range map[string][]func(){
		"SEND":         {recv(b, 5000), post(a, signaled(1, ring.OpSend, a.sge(0, 5000))), func() { a.next(); b.next() }},
		"WRITE":        {post(a, signaled(1, ring.OpWrite, a.sge(0, 5000)).to(b, 0)), func() { a.next() }},
		"READ":         {post(a, signaled(1, ring.OpRead, a.sge(0, 5000)).to(b, 0)), func() { a.next() }},
		"FETCH_ADD":    {post(a, add), func() { a.next() }},
		"datagram":     {recv(d, 500), post(c, datagram(1, ah, d, c.sge(0, 400))), func() { c.next(); d.next() }},
		"many packets": {post(a, signaled(1, ring.OpWrite, a.sge(0, 60000)).to(b, 0)), func() { a.next() }},
	} {
		run := func() {
			for _, f := range steps {
				f()
			}
		}
		run()
		all := func() {
			for range messages {
				run()
			}
		}
		if n := testing.AllocsPerRun(1, all); n > messages/20 { // the garbage collector and timers allocate a few, the more the longer it takes
			t.Errorf("%s: %.0f allocations for %d messages", name, n, messages)
		}
	}
}

func BenchmarkLoopback(b *testing.B) {
	for _, c := range []struct {
		name   string
		opcode uint32
		size   int
		batch  int
	}{
		{"send", ring.OpSend, 2, 1}, {"send", ring.OpSend, 2, 32}, {"send", ring.OpSend, 4096, 32}, {"send", ring.OpSend, 65536, 32},
		{"write", ring.OpWrite, 2, 1}, {"write", ring.OpWrite, 65536, 32}, {"read", ring.OpRead, 2, 1}, {"read", ring.OpRead, 65536, 32},
	} {
		b.Run(fmt.Sprintf("%s/%d/%d", c.name, c.size, c.batch), func(b *testing.B) {
			dev := newDevice(b, Config{MTU: 4096})
			x, y := newSide(b, dev, sideOptions{}), newSide(b, dev, sideOptions{})
			connect(x, y, connOptions{mtu: 5})
			wrs := []sendWR{signaled(1, c.opcode, x.sge(0, c.size)).to(y, 0)}
			entry := []sge{y.sge(0, c.size)}
			b.SetBytes(int64(c.size))
			b.ReportAllocs()
			for i := 0; i < b.N; i += c.batch {
				for range c.batch {
					if c.opcode == ring.OpSend {
						y.recv(1, entry...)
					}
					x.put(wrs...)
				}
				x.qp.Doorbell()
				for range c.batch {
					x.want(1, map[uint32]uint32{ring.OpSend: ring.WCSend, ring.OpWrite: ring.WCWrite, ring.OpRead: ring.WCRead}[c.opcode])
					if c.opcode == ring.OpSend {
						y.want(1, ring.WCRecv)
					}
				}
			}
		})
	}
}
