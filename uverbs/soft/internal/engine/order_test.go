package engine

import (
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// TestReadResponseFirst: the response to a long READ comes before the acknowledgement of a later request, also if
// another goroutine goes on with the response.
func TestReadResponseFirst(t *testing.T) {
	d := newDevice(t, Config{Go: func(f func()) { f() }})
	o := sideOptions{}
	a, b := newSide(t, d, o), newSide(t, d, o)
	connect(a, b, connOptions{mtu: 1})
	a.qp.mu.Lock()
	a.qp.req.retriesLeft, a.qp.attr.RetryCount = 0, 0
	a.qp.running = true // this test is the worker
	a.qp.mu.Unlock()
	w1, w2 := workers.get(), workers.get()
	a.put(signaled(1, ring.OpRead, a.sge(0, 100*256)).to(b, 0), signaled(2, ring.OpWrite, a.sge(0, 8)).to(b, 0))
	a.qp.mu.Lock()
	a.qp.send(w1)
	a.qp.mu.Unlock()
	if n := len(w1.requests.packets); n != 2 {
		t.Fatalf("%d packets, want 2", n)
	}
	// w1 delivers the READ. Its response takes two rounds, and w2 goes on with it, as in finishLater.
	p := &w1.requests.packets[0]
	b.qp.mu.Lock()
	w1.arrival.payload, _ = wire.Parse(w1.requests.memory[p.off:p.end], &w1.arrival.header)
	b.qp.request(w1, &w1.arrival)
	b.qp.resp.busy = b.qp.resp.reading != nil
	b.qp.mu.Unlock()
	w1.deliverResponses()
	if !b.qp.resp.busy {
		t.Fatal("the response did not take two rounds")
	}
	w2.flush()
	b.qp.mu.Lock()
	b.qp.sendReadResponse(w2)
	b.qp.mu.Unlock()
	if b.qp.resp.reading != nil {
		t.Fatal("the response is not complete")
	}
	// Before w2 has sent the rest of the response, w1 delivers the WRITE.
	p = &w1.requests.packets[1]
	w1.deliverOne(p.way, w1.requests.memory[p.off:p.end])
	w1.flush()
	for !w2.finishRead(b.qp, 1) {
	}
	w2.flush()
	a.want(1, ring.WCRead)
	a.want(2, ring.WCWrite)
}

// TestReadThenWrite posts WRITEs when the response to a long READ is nearly complete. Two goroutines carry them
// out. Nothing is repeated, since nothing is lost.
func TestReadThenWrite(t *testing.T) {
	const size = 4300 * 256
	rounds := 1000
	if testing.Short() {
		rounds = 50
	}
	d := newDevice(t, Config{})
	o := sideOptions{bufSize: size}
	a, b := newSide(t, d, o), newSide(t, d, o)
	connect(a, b, connOptions{mtu: 1, timeout: 20})
	for i := range rounds {
		a.post(signaled(1, ring.OpRead, a.sge(0, size)).to(b, 0))
		for left := size; left > 100; {
			a.qp.mu.Lock()
			left = wire.Diff(a.qp.req.end, a.qp.req.una)
			a.qp.mu.Unlock()
		}
		a.post(signaled(2, ring.OpWrite, a.sge(0, 8)).to(b, 0))
		for got := 0; got < 2; {
			c, ok := a.poll()
			if !ok {
				runtime.Gosched()
				continue
			}
			if c.status != StatusSuccess {
				t.Fatalf("round %d: %+v", i, c)
			}
			got++
		}
	}
	if n := d.stats.retries.Load(); n > 0 {
		t.Errorf("%d repetitions on a path that loses nothing", n)
	}
}

// TestAckNeverLess: an acknowledgement that takes the place of another one does not acknowledge less. One batch
// has a request and, behind it, a duplicate of an earlier request, with an atomic between the two.
func TestAckNeverLess(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	var answers []wire.Header
	net.tap = func(from, _ netip.Addr, p []byte) bool {
		var h wire.Header
		if _, err := wire.Parse(p, &h); err != nil {
			t.Error(err)
		}
		answers = append(answers, wire.Header{Opcode: h.Opcode, PSN: h.PSN})
		return false
	}
	_, b := networkPair(t, net, sideOptions{}, connOptions{psn: 0x100})
	psn := b.qp.Query().RQPSN
	r := b.d.NewReceiver()
	for id := range uint64(3) {
		b.recv(id, b.sge(0, 8))
	}
	request := func(h wire.Header, flush bool) {
		h.PKey, h.DestQP, h.AckReq = wire.DefaultPKey, b.qp.num, true
		p := make([]byte, wire.PacketSize(h.Opcode, 0))
		h.Put(p)
		r.Packet(&Meta{From: netip.MustParseAddr("10.0.0.1"), To: netip.MustParseAddr("10.0.0.2")}, p)
		if flush {
			r.Flush()
		}
	}
	send := func(n uint32) wire.Header { return wire.Header{Opcode: wire.SendOnly, PSN: psn + n} }
	request(send(0), true)
	request(wire.Header{Opcode: wire.FetchAdd, PSN: psn + 1, Addr: b.addr(align(b)), RKey: b.mr.RKey()}, true)
	request(send(2), false)
	request(send(0), true)
	want := []wire.Header{{Opcode: wire.Acknowledge, PSN: psn}, {Opcode: wire.AtomicAcknowledge, PSN: psn + 1}, {Opcode: wire.Acknowledge, PSN: psn + 2}}
	if !slices.Equal(answers, want) {
		t.Errorf("the answers are %+v, want %+v", answers, want)
	}
}
