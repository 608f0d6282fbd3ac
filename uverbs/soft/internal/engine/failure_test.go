package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/fault"
	"github.com/goverbs/goverbs/uverbs/soft/internal/memory"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// failure is a request of 8 bytes at the start of both buffers that fails.
type failure struct {
	name   string
	change func(t *testing.T, wr *sendWR, a, b *side)
	status Status // that the program gets, and that is in the ring's element
	peer   Status // of the receive that is posted; 0: it is still there
	state  State  // of the peer
	event  bool   // the peer gets EventAccessErr
}

// other registers a side's buffer with other rights.
func other(t *testing.T, s *side, access memory.Access) *memory.MR {
	t.Helper()
	mr, errno := s.d.config.Memory.RegMR(s.pd, s.addr(0), uint64(len(s.buf)), s.addr(0), access)
	check(t, errno)
	return mr
}

// failures are failures of WRITE, READ, FETCH_ADD and SEND.
func failures(opcode uint32) []failure {
	gathers := opcode == ring.OpWrite || opcode == ring.OpSend
	local := failure{status: StatusLocProtErr, state: RTS}
	remote := failure{status: StatusRemAccessErr, peer: StatusFlushErr, state: Err, event: true}
	refused := failure{status: StatusRemInvReqErr, peer: StatusFlushErr, state: Err}
	with := func(f failure, name string, change func(t *testing.T, wr *sendWR, a, b *side)) failure {
		f.name, f.change = name, change
		return f
	}
	all := []failure{
		with(local, "wrong lkey", func(t *testing.T, wr *sendWR, a, b *side) { wr.sges[0].lkey ^= 0x5500 }),
		with(local, "before the local MR", func(t *testing.T, wr *sendWR, a, b *side) { wr.sges[0].addr -= 4 }),
		with(local, "past the local MR", func(t *testing.T, wr *sendWR, a, b *side) { wr.sges[0].addr += uint64(len(a.buf)) - 4 }),
		with(local, "MR of another PD", func(t *testing.T, wr *sendWR, a, b *side) { wr.sges[0] = b.sge(0, 8) }),
		with(local, "unsignaled", func(t *testing.T, wr *sendWR, a, b *side) { wr.sges[0].lkey, wr.flags = 1, 0 }),
	}
	if !gathers {
		all = append(all, with(local, "no LOCAL_WRITE", func(t *testing.T, wr *sendWR, a, b *side) {
			wr.sges[0].lkey = other(t, a, 0).LKey()
		}))
	}
	if opcode == ring.OpSend {
		return all
	}
	return append(all,
		with(remote, "wrong rkey", func(t *testing.T, wr *sendWR, a, b *side) { wr.rkey ^= 0x5500 }),
		with(remote, "before the remote MR", func(t *testing.T, wr *sendWR, a, b *side) { wr.addr -= 1 << 20 }),
		with(remote, "past the remote MR", func(t *testing.T, wr *sendWR, a, b *side) { wr.addr += uint64(len(b.buf)) - 4&^7 + 8 }),
		with(remote, "remote MR of another PD", func(t *testing.T, wr *sendWR, a, b *side) { *wr = wr.to(a, align(a)) }),
		with(remote, "remote MR without a right", func(t *testing.T, wr *sendWR, a, b *side) { wr.rkey = other(t, b, memory.LocalWrite).RKey() }),
		with(refused, "QP without a right", func(t *testing.T, wr *sendWR, a, b *side) { check(t, b.qp.Modify(&QPAttr{}, AttrAccess)) }),
	)
}

// TestFailures posts requests that fail, with another one behind.
func TestFailures(t *testing.T) {
	for name, opcode := range map[string]uint32{"WRITE": ring.OpWrite, "READ": ring.OpRead, "FETCH_ADD": ring.OpAtomicFAA, "SEND": ring.OpSend} {
		for _, f := range failures(opcode) {
			t.Run(name+"/"+f.name, func(t *testing.T) {
				d := newDevice(t, Config{})
				a, b := newSide(t, d, sideOptions{}), newSide(t, d, sideOptions{pd: 8})
				connect(a, b, connOptions{})
				mine, theirs := a.fill(0, 100, 1), b.fill(0, 100, 101)
				b.recv(9)
				wr := signaled(1, opcode, a.sge(0, 8)).to(b, align(b))
				f.change(t, &wr, a, b)
				slot := a.qp.sq.Producer()
				a.post(wr, signaled(2, ring.OpWrite))
				a.fails(1, f.status)
				a.fails(2, StatusFlushErr)
				a.none()
				a.inState(Err)
				if got := Status(native.Uint32(a.qp.sq.Elem(slot)[144:])); got != f.status {
					t.Errorf("the element has status %d, want %d", got, f.status)
				}
				if f.peer != 0 {
					b.fails(9, f.peer)
				}
				b.none()
				b.inState(f.state)
				if got := slices.Contains(b.events, EventAccessErr); got != f.event {
					t.Errorf("events of the peer %v, access error %v", b.events, f.event)
				}
				a.holds(0, mine)
				b.holds(0, theirs)
			})
		}
	}
}

// TestNoData: where there is no data nobody looks at keys and addresses.
func TestNoData(t *testing.T) {
	a, b := pair(t, sideOptions{}, connOptions{})
	for _, opcode := range []uint32{ring.OpWrite, ring.OpRead, ring.OpSend} {
		b.recv(9)
		for _, list := range [][]sge{nil, {{addr: 1, lkey: 1}}} {
			wr := signaled(1, opcode, list...)
			wr.addr, wr.rkey = 5, 5
			a.post(wr)
			a.next()
			if opcode == ring.OpSend {
				b.want(9, ring.WCRecv)
				b.recv(9)
			}
			a.inState(RTS)
		}
	}
}

// TestFailedReceives: a receive whose memory is at fault, or that is too short, fails the message on both
// sides.
func TestFailedReceives(t *testing.T) {
	for name, c := range map[string]struct {
		entry      func(b *side) sge
		send, recv Status
	}{
		"wrong lkey":  {func(b *side) sge { return sge{b.addr(0), 64, b.mr.LKey() ^ 0x5500} }, StatusRemOpErr, StatusLocProtErr},
		"past the MR": {func(b *side) sge { return sge{b.addr(len(b.buf) - 4), 64, b.mr.LKey()} }, StatusRemOpErr, StatusLocProtErr},
		"too short":   {func(b *side) sge { return b.sge(0, 4) }, StatusRemInvReqErr, StatusLocLenErr},
		"no rights":   {func(b *side) sge { return sge{b.addr(0), 64, other(t, b, 0).LKey()} }, StatusRemOpErr, StatusLocProtErr},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, sideOptions{}, connOptions{})
			before := b.fill(0, 64, 5)
			b.recv(9, c.entry(b))
			b.recv(10)
			a.post(signaled(1, ring.OpSend, a.sge(0, 8)))
			a.fails(1, c.send)
			b.fails(9, c.recv)
			b.fails(10, StatusFlushErr)
			a.inState(Err)
			b.inState(Err)
			b.holds(0, before) // nothing of the message is stored
		})
	}
}

// TestNotReadyBefore: a faulty request behind one for which the peer is not ready fails when that one is complete.
func TestNotReadyBefore(t *testing.T) {
	for _, later := range []bool{false, true} {
		clock := newFakeClock()
		d := newDevice(t, Config{Clock: clock})
		a, b := newSide(t, d, sideOptions{}), newSide(t, d, sideOptions{})
		connect(a, b, connOptions{})
		_, bind := window(a, 0, 100, memory.RemoteRead)
		bind.bindLen = 1 << 30
		if a.post(signaled(1, ring.OpSend, a.sge(0, 8))); later {
			a.none()
		}
		a.post(bind, signaled(3, ring.OpSend))
		a.none()
		b.recv(9, b.sge(0, 8))
		clock.advance(time.Second)
		a.want(1, ring.WCSend)
		a.fails(100, StatusMWBindErr)
		a.fails(3, StatusFlushErr)
		b.inState(RTS)
	}
}

// TestUnacknowledgedBefore: requests before a faulty one complete, and it fails afterwards.
func TestUnacknowledgedBefore(t *testing.T) {
	clock := newFakeClock()
	net := &fakeNetwork{clock: clock}
	a, b := networkPair(t, net, sideOptions{}, connOptions{})
	b.recv(9, b.sge(0, 100))
	bad := a.sge(0, 10)
	bad.lkey++
	a.post(signaled(1, ring.OpSend, a.sge(0, 10)), signaled(2, ring.OpWrite, bad).to(b, 0), signaled(3, ring.OpSend))
	a.none()
	net.deliver()
	a.want(1, ring.WCSend)
	a.fails(2, StatusLocProtErr)
	a.fails(3, StatusFlushErr)
	b.want(9, ring.WCRecv)
	b.inState(RTS)
}

// networkPair makes two devices with a QP each that are connected over a network.
func networkPair(t testing.TB, net *fakeNetwork, o sideOptions, c connOptions) (a, b *side) {
	t.Helper()
	var sides [2]*side
	addrs := []string{"10.0.0.1", "10.0.0.2"}
	if net.large != nil {
		addrs = []string{"127.0.0.2", "127.0.0.3"}
	}
	for i, addr := range addrs {
		p := net.port()
		d := newDevice(t, Config{Network: p, Clock: net.clock, Go: func(f func()) { f() }}, addr)
		p.device = d
		sides[i] = newSide(t, d, o)
	}
	connect(sides[0], sides[1], c)
	return sides[0], sides[1]
}

// TestNoSuchQP: packets to a QP that is gone are dropped, and the sender's retries end.
func TestNoSuchQP(t *testing.T) {
	for _, retry := range []uint8{2, 7} {
		clock := newFakeClock()
		d := newDevice(t, Config{Clock: clock})
		a, b := newSide(t, d, sideOptions{}), newSide(t, d, sideOptions{})
		connect(a, b, connOptions{timeout: 10, retry: retry})
		check(t, b.qp.Close())
		a.post(signaled(1, ring.OpSend, a.sge(0, 8)), signaled(2, ring.OpSend))
		for range retry + 1 {
			a.none()
			clock.advance(4096 * time.Microsecond * 1024 / 1000)
		}
		a.fails(1, StatusRetryExcErr)
		a.fails(2, StatusFlushErr)
		if got := d.stats.retries.Load(); got != uint64(retry) {
			t.Errorf("%d retries, want %d", got, retry)
		}
	}
}

// TestLateReader: an acknowledgement that has come before the timeout, but was not looked at, is no reason to send
// again: the process may have been held up.
func TestLateReader(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkPair(t, net, sideOptions{}, connOptions{timeout: 10, retry: 1})
	b.recv(1, b.sge(0, 8))
	a.d.config.Drain = net.deliver
	a.post(signaled(2, ring.OpSend, a.sge(0, 8)))
	net.clock.advance(time.Second)
	a.want(2, ring.WCSend)
	if n := a.d.stats.retries.Load(); n != 0 {
		t.Errorf("%d retries, want none", n)
	}
}

// TestNoTimeout: without a timeout, what the peer does not acknowledge is never sent again.
func TestNoTimeout(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkPair(t, net, sideOptions{}, connOptions{})
	check(t, a.qp.Modify(&QPAttr{}, AttrTimeout))
	b.recv(1)
	b.recv(2)
	a.post(signaled(1, ring.OpSend), signaled(2, ring.OpSend))
	net.packets = net.packets[:1] // the second is lost
	net.deliver()
	a.want(1, ring.WCSend)
	net.settle()
	a.none()
	if a.d.stats.retries.Load() != 0 {
		t.Error("the request was sent again")
	}
}

// TestOtherSender: a packet that does not come from the peer's address, or not to that of the QP, is dropped.
func TestOtherSender(t *testing.T) {
	p := newRawPeer(t, 4096)
	p.recv(1)
	h := wire.Header{Opcode: wire.SendOnly, PSN: p.qp.resp.psn, PKey: wire.DefaultPKey, DestQP: p.qp.num, AckReq: true}
	b := make([]byte, wire.PacketSize(h.Opcode, 0))
	h.Put(b)
	for i, m := range []Meta{
		{From: netip.MustParseAddr("10.0.0.3"), To: netip.MustParseAddr("10.0.0.1")},
		{From: netip.MustParseAddr("10.0.0.2"), To: netip.MustParseAddr("10.0.0.9")},
		{From: netip.MustParseAddr("fd00::2"), To: netip.MustParseAddr("fd00::1")},
	} {
		r := p.d.NewReceiver()
		r.Packet(&m, b)
		r.Flush()
		p.none()
		if got := p.d.stats.wrongAddress.Load(); got != uint64(i+1) || len(p.net.packets) != 0 {
			t.Errorf("%s to %s: %d packets were refused and %d sent", m.From, m.To, got, len(p.net.packets))
		}
	}
	p.request(h)
	p.want(1, ring.WCRecv)
}

// TestNotReady: a message that finds no receive is sent again after a while, and fails when that was
// done as often as was agreed on.
func TestNotReady(t *testing.T) {
	clock := newFakeClock()
	d := newDevice(t, Config{Clock: clock})
	a, b := newSide(t, d, sideOptions{}), newSide(t, d, sideOptions{})
	connect(a, b, connOptions{rnrRetry: 2, rnr: 14}) // 1.28 ms
	want := a.fill(0, 5000, 4)
	a.post(signaled(1, ring.OpSend, a.sge(0, 5000)), signaled(2, ring.OpWrite, a.sge(0, 10)).to(b, 10000))
	clock.advance(time.Millisecond)
	a.none()
	b.recv(9, b.sge(0, 5000))
	clock.advance(time.Millisecond)
	a.want(1, ring.WCSend)
	a.want(2, ring.WCWrite)
	b.want(9, ring.WCRecv)
	b.holds(0, want)

	a.post(signaled(3, ring.OpSend, a.sge(0, 5000)), signaled(4, ring.OpWrite))
	clock.advance(2 * 1280 * time.Microsecond)
	a.fails(3, StatusRNRRetryErr)
	a.fails(4, StatusFlushErr)
	a.inState(Err)
	b.inState(RTS)
	if got := d.stats.notReady.Load(); got != 4 {
		t.Errorf("%d RNR NAKs, want 4: one, and three", got)
	}
}

// TestReceiveOverflow: a receive for whose completion there is no room breaks its QP, and the sender
// gets no acknowledgement. The messages before it are acknowledged.
func TestReceiveOverflow(t *testing.T) {
	clock := newFakeClock()
	d := newDevice(t, Config{Clock: clock})
	a, b := newSide(t, d, sideOptions{}), newSide(t, d, sideOptions{cqSize: 3})
	connect(a, b, connOptions{timeout: 10, retry: 1})
	for i := range uint64(5) {
		b.recv(i, b.sge(0, 100))
		a.put(signaled(10+i, ring.OpSend, a.sge(0, 10)))
	}
	check(t, a.qp.Doorbell())
	b.inState(Err)
	clock.advance(time.Second)
	for i := range uint64(3) {
		a.want(10+i, ring.WCSend)
		b.want(i, ring.WCRecv)
	}
	a.fails(13, StatusRetryExcErr)
	a.fails(14, StatusFlushErr)
	b.none()
	if b.cqErrs != 1 || !slices.Equal(b.events, []uint32{EventQPFatal}) {
		t.Errorf("%d events of the CQ and %v of the QP, want one and %v", b.cqErrs, b.events, EventQPFatal)
	}
}

// TestSendOverflow: a completion for which there is no room breaks the CQ and its QP. The CQ takes no more
// completions, also when there is room or it gets another size, and breaks every QP that completes to it.
func TestSendOverflow(t *testing.T) {
	for _, typ := range []QPType{RC, UC, UD} {
		d := newDevice(t, Config{})
		var sides [4]*side // two that send, and their peers
		for i := range sides {
			sides[i] = newSide(t, d, sideOptions{typ: typ, cqSize: []int{3, 1000}[i/2]})
		}
		a, other, b := sides[0], sides[1], sides[2]
		other.qp.sendCQ = a.cq
		if typ == UD {
			for _, s := range sides {
				s.activate()
			}
		} else {
			connect(a, b, connOptions{})
			connect(other, sides[3], connOptions{})
		}
		send := func(id uint64, s *side) sendWR {
			if typ == UD {
				return datagram(id, s.handle("10.0.0.1", nil), b, s.sge(0, 1))
			}
			return signaled(id, ring.OpWrite, s.sge(0, 1)).to(b, 0)
		}
		unsignaled := func(s *side) sendWR {
			wr := send(0, s)
			wr.flags = 0
			return wr
		}
		for i := range uint64(5) {
			a.post(send(i, a))
		}
		a.inState(Err)
		a.post(send(5, a))
		for i := range uint64(3) {
			if c := a.next(); c.id != i || c.status != StatusSuccess {
				t.Errorf("completion %+v, want of %d", c, i)
			}
		}
		check(t, a.qp.Modify(&QPAttr{State: Reset}, AttrState))
		other.post(unsignaled(other))
		other.inState(RTS)
		other.post(send(6, other))
		other.inState(Err)
		a.none()
		for _, s := range []*side{a, other} {
			if !slices.Equal(s.events, []uint32{EventQPFatal}) {
				t.Errorf("events of a QP %v, want %v", s.events, EventQPFatal)
			}
		}
		if a.cqErrs != 1 {
			t.Errorf("%d events of the CQ, want 1", a.cqErrs)
		}
		if _, errno := a.cq.Resize(100); errno != syscall.EINVAL {
			t.Errorf("a new size for the CQ: %v, want EINVAL", errno)
		}
	}
}

// TestFailureOverflow: a failed send of a UD QP whose completion is lost leaves it in state ERR.
func TestFailureOverflow(t *testing.T) {
	a, b := udPair(t, sideOptions{cqSize: 1})
	ah := a.handle("10.0.0.1", nil)
	a.post(datagram(1, ah, b), datagram(2, 0, b), datagram(3, ah, b))
	a.inState(Err)
	a.want(1, ring.WCSend)
	a.none()
}

// TestBadRequests posts requests that the QP cannot send.
func TestBadRequests(t *testing.T) {
	for name, change := range map[string]func(b []byte){
		"opcode 255":        func(b []byte) { native.PutUint32(b[12:], 255) },
		"TSO":               func(b []byte) { native.PutUint32(b[12:], 10) },
		"too many SGEs":     func(b []byte) { native.PutUint32(b[196:], 5) },
		"very many SGEs":    func(b []byte) { native.PutUint32(b[196:], 1<<31) },
		"longer than SGEs":  func(b []byte) { native.PutUint32(b[184:], 1<<31) },
		"inline, too long":  func(b []byte) { native.PutUint32(b[16:], 8); native.PutUint32(b[184:], 1<<20) },
		"wrong LOCAL_INV":   func(b []byte) { native.PutUint32(b[12:], ring.OpLocalInv) },
		"wrong BIND_MW":     func(b []byte) { native.PutUint32(b[12:], ring.OpBindMW) },
		"READ with INLINE":  func(b []byte) { native.PutUint32(b[12:], ring.OpRead); native.PutUint32(b[16:], 8) },
		"atomic of 4 bytes": func(b []byte) { native.PutUint32(b[12:], ring.OpAtomicFAA); native.PutUint32(b[208+8:], 4) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, sideOptions{}, connOptions{})
			wr := signaled(1, ring.OpWrite, a.sge(0, 16)).to(b, align(b))
			slot := a.qp.sq.Producer()
			a.put(wr)
			change(a.qp.sq.Elem(slot))
			check(t, a.qp.Doorbell())
			if c := a.next(); c.id != 1 || c.status == StatusSuccess {
				t.Errorf("completion %+v, want a failure of 1", c)
			}
			a.inState(Err)
		})
	}
}

// TestDataForOthers: the response to a READ in answer to another request fails that request.
func TestDataForOthers(t *testing.T) {
	for _, op := range []uint32{ring.OpSend, ring.OpWrite, ring.OpAtomicFAA} {
		p := newRawPeer(t, 1<<16)
		wr := signaled(1, op, p.sge(0, 8))
		if op != ring.OpSend {
			wr = wr.to(p.side, 64)
		}
		p.post(wr, signaled(2, ring.OpSend))
		want := p.fill(0, 8, 3)
		p.request(wire.Header{Opcode: wire.ReadResponseOnly, Syndrome: wire.SyndromeACK, PSN: p.qp.req.una})
		p.fails(1, StatusFatalErr)
		p.fails(2, StatusFlushErr)
		p.inState(Err)
		p.holds(0, want)
	}
}

// TestSolicitedErrors: a CQ that is armed for solicited completions raises an event for one that is no success.
func TestSolicitedErrors(t *testing.T) {
	a, b := pair(t, sideOptions{}, connOptions{})
	b.recv(1, b.sge(0, 8))
	b.recv(2, b.sge(0, 4))
	b.cq.Arm(true)
	a.post(signaled(1, ring.OpSend, a.sge(0, 8)))
	b.want(1, ring.WCRecv)
	if b.raised != 0 {
		t.Errorf("a receive that is not solicited: %d events, want none", b.raised)
	}
	a.want(1, ring.WCSend)
	a.cq.Arm(true)
	a.post(signaled(2, ring.OpSend, a.sge(0, 8)))
	a.fails(2, StatusRemInvReqErr)
	b.fails(2, StatusLocLenErr)
	if a.raised != 1 || b.raised != 1 {
		t.Errorf("a failed message: %d and %d events, want 1", a.raised, b.raised)
	}
	a.cq.Arm(true)
	b.cq.Arm(true)
	b.recv(3, b.sge(0, 8))
	check(t, b.qp.Doorbell())
	a.post(signaled(3, ring.OpSend))
	a.fails(3, StatusFlushErr)
	b.fails(3, StatusFlushErr)
	if a.raised != 2 || b.raised != 2 {
		t.Errorf("flushed requests: %d and %d events, want 2", a.raised, b.raised)
	}
}

// TestSRQReceiveFlushed: a receive that a message has taken from an SRQ completes if the QP fails before the
// message is complete, and LAST_WQE_REACHED comes behind that.
func TestSRQReceiveFlushed(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkPair(t, net, sideOptions{srq: 4}, connOptions{mtu: 1})
	b.recv(7, b.sge(0, 4096))
	b.recv(8, b.sge(4096, 4096))
	first := true
	net.tap = func(from, _ netip.Addr, _ []byte) bool {
		ok := first || from == netip.MustParseAddr("10.0.0.2")
		first = false
		return ok
	}
	a.post(signaled(1, ring.OpSend, a.sge(0, 600)))
	net.deliver()
	b.none()
	completions := -1
	b.qp.event = func(typ uint32) {
		if typ == EventLastWQE {
			r := b.cq.Ring()
			completions = r.Count(r.Consumer(), r.Producer())
		}
	}
	check(t, b.qp.Modify(&QPAttr{State: Err}, AttrState))
	if completions != 1 {
		t.Errorf("%d completions before LAST_WQE_REACHED, want 1", completions)
	}
	b.fails(7, StatusFlushErr)
	if r := b.srq.Ring(); r.Count(r.Consumer(), r.Producer()) != 1 {
		t.Error("the other receive has left the SRQ")
	}
}

// TestSRQOfOtherPD: the receives of an SRQ belong to the PD of the SRQ, also those that a QP of another PD takes.
func TestSRQOfOtherPD(t *testing.T) {
	d := newDevice(t, Config{})
	a, b := newSide(t, d, sideOptions{}), newSide(t, d, sideOptions{srq: 4})
	b.qp.pd = 9
	connect(a, b, connOptions{})
	want := a.fill(0, 8, 3)
	b.recv(1, b.sge(0, 64))
	a.post(signaled(2, ring.OpSend, a.sge(0, 8)))
	b.want(1, ring.WCRecv)
	b.holds(0, want)
}

// TestReceiveInError: a receive that is posted in state ERR is flushed when the doorbell rings, for which the QP
// asks, and otherwise if it was posted while the QP moved to ERR. A QP that was reset does not ask.
func TestReceiveInError(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	_, b := networkPair(t, net, sideOptions{}, connOptions{})
	asks := func() bool { return native.Uint32(b.qp.rq.Bytes()[8:]) != 0 }
	if asks() {
		t.Error("the QP asks for the doorbell in state RTS")
	}
	check(t, b.qp.Modify(&QPAttr{State: Err}, AttrState))
	if !asks() {
		t.Error("the QP does not ask for the doorbell in state ERR")
	}
	b.recv(1, b.sge(0, 8))
	check(t, b.qp.Doorbell())
	b.fails(1, StatusFlushErr)
	b.recv(2, b.sge(0, 8))
	net.settle()
	b.fails(2, StatusFlushErr)
	if check(t, b.qp.Modify(&QPAttr{State: Reset}, AttrState)); asks() {
		t.Error("the QP asks for the doorbell after a reset")
	}
}

// TestReadsUnderWay: no more READs are under way than MaxRdAtomic, which is what the peer has room for.
func TestReadsUnderWay(t *testing.T) {
	for _, n := range []uint8{1, 3, 5, 16} {
		net := &fakeNetwork{clock: newFakeClock()}
		reads := uint8(0)
		net.tap = func(_, _ netip.Addr, p []byte) bool {
			var h wire.Header
			if _, err := wire.Parse(p, &h); err == nil && h.Opcode.IsReadRequest() {
				reads++
			}
			return false
		}
		a, b := networkPair(t, net, sideOptions{}, connOptions{rdAtomic: n})
		for id := range uint64(20) {
			a.post(signaled(id, ring.OpRead, a.sge(0, 8)).to(b, 0))
		}
		if reads != n || b.qp.resp.mostReads != int(n) {
			t.Errorf("%d READs are under way and the peer takes %d, want %d", reads, b.qp.resp.mostReads, n)
		}
	}
}

// TestTooManyReads: a READ or atomic that comes while the peer answers as many as it has promised to take is refused.
// Those before it are answered.
func TestTooManyReads(t *testing.T) {
	const size = 1 << 20
	requests := map[string]func(a, b *side, id uint64) sendWR{
		"READs":       func(a, b *side, id uint64) sendWR { return signaled(id, ring.OpRead, a.sge(0, 8)).to(b, 0) },
		"long READs":  func(a, b *side, id uint64) sendWR { return signaled(id, ring.OpRead, a.sge(0, size)).to(b, 0) },
		"empty READs": func(a, b *side, id uint64) sendWR { return signaled(id, ring.OpRead).to(b, 0) },
		"atomics":     func(a, b *side, id uint64) sendWR { return signaled(id, ring.OpAtomicFAA, a.sge(0, 8)).to(b, align(b)) },
		"ATOMIC WRITEs": func(a, b *side, id uint64) sendWR {
			wr := sendWR{id: id, opcode: ring.OpAtomicWrite, flags: ring.SendSignaled | ring.SendInline, inline: make([]byte, 8)}
			return wr.to(b, align(b))
		},
	}
	for name, request := range requests {
		for _, own := range []uint8{3, 4, 16} {
			for _, slow := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/%t", name, own, slow), func(t *testing.T) {
					clock := newFakeClock()
					d := newDevice(t, Config{Clock: clock})
					a, b := newSide(t, d, sideOptions{bufSize: 2 * size}), newSide(t, d, sideOptions{bufSize: 2 * size})
					connect(a, b, connOptions{rdAtomic: 3})
					a.qp.attr.MaxRdAtomic = own
					if slow { // each waits
						d.SetPlan(fault.Plan{{QPN: b.qp.num, Slow: time.Millisecond}})
					}
					for id := range uint64(20) {
						a.put(request(a, b, id))
					}
					check(t, a.qp.Doorbell())
					clock.advance(time.Second)
					for id := range uint64(20) {
						want := StatusSuccess
						switch {
						case own == 3 || id < 3:
						case id == 3:
							want = StatusRemInvReqErr
						default:
							want = StatusFlushErr
						}
						if c := a.next(); c.id != id || c.status != want {
							t.Fatalf("completion %+v, want of %d with status %d", c, id, want)
						}
					}
					b.inState(map[bool]State{true: RTS, false: Err}[own == 3])
				})
			}
		}
	}
}

// TestTooManyReadsOverNetwork: so are those that come at once from the network, where the promise may be rounded up to
// a power of two.
func TestTooManyReadsOverNetwork(t *testing.T) {
	for promise, most := range map[uint8]int{1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 16: 16} {
		for n := most; n <= most+1; n++ {
			net := &fakeNetwork{clock: newFakeClock()}
			a, b := networkPair(t, net, sideOptions{}, connOptions{rdAtomic: promise})
			a.qp.attr.MaxRdAtomic = uint8(n)
			for round := range uint64(3) {
				for id := range uint64(n) {
					a.put(signaled(round*100+id, ring.OpRead, a.sge(0, 8)).to(b, 0))
				}
				check(t, a.qp.Doorbell())
				packets := net.packets
				net.packets = nil
				r := b.d.NewReceiver()
				for _, k := range packets {
					r.Packet(&Meta{From: k.from, To: k.to}, k.data)
				}
				r.Flush()
				net.deliver()
				for id := range uint64(n) {
					want := StatusSuccess
					if int(id) == most {
						want = StatusRemInvReqErr
					}
					if c := a.next(); c.id != round*100+id || c.status != want {
						t.Fatalf("%d of %d READs: completion %+v, want of %d with status %d", n, promise, c, id, want)
					}
				}
				if n > most {
					break
				}
			}
		}
	}
}
