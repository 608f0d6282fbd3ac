package fault

import (
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

func TestClassOf(t *testing.T) {
	for op := range 256 {
		op := wire.Opcode(op)
		got := classOf(op, 17)
		if known := got != 0; known != op.Known() {
			t.Errorf("opcode %#x: class %v, known %v", uint8(op), got, op.Known())
		}
		if got&(got-1) != 0 {
			t.Errorf("opcode %#x is in several classes: %v", uint8(op), got)
		}
		if reply := got&(Ack|Response) != 0; reply != op.IsResponse() {
			t.Errorf("opcode %#x: class %v, response %v", uint8(op), got, op.IsResponse())
		}
	}
	for op, want := range map[wire.Opcode]Class{
		wire.RC | wire.SendFirst: Send, wire.UC | wire.SendLastImm: Send, wire.UD | wire.SendOnly: Send, wire.RC | wire.SendOnlyInv: Send,
		wire.RC | wire.WriteMiddle: Write, wire.UC | wire.WriteOnlyImm: Write, wire.RC | wire.ReadRequest: Read,
		wire.RC | wire.ReadResponseMiddle: Response, wire.RC | wire.AtomicAcknowledge: Response, wire.RC | wire.Acknowledge: Ack,
		wire.RC | wire.CompareSwap: Atomic, wire.RC | wire.FetchAdd: Atomic, wire.RC | wire.AtomicWrite: Atomic, wire.RC | wire.Flush: Flush,
	} {
		if got := classOf(op, 17); got != want {
			t.Errorf("opcode %#x is in class %v, want %v", uint8(op), got, want)
		}
	}
	if got := classOf(wire.UD|wire.SendOnly, wire.GSIQP); got != MAD {
		t.Errorf("a packet to QP 1 is in class %v, want %v", got, MAD)
	}
}

// packetOf returns a packet with an ICRC that is not made yet.
func packetOf(op wire.Opcode, qpn, psn uint32, payload int) []byte {
	h := wire.Header{Opcode: op, DestQP: qpn, PSN: psn, PKey: wire.DefaultPKey, SrcQP: 99, Pad: uint8(wire.Padding(payload))}
	b := make([]byte, wire.PacketSize(op, payload))
	h.Put(b)
	return b
}

var (
	hostA = netip.MustParseAddrPort("10.0.0.1:4791")
	hostB = netip.MustParseAddrPort("10.0.0.2:4791")
	hostC = netip.MustParseAddrPort("10.0.0.3:4791")
)

func TestLook(t *testing.T) {
	for _, c := range []struct {
		b    []byte
		want packet
	}{
		{packetOf(wire.RC|wire.SendOnly, 17, 1, 4), packet{Sent, hostB, 17, 0, Send, 20}},
		{packetOf(wire.UD|wire.SendOnly, 17, 1, 0), packet{Sent, hostB, 17, 99, Send, 24}},
		{packetOf(wire.RC|wire.Acknowledge, wire.QPNMask, 1, 0), packet{Sent, hostB, wire.QPNMask, 0, Ack, 20}},
		{packetOf(wire.UD|wire.SendOnly, 17, 1, 0)[:15], packet{Sent, hostB, 17, 0, Send, 15}},
		{make([]byte, 11), packet{dir: Sent, peer: hostB, size: 11}},
		{nil, packet{dir: Sent, peer: hostB}},
	} {
		if got := look(Sent, hostB, c.b); got != c.want {
			t.Errorf("look(%x) = %+v, want %+v", c.b, got, c.want)
		}
	}
}

func TestSelects(t *testing.T) {
	p := look(Received, netip.MustParseAddrPort("[::ffff:10.0.0.2]:4791"), packetOf(wire.RC|wire.Acknowledge, 17, 1, 0))
	v6 := look(Sent, netip.MustParseAddrPort("[fe80::2%eth0]:4791"), packetOf(wire.RC|wire.SendOnly, 17, 1, 0))
	for _, c := range []struct {
		text     string
		p, other bool // whether the rule selects the packets
	}{
		{"loss=1%", true, true}, {"direction=received", true, false}, {"direction=sent", false, true},
		{"qpn=17", true, true}, {"qpn=18", false, false}, {"class=ack", true, false}, {"class=send|read", false, true},
		{"peer=10.0.0.2", true, false}, {"peer=10.0.0.0/8", true, false}, {"peer=10.0.0.3", false, false},
		{"peer=fe80::2", false, true}, {"peer=fe80::/10", false, true}, {"peer=::/0", false, true},
		{"direction=received,class=ack,qpn=17,peer=10.0.0.2", true, false}, {"direction=received,class=ack,qpn=18,peer=10.0.0.2", false, false},
	} {
		config, err := Parse(c.text)
		must(t, err)
		if got, got6 := config.Rules[0].selects(&p), config.Rules[0].selects(&v6); got != c.p || got6 != c.other {
			t.Errorf("%s: selects %v and %v, want %v and %v", c.text, got, got6, c.p, c.other)
		}
	}
}

// streams are keys that differ in one field each.
func streams() []streamKey {
	base := streamKey{0, Sent, hostB, 17, 0, false}
	all := []streamKey{base}
	for _, change := range []func(*streamKey){
		func(k *streamKey) { k.rule = 1 }, func(k *streamKey) { k.dir = Received }, func(k *streamKey) { k.peer = hostC },
		func(k *streamKey) { k.qpn = 18 }, func(k *streamKey) { k.srcQP = 1 }, func(k *streamKey) { k.response = true },
	} {
		k := base
		change(&k)
		all = append(all, k)
	}
	return all
}

// TestStreamsDiffer: each field of a stream and the seed lead to other decisions, and the port does
// not.
func TestStreamsDiffer(t *testing.T) {
	seen := make(map[uint64]string)
	for seed := range uint64(4) {
		for _, k := range streams() {
			r := k.random(seed)
			if other, ok := seen[r]; ok {
				t.Errorf("seed %d, stream %+v has the random number of %s", seed, k, other)
			}
			seen[r] = fmt.Sprintf("seed %d, stream %+v", seed, k)
		}
	}
	k := streams()[0]
	k.peer = netip.AddrPortFrom(hostB.Addr(), 50_000)
	if k.random(1) != streams()[0].random(1) {
		t.Error("the port of the peer changes decisions")
	}
}

// TestStatistics: over 100,000 packets, each kind of event is as frequent as its chance, within 4
// standard deviations, and no event depends on another one.
func TestStatistics(t *testing.T) {
	const packets = 100_000
	r := Rule{Loss: Percent, Duplicate: 2 * Percent, Corrupt: Percent / 2, Reorder: 5 * Percent, Delay: Delay{Min: time.Millisecond}, Delayed: 20 * Percent}
	within := func(what string, seed uint64, got int, want float64) {
		t.Helper()
		sigma := math.Sqrt(packets * want * (1 - want))
		if diff := math.Abs(float64(got) - packets*want); diff > 4*sigma {
			t.Errorf("%s with seed %d: %d of %d, want %.0f (4 sigma: %.0f)", what, seed, got, packets, packets*want, 4*sigma)
		}
	}
	for _, seed := range []uint64{0, 1, 7, 42, 1 << 63} {
		for _, k := range streams() {
			random := k.random(seed)
			var lost, twice, corrupt, behind, delayed, pairs int
			last := false
			for n := range uint64(packets) {
				d := r.decide(random, n)
				if d.lost {
					lost++
					if last {
						pairs++
					}
				}
				last = d.lost
				if d.copies == 2 {
					twice++
				}
				if d.fates[0].corrupt {
					corrupt++
				}
				if d.fates[0].behind > 0 {
					behind++
				}
				if d.fates[0].delay > 0 {
					delayed++
				}
			}
			within("loss", seed, lost, 0.01)
			within("two losses in a row", seed, pairs, 0.0001)
			within("duplicates", seed, twice, 0.99*0.02)
			within("corruption", seed, corrupt, 0.99*0.005)
			within("reordering", seed, behind, 0.99*0.05)
			within("delay", seed, delayed, 0.99*0.95*0.2)
		}
	}
}

// TestGolden: the decisions of a seed are the same for ever, on every processor.
func TestGolden(t *testing.T) {
	k := streamKey{0, Sent, hostB, 17, 0, false}
	r := Rule{Loss: Percent}
	var lost []uint64
	for n := range uint64(1000) {
		if r.decide(k.random(7), n).lost {
			lost = append(lost, n)
		}
	}
	if want := []uint64{17, 65, 161, 192, 249, 365, 386, 479, 613}; !slices.Equal(lost, want) {
		t.Errorf("packets %v are lost, want %v", lost, want)
	}
	r = Rule{Delay: Delay{Min: time.Millisecond, Mean: 2 * time.Millisecond}, Duplicate: Always, Corrupt: Always / 2, Reorder: Always / 2}
	if got, want := fmt.Sprint(r.decide(k.random(7), 0)), "{false 2 [{false 10524084367713221965 0 1031000} {true 9800726569870370982 0 1676000}]}"; got != want {
		t.Errorf("decision %s, want %s", got, want)
	}
}

// TestChancesAreIndependent: a change of one chance leaves the other decisions as they are.
func TestChancesAreIndependent(t *testing.T) {
	a := Rule{Reorder: 10 * Percent, Delay: Delay{Min: 1, Max: 1000}, Duplicate: 10 * Percent}
	b := a
	b.Loss, b.Corrupt = 10*Percent, 10*Percent
	random := streams()[0].random(1)
	for n := range uint64(1000) {
		x, y := a.decide(random, n), b.decide(random, n)
		for i := range y.fates {
			y.fates[i].corrupt = false
		}
		if !y.lost && !reflect.DeepEqual(x, y) {
			t.Fatalf("packet %d: %+v, and %+v with loss", n, x, y)
		}
	}
}

func TestDelayDistribution(t *testing.T) {
	const packets = 100_000
	const ms = time.Millisecond
	for _, c := range []struct {
		d              Delay
		low, high      time.Duration // bounds that hold for all
		mean, variance float64       // in ms and ms²
	}{
		{Delay{Min: 5 * ms}, 5 * ms, 5 * ms, 5, 0},
		{Delay{Min: 5 * ms, Max: 5 * ms}, 5 * ms, 5 * ms, 5, 0},
		{Delay{Max: 6 * ms}, 0, 6 * ms, 3, 3},
		{Delay{Min: 1 * ms, Max: 5 * ms}, 1 * ms, 5 * ms, 3, 16. / 12},
		{Delay{Min: 1 * ms, Mean: 2 * ms}, 1 * ms, 33 * ms, 3, 4},
	} {
		d := drawer{1}
		sum, squares := 0.0, 0.0
		for range packets {
			x := c.d.draw(d.next())
			if x < c.low || x > c.high {
				t.Fatalf("%+v: %v", c.d, x)
			}
			ms := x.Seconds() * 1000
			sum, squares = sum+ms, squares+ms*ms
		}
		mean := sum / packets
		variance := squares/packets - mean*mean
		if math.Abs(mean-c.mean) > 0.03 || math.Abs(variance-c.variance) > 0.15 {
			t.Errorf("%+v: mean %.3f ms and variance %.3f ms², want %.3f and %.3f", c.d, mean, variance, c.mean, c.variance)
		}
	}
	even := Delay{Min: 3, Max: 4}
	if even.draw(0) != 3 || even.draw(1<<64-1) != 4 {
		t.Error("an even distribution does not include its bounds")
	}
	exp := Delay{Min: 3, Mean: ms}
	if got := exp.draw(0); got != 3+16*ms {
		t.Errorf("the longest exponential delay is %v", got)
	}
	if got := exp.draw(1<<64 - 1); got != 3 {
		t.Errorf("the shortest exponential delay is %v", got)
	}
}

// TestFlip: every bit that the ICRC covers can be flipped, and no other.
func TestFlip(t *testing.T) {
	const n = minPacket
	seen := make(map[int]bool)
	d := drawer{1}
	for range 10_000 {
		bit := flip(d.next(), n)
		if bit < 0 || bit >= n*8 || bit/8 == 4 {
			t.Fatalf("bit %d", bit)
		}
		seen[bit] = true
	}
	if len(seen) != (n-1)*8 {
		t.Errorf("%d bits are flipped, want %d", len(seen), (n-1)*8)
	}
	if flip(0, n) != 0 || flip(1<<64-1, n) != n*8-1 {
		t.Error("the first and the last bit are not those of the packet")
	}
}

// TestNakClass: a NAK that ends a connection has a class of its own.
func TestNakClass(t *testing.T) {
	for syndrome, want := range map[uint8]Class{
		wire.SyndromeACK: Ack, wire.SyndromeRNR: Ack, wire.SyndromeSequence: Ack,
		wire.SyndromeInvalidRequest: Nak, wire.SyndromeRemoteAccess: Nak, wire.SyndromeRemoteOp: Nak,
	} {
		h := wire.Header{Opcode: wire.Acknowledge, DestQP: 17, Syndrome: syndrome}
		b := make([]byte, wire.PacketSize(h.Opcode, 0))
		h.Put(b)
		if p := look(Sent, netip.AddrPort{}, b); p.class != want || !p.key(0).response {
			t.Errorf("syndrome %#x: class %v, want %v", syndrome, p.class, want)
		}
	}
}
