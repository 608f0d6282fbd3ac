package fabric

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// Discover walks the subnet of a port by directed routes, which needs neither LIDs nor a subnet manager.
//
// It fails if an option is out of range, if the port has no QP0 or cannot send, if its own node does not answer or
// answers with a port that it does not have, and if ctx ends. Anything else that goes wrong is a [Problem] of the result,
// and the walk goes on: nodes that do not answer, links that come and go, nodes with the same GUID, and
// nodes beyond MaxNodes.
func Discover(ctx context.Context, p *umad.Port, o Options) (*Fabric, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	agent, err := p.Register(umad.AgentOptions{Class: mad.ClassSubnDirected, Window: o.Parallel, Timeout: o.Timeout, Tries: o.Tries})
	if err != nil {
		return nil, err
	}
	defer agent.Close()
	w := &walk{agent: agent, o: o, f: new(Fabric), nodes: map[ib.GUID]*Node{}, lost: map[*Node]int{}}
	w.more.L = &w.mu
	w.add(task{attr: mad.AttrNodeInfo})
	ctx, w.cancel = context.WithCancelCause(ctx)
	defer w.cancel(nil)
	stop := context.AfterFunc(ctx, func() { w.end(context.Cause(ctx)) })
	defer stop()
	var workers sync.WaitGroup
	for range o.Parallel {
		workers.Go(func() {
			for t, ok := w.next(); ok; t, ok = w.next() {
				w.do(ctx, t)
			}
		})
	}
	workers.Wait()
	if w.err != nil {
		return nil, fmt.Errorf("fabric: the walk ended after %d nodes: %w", len(w.f.Nodes), w.err)
	}
	w.f.sort()
	return w.f, nil
}

// withDefaults replaces zeros. It fails with EINVAL if a value is out of range.
func (o Options) withDefaults() (Options, error) {
	for _, v := range []struct {
		name          string
		value         *int
		def, min, max int
	}{
		{"Parallel", &o.Parallel, 8, 1, 1024}, {"MaxHops", &o.MaxHops, maxHops, 1, maxHops}, {"MaxNodes", &o.MaxNodes, 0xbfff, 1, 1 << 20},
	} {
		if *v.value == 0 {
			*v.value = v.def
		}
		if *v.value < v.min || *v.value > v.max {
			return o, fmt.Errorf("fabric: %s is %d, allowed: %d to %d: %w", v.name, *v.value, v.min, v.max, syscall.EINVAL)
		}
	}
	return o, nil
}

// A walk is a walk through a subnet.
type walk struct {
	agent  *umad.Agent
	o      Options
	cancel context.CancelCauseFunc // stops the requests

	mu    sync.Mutex
	more  sync.Cond // on mu: there are tasks, or the walk ends
	tasks []task    // guarded by mu: those to do
	busy  int       // guarded by mu: how many are being done
	ended bool      // guarded by mu
	err   error     // guarded by mu: why the walk fails
	f     *Fabric   // guarded by mu
	nodes map[ib.GUID]*Node
	lost  map[*Node]int // guarded by mu: how many requests in sequence a node did not answer
	full  bool          // guarded by mu: there are more nodes than MaxNodes
}

// maxLost is how many requests in sequence a node may leave without an answer; then it gets no more.
const maxLost = 3

// A task is a request, and what its answer is for.
type task struct {
	attr mad.AttrID
	node *Node   // the node that gets the request; nil for NodeInfo
	port uint8   // the port for PortInfo
	path []uint8 // the route to the node; must not be changed
	from *Port   // for NodeInfo: the port whose neighbor gets the request; nil at the start
}

// add adds a task. Of the requests to one node, NodeInfo of its neighbors comes last: so the walk is
// breadth first.
func (w *walk) add(t task) {
	w.tasks = append(w.tasks, t)
	w.more.Signal()
}

// next waits for a task. It returns false at the end of the walk.
func (w *walk) next() (task, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.ended {
		if len(w.tasks) > 0 {
			t := w.tasks[0]
			w.tasks = w.tasks[1:]
			if w.lost[t.node] >= maxLost && t.node != nil {
				continue
			}
			w.busy++
			w.f.SMPs++
			return t, true
		}
		if w.busy == 0 {
			w.ended = true
			w.more.Broadcast()
			break
		}
		w.more.Wait()
	}
	return task{}, false
}

// end ends the walk early.
func (w *walk) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail(err)
}

// fail ends the walk early; w.mu is locked.
func (w *walk) fail(err error) {
	if !w.ended {
		w.ended, w.err = true, err
		w.more.Broadcast()
	}
}

// do does a task: it sends the request, and enters the answer into the fabric.
func (w *walk) do(ctx context.Context, t task) {
	enter, err := w.ask(ctx, t)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy--
	switch {
	case w.ended:
	case err == nil:
		delete(w.lost, t.node)
		enter()
	case ctx.Err() != nil:
		w.fail(context.Cause(ctx))
	case t.from == nil && t.node == nil, errors.Is(err, os.ErrClosed), errors.Is(err, umad.ErrDeviceRemoved):
		w.fail(err)
	case t.attr == attrMellanoxPortInfo: // not every firmware has it
	default:
		if errors.Is(err, os.ErrDeadlineExceeded) && t.node != nil {
			if w.lost[t.node]++; w.lost[t.node] == maxLost {
				err = fmt.Errorf("%w; the node is not asked again", err)
			}
		}
		w.problem(t, err)
	}
	if w.busy == 0 && len(w.tasks) == 0 {
		w.more.Broadcast()
	}
	if w.ended {
		w.cancel(nil)
	}
}

// problem adds a problem.
func (w *walk) problem(t task, err error) {
	w.f.Problems = append(w.f.Problems, Problem{Path: t.path, Node: t.node, Err: err, from: t.from})
}

// ask sends the request of a task. It returns what enters the answer, for which w.mu must be locked.
func (w *walk) ask(ctx context.Context, t task) (enter func(), err error) {
	req, err := mad.NewDirectedSMP(mad.MethodGet, t.attr, uint32(t.port), t.path...)
	if err != nil {
		return nil, err
	}
	req.SMP.MKey = w.o.MKey
	var answer mad.Attribute
	switch t.attr {
	case mad.AttrNodeInfo:
		info := new(mad.NodeInfo)
		answer, enter = info, func() { w.nodeInfo(t, info) }
	case mad.AttrNodeDescription:
		text := new(mad.NodeDescription)
		answer, enter = text, func() { t.node.Description = text.NodeString }
	case mad.AttrSwitchInfo:
		info := new(mad.SwitchInfo)
		answer, enter = info, func() { t.node.Switch = info }
	case attrMellanoxPortInfo:
		info := new(mellanoxPortInfo)
		answer, enter = info, func() { t.node.Port(t.port).fdr10 = *info }
	default:
		info := new(mad.PortInfo)
		answer, enter = info, func() { w.portInfo(t, info) }
	}
	return enter, w.agent.Query(ctx, umad.Addr{}, req, answer)
}

// nodeInfo enters the NodeInfo of the neighbor of a port, or of the node where the walk begins.
func (w *walk) nodeInfo(t task, info *mad.NodeInfo) {
	if info.LocalPortNum > info.NumPorts {
		err := &Conflict{info.NodeGUID, fmt.Sprintf("the request came through port %d of %d", info.LocalPortNum, info.NumPorts)}
		if t.from == nil {
			w.fail(err)
		}
		w.problem(t, err)
		return
	}
	n := w.nodes[info.NodeGUID]
	isNew := n == nil
	if isNew {
		if len(w.f.Nodes) >= w.o.MaxNodes {
			if !w.full {
				w.full = true
				w.problem(t, fmt.Errorf("fabric: MaxNodes is %d, and there are more nodes", w.o.MaxNodes))
			}
			return
		}
		n = &Node{Info: *info, Path: t.path}
		w.nodes[info.NodeGUID], w.f.Nodes = n, append(w.f.Nodes, n)
	} else if what := differs(&n.Info, info); what != "" {
		w.problem(t, &Conflict{info.NodeGUID, what})
		return
	}
	known := n.Port(info.LocalPortNum) != nil
	p := n.addPort(info.LocalPortNum)
	p.GUID = info.PortGUID
	if t.from == nil {
		w.f.From = p
	} else if !w.link(t, p) && !isNew {
		return
	}
	ask := func(attr mad.AttrID, port uint8) { w.add(task{attr: attr, node: n, port: port, path: t.path}) }
	if isNew {
		ask(mad.AttrNodeDescription, 0)
		if n.IsSwitch() {
			ask(mad.AttrSwitchInfo, 0)
			for port := range int(info.NumPorts) + 1 {
				ask(mad.AttrPortInfo, uint8(port))
			}
		}
		if w.o.Progress != nil {
			w.o.Progress(len(w.f.Nodes), w.f.SMPs)
		}
	}
	if !n.IsSwitch() && !known {
		ask(mad.AttrPortInfo, info.LocalPortNum)
	}
}

// differs says what two NodeInfos of a node cannot have different.
func differs(a, b *mad.NodeInfo) string {
	same := *b
	same.LocalPortNum = a.LocalPortNum
	if a.NodeType != ib.NodeSwitch { // ports of adapters have their own GUIDs
		same.PortGUID = a.PortGUID
	}
	if same == *a {
		return ""
	}
	return fmt.Sprintf("NodeInfo is %+v and %+v", *a, *b)
}

// link enters the link of a task's port to p. It returns false if one of them has another.
func (w *walk) link(t task, p *Port) bool {
	switch {
	case t.from == p:
		w.problem(t, &Conflict{p.Node.GUID(), fmt.Sprintf("%v is linked to itself", p)})
		return false
	case t.from.Remote == p && p.Remote == t.from:
	case t.from.Remote != nil:
		w.problem(t, &Conflict{p.Node.GUID(), fmt.Sprintf("%v is linked to %v and to %v", t.from, t.from.Remote, p)})
		return false
	case p.Remote != nil:
		w.problem(t, &Conflict{p.Node.GUID(), fmt.Sprintf("%v is linked to %v and to %v", p, p.Remote, t.from)})
		return false
	default:
		t.from.Remote, p.Remote = p, t.from
	}
	return true
}

// portInfo enters the PortInfo of a port.
func (w *walk) portInfo(t task, info *mad.PortInfo) {
	p := t.node.addPort(t.port)
	p.Info = info
	ports := []*Port{p}
	if p.Number == 0 { // it says whether the others have extended speeds
		ports = p.Node.Ports
	}
	for _, p := range ports {
		if p.mayBeFDR10() {
			w.add(task{attr: attrMellanoxPortInfo, node: t.node, port: p.Number, path: t.path})
		}
	}
	w.follow(t, p)
}

// follow asks for the neighbor of a port. Adapters do not forward requests, except the node where the walk
// begins. The port by which the route comes needs no request: its neighbor is where it comes from.
func (w *walk) follow(t task, p *Port) {
	start := len(t.path) == 0
	switch {
	case p.Number == 0 || !p.Up(), p.Number == p.Info.LocalPortNum && !start, start && !p.Node.IsSwitch() && p != w.f.From, !start && !p.Node.IsSwitch():
		return
	case len(t.path) >= w.o.MaxHops:
		if p.Remote == nil {
			w.problem(t, fmt.Errorf("fabric: %v is at the end of a route of %d ports, the limit: its neighbor was not asked", p, len(t.path)))
		}
		return
	}
	w.add(task{attr: mad.AttrNodeInfo, path: append(slices.Clip(t.path), p.Number), from: p})
}
