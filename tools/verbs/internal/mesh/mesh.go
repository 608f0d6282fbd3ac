// Package mesh tests all pairs of a fleet of hosts, on each of which "verbs mesh serve" runs or is
// started by a program such as ssh, and says which host, port, rail or link is worse than the others.
//
// A rail is a device that hosts have under the same name. The tests of a pair run one after the other:
// on each rail, over each type of queue pair and with each flow label, first in one direction and then
// in the other. Pairs without a common host run at the same time, in the rounds of a tournament.
// Pairs with bad values are then measured again while nothing else runs, and the better values
// count.
package mesh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
)

// DefaultPort is the TCP port of "verbs mesh serve".
const DefaultPort = perf.DefaultPort + 1

// Limits of what a run may be asked for.
const (
	MaxHosts      = 1024
	MaxFlowLabels = 64
)

// Host is a host of the fleet.
type Host struct {
	Name string // Name is what the report calls it.
	Addr string // Addr is its name or address.
	Port int
}

// ParseHost reads a host: a name or an address, with a TCP port behind a colon if it is not
// DefaultPort.
func ParseHost(text string) (Host, error) {
	h := Host{Name: text, Addr: text, Port: DefaultPort}
	if addr, port, err := net.SplitHostPort(text); err == nil {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return h, fmt.Errorf("the port of %s is %s, allowed: 1 to 65535", peertext.Quote(text), peertext.Quote(port))
		}
		h.Addr, h.Port = addr, int(n)
	} else {
		h.Addr = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
	}
	if h.Addr == "" || len(h.Addr) > 253 || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return h, fmt.Errorf("a host is %s, allowed: a name or an IP address, and :PORT", peertext.Quote(text))
	}
	return h, nil
}

// Run is a run of all tests.
type Run struct {
	Hosts      []Host
	Secret     []byte
	Via        *Via     // starts the servers on the hosts; nil is servers that listen, with the secret
	Rails      []string // names of devices; nil is all
	Types      []string // of queue pairs
	FlowLabels []int
	Thresholds Thresholds
	AtOnce     int // pairs that are tested at once; 0 is as many as do not disturb each other
	Repeat     int // how often to repeat what looks wrong

	Iterations int           // messages of a latency test
	Messages   int           // messages of a bandwidth test
	Size       int           // of messages of a bandwidth test over RC, in bytes
	Events     bool          // sleep instead of polling
	Timeout    time.Duration // a test in which nothing happens for so long has failed

	Progress func(done, total int) // Progress is called after pairs are done; it may be nil.

	rails  []map[string]perf.Rail // of each host, by name
	reach  func(Host) server      // tests replace the servers; nil is a perf.Remote
	silent []atomic.Bool          // hosts that did not answer a request for a test
}

// server is what a run asks a host for.
type server interface {
	Rails(ctx context.Context) ([]perf.Rail, error)
	Probe(ctx context.Context, p perf.Probe) (*perf.Size, error)
}

// server returns the server of a host.
func (r *Run) server(h Host) server {
	if r.reach != nil {
		return r.reach(h)
	}
	return &perf.Remote{Host: h.Addr, Port: h.Port, Secret: r.Secret}
}

// Do runs the tests. It fails only if the context ends. With the error it returns a report of the
// measurements that are finished, or nil if there is none.
func (r *Run) Do(ctx context.Context) (*Report, error) {
	rep := &Report{
		Schema: Schema, Time: time.Now().UTC().Truncate(time.Second), Thresholds: r.Thresholds, Findings: []Finding{}, Measurements: []Measurement{},
		Options: Options{r.Types, r.FlowLabels, r.Iterations, r.Messages, r.Size, r.Events},
	}
	if r.Via != nil {
		links := r.Via.links(r.Hosts)
		defer stopAll(links)
		r.reach = func(h Host) server { return links[h.Name] }
	}
	missing := r.meet(ctx, rep)
	pairs := r.plan(rep)
	r.silent = make([]atomic.Bool, len(r.Hosts))
	done := 0
	for _, round := range pairs {
		for some := range slices.Chunk(round, max(cmp.Or(r.AtOnce, len(round)), 1)) {
			var all sync.WaitGroup
			for _, jobs := range some {
				all.Go(func() {
					for _, i := range jobs {
						r.measure(ctx, &rep.Measurements[i])
					}
				})
			}
			all.Wait()
			if done += len(some); r.Progress != nil {
				r.Progress(done, len(rep.Hosts)*(len(rep.Hosts)-1)/2)
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	rep.keepFinished()
	if ctx.Err() != nil && len(rep.Measurements) == 0 {
		return nil, context.Cause(ctx)
	}
	rep.judge()
	for range r.Repeat {
		clear(r.silent) // each has another chance
		for i := range rep.Measurements {
			if m := &rep.Measurements[i]; len(m.Problems) > 0 {
				again := *m
				if r.measure(ctx, &again); again.finished {
					m.better(&again)
				}
			}
		}
		rep.judge()
	}
	rep.Findings = append(missing, rep.findings()...)
	rep.Interrupted = ctx.Err() != nil
	rep.OK = len(rep.Findings) == 0 && !rep.Interrupted
	return rep, context.Cause(ctx)
}

// keepFinished removes the measurements that the end of the context has left unfinished.
func (rep *Report) keepFinished() {
	rep.Measurements = slices.DeleteFunc(rep.Measurements, func(m Measurement) bool { return !m.finished })
}

// meet asks all hosts for their devices, and finds those that take no part.
func (r *Run) meet(ctx context.Context, rep *Report) (missing []Finding) {
	r.rails = make([]map[string]perf.Rail, len(r.Hosts))
	rep.Hosts = make([]HostReport, len(r.Hosts))
	var all sync.WaitGroup
	for i, h := range r.Hosts {
		all.Go(func() {
			rep.Hosts[i] = HostReport{Name: h.Name, Rails: []RailReport{}}
			rails, err := r.server(h).Rails(ctx)
			if err != nil {
				rep.Hosts[i].Error = err.Error()
				return
			}
			r.rails[i] = map[string]perf.Rail{}
			for _, rail := range rails {
				if r.Rails != nil && !slices.Contains(r.Rails, rail.Device) {
					continue
				}
				rep.Hosts[i].Rails = append(rep.Hosts[i].Rails, RailReport{Name: rail.Device, Driver: rail.Driver, Error: rail.Error})
				r.rails[i][rail.Device] = rail
			}
			if len(r.rails[i]) == 0 {
				rep.Hosts[i].Error = "it has no RDMA device" + map[bool]string{true: " of the given names"}[r.Rails != nil]
			}
		})
	}
	all.Wait()
	for i := range rep.Hosts {
		for j := range i {
			if r.same(i, j) && rep.Hosts[i].Error == "" {
				rep.Hosts[i].Error = "it is " + rep.Hosts[j].Name + " under another name: the same GIDs"
			}
		}
	}
	names := r.railNames(rep)
	for i := range rep.Hosts {
		h := &rep.Hosts[i]
		if h.Error != "" {
			missing = append(missing, Finding{Cause: CauseHost, Hosts: []string{h.Name}, Problems: []string{"unreachable"}, Evidence: []string{h.Error}})
			continue
		}
		for _, name := range names {
			rail, ok := r.rails[i][name]
			why := ""
			if rail.Error != "" {
				why = peertext.Quote(rail.Error)
			}
			if !ok {
				why = "the host has no device of this name"
			}
			if why != "" {
				missing = append(missing, Finding{Cause: CausePort, Hosts: []string{h.Name}, Rail: name, Problems: []string{"missing"}, Evidence: []string{why}})
			}
		}
	}
	return missing
}

// same reports whether two hosts are one: a device of the same name has the same GID.
func (r *Run) same(a, b int) bool {
	for name, rail := range r.rails[a] {
		if other, ok := r.rails[b][name]; ok && !rail.GID.IsZero() && rail.GID == other.GID {
			return true
		}
	}
	return false
}

// railNames returns the names of all rails.
func (r *Run) railNames(rep *Report) (names []string) {
	for i := range rep.Hosts {
		for name := range r.rails[i] {
			if rep.Hosts[i].Error == "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// plan makes all measurements, and returns the indices of each pair of each round.
func (r *Run) plan(rep *Report) (all [][][]int) {
	names := r.railNames(rep)
	for n, pairs := range rounds(len(rep.Hosts)) {
		var round [][]int
		for _, p := range pairs {
			var jobs []int
			for _, name := range names {
				for _, typ := range r.Types {
					if !r.can(rep, p, name, typ) {
						continue
					}
					for _, label := range r.FlowLabels {
						for _, way := range [][2]int{p, {p[1], p[0]}} {
							jobs = append(jobs, len(rep.Measurements))
							rep.Measurements = append(rep.Measurements, Measurement{
								From: rep.Hosts[way[0]].Name, To: rep.Hosts[way[1]].Name, Rail: name, Type: typ, FlowLabel: label, Round: n + 1,
								from: way[0], to: way[1],
							})
						}
					}
				}
			}
			round = append(round, jobs)
		}
		all = append(all, round)
	}
	return all
}

// can reports whether two hosts can be tested on a rail.
func (r *Run) can(rep *Report, pair [2]int, rail, typ string) bool {
	for _, i := range pair {
		d, ok := r.rails[i][rail]
		if !ok || d.Error != "" || rep.Hosts[i].Error != "" || d.IWARP && typ == perf.UD {
			return false
		}
	}
	return true
}

// configs returns the tests of a measurement: of latency and of bandwidth.
func (r *Run) configs(m *Measurement) (lat, bw perf.Config) {
	mine, theirs := r.rails[m.from][m.Rail], r.rails[m.to][m.Rail]
	lat, bw = perf.Default(perf.Send, perf.Lat), perf.Default(perf.Send, perf.BW)
	bw.Sizes = []int{r.Size}
	if m.Type == perf.UD { // a datagram is one packet; few at once, so that the receiver keeps up
		const burst = 16
		bw.Sizes = []int{min(r.Size, mine.MTU, theirs.MTU)}
		bw.Depth, bw.List = burst, burst
	}
	lat.Iterations, bw.Iterations = r.Iterations, r.Messages
	for _, c := range []*perf.Config{&lat, &bw} {
		c.Type, c.Events, c.Timeout, c.FlowLabel = m.Type, r.Events, r.Timeout, m.FlowLabel
		if mine.IWARP {
			c.CM, c.FlowLabel = true, 0
		}
	}
	return lat, bw
}

// measure runs the tests of a measurement, but none with a host that has not answered before: each could take
// minutes again.
func (r *Run) measure(ctx context.Context, m *Measurement) {
	m.Latency, m.Bandwidth, m.Loss, m.Errors, m.finished = nil, nil, 0, nil, false
	if ctx.Err() != nil {
		return
	}
	from, to := r.Hosts[m.from], r.Hosts[m.to]
	remote := r.server(from)
	lat, bw := r.configs(m)
	probe := func(c perf.Config) *perf.Size {
		for _, i := range []int{m.from, m.to} {
			if r.silent[i].Load() {
				m.Errors = append(m.Errors, c.Name()+": not tested, since "+r.Hosts[i].Name+" did not answer another request for a test")
				return nil
			}
		}
		s, err := remote.Probe(ctx, perf.Probe{
			Host: to.Addr, Port: to.Port, Device: m.Rail, PeerDevice: m.Rail, PeerGID: r.rails[m.to][m.Rail].GID, Config: c,
		})
		if err == nil && s.Lost > s.Iterations+int64(c.Warmup) {
			err = errors.New("the result has more lost messages than messages")
		}
		if err != nil {
			if _, ok := errors.AsType[*perf.NoAnswerError](err); ok {
				r.silent[m.from].Store(true)
			}
			m.Errors = append(m.Errors, c.Name()+": "+err.Error())
			return nil
		}
		return s
	}
	if s := probe(lat); s != nil {
		m.Latency = &Latency{s.Latency.Min, s.Latency.Median, s.Latency.P99, s.Latency.P999, s.Latency.Max}
	}
	if s := probe(bw); s != nil {
		m.Bandwidth = &s.Bandwidth.GbitPerSecond
		const percent = 100
		m.Loss = percent * float64(s.Lost) / float64(max(s.Iterations+int64(bw.Warmup), 1))
	}
	m.finished = ctx.Err() == nil
}

// better takes the better values of a repeated measurement.
func (m *Measurement) better(o *Measurement) {
	m.Repeated++
	if m.Latency == nil || o.Latency != nil && o.Latency.Median < m.Latency.Median {
		m.Latency = o.Latency
	}
	if m.Bandwidth == nil {
		m.Bandwidth, m.Loss = o.Bandwidth, o.Loss
	} else if o.Bandwidth != nil {
		best := max(*m.Bandwidth, *o.Bandwidth)
		m.Bandwidth, m.Loss = &best, min(m.Loss, o.Loss)
	}
	if m.Latency != nil && m.Bandwidth != nil {
		m.Errors = nil
	} else if o.Errors != nil {
		m.Errors = o.Errors
	}
}
