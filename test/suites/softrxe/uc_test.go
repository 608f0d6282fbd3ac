package softrxe

import (
	"testing"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// uc are the options of an unreliable connection.
var uc = uverbs.QPOptions{Type: ib.UC}

// ucCases are about unreliable connections.
var ucCases = []verbsCase{
	{name: "SEND", a: uc, b: uc, run: func(x *exchange) {
		for i, n := range sizes {
			x.b.recv(uint64(100+i), x.b.sge(slot, slot))
			wr := x.a.send(uint64(i), i, n)
			if i%2 == 1 {
				wr.Opcode, wr.Imm = uverbs.WRSendWithImm, 0x01020304+uint32(i)
			}
			x.a.post(wr)
			x.a.sent(1)
			x.b.got(1)
		}
	}},
	{name: "RDMA WRITE", a: uc, b: uc, run: func(x *exchange) {
		for i, n := range sizes {
			x.b.recv(uint64(100 + i))
			wr := remote(x.a.send(uint64(1000+i), i, n), uverbs.WRRDMAWriteWithImm, x.b, slot+i)
			wr.Imm = 77
			x.a.post(remote(x.a.send(uint64(i), 100+i, n), uverbs.WRRDMAWrite, x.b, i), wr)
			x.a.sent(2)
			x.b.got(1) // both are there
		}
	}},
	{name: "no receive", a: uc, b: uc, run: func(x *exchange) {
		x.a.post(x.a.send(1, 0, 5000), x.a.send(2, 0, 10))
		wr := remote(x.a.send(3, 0, 3000), uverbs.WRRDMAWrite, x.b, slot)
		x.a.post(wr)
		x.a.sent(3)
		x.arrives(10)
	}},
	{name: "wrong rkey", a: uc, b: uc, run: func(x *exchange) {
		wr := remote(x.a.send(1, 0, 3000), uverbs.WRRDMAWrite, x.b, slot)
		wr.RKey ^= 0x5500
		x.a.post(wr)
		x.a.sent(1)
		x.b.state()
		x.arrives(10)
	}, want: "a: 1: RDMA_WRITE; b: RTS; a: 10: SEND; b: receive 10: RECV 100"},
}

// arrives posts a receive, after everything that was sent has arrived, and a message for it.
func (x *exchange) arrives(id uint64) {
	x.quiet()
	x.b.recv(id, x.b.sge(200<<10, 1000))
	x.a.post(x.a.send(id, 0, 100))
	x.a.sent(1)
	x.b.got(1)
}

// quiet returns when what was sent so far has arrived: the answer to a READ over a connection of its own,
// on the same two devices, comes after it.
func (x *exchange) quiet() {
	var other record
	a, b := newEnd(x.t, "a", x.a.host, uverbs.QPOptions{}, &other), newEnd(x.t, "b", x.b.host, uverbs.QPOptions{}, &other)
	connect(x.t, a, b)
	a.post(remote(a.send(1, 0, 8), uverbs.WRRDMARead, b, 0))
	a.sent(1)
}

// TestUC uses unreliable connections between all pairings.
func TestUC(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		t.Run(family(ipv6), func(t *testing.T) {
			rxe, software := newHosts(t, ipv6)
			runCases(t, rxe, software, ucCases)
		})
	}
}

// family returns the name of a family of addresses.
func family(ipv6 bool) string {
	if ipv6 {
		return "IPv6"
	}
	return "IPv4"
}
