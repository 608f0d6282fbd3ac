package probe

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
)

// connected returns a session of a prober that does not run, whose test sends what it wants.
func connected(t *testing.T, from, to host, rate int) (*session, error) {
	t.Helper()
	p, err := New(Options{Source: from.addr, Peers: []string{to.addr.String()}, Rate: rate})
	must(t, err)
	path := &path{p: p, addr: netip.AddrPortFrom(to.addr, Port), counters: newCounters()}
	s, err := path.connect(t.Context())
	t.Cleanup(s.close)
	return s, err
}

// TestTooFast: a prober that sends more than it has said is answered as fast as it has said.
func TestTooFast(t *testing.T) {
	h := hosts(t, 2)
	peer, _ := answer(t, h[1], Options{})
	s, err := connected(t, h[0], h[1], 10)
	must(t, err)
	s.p.o.Rate = 1000
	begun := time.Now()
	until(t, "1000 pings were dropped", func() bool {
		s.unacked = 0
		s.send(time.Now()) // a full queue is no matter
		return peer.Answers().Dropped > 1000
	})
	if most := 10 + roomMargin + 10*rateMargin*time.Since(begun).Seconds() + 1; float64(peer.Answers().Echoes) > most {
		t.Errorf("%d pings were answered in %v, most are %.0f", peer.Answers().Echoes, time.Since(begun), most)
	}
}

// TestNoSession: datagrams without the token of a session, or with that of another sender, are
// dropped.
func TestNoSession(t *testing.T) {
	h := hosts(t, 3)
	peer, _ := answer(t, h[2], Options{})
	one, err := connected(t, h[0], h[2], 100)
	must(t, err)
	two, err := connected(t, h[1], h[2], 100)
	must(t, err)
	must(t, one.send(time.Now()))
	until(t, "a ping is answered", func() bool { return peer.Answers().Echoes == 10 })
	two.token = one.token
	must(t, two.send(time.Now()))
	until(t, "a stolen token is dropped", func() bool { return peer.Answers().Dropped == 10 })
	two.token = rand.Uint64()
	must(t, two.send(time.Now()))
	until(t, "a guessed token is dropped", func() bool { return peer.Answers().Dropped == 20 })
	if n := peer.Answers().Echoes; n != 10 {
		t.Errorf("%d pings were answered", n)
	}
}

// TestClaimedAddress: a session is for datagrams from the address that the request has claimed.
func TestClaimedAddress(t *testing.T) {
	h := hosts(t, 2)
	peer, _ := answer(t, h[1], Options{})
	s, err := connected(t, h[0], h[1], 100)
	must(t, err)
	peer.answers.mu.Lock()
	for _, g := range peer.answers.sessions {
		g.from = netip.MustParseAddr("10.9.9.9")
	}
	peer.answers.mu.Unlock()
	must(t, s.send(time.Now()))
	until(t, "pings from another address are dropped", func() bool { return peer.Answers().Dropped == 10 })
	if n := peer.Answers().Echoes; n != 0 {
		t.Errorf("%d pings were answered", n)
	}
}

// TestRefused: a host that is not allowed, one session too many, and requests that are malformed or
// have no session are refused, and take nothing.
func TestRefused(t *testing.T) {
	h := hosts(t, 3)
	peer, _ := answer(t, h[2], Options{Sessions: 1, Allow: []netip.Prefix{netip.PrefixFrom(h[0].addr, 32)}})
	refused := func(what string, n uint64, err error) {
		t.Helper()
		if err == nil || causeOf(err) != Refused {
			t.Errorf("%s: %v", what, err)
		}
		if a := peer.Answers(); a.Refused != n {
			t.Errorf("%s: %+v", what, a)
		}
	}
	_, err := connected(t, h[1], h[2], 1)
	refused("a host that is not allowed", 1, err)
	_, err = connected(t, h[0], h[2], 1)
	must(t, err)
	_, err = connected(t, h[0], h[2], 1)
	refused("one session too many", 2, err)
	n := uint64(2)
	for _, space := range []rdmacm.PortSpace{rdmacm.UDP, rdmacm.TCP} {
		for _, private := range [][]byte{nil, {1}, make([]byte, 28), marshal(request{0, 1, 0, 1}), marshal(request{maxRate + 1, 1, 0, 1}), marshal(request{1, maxLabel + 1, 0, 1}),
			marshal(request{1, 1, 0, maxQKey + 1}), marshal(request{1, 1, 7, 1}),
		} {
			if r, err := parseRequest(private); err == nil && r.Token != 7 {
				t.Errorf("%x is %+v", private, r)
			}
			ch, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{Local: h[0].addr})
			must(t, err)
			id, err := ch.NewID(space)
			must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			must(t, id.ResolveWait(ctx, rdmacm.Addr{IP: h[0].addr}, rdmacm.AddrOf(netip.AddrPortFrom(h[2].addr, Port))))
			_, err = id.ConnectWait(ctx, rdmacm.ConnParam{PrivateData: private, QPN: 17, InitiatorDepth: 1})
			n++
			refused("a request", n, err)
			cancel()
			id.Close()
			ch.Close()
		}
	}
}

// TestNoAnswerer: a port that cannot be made to answer is tried once in a while, however many requests come.
func TestNoAnswerer(t *testing.T) {
	peer, _ := answer(t, hosts(t, 1)[0], Options{})
	s := &peer.answers
	s.mu.Lock()
	defer s.mu.Unlock()
	key := answererKey{"nowhere", 1, 0}
	_, first := s.answerer(t.Context(), key)
	if _, again := s.answerer(t.Context(), key); first == nil || again != first {
		t.Errorf("%v, and then %v", first, again)
	}
	s.failed[key] = failure{first, time.Now().Add(-againAfter)}
	if _, later := s.answerer(t.Context(), key); later == nil || later == first {
		t.Errorf("%v, and later %v", first, later)
	}
}

// TestMakeRoom: an address has a share, and idle sessions give way to new ones, the one that is
// idle longest first.
func TestMakeRoom(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	s := &answers{p: &Prober{o: Options{Sessions: addressSessions + 1}}, sessions: map[uint64]*grant{}}
	add := func(from netip.Addr, idle time.Duration, rate int) {
		token := uint64(len(s.sessions) + 1)
		s.sessions[token] = &grant{request: request{Rate: uint32(rate), Token: token}, from: from, last: time.Now().Add(-idle)}
		s.rate += rate
	}
	for range addressSessions {
		add(a, 0, 1)
	}
	if err := s.makeRoom(a, 1); err == nil {
		t.Error("an address has more than its share")
	}
	must(t, s.makeRoom(b, 1))
	add(b, time.Hour, 1)
	if err := s.makeRoom(a, 1); err == nil || len(s.sessions) != addressSessions+1 {
		t.Errorf("an address has taken the room of another one: %v", err)
	}
	must(t, s.makeRoom(b, 1))
	if len(s.sessions) != addressSessions || s.rate != addressSessions {
		t.Errorf("%d sessions are left, with %d pings/s", len(s.sessions), s.rate)
	}
	s.sessions[7].last, s.sessions[9].last = time.Now().Add(-time.Hour), time.Now().Add(-2*time.Hour)
	must(t, s.makeRoom(a, 1))
	if s.sessions[9] != nil || s.sessions[7] == nil {
		t.Error("another session than the longest idle one is gone")
	}
	s.rate = totalRate
	s.sessions[7].last = time.Now()
	if err := s.makeRoom(b, 1); err == nil {
		t.Error("more pings are promised than the limit")
	}
}

// TestWindow: a window knows which of the 64 numbers before one have arrived.
func TestWindow(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		w, has, highest := window{}, map[uint64]bool{0: true}, uint64(0)
		for range 300 {
			seq := highest + 1 + uint64(r.IntN(3))
			switch r.IntN(20) {
			case 0:
				seq = highest + uint64(r.IntN(200))
			case 1, 2, 3:
				seq = highest - min(highest, uint64(r.IntN(70)))
			}
			got := w.add(seq)
			has[seq] = true
			highest = max(highest, seq)
			for i := range min(64, seq) {
				if back := highest - (seq - 1 - i); back > 64 {
					break // which it need not know
				}
				if want := has[seq-1-i]; (got>>i&1 != 0) != want {
					t.Fatalf("behind %d, %d has arrived: %v, want %v", seq, seq-1-i, !want, want)
				}
			}
		}
	}
}

// TestClock: cycles of a card's clock, whose frequency is in kHz, become times, and a clock that steps back none.
func TestClock(t *testing.T) {
	for _, c := range []struct {
		khz, from, to uint64
		want          time.Duration
	}{{0, 5, 1005, time.Microsecond}, {156250, 1000, 1000 + 156250, time.Millisecond}, {156250, 1<<64 - 78, 78, 998 * time.Nanosecond}, {156250, 9, 8, -1}, {0, 9, 8, -1}, {156250, 0, 8, -1}} {
		if got := (&device{khz: c.khz}).between(c.from, c.to); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// FuzzWire: what is parsed is written in the same way, and nothing else is.
func FuzzWire(f *testing.F) {
	f.Add(marshal(request{1, 2, 3, 4}))
	f.Add(marshal(uint64(4)))
	f.Add(marshal(target{5, 6}))
	d := make([]byte, datagramSize)
	(&datagram{kindEcho, 1, 2, 3, 4}).put(d)
	f.Add(d)
	f.Fuzz(func(t *testing.T, b []byte) {
		same := func(what string, got []byte) {
			if string(got) != string(b[:len(got)]) {
				t.Errorf("%s: %x becomes %x", what, b, got)
			}
		}
		if r, err := parseRequest(b); err == nil {
			same("request", marshal(r))
		}
		if token, err := parse[uint64](b); err == nil {
			same("grant", marshal(token))
		}
		if to, err := parse[target](b); err == nil {
			same("target", marshal(to))
		}
		if d, ok := parseDatagram(b, kindEcho); ok {
			out := make([]byte, datagramSize)
			d.put(out)
			same("datagram", out[:40])
		}
	})
}
