package pingpong

import (
	"bytes"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// TestPingpongCompletions: a completion that is none of the ping-pong ends it with an error that says what
// came.
func TestPingpongCompletions(t *testing.T) {
	const size = 100
	play := func(typ string, pending int, wc uverbs.WC) error {
		o := &Options{Type: typ, Size: size, Iterations: 1}
		e := &side{o: o, posted: 10, sent: 1} // all are sent, so nothing is posted
		if typ == perf.UD {
			e.header = uverbs.GRHSize
		}
		e.qps = []*queuePair{{remote: address{Endpoint: uverbs.Endpoint{QPN: 17}}, pending: pending}}
		return e.complete(&wc, true)
	}
	const all = recvID | sendID
	send := uverbs.WC{ID: sendID, Opcode: uverbs.WCSend}
	recv := uverbs.WC{ID: recvID, Opcode: uverbs.WCRecv, ByteLen: size}
	datagram := uverbs.WC{ID: recvID, Opcode: uverbs.WCRecv, ByteLen: uverbs.GRHSize + size, SrcQP: 17, Flags: uverbs.WCWithGRH}
	for name, err := range map[string]error{
		"send": play(perf.RC, all, send), "receive": play(perf.RC, all, recv), "datagram": play(perf.UD, all, datagram),
		"send after receive": play(perf.RC, sendID, send), "receive first": play(TypeXRC, recvID, recv),
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
	imm := recv
	imm.Opcode, imm.Flags = uverbs.WCRecvRDMAWrite, uverbs.WCWithImm
	fails("receive", play(perf.RC, all, imm), "is a RECV_RDMA_WITH_IMM of")
	imm = datagram
	imm.Flags |= uverbs.WCWithImm
	fails("datagram", play(perf.UD, all, imm), "with immediate data")
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

// TestPingpongWaits: the program sleeps while its own device works, unless it is told to poll.
func TestPingpongWaits(t *testing.T) {
	dev := soft.NewT(t, soft.Options{})
	for _, poll := range []bool{false, true} {
		e := &side{o: &Options{Type: perf.RC, IBPort: 1, Size: 100, MTU: 1024, RecvDepth: 2, Poll: poll}}
		if err := e.open(dev.Name()); err != nil {
			t.Fatal(err)
		}
		if e.events == poll {
			t.Errorf("told to poll: %v; waits for events: %v", poll, e.events)
		}
		if err := e.opened.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestClock: the times between receives, also when the clock starts anew.
func TestClock(t *testing.T) {
	const mask = 1<<48 - 1
	var c clock
	for _, at := range []uint64{mask - 9, mask, 20, 23} {
		c.add(at, mask)
	}
	if c.Max != 21 || c.Min != 3 || c.Average != 11 || c.count != 4 {
		t.Errorf("cycles 9, 21 and 3: %+v", c)
	}
}

// TestJSONPingpong: the result of a ping-pong has both ends.
func TestJSONPingpong(t *testing.T) {
	var out bytes.Buffer
	if err := command.PrintJSON(&out, Result{Local: endpointOf(endpoint)}); err != nil {
		t.Fatal(err)
	}
	want := `"gid": "0000:0000:0000:0000:0000:ffff:0a01:0002"`
	if !strings.Contains(out.String(), want) || !strings.Contains(out.String(), `"us_per_iteration": 0`) {
		t.Errorf("there is no %s in\n%s", want, out.String())
	}
}
