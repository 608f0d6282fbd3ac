package fabric

import (
	"bytes"
	"slices"
)

// A step is a request of the walk with one request at a time: for a node, for the ports of a switch if
// port is nil, and otherwise for a port.
type step struct {
	node  *Node
	port  *Port
	entry *Port // the port by which the route enters the node
	kind  uint8
}

// Kinds of steps.
const (
	askNode uint8 = iota
	askPorts
	askPort
	askVendor // the vendor's attribute of a port
)

// sort brings the nodes into the order in which a walk with one request at a time finds them, and gives
// them and the problems the routes of that walk. Programs that parse the text of ibnetdiscover expect its order.
func (f *Fabric) sort() {
	var order []*Node
	paths := map[*Node][]uint8{}
	queue := []step{{node: f.From.Node, entry: f.From}}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		switch s.kind {
		case askNode:
			if _, found := paths[s.node]; !found {
				order, paths[s.node] = append(order, s.node), f.pathTo(s.entry, paths)
				if s.node.IsSwitch() {
					queue = append(queue, step{node: s.node, entry: s.entry, kind: askPorts})
				}
			}
			if !s.node.IsSwitch() {
				queue = append(queue, step{node: s.node, entry: s.entry, port: s.entry, kind: askPort})
			}
			continue
		case askPorts:
			for _, p := range s.node.Ports {
				if p.Number != 0 && p.Info != nil {
					queue = append(queue, step{node: s.node, entry: s.entry, port: p, kind: askPort})
				}
			}
			continue
		case askPort:
			if s.port.mayBeFDR10() {
				s.kind = askVendor
				queue = append(queue, s)
				continue
			}
		}
		if (s.node.IsSwitch() && s.port != s.entry || s.port == f.From) && s.port.Remote != nil && s.port.Up() {
			queue = append(queue, step{node: s.port.Remote.Node, entry: s.port.Remote})
		}
	}
	for _, n := range f.Nodes { // what no longer hung together at the end
		if _, found := paths[n]; !found {
			order, paths[n] = append(order, n), n.Path
		}
	}
	for n, path := range paths {
		n.Path = path
	}
	f.Nodes = order
	all := f.Problems
	for i := range all {
		switch p := &all[i]; {
		case p.Node != nil:
			p.Path = p.Node.Path
		case p.from != nil:
			p.Path = append(slices.Clip(p.from.Node.Path), p.from.Number)
		}
		for j := i; j > 0 && bytes.Compare(all[j-1].Path, all[j].Path) > 0; j-- {
			all[j-1], all[j] = all[j], all[j-1]
		}
	}
}

// pathTo returns the route to the node of a port by the neighbor of the port.
func (f *Fabric) pathTo(p *Port, paths map[*Node][]uint8) []uint8 {
	if p == f.From || p.Remote == nil {
		return nil
	}
	return append(slices.Clip(paths[p.Remote.Node]), p.Remote.Number)
}
