package fault

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// must fails a test on an error.
var must = testenv.Must

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
	other := r.f.Path(PathOptions{
		Local: hostC,
		Send: func(b *udp.Batch) error {
			for i := range b.Len() {
				_, data := b.Packet(i)
				r.out = append(r.out, "c"+name(data))
			}
			return nil
		},
		Late:  func(_ netip.AddrPort, pkt []byte, _ udp.Meta) { r.out = append(r.out, "late"+name(pkt)) },
		Flush: func() { r.out = append(r.out, "flush") },
	})
	otherIn := other.Handler(func(_ netip.AddrPort, pkt []byte, _ udp.Meta) { r.out = append(r.out, "in"+name(pkt)) })
	r.send(1, 2)
	if err := other.Send(batchOf(hostB, 17, 3, 4)); err != nil {
		t.Error(err)
	}
	r.send(5)
	r.receive(6)
	r.send(7)
	otherIn(hostB, packetOf(wire.RC|wire.SendOnly, 17, 8, 0), udp.Meta{})
	otherIn(hostB, packetOf(wire.RC|wire.SendOnly, 17, 9, 0), udp.Meta{})
	if err := other.Send(batchOf(hostB, 17, 10)); err != nil {
		t.Error(err)
	}
	r.clock.advance(time.Millisecond)
	r.want("1 2 c3 c4 5 6 7 late8 late9 flush c10")
	otherIn(hostB, packetOf(wire.RC|wire.SendOnly, 17, 11, 0), udp.Meta{})
	r.clock.advance(time.Millisecond)
	r.want("late11 flush")
	must(t, r.f.SetConfig(Config{Rules: []Rule{{Duplicate: Always}}}))
	otherIn(hostB, packetOf(wire.RC|wire.SendOnly, 17, 12, 0), udp.Meta{})
	r.want("in12 in12")
}

// TestTwoHandlers: a packet that is held back is delivered by the handler through which the packet came
// that overtakes it.
func TestTwoHandlers(t *testing.T) {
	r := newRig(t, seedFor(Rule{Reorder: 10 * Percent}, func(n uint64, d decision) bool {
		return (d.fates[0].behind > 0) == (n == 0)
	}), nil)
	second := r.p.Handler(func(_ netip.AddrPort, pkt []byte, m udp.Meta) {
		r.out = append(r.out, fmt.Sprint("second ", name(pkt), " ", m.ID))
	})
	r.receive(1)
	second(hostB, packetOf(wire.RC|wire.SendOnly, 17, 2, 0), udp.Meta{ID: 2})
	r.want("second 2 2 second 1 1")
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
	must(t, r.f.SetConfig(Config{Rules: []Rule{{Duplicate: Always}}}))
	r.send(psns...)
	r.want(strings.Join(want, " "))
}

// TestCorruptShort: a packet without room for an ICRC is not corrupted.
func TestCorruptShort(t *testing.T) {
	r := newRig(t, "corrupt=100%", nil)
	b := new(udp.Batch)
	b.Reserve(hostB, minPacket-1)
	b.Reserve(hostB, 0)
	if err := r.p.Send(b); err != nil {
		t.Error(err)
	}
	r.in(hostB, make([]byte, minPacket-1), udp.Meta{})
	sent, received := r.f.Counters()
	if len(r.out) != 3 || strings.Contains(strings.Join(r.out, ""), "!") || sent.Corrupted != 0 || received.Corrupted != 0 {
		t.Errorf("packets %q; sent %+v, received %+v", r.out, sent, received)
	}
}

// TestDamagedBefore: a packet that is damaged already stays so.
func TestDamagedBefore(t *testing.T) {
	r := newRig(t, "duplicate=100%,reorder=100%", nil)
	b := batchOf(hostB, 17, 1)
	b.Flip(100)
	if err := r.p.Send(b); err != nil {
		t.Error(err)
	}
	r.clock.advance(time.Second)
	r.want("1! 1!")
}

// TestSendError: Send returns the error of the function that sends.
func TestSendError(t *testing.T) {
	want := errors.New("no route")
	for _, text := range []string{"", "duplicate=100%", "loss=100%"} {
		r := newRig(t, text, nil)
		p := r.f.Path(PathOptions{Local: hostA, Send: func(*udp.Batch) error { return want }})
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
		p := f.Path(PathOptions{Local: hostA, Send: func(*udp.Batch) error { return nil }})
		in := p.Handler(func(netip.AddrPort, []byte, udp.Meta) {})
		b, pkt := batchOf(hostB, 17, 1, 2, 3), packetOf(wire.RC|wire.SendOnly, 17, 1, 4)
		run := func() {
			if err := p.Send(b); err != nil {
				t.Error(err)
			}
			in(hostB, pkt, udp.Meta{})
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

func BenchmarkSend(b *testing.B) {
	for _, text := range []string{"", "qpn=18,loss=1%", "loss=1%,reorder=1%"} {
		b.Run("rules="+text, func(b *testing.B) {
			config, _ := Parse(text)
			f, err := New(Options{Config: config})
			if err != nil {
				b.Fatal(err)
			}
			p := f.Path(PathOptions{Local: hostA, Send: func(*udp.Batch) error { return nil }})
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

// FuzzPackets: packets of any content come through in both directions, and come out as they went in.
func FuzzPackets(f *testing.F) {
	f.Add([]byte{}, uint64(0))
	f.Add(packetOf(wire.UD|wire.SendOnly, 1, 5, 256), uint64(1))
	f.Add(packetOf(wire.RC|wire.Acknowledge, 17, 5, 0), uint64(2))
	f.Add(packetOf(wire.UD|wire.SendOnly, 17, 5, 0)[:13], uint64(3))
	f.Add(make([]byte, 11), uint64(4))
	f.Fuzz(func(t *testing.T, pkt []byte, seed uint64) {
		if len(pkt) > 1<<16 {
			pkt = pkt[:1<<16] // the largest UDP datagram is smaller
		}
		text := "class=mad,delay=1ms;qpn=17,duplicate=50%;class=send|ack,reorder=50%,corrupt=50%;duplicate=100%"
		config, err := Parse(text)
		must(t, err)
		config.Seed = seed
		var trace, capture bytes.Buffer
		clock := newClock()
		inj, err := New(Options{Config: config, Clock: clock, Trace: &trace, Capture: &capture})
		must(t, err)
		sent, received := uint64(0), uint64(0)
		same := func(got []byte) {
			if !bytes.Equal(got, pkt) {
				t.Errorf("packet %x comes out as %x", pkt, got)
			}
		}
		p := inj.Path(PathOptions{Local: hostA, Send: func(b *udp.Batch) error {
			for i := range b.Len() {
				_, data := b.Packet(i)
				same(data)
				sent++
			}
			return nil
		}})
		in := p.Handler(func(_ netip.AddrPort, data []byte, _ udp.Meta) {
			same(data)
			received++
		})
		const n = 5
		for range n {
			var b udp.Batch
			copy(b.Reserve(hostB, len(pkt)), pkt)
			if err := p.Send(&b); err != nil {
				t.Error(err)
			}
			in(hostB, pkt, udp.Meta{})
		}
		clock.advance(time.Second)
		s, r := inj.Counters()
		if sent != n+s.Duplicated || received != n+r.Duplicated-r.Corrupted {
			t.Errorf("%d packets sent and %d received; counters %+v and %+v", sent, received, s, r)
		}
		if lines := strings.Count(trace.String(), "\n"); lines != 2*n {
			t.Errorf("%d lines of trace, want %d:\n%s", lines, 2*n, trace.String())
		}
		if err := inj.TraceErr(); err != nil {
			t.Error(err)
		}
	})
}

// TestRemove: a packet of a rule removes the device. It and the later ones are lost, and the device is removed
// once.
func TestRemove(t *testing.T) {
	removed := 0
	r := newRig(t, "direction=sent,remove=3", func(o *Options) { o.Remove = func() { removed++ } })
	r.send(1, 2)
	r.receive(7, 8, 9)
	if r.want("1 2 7 8 9"); removed != 0 {
		t.Errorf("removed %d times before the third packet", removed)
	}
	r.send(3, 4)
	r.send(5)
	if r.want(""); removed != 1 {
		t.Errorf("removed %d times, want once", removed)
	}
	if sent, _ := r.f.Counters(); sent.Lost != 3 {
		t.Errorf("%d packets are lost, want 3", sent.Lost)
	}
}
