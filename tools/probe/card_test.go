package probe

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// cardEnv is 1 in the boot with cards that have a clock.
const cardEnv = "GOVERBS_PROBE_CARD"

// TestCardClock: on a card that has a clock, the time stamps of completions lie between two readings of that clock, and
// increase; latencies are by them, and the peer takes its own time out of that of a datagram.
func TestCardClock(t *testing.T) {
	testenv.Boot(t, cardEnv, "probes/card")
	var h [2]host
	for i, a := range testenv.TheRig().Addrs {
		h[i].addr = netip.MustParseAddr(a)
	}
	answer(t, h[1], Options{})
	s, err := connected(t, h[0], h[1], maxRate)
	must(t, err)
	s.p.o.Rate = 10 // single pings, as fast as they are answered
	if s.dev.khz == 0 {
		t.Fatalf("the clock of %s is not used", s.dev.Name())
	}
	clock := func() uint64 {
		now, err := s.dev.ReadClock()
		must(t, err)
		return now
	}
	begun, first := time.Now(), clock()
	last, dwells := first, time.Duration(0)
	wcs := make([]uverbs.WC, 8)
	const rounds = 50
	for round := range uint64(rounds) {
		before, software := clock(), time.Now()
		old := s.results(Result{})
		must(t, s.send(time.Now()))
		var d datagram
		until(t, "the READ and the ping are answered", func() bool {
			n, err := s.cq.Poll(wcs)
			must(t, err)
			for i := range wcs[:n] {
				wc, now := &wcs[i], clock()
				if wc.Timestamp < last || wc.Timestamp <= before || wc.Timestamp > now {
					t.Errorf("completion %x is of %d, not after %d and between %d and %d", wc.ID, wc.Timestamp, last, before, now)
				}
				last = wc.Timestamp
				if wc.ID < pingID {
					d, _ = parseDatagram(s.memory[8+int(wc.ID)*slot+uverbs.GRHSize:][:datagramSize], kindEcho)
				}
				must(t, s.completed(wc))
			}
			return d.seq == round+1 && !s.reading && s.unacked == 0
		})
		took := time.Since(software)
		dwell := time.Duration(d.dwell)
		dwells += dwell
		for i, r := range s.results(Result{}) {
			latency := r.Latency.Sum - old[i].Latency.Sum
			if r.Latency.answers() != round+1 || latency <= 0 || latency > took || dwell <= 0 || dwell > took {
				t.Errorf("round %d: %s took %v, the peer %v, all by the clock of the system %v", round, r.Transport, latency, dwell, took)
			}
		}
	}
	card, system := s.dev.between(first, clock()), time.Since(begun)
	if card < system/2 || card > 2*system {
		t.Errorf("the clock of the card says that %v have passed, that of the system %v", card, system)
	}
	if at, now := s.dev.at(&uverbs.WC{Timestamp: 1 << 62}), clock(); at > now || at < last {
		t.Errorf("a completion with the time of another clock is of %d, want the time when it is read, from %d to %d", at, last, now)
	}
	all := s.results(Result{})
	t.Logf("means of %d: RC %v, UD %v, of which the peer's %v are taken out; a round %v", rounds, all[0].Latency.Sum/rounds, all[1].Latency.Sum/rounds, dwells/rounds, system/rounds)

	p := &path{p: s.p, addr: s.addr, counters: newCounters()}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { p.run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	until(t, "20 probes were timed", func() bool {
		r := p.results(Result{})
		return r[0].Latency.answers() >= 20 && r[1].Latency.answers() >= 20
	})
	for _, r := range p.results(Result{}) {
		if r.total() != 0 || !r.Up {
			t.Errorf("%+v", r)
		}
	}
}
