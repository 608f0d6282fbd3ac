package fabric

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// Reasons why a route ends before its target. Errors of [Trace] and [TraceMulticast], and findings of [Check],
// match them.
var (
	ErrNoRoute  = errors.New("the forwarding table has no port for the LID")
	ErrPortDown = errors.New("the port is not active")
	ErrBadPort  = errors.New("the forwarding table has a port that does not exist")
	ErrTooLong  = errors.New("the directed route to the next node is longer than MaxHops")
	ErrLoop     = errors.New("the route is a loop")
	ErrWrongEnd = errors.New("the route ends at another port")
)

// RouteError says where and why a route ends before its target. It unwraps to the reason.
type RouteError struct {
	LID    uint16 // LID is the target, also for packets to a multicast group.
	At     Stop   // At is where the route ends.
	Port   uint8  // Port is the port by which it would leave, NoPort if there is none.
	Reason error  // Reason is one of the errors above.
}

// Error implements error.
func (e *RouteError) Error() string {
	text := fmt.Sprintf("fabric: the route to LID %d ends at %v, ", e.LID, &Node{Info: e.At.Info, Description: e.At.Description})
	if e.At.entered {
		text += fmt.Sprintf("entered by port %d, ", e.At.Info.LocalPortNum)
	}
	if e.Port != NoPort {
		text += fmt.Sprintf("would leave by port %d, ", e.Port)
	}
	return fmt.Sprintf("%s: %v", strings.TrimSuffix(text, ", "), e.Reason)
}

// Unwrap returns the reason.
func (e *RouteError) Unwrap() error { return e.Reason }

// Route is the way of packets from one port to another.
type Route struct {
	From Stop  // From is the port where it begins.
	Hops []Hop // Hops are the ports by which it enters nodes. The last one is the target.
}

// To returns the port where the route ends.
func (r *Route) To() Stop {
	if len(r.Hops) == 0 {
		return r.From
	}
	return r.Hops[len(r.Hops)-1].Stop
}

// Hop is a port by which a route enters a node.
type Hop struct {
	Out  uint8 // Out is the port by which the route leaves the node before.
	Stop       // Stop is the node and the port that it enters.
}

// Stop is a node on a route.
type Stop struct {
	Info        mad.NodeInfo // Info is the NodeInfo. LocalPortNum is the port by which the route enters.
	Description string       // Description is the NodeDescription.
	LID         uint16       // LID is the base LID of the port; of a switch that of port 0.
	LMC         uint8        // LMC is the number of low bits of the LID that the port ignores.
	State       ib.PortState // State is the state of the port that has the LID.

	path    []uint8
	entered bool // packets come to the node, while those of the source begin there
}

// String returns the node and the port by which the route enters.
func (s *Stop) String() string {
	n := Node{Info: s.Info, Description: s.Description}
	return fmt.Sprintf("%v port %d", &n, s.Info.LocalPortNum)
}

// isSwitch reports whether the node is a switch.
func (s *Stop) isSwitch() bool { return s.Info.NodeType == ib.NodeSwitch }

// has reports whether the port has a LID.
func (s *Stop) has(lid uint16) bool {
	return s.LID != 0 && lid >= s.LID && int(lid) < int(s.LID)+1<<s.LMC
}

// tracer asks nodes along a route.
type tracer struct {
	ctx   context.Context
	agent *umad.Agent
	o     Options
}

// newTracer makes a tracer. Close its agent.
func newTracer(ctx context.Context, p *umad.Port, o Options) (*tracer, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	agent, err := p.Register(umad.AgentOptions{Class: mad.ClassSubnDirected, Window: o.Parallel, Timeout: o.Timeout, Tries: o.Tries})
	if err != nil {
		return nil, err
	}
	return &tracer{ctx, agent, o}, nil
}

// Trace follows the forwarding tables of the switches from one port to another, which are given by their
// LIDs. From may be 0 for the own port. If the route does not end at its target, Trace returns the part that
// there is, and a [RouteError] or the error of a node that did not answer. It asks one node after the other. Of the
// options it uses Timeout, Tries, MKey and MaxHops.
func Trace(ctx context.Context, p *umad.Port, from, to uint16, o Options) (*Route, error) {
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
	return t.follow(path, to)
}

// checkEnds fails with EINVAL if the ends of a route cannot be those of ports.
func checkEnds(from, to uint16) error {
	const form = "fabric: the LID of the %s is %#x, allowed: %#x to %#x: %w"
	switch {
	case from >= firstMLID:
		return fmt.Errorf(form, "source", from, 0, firstMLID-1, syscall.EINVAL)
	case to == 0 || to >= firstMLID:
		return fmt.Errorf(form, "target", to, 1, firstMLID-1, syscall.EINVAL)
	}
	return nil
}

// source returns the directed route to a port, along the forwarding tables.
func (t *tracer) source(lid uint16) ([]uint8, error) {
	if lid == 0 {
		return nil, nil
	}
	r, err := t.follow(nil, lid)
	if err != nil {
		return nil, fmt.Errorf("fabric: on the way to the source: %w", err)
	}
	return r.To().path, nil
}

// get asks for an attribute of the node at the end of a route.
func (t *tracer) get(path []uint8, modifier uint32, a mad.Attribute) error {
	req, err := mad.NewDirectedSMP(mad.MethodGet, a.ID(), modifier, path...)
	if err != nil {
		return err
	}
	req.SMP.MKey = t.o.MKey
	return t.agent.Query(t.ctx, umad.Addr{}, req, a)
}

// stop returns the node at the end of a directed route.
func (t *tracer) stop(path []uint8) (*Stop, error) {
	s := &Stop{path: path}
	var text mad.NodeDescription
	var port mad.PortInfo
	for _, a := range []mad.Attribute{&s.Info, &text, &port} {
		if err := t.get(path, 0, a); err != nil {
			return nil, err
		}
	}
	s.Description, s.LID, s.LMC, s.State = text.NodeString, port.LID, port.LMC, port.PortState
	if s.isSwitch() { // a base port 0 has no state of its own
		s.State = ib.PortActive
	}
	return s, nil
}

// follow follows the forwarding tables from the node at the end of a directed route to a LID.
func (t *tracer) follow(path []uint8, lid uint16) (*Route, error) {
	at, err := t.stop(path)
	if err != nil {
		return nil, err
	}
	r := &Route{From: *at}
	seen := map[ib.GUID]bool{}
	for !at.has(lid) {
		if at.State != ib.PortActive {
			return r, &RouteError{lid, *at, at.Info.LocalPortNum, ErrPortDown}
		}
		out, next, err := t.leave(at, lid, len(r.Hops) == 0)
		if err != nil {
			return r, err
		}
		if at.isSwitch() && seen[at.Info.NodeGUID] {
			return r, &RouteError{lid, *at, out, ErrLoop}
		}
		seen[at.Info.NodeGUID] = true
		next.entered = true
		r.Hops = append(r.Hops, Hop{out, *next})
		at = next
	}
	if at.State != ib.PortActive {
		return r, &RouteError{lid, *at, NoPort, ErrPortDown}
	}
	return r, nil
}

// leave returns the next node on the way to a LID, and the port by which the packet leaves.
func (t *tracer) leave(at *Stop, lid uint16, first bool) (out uint8, next *Stop, err error) {
	out = at.Info.LocalPortNum
	switch {
	case at.isSwitch():
		if out, err = t.lookup(at, lid); err != nil {
			return out, nil, err
		}
	case !first:
		return out, nil, &RouteError{lid, *at, NoPort, ErrWrongEnd}
	}
	next, err = t.neighbor(at, out, lid)
	return out, next, err
}

// neighbor returns the node behind a port.
func (t *tracer) neighbor(at *Stop, out uint8, lid uint16) (*Stop, error) {
	if len(at.path) > 0 && !at.isSwitch() { // back from an adapter to the switch by which the route came
		last := len(at.path) - 1
		next, err := t.stop(at.path[:last])
		if err == nil {
			next.Info.LocalPortNum = at.path[last]
		}
		return next, err
	}
	if len(at.path) >= t.o.MaxHops {
		return nil, &RouteError{lid, *at, out, ErrTooLong}
	}
	return t.stop(append(slices.Clip(at.path), out))
}

// lookup returns the port by which a switch forwards packets to a LID.
func (t *tracer) lookup(at *Stop, lid uint16) (uint8, error) {
	var info mad.SwitchInfo
	if err := t.get(at.path, 0, &info); err != nil {
		return 0, err
	}
	fail := func(port uint8, reason error) (uint8, error) { return port, &RouteError{lid, *at, port, reason} }
	if lid > info.LinearFDBTop {
		return fail(NoPort, ErrNoRoute)
	}
	var block mad.LinearForwardingTable
	if err := t.get(at.path, uint32(lid/64), &block); err != nil {
		return 0, err
	}
	out := block.Port[lid%64]
	switch {
	case out == NoPort:
		return fail(out, ErrNoRoute)
	case out > at.Info.NumPorts, out == 0: // port 0 has another LID
		return fail(out, ErrBadPort)
	}
	var port mad.PortInfo
	if err := t.get(at.path, uint32(out), &port); err != nil {
		return out, err
	}
	if port.PortState != ib.PortActive {
		return fail(out, ErrPortDown)
	}
	return out, nil
}

// NoPort is the entry of a forwarding table that drops packets.
const NoPort = 255
