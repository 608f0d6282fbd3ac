package engine

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// TestOpcodeChanges: the program changes the opcode of a request that is under way to one of which the
// low byte is the same. That fails the request; it does not stop the process.
func TestOpcodeChanges(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	net.tap = func(_, _ netip.Addr, _ []byte) bool { return false }
	a, _ := networkPair(t, net, sideOptions{}, connOptions{})
	at := a.qp.sq.Producer()
	a.post(signaled(1, ring.OpSend, a.sge(0, 3000)))
	native.PutUint32(a.qp.sq.Elem(at)[12:], 0x100|ring.OpSend)
	net.clock.advance(time.Second)
	a.fails(1, StatusLocQPOpErr)
	a.inState(Err)
}

// TestDuplicateBeforeAll: a request that comes again before any other one on a connection is
// acknowledged with its own PSN, and not with one of a connection before.
func TestDuplicateBeforeAll(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	var acks []uint32
	net.tap = func(_, _ netip.Addr, b []byte) bool {
		var h wire.Header
		wire.Parse(b, &h)
		acks = append(acks, h.PSN)
		return false
	}
	_, b := networkPair(t, net, sideOptions{}, connOptions{psn: 0x100})
	psn := b.qp.Query().RQPSN
	h := wire.Header{Opcode: wire.SendOnly, PKey: wire.DefaultPKey, DestQP: b.qp.num, PSN: psn - 1, AckReq: true}
	p := make([]byte, wire.PacketSize(h.Opcode, 0))
	h.Put(p)
	r := b.d.NewReceiver()
	r.Packet(&Meta{From: netip.MustParseAddr("10.0.0.1"), To: netip.MustParseAddr("10.0.0.2")}, p)
	r.Flush()
	if len(acks) != 1 || acks[0] != psn-1 {
		t.Fatalf("the responder acknowledges %x, want %x", acks, psn-1)
	}
}

// TestDuplicateBeforeAtomic: a SEND that comes again is acknowledged, but not together with an atomic
// behind it. rxe would take that for the end of the atomic, without its result.
func TestDuplicateBeforeAtomic(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	var answers []wire.Header
	net.tap = func(_, _ netip.Addr, b []byte) bool {
		var h wire.Header
		wire.Parse(b, &h)
		answers = append(answers, wire.Header{Opcode: h.Opcode, PSN: h.PSN})
		return false
	}
	_, b := networkPair(t, net, sideOptions{}, connOptions{psn: 0x100})
	psn := b.qp.Query().RQPSN
	r := b.d.NewReceiver()
	request := func(h wire.Header) {
		h.PKey, h.DestQP, h.AckReq = wire.DefaultPKey, b.qp.num, true
		p := make([]byte, wire.PacketSize(h.Opcode, 0))
		h.Put(p)
		r.Packet(&Meta{From: netip.MustParseAddr("10.0.0.1"), To: netip.MustParseAddr("10.0.0.2")}, p)
		r.Flush()
	}
	for id := range uint64(3) {
		b.recv(id, b.sge(0, 8))
	}
	send := func(n uint32) wire.Header { return wire.Header{Opcode: wire.SendOnly, PSN: psn + n} }
	atomic := wire.Header{Opcode: wire.FetchAdd, PSN: psn + 2, Addr: b.addr(64), RKey: b.mr.RKey()}
	for _, h := range []wire.Header{send(0), send(1), atomic, send(3), send(0), send(3)} {
		request(h)
	}
	want := []wire.Header{
		{Opcode: wire.Acknowledge, PSN: psn}, {Opcode: wire.Acknowledge, PSN: psn + 1}, {Opcode: wire.AtomicAcknowledge, PSN: psn + 2},
		{Opcode: wire.Acknowledge, PSN: psn + 3}, {Opcode: wire.Acknowledge, PSN: psn + 1}, {Opcode: wire.Acknowledge, PSN: psn + 3},
	}
	if !slices.Equal(answers, want) {
		t.Errorf("the answers are %+v, want %+v", answers, want)
	}
}

// TestRequestAfterReset: after a reset, a worker that is still at work takes no request of the new
// connection for one of the old.
func TestRequestAfterReset(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkPair(t, net, sideOptions{}, connOptions{})
	w := new(worker)
	send := func() {
		a.qp.mu.Lock()
		a.qp.send(w)
		a.qp.mu.Unlock()
	}
	a.put(signaled(1, ring.OpSend, a.sge(0, 8)), signaled(2, ring.OpSend, a.sge(0, 8)))
	send()
	check(t, a.qp.Modify(&QPAttr{State: Reset}, AttrState))
	a.connectTo(b.qp, "10.0.0.2", connOptions{})
	for id := range uint64(3) {
		a.put(signaled(11+id, ring.OpSend, a.sge(0, 8)))
		send()
		if got := a.qp.req.slots.at(a.qp.sq.Producer() - 1).wrID; got != 11+id {
			t.Fatalf("the QP has sent request %d, want %d", got, 11+id)
		}
	}
}

// TestClosedQPsLeaveTimers: the timers do not keep QPs that are closed.
func TestClosedQPsLeaveTimers(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	net.tap = func(_, _ netip.Addr, _ []byte) bool { return false }
	a, _ := networkPair(t, net, sideOptions{}, connOptions{timeout: 31})
	a.post(signaled(1, ring.OpSend, a.sge(0, 8)))
	if n := len(a.d.timers.heap); n != 1 {
		t.Fatalf("%d timers, want 1", n)
	}
	check(t, a.qp.Close())
	if n := len(a.d.timers.heap); n != 0 {
		t.Fatalf("%d timers after the QP was closed", n)
	}
}

// TestTimersOfQP: a QP has one timer, however often its deadlines change.
func TestTimersOfQP(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkPair(t, net, sideOptions{}, connOptions{timeout: 31})
	for i := range uint64(10) {
		a.post(signaled(i, ring.OpSend, a.sge(0, 8)))
		net.deliver() // the peer is not ready
		b.recv(i, b.sge(0, 8))
		net.clock.advance(10 * time.Millisecond)
		net.deliver()
		a.want(i, ring.WCSend)
		if n := len(a.d.timers.heap); n > 1 {
			t.Fatalf("%d timers after %d messages", n, i+1)
		}
	}
}

// TestOneExpire: while deadlines are looked at, which may wait for a processor, no others are beside them: each would
// have a goroutine that waits too. None is forgotten.
func TestOneExpire(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkPair(t, net, sideOptions{}, connOptions{timeout: 10})
	c := newSide(t, a.d, sideOptions{})
	c.connectTo(b.qp, "10.0.0.2", connOptions{timeout: 10})
	net.tap = func(_, _ netip.Addr, _ []byte) bool { return false }
	inside, most, calls := 0, 0, 0
	a.d.config.Drain = func() {
		inside++
		most = max(most, inside)
		calls++
		if calls < 10 {
			net.clock.advance(time.Second) // the other QP's deadline passes
		}
		inside--
	}
	a.post(signaled(1, ring.OpSend, a.sge(0, 8)))
	net.clock.advance(time.Millisecond)
	c.post(signaled(1, ring.OpSend, c.sge(0, 8)))
	net.clock.advance(time.Minute)
	if most != 1 {
		t.Errorf("%d looked at deadlines at once, want 1", most)
	}
	a.fails(1, StatusRetryExcErr)
	c.fails(1, StatusRetryExcErr)
}

// TestLargestMessages: 2 GiB with the smallest MTU take as many PSNs as can be told apart.
func TestLargestMessages(t *testing.T) {
	const packets = MaxMessage / 256
	a, b := pair(t, sideOptions{}, connOptions{mtu: 1})
	q := a.qp
	r := &q.req
	q.mu.Lock()
	first := r.psn
	last := wire.Add(first, packets-1)
	*r.slots.at(0) = sendState{state: assigned, opcode: ring.OpWrite, flags: uint8(ring.SendSignaled), first: first, last: last, length: MaxMessage, wrID: 1}
	q.sq.SetProducer(1)
	r.next, r.una, r.psn, r.end = 1, last, wire.Add(last, 1), wire.Add(last, 1)
	w := new(worker)
	q.response(w, &wire.Header{Opcode: wire.Acknowledge, Syndrome: wire.SyndromeACK, PSN: last}, nil)
	q.mu.Unlock()
	a.want(1, ring.WCWrite)

	wr := signaled(2, ring.OpRead, a.sge(0, 1<<30), a.sge(0, 1<<30)).to(b, 0)
	a.put(wr)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.send(w)
	if n := wire.Diff(r.psn, r.una); n <= 0 || wire.Diff(r.end, r.una) <= 0 {
		t.Fatalf("%d PSNs of a READ are under way", n)
	}
}

// TestAcknowledgementAfterReset: an acknowledgement of a new connection does not take the place of one
// that goes to the peer of the connection before.
func TestAcknowledgementAfterReset(t *testing.T) {
	d := newDevice(t, Config{})
	a, b, c := newSide(t, d, sideOptions{}), newSide(t, d, sideOptions{}), newSide(t, d, sideOptions{})
	connect(a, b, connOptions{})
	w := workers.get()
	from := netip.MustParseAddr("10.0.0.1")
	write := func() {
		h := wire.Header{Opcode: wire.WriteOnly, PKey: wire.DefaultPKey, DestQP: b.qp.num, PSN: b.qp.Query().RQPSN, AckReq: true}
		p := make([]byte, wire.PacketSize(h.Opcode, 0))
		h.Put(p)
		d.receive(w, &source{src: from, dst: from}, p)
	}
	write()
	check(t, b.qp.Modify(&QPAttr{State: Reset}, AttrState))
	connect(c, b, connOptions{})
	write()
	var to []uint32
	for i := range w.responses.packets {
		var h wire.Header
		wire.Parse(w.packet(&w.responses, b.qp.path, i), &h)
		to = append(to, h.DestQP)
	}
	if !slices.Equal(to, []uint32{a.qp.num, c.qp.num}) {
		t.Errorf("acknowledgements to %x, want one to %x and one to %x", to, a.qp.num, c.qp.num)
	}
}

// TestGIDsOfClosedDevice: a device that is closed while it reads its GIDs does not get its addresses back.
func TestGIDsOfClosedDevice(t *testing.T) {
	host := new(Host)
	d := newDevice(t, Config{Host: host}, "10.0.0.1")
	d.config.GIDs = func() []GIDEntry {
		d.Close()
		return testGIDs("10.0.0.1")()
	}
	d.RefreshGIDs()
	if host.find(netip.MustParseAddr("10.0.0.1")) != nil || len(host.devicesNow()) != 0 {
		t.Error("the closed device has its address")
	}
}

// TestNotReadyForTwo: while a QP waits because its peer is not ready, the packets behind, which the peer
// refuses, too, are no reason to give up.
func TestNotReadyForTwo(t *testing.T) {
	clock := newFakeClock()
	d := newDevice(t, Config{Clock: clock})
	a, b := newSide(t, d, sideOptions{}), newSide(t, d, sideOptions{})
	connect(a, b, connOptions{})
	check(t, a.qp.Modify(&QPAttr{RetryCount: 0}, AttrRetryCount))
	a.post(signaled(1, ring.OpSend, a.sge(0, 8)), signaled(2, ring.OpSend, a.sge(0, 8)))
	a.inState(RTS)
	for i := range uint64(2) {
		b.recv(i, b.sge(0, 8))
	}
	clock.advance(time.Second)
	a.want(1, ring.WCSend)
	a.want(2, ring.WCSend)
}

// TestDeviceWithSameAddress: a device that takes the place of one that was closed gets what is sent to its
// address, also from QPs and by address handles that are older.
func TestDeviceWithSameAddress(t *testing.T) {
	host := new(Host)
	a := newSide(t, newDevice(t, Config{Host: host}, "10.0.0.1"), sideOptions{typ: UD})
	a.activate()
	old := newDevice(t, Config{Host: host}, "10.0.0.2")
	ah := a.handle("10.0.0.2", nil)
	old.Close()
	b := newSide(t, newDevice(t, Config{Host: host}, "10.0.0.2"), sideOptions{typ: UD})
	a.post(datagram(1, ah, b, a.sge(0, 8))) // it is lost
	a.want(1, ring.WCSend)
	b.activate()
	b.recv(2, b.sge(0, 100))
	a.post(datagram(3, ah, b, a.sge(0, 8)))
	a.want(3, ring.WCSend)
	b.want(2, ring.WCRecv)
	b.d.Close()
	a.post(datagram(4, ah, b, a.sge(0, 8)))
	a.want(4, ring.WCSend)
}
