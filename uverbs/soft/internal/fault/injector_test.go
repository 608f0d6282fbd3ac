package fault

import (
	"container/heap"
	"encoding/binary"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

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
	must(t, r.f.SetConfig(Config{Rules: []Rule{{Duplicate: Always}}}))
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
	must(t, r.f.SetConfig(Config{Rules: []Rule{{Delay: Delay{Min: time.Millisecond}}}}))
	r.send(1)
	must(t, r.f.SetConfig(Config{}))
	r.send(2)
	r.want("2")
	r.clock.advance(time.Millisecond)
	r.want("1")
	config, _ := Parse("seed=6,loss=50%;slow=1s")
	must(t, r.f.SetConfig(config))
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
	must(t, r.f.SetConfig(Config{Rules: []Rule{{Loss: Always}}}))
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
	in := r.p.Handler(func(netip.AddrPort, []byte, udp.Meta) {
		begun <- true
		<-goOn
		delivered = true
	})
	in(hostB, packetOf(wire.RC|wire.SendOnly, 17, 1, 0), udp.Meta{})
	go r.clock.advance(time.Millisecond)
	<-begun
	go func() { goOn <- true }()
	r.f.Close()
	if !delivered {
		t.Error("Close has not waited")
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

// TestMaxStreams: the table of streams is bounded.
func TestMaxStreams(t *testing.T) {
	r := newRig(t, "loss=1%", nil)
	pkt := packetOf(wire.RC|wire.SendOnly, 17, 0, 0)
	for qpn := uint32(1); qpn <= maxStreams+10; qpn++ {
		binary.BigEndian.PutUint32(pkt[4:], qpn)
		r.in(hostB, pkt, udp.Meta{})
	}
	if n := len(r.f.active.Load().live.streams); n != 10 {
		t.Errorf("%d streams, want 10", n)
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
