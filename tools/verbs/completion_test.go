package main

import (
	"strings"
	"testing"

	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/uverbs"
)

// strangeReceives are completions of a receive for a message of n bytes that no exchange of this program
// allows, with what the error says.
func strangeReceives(id uint64, n uint32) map[string]uverbs.WC {
	recv := func(change func(*uverbs.WC)) uverbs.WC {
		wc := uverbs.WC{ID: id, Opcode: uverbs.WCRecv, ByteLen: n}
		change(&wc)
		return wc
	}
	return map[string]uverbs.WC{
		"is a RECV_RDMA_WITH_IMM of": recv(func(wc *uverbs.WC) { wc.Opcode, wc.Flags = uverbs.WCRecvRDMAWrite, uverbs.WCWithImm }),
		"is a RDMA_READ of":          recv(func(wc *uverbs.WC) { wc.Opcode = uverbs.WCRDMARead }),
		"with immediate data":        recv(func(wc *uverbs.WC) { wc.Flags, wc.Imm = uverbs.WCWithImm|uverbs.WCWithGRH, 0x1f }),
		"that invalidates a key":     recv(func(wc *uverbs.WC) { wc.Flags, wc.InvalidatedRKey = uverbs.WCWithInv, 0x2f }),
		"of 0 bytes":                 recv(func(wc *uverbs.WC) { wc.ByteLen = 0 }),
		"of 4294967295 bytes":        recv(func(wc *uverbs.WC) { wc.ByteLen = 1<<32 - 1 }),
	}
}

// TestPingpongCompletions: a completion that is none of the ping-pong ends it with an error that says what
// came.
func TestPingpongCompletions(t *testing.T) {
	const size = 100
	play := func(typ string, pending int, wc uverbs.WC) error {
		o := &pingpongOptions{typ: typ, size: size, iterations: 1}
		e := &pingpongEnd{o: o, posted: 10, sent: 1} // all are sent, so nothing is posted
		if typ == perf.UD {
			e.header = uverbs.GRHSize
		}
		e.qps = []*pingpongQP{{remote: address{Endpoint: uverbs.Endpoint{QPN: 17}}, pending: pending}}
		return e.complete(&wc, true)
	}
	const all = recvID | sendID
	send := uverbs.WC{ID: sendID, Opcode: uverbs.WCSend}
	recv := uverbs.WC{ID: recvID, Opcode: uverbs.WCRecv, ByteLen: size}
	datagram := uverbs.WC{ID: recvID, Opcode: uverbs.WCRecv, ByteLen: uverbs.GRHSize + size, SrcQP: 17, Flags: uverbs.WCWithGRH}
	for name, err := range map[string]error{
		"send": play(perf.RC, all, send), "receive": play(perf.RC, all, recv), "datagram": play(perf.UD, all, datagram),
		"send after receive": play(perf.RC, sendID, send), "receive first": play(typeXRC, recvID, recv),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}

	fails := func(name string, err error, want string) {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	for want, wc := range strangeReceives(recvID, size) {
		fails("receive", play(perf.RC, all, wc), want)
	}
	for want, wc := range strangeReceives(recvID, uverbs.GRHSize+size) {
		wc.SrcQP = 17
		fails("datagram", play(perf.UD, all, wc), want)
	}
	other := datagram
	other.SrcQP = 18
	fails("another sender", play(perf.UD, all, other), "from queue pair 0x12, the peer's is 0x11")
	short := datagram
	short.ByteLen = uverbs.GRHSize - 1
	fails("short datagram", play(perf.UD, all, short), "of 39 bytes, allowed: a SEND of 140 bytes; give both sides the same --size")
	fails("two messages", play(perf.RC, sendID, recv), "request 1 has completed (RECV, 100 bytes), but the peer has sent before its turn")
	fails("send twice", play(perf.RC, recvID, send), "request 2 has completed (SEND, 0 bytes), which is not pending")
	fails("another ID", play(perf.RC, all, uverbs.WC{ID: all, Opcode: uverbs.WCSend}), "request 3 has completed (SEND, 0 bytes), which is not pending")
	fails("no ID", play(perf.RC, all, uverbs.WC{}), "request 0 has completed (SEND, 0 bytes), which is not pending")
	fails("READ", play(perf.RC, all, uverbs.WC{ID: sendID, Opcode: uverbs.WCRDMARead}), "(RDMA_READ, 0 bytes), which is not pending")
}

// TestRpingCompletions: a completion that is not the next one of rping's order is refused.
func TestRpingCompletions(t *testing.T) {
	message, read := awaited{rpingRecv, uverbs.WCRecv}, awaited{rpingMemory, uverbs.WCRDMARead}
	recv := uverbs.WC{ID: rpingRecv, Opcode: uverbs.WCRecv, ByteLen: advertLen}
	fetched := uverbs.WC{ID: rpingMemory, Opcode: uverbs.WCRDMARead, ByteLen: 64}
	send := uverbs.WC{ID: rpingSend, Opcode: uverbs.WCSend, ByteLen: advertLen}
	for name, err := range map[string]error{
		"message": message.check(&recv), "READ": read.check(&fetched), "send, for a message": message.check(&send), "send, for a READ": read.check(&send),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	fails := func(a awaited, wc uverbs.WC, want string) {
		if err := a.check(&wc); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", wc, err, want)
		}
	}
	for want, wc := range strangeReceives(rpingRecv, advertLen) {
		fails(message, wc, want)
	}
	fails(read, recv, "(RECV, 16 bytes), but the peer has sent before its turn")
	fails(message, fetched, "request 3 has completed (RDMA_READ, 64 bytes), which is not pending")
	fails(message, uverbs.WC{ID: 9}, "request 9 has completed (SEND, 0 bytes), which is not pending")
	fetched.Opcode = uverbs.WCRDMAWrite
	fails(read, fetched, "(RDMA_WRITE, 64 bytes), which is not pending")
	send.Opcode = uverbs.WCRDMAWrite
	fails(read, send, "(RDMA_WRITE, 16 bytes), which is not pending")
}
