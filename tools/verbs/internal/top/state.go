package top

import (
	"cmp"
	"fmt"
	"sort"
	"time"

	"github.com/goverbs/goverbs/tools/internal/counter"
)

// State is what readings say together. It is made of nothing but [State.Add].
type State struct {
	Last    *Reading
	Ports   []*PortState // in the order of the reading
	Changes []*Change    // the latest first
	Objects *Objects     // the latest; nil if they were never read
	Since   time.Time    // Since is the time of the first reading.
	Seconds float64      // Seconds is the time between the last two readings.
	Count   int          // Count is the number of readings.

	ports map[string]*PortState
	known map[changeKey]*Change // the same as Changes
	qps   []QPDetail            // readings of the QP that is followed, the latest last, at most two
}

// key identifies a port; a device that comes under the name of another one has another index.
func (p *Port) key() string { return fmt.Sprint(p.Device, " ", p.Index, p.Port) }

// historyLength is the number of readings of which rates are kept.
const historyLength = 240

// PortState is a port and what changed. A rate is nil if the port does not count it, or after the first reading.
type PortState struct {
	Port
	RxBytes   *float64 `json:"rx_bytes_per_s,omitempty"`
	TxBytes   *float64 `json:"tx_bytes_per_s,omitempty"`
	RxPackets *float64 `json:"rx_packets_per_s,omitempty"`
	TxPackets *float64 `json:"tx_packets_per_s,omitempty"`

	growth  []uint64 // by how much each counter grew
	seconds float64  // in which they grew
	errors  uint64   // the sum by which counters of errors grew since the first reading
	history [historyLength][counter.Kinds]float32
	values  map[string]uint64
}

// rates returns the rates by their kind.
func (p *PortState) rates() [counter.Kinds]**float64 {
	return [...]**float64{&p.RxBytes, &p.TxBytes, &p.RxPackets, &p.TxPackets}
}

// name returns the port's name.
func (p *Port) name() string { return fmt.Sprintf("%s/%d", p.Device, p.Port) }

// Kind is a kind of change.
type Kind string

// The kinds.
const (
	KindError      Kind = "error"
	KindCongestion Kind = "congestion"
	KindLink       Kind = "link" // the state or the rate of a port, or a device that came or went
)

// Change is a counter of errors or congestion that has grown, or what of a link has changed.
type Change struct {
	Device string    `json:"device"`
	Port   uint32    `json:"port"`
	Kind   Kind      `json:"kind"`
	Name   string    `json:"name"`           // of a counter, or "state", "rate" or "device"
	Text   string    `json:"text,omitempty"` // how the link has changed the last time
	Growth uint64    `json:"growth"`         // with the last reading
	Total  uint64    `json:"total"`          // since the first reading
	Last   time.Time `json:"last"`
}

// maxChanges limits the changes that are kept.
const maxChanges = 4096

// changeKey identifies a change.
type changeKey struct {
	device string
	port   uint32
	name   string
}

// Add adds a reading, which is later than the last one.
func (s *State) Add(r *Reading) {
	before := s.Last
	if s.Last = r; before == nil {
		s.Since, s.ports = r.Time, map[string]*PortState{}
	} else {
		s.Seconds = float64(r.Elapsed-before.Elapsed) / 1e6
	}
	s.Count++
	s.known = map[changeKey]*Change{}
	for _, c := range s.Changes {
		c.Growth = 0
		s.known[changeKey{c.Device, c.Port, c.Name}] = c
	}
	ports := map[string]*PortState{}
	s.Ports = s.Ports[:0]
	for i := range r.Ports {
		p := &r.Ports[i]
		old := s.ports[p.key()]
		if old == nil {
			if before != nil {
				s.change(p, KindLink, "device", "appeared", 1)
			}
			old = &PortState{}
		}
		s.next(old, p)
		ports[p.key()] = old
		s.Ports = append(s.Ports, old)
	}
	if before != nil {
		for i := range before.Ports {
			if p := &before.Ports[i]; ports[p.key()] == nil {
				s.change(p, KindLink, "device", "disappeared", 1)
			}
		}
	}
	s.ports = ports
	sort.SliceStable(s.Changes, func(i, j int) bool { return s.Changes[i].Last.After(s.Changes[j].Last) })
	s.Changes = s.Changes[:min(len(s.Changes), maxChanges)]
	if r.Objects != nil {
		s.Objects = r.Objects
	}
	if n := len(s.qps); r.QP != nil && n > 0 && s.qps[n-1].key() == r.QP.key() {
		s.qps = append(s.qps[n-1:n:n], *r.QP)
	}
}

// next brings a port up to date.
func (s *State) next(p *PortState, now *Port) {
	values := make(map[string]uint64, len(now.Counters))
	first := p.values == nil
	p.growth = make([]uint64, len(now.Counters))
	if !p.Stale {
		p.seconds = 0
	}
	p.seconds += s.Seconds
	copy(p.history[:], p.history[1:])
	if now.Stale && !first { // no rate is known, and the line of the traffic goes on
		for _, rate := range p.rates() {
			*rate = nil
		}
		p.Port = *now
		return
	}
	for i, c := range now.Counters {
		values[c.Name] = c.Value
		old, known := p.values[c.Name]
		if !known || c.Value <= old { // smaller: it was reset
			continue
		}
		p.growth[i] = c.Value - old
		switch {
		case counter.IsError(c.Name):
			p.errors += p.growth[i]
			s.change(now, KindError, c.Name, "", p.growth[i])
		case counter.IsCongestion(c.Name):
			s.change(now, KindCongestion, c.Name, "", p.growth[i])
		}
	}
	for kind, rate := range p.rates() {
		*rate = nil
		was, counted := counter.Traffic(kind).Of(p.values)
		is, counts := counter.Traffic(kind).Of(values)
		var v float64
		if counted && counts && is >= was {
			v = float64(is-was) / p.seconds
			*rate = &v
		}
		p.history[historyLength-1][kind] = float32(v)
	}
	if !first && p.State != now.State {
		s.change(now, KindLink, "state", cmp.Or(p.State, "?")+" -> "+cmp.Or(now.State, "?"), 1)
	}
	if !first && p.Rate != now.Rate && p.Rate > 0 && now.Rate > 0 {
		s.change(now, KindLink, "rate", fmt.Sprintf("%g -> %g Gb/s", p.Rate, now.Rate), 1)
	}
	p.Port, p.values = *now, values
}

// change notes a change of a port.
func (s *State) change(p *Port, kind Kind, name, text string, growth uint64) {
	key := changeKey{p.Device, p.Port, name}
	c := s.known[key]
	if c == nil {
		if len(s.Changes) >= 2*maxChanges { // Add would cut it off
			return
		}
		c = &Change{Device: p.Device, Port: p.Port, Kind: kind, Name: name}
		s.known[key], s.Changes = c, append(s.Changes, c)
	}
	c.Text, c.Growth, c.Last = text, c.Growth+growth, s.Last.Time
	c.Total += growth
}

// Forget forgets the changes so far.
func (s *State) Forget() {
	s.Changes = nil
	for _, p := range s.Ports {
		p.errors = 0
	}
	if s.Last != nil {
		s.Since = s.Last.Time
	}
}

// Report is what "verbs top --json" prints after each reading.
type Report struct {
	Time    time.Time    `json:"time"`
	Seconds float64      `json:"seconds"`
	Ports   []*PortState `json:"ports"`
	Changes []*Change    `json:"changes"`
	Owners  []Owner      `json:"owners"`
	Missing []string     `json:"missing,omitempty"`
}

// Report returns what is known after the last reading.
func (s *State) Report() *Report {
	r := &Report{s.Last.Time, s.Seconds, s.Ports, s.Changes, nil, s.Last.Missing}
	if s.Objects != nil {
		r.Owners = s.Objects.Owners
	}
	// An empty list is not null in JSON.
	r.Ports, r.Changes, r.Owners = append([]*PortState{}, r.Ports...), append([]*Change{}, r.Changes...), append([]Owner{}, r.Owners...)
	return r
}
