package fault

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// fakeClock is a clock that a test moves.
type fakeClock struct {
	mu     sync.Mutex
	now    time.Time
	timers []*fakeTimer
}

type fakeTimer struct {
	clock *fakeClock
	at    time.Time // zero: stopped
	f     func()
}

func newClock() *fakeClock { return &fakeClock{now: time.Unix(1_700_000_000, 0)} }

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) AfterFunc(d time.Duration, f func()) Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &fakeTimer{c, c.now.Add(d), f}
	c.timers = append(c.timers, t)
	return t
}

func (t *fakeTimer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	active := !t.at.IsZero()
	t.at = t.clock.now.Add(d)
	return active
}

func (t *fakeTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	active := !t.at.IsZero()
	t.at = time.Time{}
	return active
}

// next removes and returns the function of the first timer that is due.
func (c *fakeClock) next(end time.Time) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var first *fakeTimer
	for _, t := range c.timers {
		if !t.at.IsZero() && !t.at.After(end) && (first == nil || t.at.Before(first.at)) {
			first = t
		}
	}
	if first == nil {
		c.now = end
		return nil
	}
	c.now = first.at
	first.at = time.Time{}
	return first.f
}

// advance moves the clock and calls the timers that become due, one after the other.
func (c *fakeClock) advance(d time.Duration) {
	end := c.Now().Add(d)
	for f := c.next(end); f != nil; f = c.next(end) {
		f()
	}
}

// rig is a path with both of its sides played by the test.
type rig struct {
	t     testing.TB
	clock *fakeClock
	f     *Injector
	p     *Path
	in    udp.Handler // of p

	mu   sync.Mutex
	out  []string // what was sent or received, see name
	meta []udp.Meta
	ip   []udp.IP
}

// newRig makes a path between hostA and its network.
func newRig(t testing.TB, text string, change func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, clock: newClock()}
	config, err := Parse(text)
	must(t, err)
	o := Options{Config: config, Clock: r.clock}
	if change != nil {
		change(&o)
	}
	if r.f, err = New(o); err != nil {
		t.Fatal(err)
	}
	r.p = r.f.Path(PathOptions{Local: hostA, Send: r.sent})
	r.in = r.p.Handler(r.received)
	return r
}

// name says which packet it is: its PSN, with the QPN if that is not 17.
func name(pkt []byte) string {
	if len(pkt) < wire.BTHSize {
		return "short"
	}
	psn := binary.BigEndian.Uint32(pkt[8:]) & wire.PSNMask
	if qpn := binary.BigEndian.Uint32(pkt[4:]) & wire.QPNMask; qpn != 17 {
		return fmt.Sprintf("%d:%d", qpn, psn)
	}
	return fmt.Sprint(psn)
}

func (r *rig) sent(b *udp.Batch) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range b.Len() {
		_, data := b.Packet(i)
		n := name(data)
		if _, ok := b.Flipped(i); ok {
			n += "!"
		}
		r.out, r.ip = append(r.out, n), append(r.ip, b.IP(i))
	}
	return nil
}

func (r *rig) received(_ netip.AddrPort, pkt []byte, m udp.Meta) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out, r.meta = append(r.out, name(pkt)), append(r.meta, m)
}

// send sends one batch of SENDs with these PSNs to QP 17 of hostB.
func (r *rig) send(psns ...uint32) {
	r.t.Helper()
	if err := r.p.Send(batchOf(hostB, 17, psns...)); err != nil {
		r.t.Error(err)
	}
}

func batchOf(to netip.AddrPort, qpn uint32, psns ...uint32) *udp.Batch {
	b := new(udp.Batch)
	for _, psn := range psns {
		pkt := packetOf(wire.RC|wire.SendOnly, qpn, psn, 4)
		copy(b.Reserve(to, len(pkt)), pkt)
		b.SetIP(udp.IP{TrafficClass: uint8(psn)})
	}
	return b
}

// receive receives packets as send sends them.
func (r *rig) receive(psns ...uint32) {
	for _, psn := range psns {
		pkt := packetOf(wire.RC|wire.SendOnly, 17, psn, 4)
		r.in(hostB, pkt, udp.Meta{ID: uint16(psn)})
		clear(pkt) // the socket uses its memory again
	}
}

// want compares what came out since the last call, as names with spaces between them.
func (r *rig) want(want string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if got := strings.Join(r.out, " "); got != want {
		r.t.Errorf("packets %q, want %q", got, want)
	}
	r.out = nil
}

// both runs a test for both directions.
func both(t *testing.T, text string, f func(r *rig, packets func(...uint32))) {
	t.Run("sent", func(t *testing.T) {
		r := newRig(t, text, nil)
		f(r, r.send)
	})
	t.Run("received", func(t *testing.T) {
		r := newRig(t, text, nil)
		f(r, r.receive)
	})
	t.Run("sent one by one", func(t *testing.T) {
		r := newRig(t, text, nil)
		f(r, func(psns ...uint32) {
			for _, psn := range psns {
				r.send(psn)
			}
		})
	})
}
