package subnet

import "fmt"

// Assign does the work of a subnet manager once: it gives LIDs from 1 in the order of the topology to switches and
// the ports of adapters whose link is up, fills the linear forwarding tables with shortest paths, and makes the ports
// active. The port with the given node and number is entered as that of the subnet manager. Ports of
// endpoints with their own agents are left out.
func (s *Subnet) Assign(smNode string, smPort int) error {
	sm, err := s.find(smNode, smPort)
	if err != nil {
		return err
	}
	s.do(func() { err = s.assign(sm) })
	return err
}

func (s *Subnet) assign(sm *port) error {
	var ends []*port
	for _, n := range s.nodes {
		for _, p := range n.ports {
			if n.sw != nil && p.num == 0 || n.sw == nil && p.num > 0 && p.linkUp() && !p.ownAgents {
				ends = append(ends, p)
			}
		}
	}
	if len(ends) >= lidMulticast {
		return fmt.Errorf("subnet: %d end ports, allowed: %d", len(ends), lidMulticast-1)
	}
	for i, p := range ends {
		be.PutUint16(p.info[piLID:], uint16(i+1))
	}
	for _, p := range ends {
		be.PutUint16(p.info[piSMLID:], sm.lid())
		s.pathsTo(p, len(ends))
	}
	for _, n := range s.nodes {
		for _, p := range n.ports {
			if p.linkUp() {
				p.setState(stateActive)
			}
		}
		if n.sw != nil {
			be.PutUint16(n.sw.info[siLinearTop:], uint16(len(ends)))
			n.sw.info[siStateChange] &^= siChanged
		}
	}
	return nil
}

// pathsTo enters the LID of a port into the tables of all switches, breadth first from the port.
func (s *Subnet) pathsTo(to *port, shift int) {
	seen := map[*node]bool{to.node: true}
	var next []*port // of switches, that lead to the port
	if to.node.sw != nil {
		to.node.sw.linear[to.lid()] = 0
		next = append(next, to.node.linksFrom(int(to.lid()))...)
	} else if to.peer != nil {
		next = append(next, to.peer)
	}
	for ; len(next) > 0; next = next[1:] {
		p := next[0]
		if p.node.sw == nil || seen[p.node] {
			continue
		}
		seen[p.node] = true
		p.node.sw.linear[to.lid()] = uint8(p.num)
		next = append(next, p.node.linksFrom(int(to.lid())+shift)...)
	}
}

// linksFrom returns the other ends of a switch's links that are up. It begins at a port that depends on a number, so that
// parallel paths are all used.
func (n *node) linksFrom(begin int) (all []*port) {
	for i := range n.ports {
		p := n.ports[(i+begin)%len(n.ports)]
		if p.linkUp() {
			all = append(all, p.peer)
		}
	}
	return all
}

// AssignGroup fills the multicast forwarding tables for a group: a tree of shortest paths from the switch of the
// first member to the others. A member is a node by name or description, with its first port.
func (s *Subnet) AssignGroup(mlid uint16, members ...string) error {
	if mlid < lidMulticast || mlid >= lidMulticast+multicastCap {
		return fmt.Errorf("subnet: group %#x, allowed: %#x to %#x", mlid, lidMulticast, lidMulticast+multicastCap-1)
	}
	var ports []*port
	for _, m := range members {
		p, err := s.link(m, 1)
		if err != nil {
			return err
		}
		ports = append(ports, p)
	}
	s.do(func() {
		for _, n := range s.nodes {
			if n.sw != nil {
				delete(n.sw.groups, mlid)
			}
		}
		for i, p := range ports {
			p.peer.join(mlid)
			if i > 0 {
				s.joinPath(mlid, p, ports[0])
			}
		}
	})
	return nil
}

// join adds a port of a switch to a group.
func (p *port) join(mlid uint16) {
	if p.node.sw == nil {
		return
	}
	if p.node.sw.groups[mlid] == nil {
		p.node.sw.groups[mlid] = new([16]uint16)
	}
	p.node.sw.groups[mlid][p.num/16] |= 1 << (p.num % 16)
}

// joinPath adds the path from one port to another to a group, by the linear tables.
func (s *Subnet) joinPath(mlid uint16, from, to *port) {
	for p, hops := from.peer, 0; p.node.sw != nil && hops < maxHops; hops++ {
		out := int(p.node.sw.linear[to.lid()])
		if out == 0 || out >= len(p.node.ports) || p.node.ports[out].peer == nil {
			return
		}
		p.node.ports[out].join(mlid)
		p = p.node.ports[out].peer
		p.join(mlid)
	}
}
