package fabric

import (
	"context"
	"fmt"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// The LIDs of multicast groups.
const (
	firstMLID = 0xc000
	lastMLID  = 0xfffe
)

// TraceMulticast follows the multicast forwarding tables of the switches from one port to another, by which packets
// to the group with a multicast LID go. It fails with a [RouteError] that matches [ErrNoRoute] if none
// come to the target. A node that does not answer ends one branch: its error is returned only if no other branch comes to the
// target. MaxNodes limits the number of nodes that get requests. The rest is as for [Trace].
func TraceMulticast(ctx context.Context, p *umad.Port, from, to, mlid uint16, o Options) (*Route, error) {
	if mlid < firstMLID || mlid > lastMLID {
		return nil, fmt.Errorf("fabric: the multicast LID is %#x, allowed: %#x to %#x: %w", mlid, firstMLID, lastMLID, syscall.EINVAL)
	}
	if err := checkEnds(from, to); err != nil {
		return nil, err
	}
	t, err := newTracer(ctx, p, o)
	if err != nil {
		return nil, err
	}
	defer t.agent.Close()
	path, err := t.source(from)
	if err != nil {
		return nil, err
	}
	first, err := t.stop(path)
	if err != nil {
		return nil, err
	}
	return t.spread(first, to, mlid)
}

// A branch is a node to which packets of a group come.
type branch struct {
	hop  Hop
	from *branch // nil at the source
}

// route returns the way to a branch.
func (b *branch) route() *Route {
	var hops []Hop
	for ; b.from != nil; b = b.from {
		hops = append(hops, b.hop)
	}
	slices.Reverse(hops)
	return &Route{From: b.hop.Stop, Hops: hops}
}

// spread follows the packets of a group until they come to a LID.
func (t *tracer) spread(first *Stop, to, mlid uint16) (*Route, error) {
	queue := []*branch{{hop: Hop{Stop: *first}}}
	seen := map[ib.GUID]bool{first.Info.NodeGUID: true}
	nodes := 1
	var failed *branch // the first that ended with an error
	var failure error
	fail := func(b *branch, err error) {
		if failed == nil || ends(t.ctx, err) {
			failed, failure = b, err
		}
	}
	for len(queue) > 0 && !ends(t.ctx, failure) {
		b := queue[0]
		queue = queue[1:]
		at := &b.hop.Stop
		if at.has(to) {
			return b.route(), nil
		}
		ports, err := t.exits(b, to, mlid)
		if err != nil {
			fail(b, err)
		}
		for _, out := range ports {
			next, err := t.linked(at, out, to)
			switch {
			case err != nil:
				fail(b, err)
				continue
			case next == nil, next.isSwitch() && seen[next.Info.NodeGUID]:
				continue
			}
			if nodes++; nodes > t.o.MaxNodes {
				return b.route(), fmt.Errorf("fabric: MaxNodes is %d, and packets to %#x come to more nodes", t.o.MaxNodes, mlid)
			}
			seen[next.Info.NodeGUID], next.entered = true, true
			queue = append(queue, &branch{Hop{out, *next}, b})
		}
	}
	if failed != nil {
		return failed.route(), failure
	}
	return &Route{From: *first}, &RouteError{to, *first, NoPort, fmt.Errorf("packets to %#x do not come to it: %w", mlid, ErrNoRoute)}
}

// exits returns the ports by which packets of a group leave a node.
func (t *tracer) exits(b *branch, to, mlid uint16) ([]uint8, error) {
	at := &b.hop.Stop
	switch {
	case at.isSwitch():
		ports, err := t.groupPorts(at, to, mlid)
		if i := slices.Index(ports, at.Info.LocalPortNum); i >= 0 && b.from != nil {
			ports = slices.Delete(ports, i, i+1)
		}
		return ports, err
	case b.from != nil: // a member that is not the target
		return nil, nil
	}
	return []uint8{at.Info.LocalPortNum}, nil
}

// linked returns the node behind a port, nil if the port of a switch has no link.
func (t *tracer) linked(at *Stop, out uint8, to uint16) (*Stop, error) {
	if at.isSwitch() {
		var port mad.PortInfo
		if err := t.get(at.path, uint32(out), &port); err != nil || port.PortPhysicalState != ib.PhysLinkUp {
			return nil, err
		}
	}
	return t.neighbor(at, out, to)
}

// groupPorts returns the ports by which a switch forwards packets of a group, without port 0.
func (t *tracer) groupPorts(at *Stop, to, mlid uint16) (ports []uint8, err error) {
	var info mad.SwitchInfo
	if err := t.get(at.path, 0, &info); err != nil {
		return nil, err
	}
	entry := mlid - firstMLID
	if entry >= info.MulticastFDBCap {
		return nil, &RouteError{to, *at, NoPort, fmt.Errorf("the multicast forwarding table has %d entries: %w", info.MulticastFDBCap, ErrNoRoute)}
	}
	const perMask = 16
	for position := range int(at.Info.NumPorts)/perMask + 1 {
		var block mad.MulticastForwardingTable
		if err := t.get(at.path, uint32(entry/32)|uint32(position)<<28, &block); err != nil {
			return nil, err
		}
		for bit := range perMask {
			port := position*perMask + bit
			if block.PortMask[entry%32]&(1<<bit) != 0 && port != 0 && port <= int(at.Info.NumPorts) {
				ports = append(ports, uint8(port))
			}
		}
	}
	return ports, nil
}
