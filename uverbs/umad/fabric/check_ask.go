package fabric

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// ends reports whether an error ends a walk or a check: no other request could succeed.
func ends(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || errors.Is(err, os.ErrClosed) || errors.Is(err, umad.ErrDeviceRemoved))
}

// answered turns the error of a request into a finding, unless it ends the check.
func (c *checker) answered(ctx context.Context, p *Port, err error) error {
	switch {
	case err == nil:
		return nil
	case ends(ctx, err):
		return err
	}
	c.add(Finding{Kind: KindAnswer, Port: p, Text: err.Error(), Err: err})
	return nil
}

// counters reads the counters of all ports with a link, and reports those that are too large or rise.
func (c *checker) counters(ctx context.Context, p *umad.Port) error {
	agent, err := p.Register(umad.AgentOptions{Class: mad.ClassPerf, Window: c.o.Parallel, Timeout: c.o.Timeout, Tries: c.o.Tries})
	if err != nil {
		return err
	}
	defer agent.Close()
	var ports []*Port
	for _, n := range c.f.Nodes {
		for _, p := range n.Ports {
			if p.Number != 0 && p.Active() && p.LID() != 0 {
				ports = append(ports, p)
			}
		}
	}
	first, err := c.readCounters(ctx, agent, ports)
	if err != nil {
		return err
	}
	answered := 0 // the others have a finding already
	for i := range ports {
		if first[i] != nil {
			ports[answered], first[answered] = ports[i], first[i]
			answered++
		}
	}
	ports, first = ports[:answered], first[:answered]
	second := first
	if c.o.Interval > 0 {
		select {
		case <-time.After(c.o.Interval):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if second, err = c.readCounters(ctx, agent, ports); err != nil {
			return err
		}
	}
	for i, p := range ports {
		if second[i] == nil {
			continue
		}
		for _, counter := range counters {
			before, value, limit := counter.get(first[i]), counter.get(second[i]), c.o.Thresholds[counter.name]
			if limit == 0 {
				continue
			}
			found := Finding{Kind: KindCounter, Port: p, Counter: counter.name, Value: value}
			switch {
			case value > before:
				found.Value = value - before
				found.Text = fmt.Sprintf("%s rose by %d in %v to %d", counter.name, found.Value, c.o.Interval, value)
			case value >= limit:
				found.Text = fmt.Sprintf("%s is %d, the threshold is %d", counter.name, value, limit)
			default:
				continue
			}
			c.add(found)
		}
	}
	return nil
}

// readCounters reads the counters of ports. An element is nil if the port did not answer.
func (c *checker) readCounters(ctx context.Context, agent *umad.Agent, ports []*Port) ([]*mad.PortCounters, error) {
	all := make([]*mad.PortCounters, len(ports))
	return all, each(len(ports), c.o.Parallel, func(i int) error {
		req := mad.NewPerf(mad.MethodGet, mad.AttrPortCounters)
		if err := req.Put(&mad.PortCounters{PortSelect: ports[i].Number}); err != nil {
			return err
		}
		answer := new(mad.PortCounters)
		err := agent.Query(ctx, umad.Addr{LID: ports[i].LID()}, req, answer)
		if err == nil {
			all[i] = answer
		}
		return c.answered(ctx, ports[i], err)
	})
}

// A table is the forwarding table of a switch.
type table struct {
	node  *Node
	port  []uint8     // by LID
	lost  atomic.Bool // a part was not read
	hosts int         // how many ports of adapters have an active link to the switch
}

// routes reads the forwarding tables, and reports ports that others cannot reach.
func (c *checker) routes(ctx context.Context, p *umad.Port) error {
	t, err := newTracer(ctx, p, c.o.Options)
	if err != nil {
		return err
	}
	defer t.agent.Close()
	var tables []*table
	index := map[*Node]int{}
	type request struct {
		table *table
		block int
	}
	var requests []request
	for _, n := range c.f.Nodes {
		if !n.IsSwitch() || n.Switch == nil || n.Port(0) == nil {
			continue
		}
		one := &table{node: n, port: slices.Repeat([]uint8{NoPort}, int(n.Switch.LinearFDBTop)+1)}
		for _, p := range n.Ports {
			if p.hasHost() {
				one.hosts++
			}
		}
		index[n] = len(tables)
		tables = append(tables, one)
		for block := 0; block*64 < len(one.port) && block*64 < firstMLID; block++ {
			requests = append(requests, request{one, block})
		}
	}
	err = each(len(requests), c.o.Parallel, func(i int) error {
		r := requests[i]
		if r.table.lost.Load() {
			return nil
		}
		var block mad.LinearForwardingTable
		err := t.get(r.table.node.Path, uint32(r.block), &block)
		if err == nil {
			copy(r.table.port[r.block*64:], block.Port[:])
			return nil
		}
		if r.table.lost.Swap(true) && !ends(ctx, err) { // a finding for each switch is enough
			return nil
		}
		return c.answered(ctx, r.table.node.Port(0), err)
	})
	if err != nil {
		return err
	}
	for p := range c.f.endPorts() {
		if p.LID() == 0 || !p.Active() && !p.Node.IsSwitch() {
			continue
		}
		for lid := int(p.LID()); lid < int(p.LID())+1<<p.LMC() && lid < firstMLID; lid++ {
			c.reach(p, uint16(lid), tables, index)
		}
	}
	return nil
}

// hasHost reports whether an adapter is linked to the port of a switch, and packets pass.
func (p *Port) hasHost() bool { return p.Active() && p.Remote != nil && !p.Remote.Node.IsSwitch() }

// An end is where a route ends that does not come to its target.
type end struct {
	at     *Node
	port   uint8
	reason error
}

// Marks of a switch while the routes to a LID are followed; others are 1 more than the index of an end.
const (
	unknown = 0
	onRoute = -1
	good    = -2
	blind   = -3 // the table was not read
)

// reach reports how many ports cannot reach a port by a LID, by the places where their routes end.
func (c *checker) reach(to *Port, lid uint16, tables []*table, index map[*Node]int) {
	marks := make([]int, len(tables))
	var ends []end
	count := map[int]int{}
	for i := range tables {
		var route []int
		at, result := i, unknown
		for result == unknown {
			if marks[at] == onRoute {
				ends = append(ends, end{tables[at].node, tables[at].port[lid], ErrLoop})
				result = len(ends)
				break
			}
			if result = marks[at]; result != unknown {
				break
			}
			marks[at] = onRoute
			route = append(route, at)
			var next *Node
			if next, result, ends = forward(to, lid, tables[at], ends); next != nil {
				at = index[next]
			}
		}
		for _, r := range route {
			marks[r] = result
		}
		if result > 0 {
			count[result-1] += tables[i].hosts
			if to.Remote != nil && to.Remote.Node == tables[i].node && to.Remote.hasHost() { // it does not count itself
				count[result-1]--
			}
		}
	}
	for i, e := range ends {
		if count[i] == 0 { // no packets of adapters come there
			continue
		}
		text := fmt.Sprintf("%d ports of adapters cannot reach LID %d: at %v, port %d: %v", count[i], lid, e.at, e.port, e.reason)
		c.add(Finding{Kind: KindRoute, Port: to, Text: text, Err: e.reason, Count: count[i]})
	}
}

// forward follows the route to a LID through one switch. It returns the next switch, or the mark of how the
// route ends.
func forward(to *Port, lid uint16, t *table, ends []end) (next *Node, mark int, _ []end) {
	fail := func(port uint8, reason error) (*Node, int, []end) {
		ends = append(ends, end{t.node, port, reason})
		return nil, len(ends), ends
	}
	if to.Node == t.node {
		return nil, good, ends
	}
	if t.lost.Load() {
		return nil, blind, ends
	}
	if int(lid) >= len(t.port) || t.port[lid] == NoPort {
		return fail(NoPort, ErrNoRoute)
	}
	out := t.port[lid]
	p := t.node.Port(out)
	switch {
	case out == 0 || p == nil:
		return fail(out, ErrBadPort)
	case p.Remote == nil || !p.Active():
		return fail(out, ErrPortDown)
	case p.Remote == to:
		return nil, good, ends
	case !p.Remote.Node.IsSwitch():
		return fail(out, ErrWrongEnd)
	case p.Remote.Node.Switch == nil || p.Remote.Node.Port(0) == nil:
		return nil, blind, ends
	}
	return p.Remote.Node, unknown, ends
}
