package fabric

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// Kind is what a [Finding] is about.
type Kind string

// Kinds of findings.
const (
	KindWalk    Kind = "walk"    // a [Problem] of the walk
	KindState   Kind = "state"   // a link that is not active
	KindWidth   Kind = "width"   // a link with fewer lanes than both ends support
	KindSpeed   Kind = "speed"   // a link that is slower than both ends support
	KindCounter Kind = "counter" // a counter of errors that reaches its threshold, or rises
	KindGUID    Kind = "guid"    // a port GUID that several nodes have
	KindLID     Kind = "lid"     // a LID that several ports have, or an active port without one
	KindRoute   Kind = "route"   // a port that others cannot reach
	KindAnswer  Kind = "answer"  // an agent that does not answer
)

// Finding is something that is wrong in a subnet.
type Finding struct {
	Kind  Kind   // Kind says what it is about.
	Port  *Port  // Port is where; nil for a node that the walk did not come to know.
	Text  string // Text says what is wrong.
	Err   error  // Err is the reason, if it is an error: of KindRoute it is one of [ErrNoRoute] and its like.
	Count int    // Count is the number of active ports of other adapters that cannot reach Port, for KindRoute.

	Counter string // Counter is the name of the counter, for KindCounter.
	Value   uint64 // Value is its value, or by how much it rose.
}

// CheckOptions are the options of a check.
type CheckOptions struct {
	Options // Options are the options of the requests; MaxHops, MaxNodes and Progress have no effect.

	// Thresholds are the values from which a counter of errors is a finding, by the names of the fields of
	// [mad.PortCounters]. Counters that it does not have keep the values of [Thresholds]; with 0 a counter is ignored.
	Thresholds map[string]uint64

	// Interval is the time between two readings of the counters; a counter that rises is a finding then, whatever its
	// threshold. With 0 they are read once.
	Interval time.Duration

	NoCounters bool // NoCounters leaves out the counters, which need LIDs.
	NoRoutes   bool // NoRoutes leaves out the forwarding tables.
}

// counters are the counters of errors and their thresholds, the same as those of ibqueryerrors.
var counters = [...]struct {
	name      string
	threshold uint64
	get       func(c *mad.PortCounters) uint64
}{
	{"SymbolErrorCounter", 10, func(c *mad.PortCounters) uint64 { return uint64(c.SymbolErrorCounter) }},
	{"LinkErrorRecoveryCounter", 10, func(c *mad.PortCounters) uint64 { return uint64(c.LinkErrorRecoveryCounter) }},
	{"LinkDownedCounter", 10, func(c *mad.PortCounters) uint64 { return uint64(c.LinkDownedCounter) }},
	{"PortRcvErrors", 10, func(c *mad.PortCounters) uint64 { return uint64(c.PortRcvErrors) }},
	{"PortRcvRemotePhysicalErrors", 100, func(c *mad.PortCounters) uint64 { return uint64(c.PortRcvRemotePhysicalErrors) }},
	{"PortRcvSwitchRelayErrors", 100, func(c *mad.PortCounters) uint64 { return uint64(c.PortRcvSwitchRelayErrors) }},
	{"PortXmitDiscards", 100, func(c *mad.PortCounters) uint64 { return uint64(c.PortXmitDiscards) }},
	{"PortXmitConstraintErrors", 100, func(c *mad.PortCounters) uint64 { return uint64(c.PortXmitConstraintErrors) }},
	{"PortRcvConstraintErrors", 100, func(c *mad.PortCounters) uint64 { return uint64(c.PortRcvConstraintErrors) }},
	{"LocalLinkIntegrityErrors", 10, func(c *mad.PortCounters) uint64 { return uint64(c.LocalLinkIntegrityErrors) }},
	{"ExcessiveBufferOverrunErrors", 10, func(c *mad.PortCounters) uint64 { return uint64(c.ExcessiveBufferOverrunErrors) }},
	{"VL15Dropped", 100, func(c *mad.PortCounters) uint64 { return uint64(c.VL15Dropped) }},
}

// Thresholds returns the thresholds of a check by the names of the counters.
func Thresholds() map[string]uint64 {
	all := map[string]uint64{}
	for _, c := range counters {
		all[c.name] = c.threshold
	}
	return all
}

// checker collects findings.
type checker struct {
	f *Fabric
	o CheckOptions

	mu  sync.Mutex
	all []Finding // guarded by mu
}

// add adds a finding.
func (c *checker) add(found Finding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, found)
}

// Check looks for what is wrong in a subnet that a walk has found: links that are not active, or that are slower or
// narrower than both ends support, counters of errors, LIDs and GUIDs that are not unique, and ports that
// others cannot reach by the forwarding tables. Ports without a link are fine unless they are disabled. It fails if
// the options are wrong, ctx ends, or the port cannot send; an agent that does not answer is a finding.
func Check(ctx context.Context, p *umad.Port, f *Fabric, o CheckOptions) ([]Finding, error) {
	var err error
	if o.Options, err = o.withDefaults(); err != nil {
		return nil, err
	}
	if o.Interval < 0 {
		return nil, fmt.Errorf("fabric: Interval is %v, allowed: 0 or more: %w", o.Interval, syscall.EINVAL)
	}
	thresholds := Thresholds()
	for name, value := range o.Thresholds {
		if _, ok := thresholds[name]; !ok {
			return nil, fmt.Errorf("fabric: the counter is %q, allowed: %v: %w", name, slices.Sorted(maps.Keys(thresholds)), syscall.EINVAL)
		}
		thresholds[name] = value
	}
	o.Thresholds = thresholds
	c := &checker{f: f, o: o}
	for i := range f.Problems {
		found := Finding{Kind: KindWalk, Text: f.Problems[i].String(), Err: f.Problems[i].Err}
		if n := f.Problems[i].Node; n != nil && len(n.Ports) > 0 {
			found.Port = n.Ports[0]
		}
		c.add(found)
	}
	for _, n := range f.Nodes {
		for _, p := range n.Ports {
			c.link(p)
		}
	}
	c.unique()
	if !o.NoCounters {
		if err := c.counters(ctx, p); err != nil {
			return nil, err
		}
	}
	if !o.NoRoutes {
		if err := c.routes(ctx, p); err != nil {
			return nil, err
		}
	}
	return c.all, nil
}

// link checks the state and the rate of a port.
func (c *checker) link(p *Port) {
	if p.Number == 0 || p.Info == nil {
		return
	}
	switch i := p.Info; {
	case i.PortPhysicalState == ib.PhysDisabled, i.PortPhysicalState == ib.PhysTraining, i.PortPhysicalState == ib.PhysErrorRecovery:
		c.add(Finding{Kind: KindState, Port: p, Text: fmt.Sprintf("physical state %v", i.PortPhysicalState)})
	case p.Up() && !p.Active():
		c.add(Finding{Kind: KindState, Port: p, Text: fmt.Sprintf("state %v on a link that is up", i.PortState)})
	case p.Active() && p.LID() == 0:
		c.add(Finding{Kind: KindLID, Port: p, Text: "active without a LID"})
	}
	if r := p.Remote; r == nil || c.second(p) {
		return
	}
	lanes, speed := p.Could()
	if lanes != 0 {
		c.add(Finding{Kind: KindWidth, Port: p, Text: fmt.Sprintf("%dX to %v, both ends support %dX", p.Lanes(), p.Remote, lanes)})
	}
	if speed != 0 {
		c.add(Finding{Kind: KindSpeed, Port: p, Text: fmt.Sprintf("%v to %v, both ends support %v", p.Speed(), p.Remote, speed)})
	}
}

// second reports whether the link of a port is reported at its other end, which has the smaller GUID.
func (c *checker) second(p *Port) bool {
	a, b := p.Node.GUID(), p.Remote.Node.GUID()
	return a > b || a == b && p.Number > p.Remote.Number
}

// unique looks for LIDs and port GUIDs that several ports have.
func (c *checker) unique() {
	lids, guids := map[uint16]*Port{}, map[ib.GUID]*Port{}
	for p := range c.f.endPorts() {
		if first := guids[p.GUID]; first == nil {
			guids[p.GUID] = p
		} else if first.Node != p.Node {
			c.add(Finding{Kind: KindGUID, Port: p, Text: fmt.Sprintf("port GUID %#016x, which %v has, too", uint64(p.GUID), first)})
		}
		if p.LID() == 0 {
			continue
		}
		for lid := int(p.LID()); lid < int(p.LID())+1<<p.LMC() && lid < firstMLID; lid++ {
			if first := lids[uint16(lid)]; first == nil {
				lids[uint16(lid)] = p
			} else if first != p {
				c.add(Finding{Kind: KindLID, Port: p, Text: fmt.Sprintf("LID %d, which %v has, too", lid, first)})
				break
			}
		}
	}
}

// each calls a function for the numbers below n, several at once. It ends early with the first error.
func each(n, parallel int, do func(i int) error) error {
	var next atomic.Int64
	var once sync.Once
	var err error
	var workers sync.WaitGroup
	for range min(parallel, n) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				if e := do(int(i)); e != nil {
					once.Do(func() { err = e })
					next.Store(int64(n))
				}
			}
		})
	}
	workers.Wait()
	return err
}
