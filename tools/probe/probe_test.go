package probe

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/soft"
)

var must = testenv.Must

// host is a host of a test: a software device and its address.
type host struct {
	dev  *soft.Device
	addr netip.Addr
}

// hosts makes hosts.
func hosts(t *testing.T, n int) (all []host) {
	t.Helper()
	for range n {
		dev, err := soft.New(soft.Options{})
		must(t, err)
		t.Cleanup(func() { dev.Close() })
		all = append(all, host{dev, dev.Addr()})
	}
	return all
}

// start runs a Prober until the test, or what it returns, ends it.
func start(t *testing.T, o Options) (p *Prober, stop func()) {
	t.Helper()
	o.Warn = func(err error) { t.Logf("%s%v: %v", o.Source, o.Listen, err) }
	p, err := New(o)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	ended := false
	stop = func() {
		if cancel(); !ended {
			ended = true
			must(t, <-done)
		}
	}
	t.Cleanup(stop)
	return p, stop
}

// until waits until something is true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for begun := time.Now(); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatalf("after a minute it is not true that %s", what)
		}
	}
}

// answer runs a Prober that only answers.
func answer(t *testing.T, h host, o Options) (p *Prober, stop func()) {
	t.Helper()
	o.Listen = netip.AddrPortFrom(h.addr, Port).String()
	return start(t, o)
}

// of returns the counters of a path.
func of(p *Prober, addr netip.Addr, path int, transport Transport) (r Result) {
	for _, r := range p.Results() {
		if r.Addr == addr && r.Path == path && r.Transport == transport {
			return r
		}
	}
	return r
}

// lost returns how many probes were lost by a cause.
func (r Result) lost(cause Cause) uint64 {
	for _, l := range r.Lost {
		if l.Cause == cause {
			return l.Count
		}
	}
	return 0
}

// total returns how many probes were lost.
func (r Result) total() (n uint64) {
	for _, l := range r.Lost {
		n += l.Count
	}
	return n
}

// answers returns how many probes were timed.
func (h Histogram) answers() (n uint64) {
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// TestProbe: on a network without faults every probe is answered, and timed on every path.
func TestProbe(t *testing.T) {
	h := hosts(t, 2)
	peer, _ := answer(t, h[1], Options{})
	p, stop := start(t, Options{Source: h[0].addr, Peers: []string{h[1].addr.String()}, Rate: 200, Paths: 2})
	for path := range 2 {
		for _, transport := range []Transport{UD, RC} {
			until(t, "20 probes were timed", func() bool { return of(p, h[1].addr, path, transport).Latency.answers() >= 20 })
		}
	}
	stop()
	t.Logf("%+v", peer.Answers())
}
