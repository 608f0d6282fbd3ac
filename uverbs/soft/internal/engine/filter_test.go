package engine

import (
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// A fakeFilter counts packets, passes them on at once, and loses some.
type fakeFilter struct {
	d              *Device
	sent, received int
	lose           func(n int) bool // the n-th packet that is sent, from 1; nil: none
	wait           func(n int)      // holds up the goroutine that sends the n-th packet; nil: not
	damage         bool             // instead of losing it
}

func (f *fakeFilter) Send(from netip.Addr, b *udp.Batch) {
	f.sent += b.Len()
	if f.wait != nil {
		f.wait(f.sent)
	}
	if f.lose != nil && f.lose(f.sent) {
		if !f.damage {
			return
		}
		b.Flip(77)
	}
	f.d.Forward(from, b)
}

func (f *fakeFilter) Receive(m *Meta, b []byte) {
	f.received++
	f.d.Deliver(m, b)
}

// filtered makes two devices of a host. The first has a filter.
func filtered(t *testing.T, f *fakeFilter) (d1, d2 *Device, clock *fakeClock) {
	clock = newFakeClock()
	host := new(Host)
	d1 = newDevice(t, Config{Host: host, Clock: clock}, "10.0.0.1", "fd00::1")
	d2 = newDevice(t, Config{Host: host, Clock: clock}, "10.0.0.2", "fd00::2")
	f.d = d1
	d1.SetFilter(f)
	return d1, d2, clock
}

// TestFilter: all packets of a device to others of its host and from them pass through its filter, and
// an exchange is complete when the call that began it returns.
func TestFilter(t *testing.T) {
	f := new(fakeFilter)
	d1, d2, _ := filtered(t, f)
	a, b := newSide(t, d1, sideOptions{}), newSide(t, d2, sideOptions{})
	connect(a, b, connOptions{})
	data := a.fill(0, 5000, 1)
	b.recv(1, b.sge(0, 8000))
	a.post(signaled(2, ring.OpSend, a.sge(0, 5000)))
	a.want(2, ring.WCSend)
	b.want(1, ring.WCRecv)
	b.holds(0, data)
	if f.sent != 5 || f.received != 1 {
		t.Errorf("%d packets sent and %d received, want 5 and 1", f.sent, f.received)
	}
	a.post(signaled(3, ring.OpRead, a.sge(8192, 5000)).to(b, 0))
	a.want(3, ring.WCRead)
	a.holds(8192, data)
	if f.sent != 6 || f.received != 6 {
		t.Errorf("%d packets sent and %d received, want 6 and 6", f.sent, f.received)
	}
	d1.SetFilter(nil)
	a.post(signaled(4, ring.OpWrite, a.sge(0, 8)).to(b, 0))
	a.want(4, ring.WCWrite)
	if f.sent != 6 || f.received != 6 {
		t.Errorf("without the filter, %d packets sent and %d received", f.sent, f.received)
	}
}

// TestFilterLoss: a packet that the filter loses or damages is sent again.
func TestFilterLoss(t *testing.T) {
	for _, damage := range []bool{false, true} {
		f := &fakeFilter{lose: func(n int) bool { return n == 3 || n == 25 }, damage: damage}
		d1, d2, clock := filtered(t, f)
		a, b := newSide(t, d1, sideOptions{}), newSide(t, d2, sideOptions{})
		connect(a, b, connOptions{})
		data := a.fill(0, 20000, 1)
		a.post(signaled(2, ring.OpWrite, a.sge(0, 20000)).to(b, 0))
		for at, ok := clock.next(); ok; at, ok = clock.next() {
			clock.advance(at.Sub(clock.Now()))
		}
		a.want(2, ring.WCWrite)
		b.holds(0, data)
		if d1.stats.retries.Load() == 0 {
			t.Error("nothing was sent again")
		}
	}
}

// TestFilterLossOfList: a message of several SGEs is sent again from its first one while the rest of it is
// sent.
func TestFilterLossOfList(t *testing.T) {
	const part, size = 25600, 4 * 25600 // more packets than a round has
	f := &fakeFilter{lose: func(n int) bool { return n == 3 }}
	d1, d2, clock := filtered(t, f)
	a, b := newSide(t, d1, sideOptions{bufSize: size}), newSide(t, d2, sideOptions{bufSize: size})
	connect(a, b, connOptions{})
	data := a.fill(0, size, 1)
	a.post(signaled(2, ring.OpWrite, a.sge(0, part), a.sge(part, part), a.sge(2*part, part), a.sge(3*part, part)).to(b, 0))
	for at, ok := clock.next(); ok; at, ok = clock.next() {
		clock.advance(at.Sub(clock.Now()))
	}
	a.want(2, ring.WCWrite)
	b.holds(0, data)
}

// TestFilterGroup: a packet to a group passes through the filter of its sender once, and through that of
// a receiver.
func TestFilterGroup(t *testing.T) {
	f := new(fakeFilter)
	d1, d2, _ := filtered(t, f)
	o := sideOptions{typ: UD}
	a, b, c := newSide(t, d1, o), newSide(t, d1, o), newSide(t, d2, o)
	group := gidOfAddr(netip.MustParseAddr("ff0e::17"))
	for _, s := range []*side{a, b, c} {
		s.activate()
		check(t, s.d.Join(addrOfGID(group)), s.qp.Attach(group, 0))
		s.recv(1, s.sge(1000, 200))
	}
	wr := datagram(2, a.handle("ff0e::17", nil), a, a.sge(0, 100))
	wr.qpn = wire.MulticastQP
	a.post(wr)
	a.want(2, ring.WCSend)
	for _, s := range []*side{a, b, c} {
		if got := s.want(1, ring.WCRecv); got.length != 140 {
			t.Errorf("completion %+v", got)
		}
		if label := uint32(s.buf[1001]&0xf)<<16 | uint32(s.buf[1002])<<8 | uint32(s.buf[1003]); label != 0x12345 {
			t.Errorf("flow label %#x", label)
		}
	}
	if f.sent != 1 || f.received != 1 {
		t.Errorf("%d packets sent and %d received, want 1 and 1", f.sent, f.received)
	}
	for _, s := range []*side{a, b, c} {
		check(t, s.qp.Detach(group, 0), s.d.Leave(addrOfGID(group)))
	}
}

// TestSenderHeldUp: while the goroutine that sends a packet is held up, no repetition of it counts, as none was
// sent. Later ones count.
func TestSenderHeldUp(t *testing.T) {
	f := new(fakeFilter)
	d1, d2, clock := filtered(t, f)
	a, b := newSide(t, d1, sideOptions{}), newSide(t, d2, sideOptions{})
	connect(a, b, connOptions{retry: 3})
	held, gone := 0, false
	f.wait = func(n int) {
		if n == 1 {
			for range 100 {
				clock.advance(time.Second)
				held++
			}
		}
	}
	f.lose = func(n int) bool { return n == 1 || gone }
	b.recv(1, b.sge(0, 8))
	a.post(signaled(2, ring.OpSend, a.sge(0, 8)))
	a.want(2, ring.WCSend)
	b.want(1, ring.WCRecv)
	if held != 100 || f.sent != 2 {
		t.Errorf("after %d s, %d packets were sent, want 2", held, f.sent)
	}
	gone = true
	a.post(signaled(3, ring.OpSend, a.sge(0, 8)))
	clock.advance(time.Minute)
	a.fails(3, StatusRetryExcErr)
}
