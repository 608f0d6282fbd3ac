package fault

import (
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Config: config, Clock: r.clock}
	if change != nil {
		change(&o)
	}
	if r.f, err = New(o); err != nil {
		t.Fatal(err)
	}
	r.p = r.f.Path(hostA, r.sent, r.received)
	return r
}

// name says which packet it is: its PSN, with the QPN if that is not 17.
func name(pkt []byte) string {
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
		r.p.Receive(hostB, pkt, udp.Meta{ID: uint16(psn)})
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

func TestOff(t *testing.T) {
	both(t, "", func(r *rig, packets func(...uint32)) {
		packets(1, 2, 3)
		r.want("1 2 3")
	})
}

func TestLoss(t *testing.T) {
	both(t, "loss=100%", func(r *rig, packets func(...uint32)) {
		packets(1, 2, 3)
		r.want("")
	})
	// A selection that does not match, and a rule that exempts.
	both(t, "qpn=18,loss=100%", func(r *rig, packets func(...uint32)) {
		packets(1, 2)
		r.want("1 2")
	})
	both(t, "qpn=17;loss=100%", func(r *rig, packets func(...uint32)) {
		packets(1, 2)
		r.want("1 2")
	})
}

// TestLossAsDecided: the packets that are lost are those for which Rule.decide says so, in both
// directions, and a retransmission is a packet of its own.
func TestLossAsDecided(t *testing.T) {
	for _, dir := range []Direction{Sent, Received} {
		r := newRig(t, "seed=3,loss=30%", nil)
		rule, key := r.f.Config().Rules[0], streamKey{0, dir, hostB, 17, 0, false}
		var want []string
		for n := range uint64(200) {
			psn := uint32(n % 50)
			if !rule.decide(key.random(3), n).lost {
				want = append(want, fmt.Sprint(psn))
			}
			if dir == Sent {
				r.send(psn)
			} else {
				r.receive(psn)
			}
		}
		r.want(strings.Join(want, " "))
	}
}

func TestDuplicate(t *testing.T) {
	both(t, "duplicate=100%", func(r *rig, packets func(...uint32)) {
		packets(1, 2)
		r.want("1 1 2 2")
	})
}

func TestDelay(t *testing.T) {
	both(t, "delay=5ms", func(r *rig, packets func(...uint32)) {
		packets(1, 2)
		r.clock.advance(2 * time.Millisecond)
		packets(3)
		r.want("")
		r.clock.advance(3*time.Millisecond - 1)
		r.want("")
		r.clock.advance(1)
		r.want("1 2")
		r.clock.advance(2 * time.Millisecond)
		r.want("3")
		r.clock.advance(time.Hour)
		r.want("")
	})
}

// TestShorterDelay: the timer is set again for a packet that is due before the others.
func TestShorterDelay(t *testing.T) {
	r := newRig(t, "direction=sent,delay=5ms;delay=1ms", nil)
	r.send(1)
	r.receive(2)
	r.clock.advance(time.Millisecond)
	r.want("2")
	r.clock.advance(4 * time.Millisecond)
	r.want("1")
}

// TestDelayAsDecided: packets come out in the order of their times.
func TestDelayAsDecided(t *testing.T) {
	both(t, "seed=4,delay=1ms..9ms,delayed=60%,duplicate=20%", func(r *rig, packets func(...uint32)) {
		dir := Sent
		if strings.HasSuffix(r.t.Name(), "received") {
			dir = Received
		}
		type due struct {
			at time.Duration
			n  uint32
		}
		var all []due
		rule, key := r.f.Config().Rules[0], streamKey{0, dir, hostB, 17, 0, false}
		for n := range uint32(100) {
			d := rule.decide(key.random(4), uint64(n))
			for _, a := range d.fates[:d.copies] {
				all = append(all, due{a.delay, n})
			}
			packets(n)
		}
		slices.SortStableFunc(all, func(a, b due) int { return int(a.at - b.at) })
		var want []string
		for _, d := range all {
			want = append(want, fmt.Sprint(d.n))
		}
		r.clock.advance(9 * time.Millisecond)
		r.want(strings.Join(want, " "))
	})
}

// seedFor returns a Config with a rule and a seed for which the first decisions of the stream to QP 17
// of hostB are right, in both directions.
func seedFor(rule Rule, right func(n uint64, d decision) bool) string {
	c := Config{Rules: []Rule{rule}}
	for ; ; c.Seed++ {
		ok := true
		for _, dir := range []Direction{Sent, Received} {
			key := streamKey{0, dir, hostB, 17, 0, false}
			random := key.random(c.Seed)
			for n := range uint64(6) {
				ok = ok && right(n, rule.decide(random, n))
			}
		}
		if ok {
			return c.String()
		}
	}
}

func TestReorder(t *testing.T) {
	text := seedFor(Rule{Reorder: 10 * Percent, Behind: 3}, func(n uint64, d decision) bool {
		return (d.fates[0].behind > 0) == (n == 0)
	})
	both(t, text, func(r *rig, packets func(...uint32)) {
		packets(1, 2, 3, 4, 5)
		r.want("2 3 4 1 5")
		r.clock.advance(time.Hour)
		r.want("")
	})
	// Without enough packets behind it, the packet comes after Hold.
	both(t, text, func(r *rig, packets func(...uint32)) {
		packets(1, 2, 3)
		r.want("2 3")
		r.clock.advance(DefaultHold - 1)
		r.want("")
		r.clock.advance(1)
		r.want("1")
		packets(4, 5)
		r.want("4 5")
	})
	// Packets of other streams do not overtake it.
	r := newRig(t, text, nil)
	r.send(1)
	for psn := range uint32(5) {
		r.receive(100 + psn)
		if err := r.p.Send(batchOf(hostC, 17, 200+psn)); err != nil {
			t.Error(err)
		}
	}
	r.send(2, 3, 4)
	if i, j := slices.Index(r.out, "1"), slices.Index(r.out, "4"); i != len(r.out)-1 || j != i-1 {
		t.Errorf("packets %v, want 1 behind 4 at the end", r.out)
	}
}

// TestLateDuplicate: one copy of a packet is held back. The other one does not overtake it.
func TestLateDuplicate(t *testing.T) {
	text := seedFor(Rule{Duplicate: 20 * Percent, Reorder: 20 * Percent}, func(n uint64, d decision) bool {
		return d.fates[0].behind == 0 && (d.copies == 2 && d.fates[1].behind > 0) == (n == 0) && (d.copies == 2) == (n == 0)
	})
	both(t, text, func(r *rig, packets func(...uint32)) {
		packets(1)
		r.want("1")
		packets(2, 3)
		r.want("2 1 3")
	})
}

// TestReorderAll: packets that are held back themselves do not overtake.
func TestReorderAll(t *testing.T) {
	both(t, "reorder=100%,hold=1ms", func(r *rig, packets func(...uint32)) {
		packets(1, 2, 3)
		r.want("")
		r.clock.advance(time.Millisecond)
		r.want("1 2 3")
	})
}

// TestNothingIsLost: whatever delays, reorders and duplicates, each packet arrives in the end, once or
// twice.
func TestNothingIsLost(t *testing.T) {
	both(t, "seed=5,duplicate=10%,reorder=20%,behind=4,delay=1ms+3ms,delayed=30%,rate=100mbit", func(r *rig, packets func(...uint32)) {
		const n = 2000
		for psn := uint32(0); psn < n; psn += 10 {
			packets(psn, psn+1, psn+2, psn+3, psn+4, psn+5, psn+6, psn+7, psn+8, psn+9)
			r.clock.advance(100 * time.Microsecond)
		}
		r.clock.advance(time.Second)
		count := make(map[string]int)
		for _, name := range r.out {
			count[name]++
		}
		sent, received := r.f.Counters()
		c := sent
		if received.Selected > 0 {
			c = received
		}
		if len(count) != n || len(r.out) != n+int(c.Duplicated) || c.Selected != n || c.Duplicated == 0 || c.HeldBack == 0 || c.Delayed == 0 || c.Overflowed != 0 {
			t.Errorf("%d packets, %d of them different; %+v", len(r.out), len(count), c)
		}
	})
}

// TestPaths: packets of several paths and directions that are due at one time stay in order.
func TestPaths(t *testing.T) {
	r := newRig(t, "delay=1ms", nil)
	other := r.f.Path(hostC, func(b *udp.Batch) error {
		for i := range b.Len() {
			_, data := b.Packet(i)
			r.out = append(r.out, "c"+name(data))
		}
		return nil
	}, func(_ netip.AddrPort, pkt []byte, _ udp.Meta) { r.out = append(r.out, "c"+name(pkt)) })
	r.send(1, 2)
	if err := other.Send(batchOf(hostB, 17, 3, 4)); err != nil {
		t.Error(err)
	}
	r.send(5)
	r.receive(6)
	r.send(7)
	other.Receive(hostB, packetOf(wire.RC|wire.SendOnly, 17, 8, 0), udp.Meta{})
	other.Receive(hostB, packetOf(wire.RC|wire.SendOnly, 17, 9, 0), udp.Meta{})
	if err := other.Send(batchOf(hostB, 17, 10)); err != nil {
		t.Error(err)
	}
	r.clock.advance(time.Millisecond)
	r.want("1 2 c3 c4 5 6 7 c8 c9 c10")
}

func TestRate(t *testing.T) {
	// A packet of 20 bytes takes 160 bits: 1 ms each.
	both(t, "rate=160kbit", func(r *rig, packets func(...uint32)) {
		packets(1, 2, 3)
		r.want("1")
		r.clock.advance(time.Millisecond)
		r.want("2")
		packets(4)
		r.clock.advance(2 * time.Millisecond)
		r.want("3 4")
		r.clock.advance(10 * time.Millisecond)
		packets(5, 6) // unused time is not saved
		r.want("5")
		r.clock.advance(time.Millisecond)
		r.want("6")
	})
}

// TestRateKeepsOrder: a packet does not pass others that are due but not delivered yet.
func TestRateKeepsOrder(t *testing.T) {
	r := newRig(t, "rate=160kbit", nil)
	r.send(1, 2)
	r.want("1")
	r.clock.mu.Lock() // the time passes, and the timer is late
	r.clock.now = r.clock.now.Add(5 * time.Millisecond)
	r.clock.mu.Unlock()
	r.send(3)
	r.want("")
	r.clock.advance(0)
	r.want("2 3")
}

func TestOverflow(t *testing.T) {
	r := newRig(t, "delay=1ms", func(o *Options) { o.MaxHeld = 2 })
	r.send(1, 2, 3)
	r.receive(4)
	r.clock.advance(time.Millisecond)
	r.want("1 2")
	if sent, received := r.f.Counters(); sent.Overflowed != 1 || received.Overflowed != 1 {
		t.Errorf("%d and %d packets too many, want 1 and 1", sent.Overflowed, received.Overflowed)
	}
	r.send(5)
	r.clock.advance(time.Millisecond)
	r.want("5")
	if _, err := New(Options{MaxHeld: -1}); err == nil {
		t.Error("New accepts a negative MaxHeld")
	}
}

// TestCorrupt: a corrupt packet that is sent goes out with a flipped bit, and one that is received is
// dropped.
func TestCorrupt(t *testing.T) {
	r := newRig(t, "corrupt=100%", nil)
	r.send(1, 2)
	r.want("1! 2!")
	r.receive(3)
	r.want("")
	r = newRig(t, "corrupt=100%,delay=1ms", nil)
	r.send(1)
	r.receive(2)
	r.clock.advance(time.Millisecond)
	r.want("1!")
	if sent, received := r.f.Counters(); sent.Corrupted != 1 || sent.Delayed != 1 || received.Corrupted != 1 || received.Delayed != 0 {
		t.Errorf("sent %+v, received %+v", sent, received)
	}
}

func TestCounters(t *testing.T) {
	for text, want := range map[string]Counters{
		"loss=100%,duplicate=100%,corrupt=100%": {Selected: 1, Lost: 1},
		"duplicate=100%":                        {Selected: 1, Duplicated: 1},
		"duplicate=100%,reorder=100%":           {Selected: 1, Duplicated: 1, HeldBack: 2},
		"delay=1ms,reorder=0%":                  {Selected: 1, Delayed: 1},
		"class=send":                            {Selected: 1},
		"class=ack":                             {},
	} {
		r := newRig(t, text, nil)
		r.send(1)
		if sent, received := r.f.Counters(); sent != want || received != (Counters{}) {
			t.Errorf("%s: sent %+v, want %+v; received %+v", text, sent, want, received)
		}
		r.receive(1)
		if _, received := r.f.Counters(); received != want {
			t.Errorf("%s: received %+v, want %+v", text, received, want)
		}
	}
}

func TestPartition(t *testing.T) {
	a, b, c := hostA.Addr(), hostB.Addr(), hostC.Addr()
	r := newRig(t, "", nil)
	try := func(sent, received bool) {
		t.Helper()
		r.send(1)
		r.receive(2)
		var want []string
		if sent {
			want = append(want, "1")
		}
		if received {
			want = append(want, "2")
		}
		r.want(strings.Join(want, " "))
	}
	try(true, true)
	r.f.Partition(b, a)
	r.f.Partition(a, b) // once more changes nothing
	try(false, false)
	r.f.Heal(a, c)
	try(false, false)
	r.f.Heal(a, b)
	try(true, true)
	r.f.PartitionOneWay(a, b)
	try(false, true)
	r.f.Heal(b, a)
	r.f.PartitionOneWay(b, a)
	try(true, false)
	r.f.HealAll()
	r.f.Partition(a, c)
	try(true, true)
	r.f.Partition(netip.MustParseAddr("::ffff:10.0.0.1"), netip.Addr{})
	try(false, false)
	if err := r.f.SetConfig(Config{Rules: []Rule{{Duplicate: Always}}}); err != nil {
		t.Fatal(err)
	}
	try(false, false)
	r.f.HealAll()
	r.send(1)
	r.want("1 1")
	if sent, received := r.f.Counters(); sent.Partitioned != 5 || received.Partitioned != 5 {
		t.Errorf("%d and %d packets stopped, want 5 and 5", sent.Partitioned, received.Partitioned)
	}
}

// TestPartitionCounts: packets that a partition stops are packets of their stream.
func TestPartitionCounts(t *testing.T) {
	run := func(parted bool) []string {
		r := newRig(t, "seed=6,loss=50%", nil)
		if parted {
			r.f.Partition(hostA.Addr(), hostB.Addr())
		}
		for n := range uint32(30) {
			r.send(n)
		}
		r.f.HealAll()
		r.out = nil
		for n := range uint32(30) {
			r.send(n)
		}
		return r.out
	}
	if diff := cmp.Diff(run(false), run(true)); diff != "" {
		t.Error(diff)
	}
}

// TestSetConfig: rules change at run time, streams begin again, and held packets stay.
func TestSetConfig(t *testing.T) {
	r := newRig(t, "seed=6,loss=50%", nil)
	for n := range uint32(40) {
		r.send(n)
	}
	first := r.out
	r.out = nil
	if err := r.f.SetConfig(Config{Rules: []Rule{{Delay: Delay{Min: time.Millisecond}}}}); err != nil {
		t.Fatal(err)
	}
	r.send(1)
	if err := r.f.SetConfig(Config{}); err != nil {
		t.Fatal(err)
	}
	r.send(2)
	r.want("2")
	r.clock.advance(time.Millisecond)
	r.want("1")
	config, _ := Parse("seed=6,loss=50%;slow=1s")
	if err := r.f.SetConfig(config); err != nil {
		t.Fatal(err)
	}
	if d := r.f.Plan().ResponseDelay(1); d != time.Second {
		t.Errorf("the plan delays by %v", d)
	}
	for n := range uint32(40) {
		r.send(n)
	}
	if diff := cmp.Diff(first, r.out); diff != "" {
		t.Errorf("after SetConfig with the same rules:\n%s", diff)
	}
	if err := r.f.SetConfig(Config{Rules: []Rule{{Loss: Always + 1}}}); err == nil {
		t.Error("SetConfig accepts a chance of more than 100%")
	}
	if got := r.f.Config().String(); got != config.String() {
		t.Errorf("Config is %q, want %q", got, config)
	}
	if (*Injector)(nil).Plan() != nil {
		t.Error("a nil injector has a plan")
	}
	if _, err := New(Options{Config: Config{Rules: []Rule{{}}}}); err == nil {
		t.Error("New accepts an empty rule")
	}
}

func TestClose(t *testing.T) {
	r := newRig(t, "delay=1ms;slow=1s", nil)
	r.send(1)
	r.f.Close()
	r.clock.advance(time.Hour)
	r.want("")
	r.send(2)
	r.receive(3)
	r.want("2 3")
	r.f.Partition(hostA.Addr(), hostB.Addr())
	if err := r.f.SetConfig(Config{Rules: []Rule{{Loss: Always}}}); err != nil {
		t.Fatal(err)
	}
	r.send(4)
	r.want("4")
	if r.f.Plan().ResponseDelay(1) != 0 {
		t.Error("a closed injector has a plan")
	}
	r.f.Close()
}

// TestCloseWaits: Close returns when the packets are delivered that flush has begun with.
func TestCloseWaits(t *testing.T) {
	r := newRig(t, "delay=1ms", nil)
	begun, goOn := make(chan bool), make(chan bool)
	delivered := false
	p := r.f.Path(hostA, nil, func(netip.AddrPort, []byte, udp.Meta) {
		begun <- true
		<-goOn
		delivered = true
	})
	p.Receive(hostB, packetOf(wire.RC|wire.SendOnly, 17, 1, 0), udp.Meta{})
	go r.clock.advance(time.Millisecond)
	<-begun
	go func() { goOn <- true }()
	r.f.Close()
	if !delivered {
		t.Error("Close has not waited")
	}
}

// TestMetadata: the fields of IP headers stay with their packets.
func TestMetadata(t *testing.T) {
	const text = "seed=1,duplicate=30%,reorder=30%,delay=1ms,delayed=30%"
	r := newRig(t, text, nil)
	r.send(1, 2, 3, 4, 5, 6, 7, 8, 9)
	r.clock.advance(time.Second)
	for i, name := range r.out {
		if fmt.Sprint(r.ip[i].TrafficClass) != name {
			t.Errorf("packet %s is sent with traffic class %d", name, r.ip[i].TrafficClass)
		}
	}
	r = newRig(t, text, nil)
	r.receive(1, 2, 3, 4, 5, 6, 7, 8, 9)
	r.clock.advance(time.Second)
	for i, name := range r.out {
		if fmt.Sprint(r.meta[i].ID) != name {
			t.Errorf("packet %s is received with ID %d", name, r.meta[i].ID)
		}
	}
	if len(r.out) < 9 {
		t.Errorf("only %v is received", r.out)
	}
}

// TestInterleavings: decisions do not depend on the order in which streams come, nor on goroutines.
func TestInterleavings(t *testing.T) {
	const text = "seed=9,loss=10%,duplicate=10%,reorder=10%,behind=2,hold=1h,corrupt=10%"
	const packets, qps = 300, 8
	sorted := func(out []string) map[string][]string {
		m := make(map[string][]string)
		for _, name := range out {
			qpn, _, _ := strings.Cut(name, ":")
			m[qpn] = append(m[qpn], name)
		}
		return m
	}
	send := func(r *rig, qpn, from, to uint32) {
		b := new(udp.Batch)
		for psn := from; psn < to; psn++ {
			pkt := packetOf(wire.RC|wire.SendOnly, qpn, psn, 4)
			copy(b.Reserve(hostB, len(pkt)), pkt)
		}
		if err := r.p.Send(b); err != nil {
			t.Error(err)
		}
	}
	run := func(f func(r *rig)) map[string][]string {
		r := newRig(t, text, nil)
		f(r)
		return sorted(r.out)
	}
	oneByOne := run(func(r *rig) {
		for qp := range uint32(qps) {
			for n := range uint32(packets) {
				send(r, 100+qp, n, n+1)
			}
		}
	})
	inTurn := run(func(r *rig) {
		for n := uint32(0); n < packets; n += 50 {
			for qp := range uint32(qps) {
				send(r, 100+(n/50+qp)%qps, n, n+50)
			}
		}
	})
	concurrent := run(func(r *rig) {
		var all sync.WaitGroup
		for qp := range uint32(qps) {
			all.Go(func() {
				for n := uint32(0); n < packets; n += 3 {
					send(r, 100+qp, n, n+3)
				}
			})
		}
		all.Wait()
	})
	if diff := cmp.Diff(oneByOne, inTurn); diff != "" {
		t.Errorf("one queue pair after the other, and in turn:\n%s", diff)
	}
	if diff := cmp.Diff(oneByOne, concurrent); diff != "" {
		t.Errorf("one queue pair after the other, and concurrently:\n%s", diff)
	}
	if len(oneByOne) != qps {
		t.Errorf("%d queue pairs", len(oneByOne))
	}
}

// TestConcurrency: senders, receivers, a clock that runs and rules that change. It is for the race
// detector; each packet that is not lost arrives.
func TestConcurrency(t *testing.T) {
	r := newRig(t, "delay=1us..5us,duplicate=10%,reorder=10%", nil)
	const packets = 300
	var all, clock sync.WaitGroup
	done := make(chan bool)
	clock.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				r.clock.advance(time.Microsecond)
			}
		}
	})
	for range 3 {
		all.Go(func() {
			for n := range uint32(packets) {
				r.send(n)
			}
		})
		all.Go(func() {
			for n := range uint32(packets) {
				r.receive(n)
			}
		})
	}
	all.Go(func() {
		for range 50 {
			r.f.Partition(hostA.Addr(), hostC.Addr())
			if err := r.f.SetConfig(Config{Rules: []Rule{{Delay: Delay{Min: time.Microsecond}}}}); err != nil {
				t.Error(err)
			}
			r.f.HealAll()
			r.f.Counters()
			r.f.Plan()
		}
	})
	all.Wait()
	close(done)
	clock.Wait()
	r.clock.advance(time.Second)
	if len(r.out) < 6*packets {
		t.Errorf("%d packets, want at least %d", len(r.out), 6*packets)
	}
	r.f.Close()
}

// TestManyPackets: more packets leave at once than a batch holds.
func TestManyPackets(t *testing.T) {
	r := newRig(t, "duplicate=100%,delay=1ms", nil)
	var want []string
	for n := range uint32(udp.BatchPackets) {
		want = append(want, fmt.Sprint(n), fmt.Sprint(n))
	}
	psns := make([]uint32, udp.BatchPackets)
	for i := range psns {
		psns[i] = uint32(i)
	}
	r.send(psns...)
	r.clock.advance(time.Millisecond)
	r.want(strings.Join(want, " "))
	if err := r.f.SetConfig(Config{Rules: []Rule{{Duplicate: Always}}}); err != nil {
		t.Fatal(err)
	}
	r.send(psns...)
	r.want(strings.Join(want, " "))
}

// TestSendError: Send returns the error of the function that sends.
func TestSendError(t *testing.T) {
	want := errors.New("no route")
	for _, text := range []string{"", "duplicate=100%", "loss=100%"} {
		r := newRig(t, text, nil)
		p := r.f.Path(hostA, func(*udp.Batch) error { return want }, nil)
		err := p.Send(batchOf(hostB, 17, 1))
		if text == "loss=100%" {
			if err != nil {
				t.Errorf("%s: %v", text, err)
			}
		} else if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", text, err, want)
		}
	}
}

// TestMaxStreams: the table of streams is bounded.
func TestMaxStreams(t *testing.T) {
	r := newRig(t, "loss=1%", nil)
	pkt := packetOf(wire.RC|wire.SendOnly, 17, 0, 0)
	for qpn := uint32(1); qpn <= maxStreams+10; qpn++ {
		binary.BigEndian.PutUint32(pkt[4:], qpn)
		r.p.Receive(hostB, pkt, udp.Meta{})
	}
	if n := len(r.f.active.Load().live.streams); n != 10 {
		t.Errorf("%d streams, want 10", n)
	}
}

// TestAllocates: a packet that no rule selects costs no allocation, nor does one that a rule selects
// when the memory for its stream and for held packets is there.
func TestAllocates(t *testing.T) {
	for _, text := range []string{"", "qpn=18,loss=50%;class=ack,loss=1%", "loss=20%,reorder=10%", "delay=1us,duplicate=10%"} {
		clock := newClock()
		config, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		f, err := New(Options{Config: config, Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		p := f.Path(hostA, func(*udp.Batch) error { return nil }, func(netip.AddrPort, []byte, udp.Meta) {})
		b, pkt := batchOf(hostB, 17, 1, 2, 3), packetOf(wire.RC|wire.SendOnly, 17, 1, 4)
		run := func() {
			if err := p.Send(b); err != nil {
				t.Error(err)
			}
			p.Receive(hostB, pkt, udp.Meta{})
			clock.advance(time.Microsecond)
		}
		for range 1000 {
			run()
		}
		if a := testing.AllocsPerRun(1000, run); a != 0 {
			t.Errorf("%q: %v allocations", text, a)
		}
	}
}

func TestHeldHeap(t *testing.T) {
	var h heldHeap
	start := time.Unix(0, 0)
	var all []*held
	for i := range 100 {
		p := &held{at: start.Add(time.Duration(i * 37 % 10)), order: uint64(i)}
		all = append(all, p)
		heap.Push(&h, p)
	}
	for i := 0; i < 100; i += 3 {
		heap.Remove(&h, all[i].index)
	}
	last := &held{at: start}
	for h.Len() > 0 {
		p := heap.Pop(&h).(*held)
		if p.at.Before(last.at) || p.at.Equal(last.at) && p.order < last.order || p.order%3 == 0 {
			t.Fatalf("%v, %d comes behind %v, %d", p.at, p.order, last.at, last.order)
		}
		last = p
	}
}

func BenchmarkSend(b *testing.B) {
	for _, text := range []string{"", "qpn=18,loss=1%", "loss=1%,reorder=1%"} {
		b.Run("rules="+text, func(b *testing.B) {
			config, _ := Parse(text)
			f, err := New(Options{Config: config})
			if err != nil {
				b.Fatal(err)
			}
			p := f.Path(hostA, func(*udp.Batch) error { return nil }, nil)
			batch := new(udp.Batch)
			for range 64 {
				pkt := packetOf(wire.RC|wire.SendMiddle, 17, 1, 1024)
				copy(batch.Reserve(hostB, len(pkt)), pkt)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := p.Send(batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/packet")
		})
	}
}
