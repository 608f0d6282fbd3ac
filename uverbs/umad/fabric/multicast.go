package fabric

import (
	"context"
	"fmt"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma"
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
// come to the target. The rest is as for [Trace].
func TraceMulticast(ctx context.Context, p *umad.Port, from, to, mlid uint16, o Options) (*Route, error) {
	if mlid < firstMLID || mlid > lastMLID {
		return nil, fmt.Errorf("fabric: the multicast LID is %#x, allowed: %#x to %#x: %w", mlid, firstMLID, lastMLID, syscall.EINVAL)
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
	seen := map[mad.GUID]bool{first.Info.NodeGUID: true}
	for len(queue) > 0 {
		b := queue[0]
		queue = queue[1:]
		at := &b.hop.Stop
		ports := []uint8{at.Info.LocalPortNum}
		switch {
		case at.has(to):
			return b.route(), nil
		case at.isSwitch():
			var err error
			if ports, err = t.groupPorts(at, mlid); err != nil {
				return b.route(), err
			}
		case b.from != nil: // a member that is not the target
			continue
		}
		for _, out := range ports {
			if out == 0 || b.from != nil && out == at.Info.LocalPortNum {
				continue
			}
			var port mad.PortInfo
			if at.isSwitch() {
				if err := t.get(at.path, uint32(out), &port); err != nil {
					return b.route(), err
				}
				if port.PortPhysicalState != netlinkrdma.PhysLinkUp {
					continue
				}
			}
			next, err := t.neighbor(at, out, to)
			if err != nil {
				return b.route(), err
			}
			if next.isSwitch() && seen[next.Info.NodeGUID] {
				continue
			}
			seen[next.Info.NodeGUID] = true
			queue = append(queue, &branch{Hop{out, *next}, b})
		}
	}
	return &Route{From: *first}, &RouteError{to, *first, first.Info.LocalPortNum, fmt.Errorf("packets to %#x do not come to it: %w", mlid, ErrNoRoute)}
}

// groupPorts returns the ports by which a switch forwards packets of a group.
func (t *tracer) groupPorts(at *Stop, mlid uint16) (ports []uint8, err error) {
	var info mad.SwitchInfo
	if err := t.get(at.path, 0, &info); err != nil {
		return nil, err
	}
	entry := mlid - firstMLID
	if entry >= info.MulticastFDBCap {
		return nil, &RouteError{mlid, *at, 0, fmt.Errorf("the multicast forwarding table has %d entries: %w", info.MulticastFDBCap, ErrNoRoute)}
	}
	const perMask = 16
	for position := range int(at.Info.NumPorts)/perMask + 1 {
		var block mad.MulticastForwardingTable
		if err := t.get(at.path, uint32(entry/32)|uint32(position)<<28, &block); err != nil {
			return nil, err
		}
		for bit := range perMask {
			port := position*perMask + bit
			if block.PortMask[entry%32]&(1<<bit) != 0 && port <= int(at.Info.NumPorts) {
				ports = append(ports, uint8(port))
			}
		}
	}
	return ports, nil
}
