package engine

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/fault"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
)

// A fakeClock stands still until advance.
type fakeClock struct {
	mu     sync.Mutex
	now    time.Time
	timers []*fakeTimer
}

// A fakeTimer belongs to a fakeClock.
type fakeTimer struct {
	clock *fakeClock
	at    time.Time // zero: stopped
	f     func()
}

func newFakeClock() *fakeClock { return &fakeClock{now: time.Unix(1000, 0)} }

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) AfterFunc(d time.Duration, f func()) fault.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &fakeTimer{c, c.now.Add(d), f}
	c.timers = append(c.timers, t)
	return t
}

func (t *fakeTimer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	was := !t.at.IsZero()
	t.at = t.clock.now.Add(d)
	return was
}

func (t *fakeTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	was := !t.at.IsZero()
	t.at = time.Time{}
	return was
}

// advance moves the clock, and runs the timers on the way, in this goroutine.
func (c *fakeClock) advance(d time.Duration) {
	end := c.Now().Add(d)
	for c.step(end) {
	}
	c.mu.Lock()
	c.now = end
	c.mu.Unlock()
}

// step runs the first timer before a time. It reports whether there was one.
func (c *fakeClock) step(end time.Time) bool {
	c.mu.Lock()
	var first *fakeTimer
	for _, t := range c.timers {
		if !t.at.IsZero() && !t.at.After(end) && (first == nil || t.at.Before(first.at)) {
			first = t
		}
	}
	if first == nil {
		c.mu.Unlock()
		return false
	}
	c.now, first.at = first.at, time.Time{}
	c.mu.Unlock()
	first.f()
	return true
}

// next returns when the next timer fires, or false if there is none.
func (c *fakeClock) next() (at time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.timers {
		if !t.at.IsZero() && (!ok || t.at.Before(at)) {
			at, ok = t.at, true
		}
	}
	return at, ok
}

// A fakeNetwork joins devices in one goroutine. It loses, duplicates and delays packets by chance.
type fakeNetwork struct {
	clock     *fakeClock
	rand      *rand.Rand
	lose      float64 // how likely each is
	duplicate float64
	delay     float64

	ports   []*fakePort
	packets []fakePacket // on the way, in order of sending
	sent    int
	lost    int
	tap     func(from, to netip.Addr, b []byte) bool // false: the packet is lost
	large   func() bool                              // whether peers take large packets; nil: it is no loopback interface
}

// fakePacket is a packet on the way.
type fakePacket struct {
	from, to netip.Addr
	ip       udp.IP
	data     []byte
	wait     int // deliveries of others that come first
}

// A fakePort connects a device to a fakeNetwork.
type fakePort struct {
	net      *fakeNetwork
	device   *Device
	receiver *Receiver
	groups   []netip.Addr
}

// port makes a port. The caller sets the device.
func (n *fakeNetwork) port() *fakePort {
	p := &fakePort{net: n}
	n.ports = append(n.ports, p)
	return p
}

func (p *fakePort) Resolve(from, to netip.Addr) (netip.AddrPort, syscall.Errno) {
	if to == netip.MustParseAddr("10.9.9.9") {
		return netip.AddrPort{}, syscall.EHOSTUNREACH
	}
	return netip.AddrPortFrom(to, 4791), 0
}

func (p *fakePort) TakesLarge(netip.AddrPort) bool { return p.net.large() }

func (p *fakePort) Join(g netip.Addr) syscall.Errno {
	p.groups = append(p.groups, g)
	return 0
}

func (p *fakePort) Leave(g netip.Addr) {
	p.groups = slices.DeleteFunc(p.groups, func(a netip.Addr) bool { return a == g })
}

func (p *fakePort) Send(from netip.Addr, b *udp.Batch) {
	n := p.net
	for i := range b.Len() {
		to, data := b.Packet(i)
		n.sent++
		if n.rand != nil && n.rand.Float64() < n.lose || n.tap != nil && !n.tap(from, to.Addr(), data) {
			n.lost++
			continue
		}
		copies := 1
		if n.rand != nil && n.rand.Float64() < n.duplicate {
			copies = 2
		}
		for range copies {
			k := fakePacket{from: from, to: to.Addr(), ip: b.IP(i), data: slices.Clone(data)}
			if n.rand != nil && n.rand.Float64() < n.delay {
				k.wait = n.rand.IntN(20)
			}
			n.packets = append(n.packets, k)
		}
	}
}

// deliver delivers packets until none is on the way, and those that they cause.
func (n *fakeNetwork) deliver() {
	for len(n.packets) > 0 {
		i := slices.IndexFunc(n.packets, func(k fakePacket) bool { return k.wait <= 0 })
		if i < 0 {
			i = 0
		}
		k := n.packets[i]
		n.packets = slices.Delete(n.packets, i, i+1)
		for j := range n.packets {
			n.packets[j].wait--
		}
		for _, p := range n.ports {
			if p.device != nil && (p.device.config.Host.find(k.to) == p.device || slices.Contains(p.groups, k.to)) {
				if p.receiver == nil {
					p.receiver = p.device.NewReceiver()
				}
				p.receiver.Packet(&Meta{From: k.from, To: k.to, IP: k.ip, ID: 7}, k.data)
				p.receiver.Flush()
			}
		}
	}
}

// settle delivers packets, and runs timers, until there is nothing left to do.
func (n *fakeNetwork) settle() {
	for {
		n.deliver()
		at, ok := n.clock.next()
		if !ok {
			return
		}
		n.clock.advance(at.Sub(n.clock.Now()))
	}
}
