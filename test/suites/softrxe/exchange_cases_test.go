package softrxe

import (
	"fmt"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// repeating are the options of a requester that soon sends again what was lost.
var repeating = uverbs.QPOptions{Path: uverbs.PathOptions{Timeout: 18}} // 1 s

// messages are lengths of a message of one packet and of several.
var messages = map[string]int{"one packet": 5, "several packets": 600}

// exchangeCases are all exchanges of verbs.
var exchangeCases = joined(
	sized("SEND", rc, transfer(uverbs.WRSend)),
	sized("SEND with immediate", rc, transfer(uverbs.WRSendWithImm)),
	since(v6_2, sized("SEND with invalidate", rc, transfer(uverbs.WRSendWithInv))),
	sized("RDMA WRITE", rc, transfer(uverbs.WRRDMAWrite)),
	sized("RDMA WRITE with immediate", rc, transfer(uverbs.WRRDMAWriteWithImm)),
	sized("RDMA READ", rc, transfer(uverbs.WRRDMARead)),
	sized("UC SEND", uc, transfer(uverbs.WRSend)),
	sized("UC SEND with immediate", uc, transfer(uverbs.WRSendWithImm)),
	sized("UC RDMA WRITE", uc, transfer(uverbs.WRRDMAWrite)),
	sized("UC RDMA WRITE with immediate", uc, transfer(uverbs.WRRDMAWriteWithImm)),
	[]exchangeCase{
		{name: "no data", run: func(x *recordedExchange) {
			x.b.recv(100)
			x.one(x.a.send(1, 0, 0))
			x.b.got(1)
			x.one(remote(x.a.send(2, 0, 0), uverbs.WRRDMAWrite, x.b, 0))
			x.one(remote(x.a.send(3, 0, 0), uverbs.WRRDMARead, x.b, 0))
		}},
		{name: "atomics", run: func(x *recordedExchange) {
			x.b.word(64, 1000)
			x.one(x.a.atomic(1, uverbs.WRFetchAdd, 8, x.b, 64, 0x0102030405060708, 0))
			x.one(x.a.atomic(2, uverbs.WRCompareSwap, 16, x.b, 64, 7, 8)) // does not compare
			x.one(x.a.atomic(3, uverbs.WRCompareSwap, 24, x.b, 64, 0x0102030405060708+1000, 1<<63))
		}},
		{name: "ATOMIC WRITE", since: v6_2, run: func(x *recordedExchange) {
			x.one(remote(uverbs.SendWR{ID: 1, Inline: []byte("8 bytes.")}, uverbs.WRAtomicWrite, x.b, 64))
		}},
		{name: "FLUSH", since: v6_2, a: flushing, b: flushing, run: func(x *recordedExchange) {
			x.one(remote(uverbs.SendWR{ID: 1, Length: 5000, Placement: uverbs.FlushGlobal}, uverbs.WRFlush, x.b, 100))
			x.one(remote(uverbs.SendWR{ID: 2, Placement: uverbs.FlushGlobal, Level: uverbs.FlushMR}, uverbs.WRFlush, x.b, 0))
		}},
		{name: "UD SEND", a: ud, b: ud, subjects: "a", run: func(x *recordedExchange) { x.datagrams(0) }},
		{name: "UD SEND with immediate", a: ud, b: ud, subjects: "a", run: func(x *recordedExchange) { x.datagrams(0x01020304) }},
		{name: "many packets", subjects: "a", run: func(x *recordedExchange) { // one before the last asks for an ACK
			x.one(remote(x.a.send(1, 0, 256*70+1), uverbs.WRRDMAWrite, x.b, 0))
		}},
		{name: "messages at once", run: func(x *recordedExchange) {
			var wrs []uverbs.SendWR
			for i := range 4 {
				wrs = append(wrs, remote(x.a.send(uint64(i), 10*i, 10), uverbs.WRRDMAWrite, x.b, 10*i))
			}
			x.a.post(wrs...)
			x.a.sent(len(wrs))
		}},
		{name: "RNR NAK", run: func(x *recordedExchange) {
			x.a.post(x.a.send(1, 0, 300))
			x.awaitFrom(x.b, "RNR NAK", func(b []byte) bool { return b[0] == opAcknowledge && b[bthSize]>>5 == 1 })
			x.b.recv(100, x.b.sge(0, 300))
			x.a.sent(1)
			x.b.got(1)
		}},
		{name: "NAK PSN sequence error", run: func(x *recordedExchange) {
			x.b.recv(100, x.b.sge(0, 300))
			x.lose(x.a, soft.ClassWrite, 1, func() { x.a.post(remote(x.a.send(1, 0, 8), uverbs.WRRDMAWrite, x.b, 0)) })
			x.a.post(x.a.send(2, 0, 8))
			x.a.sent(2)
			x.b.got(1)
		}},
		{name: "NAK remote access error", run: func(x *recordedExchange) {
			x.a.post(remote(x.a.send(1, 0, 8), uverbs.WRRDMAWrite, x.b, regionSize-7))
			x.a.sent(1)
			x.b.fails()
		}, want: "a: 1: remote access error; b: ERR"},
		{name: "NAK remote access error of a READ", run: func(x *recordedExchange) {
			x.a.post(remote(x.a.send(1, 0, 600), uverbs.WRRDMARead, x.b, regionSize-7))
			x.a.sent(1)
			x.b.fails()
		}, want: "a: 1: remote access error; b: ERR"},
		{name: "NAK invalid request", b: uverbs.QPOptions{Path: uverbs.PathOptions{Access: uverbs.AccessRemoteRead}}, run: func(x *recordedExchange) {
			x.a.post(remote(x.a.send(1, 0, 8), uverbs.WRRDMAWrite, x.b, 64))
			x.a.sent(1)
			x.b.fails()
		}, want: "a: 1: remote invalid request error; b: ERR"},
		{name: "NAK remote operational error", run: func(x *recordedExchange) {
			sge := x.b.sge(0, 10)
			sge.LKey ^= 0x5500
			x.b.recv(100, sge)
			x.a.post(x.a.send(1, 0, 10))
			x.a.sent(1)
			x.b.got(1)
		}, want: "a: 1: remote operation error; b: receive 100: local QP operation error",
			wantSpec: "a: 1: remote operation error; b: receive 100: local protection error"},
		{name: "SEND again", a: repeating, run: func(x *recordedExchange) {
			x.b.recv(100, x.b.sge(0, 600))
			x.lose(x.b, soft.ClassAck, 1, func() { x.a.post(x.a.send(1, 0, 600)) })
			x.a.sent(1)
			x.b.got(1)
		}},
		{name: "RDMA READ again", a: repeating, run: func(x *recordedExchange) {
			x.lose(x.b, soft.ClassResponse, 3, func() { x.a.post(remote(x.a.send(1, 0, 600), uverbs.WRRDMARead, x.b, 64)) })
			x.a.sent(1)
		}},
		{name: "atomic again", a: repeating, run: func(x *recordedExchange) {
			x.b.word(64, 1000)
			x.lose(x.b, soft.ClassResponse, 1, func() { x.a.post(x.a.atomic(1, uverbs.WRFetchAdd, 8, x.b, 64, 5, 0)) })
			x.a.sent(1)
		}},
	},
)

// rc are the options of a reliable connection.
var rc uverbs.QPOptions

// joined returns the cases of all lists.
func joined(lists ...[]exchangeCase) (all []exchangeCase) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// since says which kernel is the first that supports all cases of a list.
func since(kernel [2]int, cases []exchangeCase) []exchangeCase {
	for i := range cases {
		cases[i].since = kernel
	}
	return cases
}

// sized are the cases of an operation with messages of each length.
func sized(name string, o uverbs.QPOptions, run func(x *recordedExchange, n int)) (all []exchangeCase) {
	subjects := ""
	if o.Type == ib.UC {
		subjects = "a" // the other sends nothing
	}
	for _, size := range []string{"one packet", "several packets"} {
		all = append(all, exchangeCase{
			name: fmt.Sprintf("%s of %s", name, size), a: o, b: o, subjects: subjects,
			run: func(x *recordedExchange) { run(x, messages[size]) },
		})
	}
	return all
}

// one posts one work request and waits until it is complete.
func (x *recordedExchange) one(wr uverbs.SendWR) {
	x.t.Helper()
	x.a.post(wr)
	x.a.sent(1)
}

// transfer returns the use of an operation with n bytes.
func transfer(op uverbs.WROpcode) func(x *recordedExchange, n int) {
	return func(x *recordedExchange, n int) {
		wr := remote(x.a.send(1, 0, n), op, x.b, 1000)
		wr.Imm, wr.Flags = 0x01020304, uverbs.SendSolicited
		if op == uverbs.WRSendWithInv {
			mw := bound(&x.exchange, uverbs.MWType2, uverbs.AccessRemoteWrite)
			wr.InvalidateRKey = mw.RKey()
			x.numbers["rkey of the window"] = mw.RKey()
		}
		receives := op == uverbs.WRSend || op == uverbs.WRSendWithImm || op == uverbs.WRSendWithInv || op == uverbs.WRRDMAWriteWithImm
		if receives {
			x.b.recv(100, x.b.sge(slot, slot))
		}
		x.one(wr)
		if receives {
			x.b.got(1)
		} else if x.unreliable {
			arrives(x)
		}
	}
}

// arrives sends a message behind those that b has no completion of.
func arrives(x *recordedExchange) {
	x.b.recv(100, x.b.sge(slot, slot))
	x.one(x.a.send(2, 0, 4))
	x.b.got(1)
}

// datagrams sends datagrams of several lengths.
func (x *recordedExchange) datagrams(imm uint32) {
	for i, n := range []int{0, 1, 700} {
		x.b.recv(uint64(100+i), x.b.sge(slot, slot))
		wr := x.datagram(uint64(i), i, n, imm)
		wr.Flags |= uverbs.SendSolicited
		x.one(wr)
		x.b.got(1)
	}
}

// awaitFrom waits until an end has sent a packet.
func (x *recordedExchange) awaitFrom(e *end, what string, has func(b []byte) bool) {
	x.t.Helper()
	x.tap.await(x.t, what, e.host.addr, has)
}
