package mesh

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// fakeFleet are hosts with one device. Their tests end only when as many pairs as expected are under way.
type fakeFleet struct {
	t      *testing.T
	slow   string // a host with a latency of 100 µs instead of 2 µs
	mute   string // a host that does not answer a request for a test
	odd    string // a host whose answers make no sense
	iwarp  bool
	probed func(probes int) // called after each probe with their number; may be nil

	mu       sync.Mutex
	changed  *sync.Cond
	together int            // pairs that must be under way at the same time
	arrived  int            // probes so far
	under    int            // probes under way
	most     int            // of under
	busy     map[string]int // probes that each host takes part in
	probes   []fakeProbe    // in the order of their ends
}

// fakeProbe is a request for a probe to a host.
type fakeProbe struct {
	perf.Probe
	from string
}

// fakeHost is a host of it.
type fakeHost struct {
	fleet *fakeFleet
	name  string
}

// newFakeFleet returns hosts and a run of their tests.
func newFakeFleet(t *testing.T, hosts, together int) (*fakeFleet, *Run) {
	f := &fakeFleet{t: t, together: together, busy: map[string]int{}}
	f.changed = sync.NewCond(&f.mu)
	r := &Run{
		Types: []string{perf.RC, perf.UD}, FlowLabels: []int{0}, Thresholds: Thresholds{MaxLoss: 0.1, LatencyRatio: 3},
		Iterations: 10, Messages: 20, Size: 4096, Timeout: time.Second,
		reach: func(h Host) server { return fakeHost{f, h.Name} },
	}
	for i := range hosts {
		name := fmt.Sprintf("host%d", i)
		r.Hosts = append(r.Hosts, Host{Name: name, Addr: name, Port: DefaultPort})
	}
	return f, r
}

// Rails is the device.
func (h fakeHost) Rails(context.Context) ([]perf.Rail, error) {
	gid := ib.GID{0xfd}
	copy(gid[1:], h.name)
	return []perf.Rail{{Device: "rail0", Driver: "rxe", Port: 1, GID: gid, MTU: 1024, IWARP: h.fleet.iwarp}}, nil
}

// Probe notes the probe, and fails the test if one of the hosts is in another one, or if the other
// pairs do not come.
func (h fakeHost) Probe(_ context.Context, p perf.Probe) (*perf.Size, error) {
	f := h.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range []string{h.name, p.Host} {
		if f.busy[name]++; f.busy[name] > 1 {
			f.t.Errorf("%s is in two pairs at the same time", name)
		}
	}
	f.under++
	f.most = max(f.most, f.under)
	f.meet()
	f.mu.Unlock()
	time.Sleep(time.Millisecond) // in which others would come, if they did not wait
	f.mu.Lock()
	f.under--
	f.busy[h.name]--
	f.busy[p.Host]--
	f.probes = append(f.probes, fakeProbe{p, h.name})
	if f.probed != nil {
		f.probed(len(f.probes))
	}
	if h.name == f.odd {
		return &perf.Size{Lost: 1000}, nil
	}
	switch f.mute {
	case h.name:
		return nil, &perf.NoAnswerError{Err: errors.New("nothing came")}
	case p.Host:
		return nil, &perf.ProbeError{Text: "nothing came"}
	}
	s := &perf.Size{Iterations: int64(p.Config.Iterations)}
	if p.Config.Metric != perf.Lat {
		s.Bandwidth = &perf.Bandwidth{GbitPerSecond: 10}
		return s, nil
	}
	us := 2.0
	if h.name == f.slow || p.Host == f.slow {
		us = 100
	}
	s.Latency = &perf.Latency{Min: us, Median: us, P99: us, P999: us, Max: us}
	return s, nil
}

// meet waits until all pairs that must run at the same time have started, for 10 s at most.
func (f *fakeFleet) meet() {
	until := (f.arrived/f.together + 1) * f.together
	f.arrived++
	f.changed.Broadcast()
	late := false
	timer := time.AfterFunc(10*time.Second, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		late = true
		f.changed.Broadcast()
	})
	defer timer.Stop()
	for f.arrived < until && f.together > 1 {
		if late {
			f.t.Errorf("%d of %d pairs are under way after 10 s", f.under, f.together)
			f.together = 1 // do not wait again
		} else {
			f.changed.Wait()
		}
	}
}

// TestRunPairs: the pairs of a round are tested at the same time, as many as --at-once allows, and no
// host is in two of them.
func TestRunPairs(t *testing.T) {
	for _, c := range []struct{ hosts, atOnce, together int }{{2, 0, 1}, {4, 0, 2}, {5, 0, 2}, {6, 0, 3}, {6, 1, 1}, {8, 2, 2}} {
		t.Run(fmt.Sprintf("%d hosts, %d at once", c.hosts, c.atOnce), func(t *testing.T) {
			f, r := newFakeFleet(t, c.hosts, c.together)
			r.AtOnce = c.atOnce
			rep, err := r.Do(t.Context())
			if err != nil || !rep.OK {
				t.Fatalf("%v, %+v", err, rep)
			}
			if f.most != c.together {
				t.Errorf("%d pairs were under way at the same time, want %d", f.most, c.together)
			}
			if want := c.hosts * (c.hosts - 1) * 2; len(rep.Measurements) != want || len(f.probes) != 2*want {
				t.Errorf("%d measurements with %d probes, want %d", len(rep.Measurements), len(f.probes), want)
			}
		})
	}
}

// TestRunInterrupted: a run that is interrupted reports the measurements that are finished, and no host of the others.
func TestRunInterrupted(t *testing.T) {
	for _, c := range []struct{ probes, finished int }{{1, 0}, {2, 0}, {3, 1}, {8, 3}, {9, 4}} {
		f, r := newFakeFleet(t, 4, 1)
		r.AtOnce, r.Repeat = 1, 1
		ctx, interrupt := context.WithCancel(t.Context())
		f.probed = func(probes int) {
			if probes == c.probes {
				interrupt()
			}
		}
		rep, err := r.Do(ctx)
		if !errors.Is(err, context.Canceled) || len(f.probes) > c.probes+1 {
			t.Errorf("%+v: %d probes, %v", c, len(f.probes), err)
		}
		if c.finished == 0 {
			if rep != nil {
				t.Errorf("%+v: %+v", c, rep)
			}
			continue
		}
		if rep == nil || rep.OK || !rep.Interrupted || len(rep.Measurements) != c.finished || len(rep.Findings) != 0 {
			t.Fatalf("%+v: %+v", c, rep)
		}
		for _, m := range rep.Measurements {
			if m.Latency == nil || m.Bandwidth == nil || m.Errors != nil {
				t.Errorf("%+v: %+v", c, m)
			}
		}
	}
}

// TestRunRepeat: what crosses a threshold is measured again, while nothing else runs.
func TestRunRepeat(t *testing.T) {
	f, r := newFakeFleet(t, 6, 3)
	f.slow, r.Repeat = "host1", 2
	first := 0
	r.Progress = func(done, total int) {
		if done == total {
			first, f.together, f.most = len(f.probes), 1, 0
		}
	}
	rep, err := r.Do(t.Context())
	if err != nil || len(rep.Findings) != 1 || rep.Findings[0].Cause != CauseHost || !slices.Equal(rep.Findings[0].Hosts, []string{f.slow}) {
		t.Fatalf("%v, %+v", err, rep)
	}
	// Five links in two directions over two types of queue pairs, twice, each with two tests.
	if n := len(f.probes) - first; n != 5*2*2*2*2 || f.most != 1 {
		t.Errorf("%d probes were repeated, up to %d at the same time", n, f.most)
	}
	for _, p := range f.probes[first:] {
		if p.from != f.slow && p.Host != f.slow {
			t.Errorf("the tests from %s to %s were repeated", p.from, p.Host)
		}
	}
}

// TestRunMute: a host that has not answered once gets no more requests, and is no peer, until bad
// values are measured again. The report blames that host alone.
func TestRunMute(t *testing.T) {
	f, r := newFakeFleet(t, 4, 1)
	f.mute, r.Repeat, r.AtOnce = "host1", 2, 1
	rep, err := r.Do(t.Context())
	if err != nil || len(rep.Findings) != 1 || rep.Findings[0].Cause != CauseHost || !slices.Equal(rep.Findings[0].Hosts, []string{f.mute}) {
		t.Fatalf("%v, %+v", err, rep)
	}
	asked, used := 0, 0
	for _, p := range f.probes {
		if p.from == f.mute {
			asked, used = asked+1, 0
		} else if p.Host == f.mute {
			used++ // since the request
		}
	}
	if asked != 1+r.Repeat || used != 0 {
		t.Errorf("the host got %d requests for a test, want %d, and was used %d times after that", asked, 1+r.Repeat, used)
	}
	left := 0
	for _, m := range rep.Measurements {
		if with := m.From == f.mute || m.To == f.mute; with != (len(m.Errors) > 0) {
			t.Errorf("from %s to %s: %q", m.From, m.To, m.Errors)
		} else if with && strings.Contains(m.Errors[0], "not tested, since host1 did not answer") {
			left++
		}
	}
	if left == 0 {
		t.Error("no measurement says that it was left out")
	}
}

// TestRunOdd: a host that answers nonsense has answered, so that all its tests are tried, and its report does not call
// it silent.
func TestRunOdd(t *testing.T) {
	f, r := newFakeFleet(t, 4, 1)
	f.odd, r.AtOnce = "host1", 1
	rep, err := r.Do(t.Context())
	if err != nil || rep.OK {
		t.Fatalf("%v, %+v", err, rep)
	}
	if want := 4 * 3 * 2 * 2; len(f.probes) != want { // pairs in both directions, RC and UD, latency and bandwidth
		t.Errorf("%d probes, want %d", len(f.probes), want)
	}
	for _, m := range rep.Measurements {
		if odd := m.From == f.odd; odd != (len(m.Errors) > 0) || odd && !strings.Contains(m.Errors[0], "more lost messages than messages") {
			t.Errorf("from %s to %s: %q", m.From, m.To, m.Errors)
		}
	}
}

// TestRunFlowLabels: every pair is tested with each flow label, in the tests of latency and of bandwidth;
// over iWARP, which has no flow labels, with 0 and the connection manager.
func TestRunFlowLabels(t *testing.T) {
	for _, iwarp := range []bool{false, true} {
		f, r := newFakeFleet(t, 3, 1)
		f.iwarp, r.FlowLabels = iwarp, []int{7, 1<<20 - 1}
		rep, err := r.Do(t.Context())
		if err != nil || !rep.OK {
			t.Fatalf("%v, %+v", err, rep)
		}
		got, want := map[string]int{}, map[string]int{}
		for _, p := range f.probes {
			if err := p.Config.Validate(); err != nil || p.Device != "rail0" || p.PeerDevice != "rail0" {
				t.Errorf("%s of %s from %s to %s (%s): %v", p.Config.Name(), p.Device, p.from, p.Host, p.PeerDevice, err)
			}
			got[fmt.Sprint(p.from, p.Host, " ", p.Config.Name(), " ", p.Config.Type, " ", p.Config.CM, " ", p.Config.FlowLabel)]++
		}
		for _, m := range rep.Measurements {
			label := m.FlowLabel
			if iwarp {
				label = 0
			}
			for _, name := range []string{"send-lat", "send-bw"} {
				want[fmt.Sprint(m.From, m.To, " ", name, " ", m.Type, " ", iwarp, " ", label)]++
			}
		}
		if types := map[bool]int{false: 2, true: 1}[iwarp]; len(rep.Measurements) != 3*2*2*types {
			t.Errorf("iWARP %v: %d measurements", iwarp, len(rep.Measurements))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("iWARP %v: the probes are %v, want %v", iwarp, got, want)
		}
	}
}
