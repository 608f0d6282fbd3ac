package probe

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	o.Warn = func(err error) { t.Logf("%v%s: %v", o.Source, o.Listen, err) }
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
	p, stop = start(t, o)
	until(t, "it listens", func() bool {
		p.answers.mu.Lock()
		defer p.answers.mu.Unlock()
		return len(p.answers.listens) == 2
	})
	return p, stop
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

// TestLoss: loss on the way to the peer and on the way back are told apart, and RC repeats what is
// lost.
func TestLoss(t *testing.T) {
	for _, c := range []struct {
		faults string
		want   Cause
	}{{"direction=received,class=send,loss=20%,seed=1", Forward}, {"direction=sent,class=send,loss=20%,seed=2", Return}} {
		t.Run(string(c.want), func(t *testing.T) {
			h := hosts(t, 2)
			peer, _ := answer(t, h[1], Options{})
			faults, err := soft.ParseFaults(c.faults)
			must(t, err)
			must(t, h[1].dev.SetFaults(faults))
			p, _ := start(t, Options{Source: h[0].addr, Peers: []string{h[1].addr.String()}, Rate: 500, Paths: 1})
			ud := func() Result { return of(p, h[1].addr, 0, UD) }
			until(t, "200 probes were lost", func() bool { return ud().total() >= 200 })
			r := ud()
			if n := r.lost(c.want); n < r.total()*9/10 { // the last ones before an echo may be silent
				t.Errorf("%d of %d probes were lost by %s: %+v", n, r.total(), c.want, r.Lost)
			}
			if part := float64(r.total()) / float64(r.Sent); part < 0.1 || part > 0.3 || peer.Answers().Dropped != 0 {
				t.Errorf("%.3f of the probes were lost, want 0.2; %+v", part, peer.Answers())
			}
			if rc := of(p, h[1].addr, 0, RC); rc.total() != 0 || rc.Latency.answers() == 0 {
				t.Errorf("RC probes have %+v", rc)
			}
		})
	}
}

// TestRestart: the probes of a peer that has ended count as lost, with their cause, and it is found
// again.
func TestRestart(t *testing.T) {
	h := hosts(t, 2)
	_, stop := answer(t, h[1], Options{})
	p, _ := start(t, Options{Source: h[0].addr, Peers: []string{h[1].addr.String()}, Rate: 100, Paths: 1})
	up := func(want bool) func() bool {
		return func() bool { return of(p, h[1].addr, 0, UD).Up == want && of(p, h[1].addr, 0, RC).Up == want }
	}
	until(t, "the peer answers", up(true))
	stop()
	until(t, "the peer is down", up(false))
	until(t, "probes are refused", func() bool {
		return of(p, h[1].addr, 0, UD).lost(Refused) > 0 && of(p, h[1].addr, 0, RC).lost(Refused) > 0
	})
	answer(t, h[1], Options{})
	until(t, "the peer answers again", up(true))
}

// TestPeers: a file is read again, a name or an address of this host is no peer, and an address
// counts once.
func TestPeers(t *testing.T) {
	resolveEach = 50 * time.Millisecond
	defer func() { resolveEach = 10 * time.Second }()
	h := hosts(t, 4)
	file := filepath.Join(t.TempDir(), "peers")
	write := func(text string) { // as a whole, since it is read all the time
		must(t, os.WriteFile(file+".new", []byte(text), 0o600))
		must(t, os.Rename(file+".new", file))
	}
	write("localhost # this host\n\n" + h[1].addr.String() + "\n" + h[0].addr.String() + "\n" + h[2].addr.String() + ":9879\n")
	p, stop := start(t, Options{Source: h[0].addr, Peers: []string{h[2].addr.String(), "@" + file}, Rate: 1, Paths: 1})
	defer stop() // before resolveEach is what it was
	probed := func(want ...netip.Addr) func() bool {
		return func() bool {
			var got []netip.Addr
			for _, r := range p.Results() {
				if r.Transport == RC {
					got = append(got, r.Addr)
				}
			}
			return slices.Equal(got, want)
		}
	}
	until(t, "the peers of the file are probed", probed(h[2].addr, h[1].addr))
	write(h[3].addr.String())
	until(t, "the file was read again", probed(h[2].addr, h[3].addr))
	write("two words")
	time.Sleep(2 * resolveEach)
	until(t, "a bad file leaves the peers", probed(h[2].addr, h[3].addr))
}

// TestOptions: an error names the option, its value and what is allowed.
func TestOptions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "peers")
	must(t, os.WriteFile(file, []byte("@other"), 0o600))
	one := []string{"10.0.0.1"}
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, "Peers is empty, allowed: one peer and more, unless Listen is set"},
		{Options{Peers: one, Rate: 1001}, "Rate is 1001, allowed: 1 to 1000"},
		{Options{Peers: one, Rate: -1}, "Rate is -1, allowed: 1 to 1000"},
		{Options{Peers: one, Paths: 17}, "Paths is 17, allowed: 1 to 16"},
		{Options{Listen: ":9879", Sessions: 65537}, "Sessions is 65537, allowed: 1 to 65536"},
		{Options{Listen: "9879"}, `Listen is "9879", allowed: IP:PORT or :PORT`},
		{Options{Listen: "host:9879"}, `Listen is "host:9879", allowed: IP:PORT or :PORT`},
		{Options{Listen: ":0"}, `Listen is ":0", allowed: IP:PORT or :PORT`},
		{Options{Peers: one, Allow: make([]netip.Prefix, 1)}, "Allow is invalid Prefix, allowed: networks such as 10.0.0.0/8"},
		{Options{Peers: []string{""}}, `Peers is "", allowed: HOST`},
		{Options{Peers: []string{"a b"}}, `Peers is "a b", allowed: HOST`},
		{Options{Peers: []string{"-x"}}, `Peers is "-x", allowed: HOST`},
		{Options{Peers: []string{"host:http"}}, `Peers is "host:http", allowed: HOST`},
		{Options{Peers: []string{"host:0"}}, `Peers is "host:0", allowed: HOST`},
		{Options{Peers: []string{"@" + file}}, `Peers is "@other", allowed: HOST`},
		{Options{Peers: []string{"@" + file + "0"}}, "peers: open " + file + "0: no such file"},
	} {
		if _, err := New(c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %s", c.o, err, c.want)
		}
	}
	for peer, want := range map[string]string{"node1": "node1 9879", "node1:1": "node1 1", "10.0.0.1": "10.0.0.1 9879", "fd00::1": "fd00::1 9879", "[fd00::1]:7": "fd00::1 7", "[fd00::1]": "fd00::1 9879"} {
		host, port, err := splitPeer(peer)
		if got := fmt.Sprint(host, " ", port); err != nil || got != want {
			t.Errorf("%s is %s, %v", peer, got, err)
		}
	}
}
