package fabric

import (
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// Fabric is what a walk found. It does not change any more, and can be read concurrently.
type Fabric struct {
	// Nodes are the nodes in the order in which a walk with one request at a time finds them, which does
	// not depend on the order of the answers.
	Nodes []*Node

	From     *Port     // From is the port at which the walk began.
	Problems []Problem // Problems are what could not be asked and what does not fit together, sorted by path.
	SMPs     int       // SMPs is the number of requests, without those that were repeated.
}

// Node is a switch, an adapter or a router. It is identified by its node GUID.
type Node struct {
	Info        mad.NodeInfo    // Info is the NodeInfo of the port at which the node was found.
	Description string          // Description is the NodeDescription, usually the name of the host or switch.
	Switch      *mad.SwitchInfo // Switch is nil if the node is no switch, or did not answer.

	// Ports are the ports that are known, by number. Of a switch these are all ports, with port 0; of an
	// adapter those to which the walk came.
	Ports []*Port
	Path  []uint8 // Path has the ports by which a directed route to the node leaves each node before it.
}

// GUID returns the node GUID.
func (n *Node) GUID() ib.GUID { return n.Info.NodeGUID }

// IsSwitch reports whether the node is a switch.
func (n *Node) IsSwitch() bool { return n.Info.NodeType == ib.NodeSwitch }

// Port returns a port by its number, or nil if it is not known.
func (n *Node) Port(number uint8) *Port {
	if i := int(number); i < len(n.Ports) && n.Ports[i].Number == number { // those of a switch usually
		return n.Ports[i]
	}
	for _, p := range n.Ports {
		if p.Number == number {
			return p
		}
	}
	return nil
}

// addPort returns a port by its number, and makes it if it is not known.
func (n *Node) addPort(number uint8) *Port {
	if p := n.Port(number); p != nil {
		return p
	}
	p := &Port{Node: n, Number: number, GUID: n.Info.PortGUID}
	n.Ports = append(n.Ports, p)
	for i := len(n.Ports) - 1; i > 0 && n.Ports[i-1].Number > number; i-- {
		n.Ports[i-1], n.Ports[i] = n.Ports[i], n.Ports[i-1]
	}
	return p
}

// String returns the description, or the GUID if there is none.
func (n *Node) String() string {
	if name := Printable(n.Description); strings.TrimSpace(name) != "" {
		return fmt.Sprintf("%v %q", n.Info.NodeType, name)
	}
	return fmt.Sprintf("%v %#016x", n.Info.NodeType, uint64(n.GUID()))
}

// Printable replaces characters of a node description that are not printable ASCII by spaces, and ends at
// the first zero.
func Printable(description string) string {
	description, _, _ = strings.Cut(description, "\x00")
	b := []byte(description)
	for i, c := range b {
		if c < ' ' || c > '~' {
			b[i] = ' '
		}
	}
	return string(b)
}

// Port is a port of a node.
type Port struct {
	Node   *Node         // Node is the node of the port.
	Number uint8         // Number is the number of the port; 0 is the management port of a switch.
	GUID   ib.GUID       // GUID is the port GUID; all ports of a switch have the same.
	Info   *mad.PortInfo // Info is the PortInfo, or nil if the port did not answer.
	Remote *Port         // Remote is the port at the other end of the link, or nil.

	fdr10 mellanoxPortInfo // zero if the port was not asked
}

// String returns the node and the number.
func (p *Port) String() string { return fmt.Sprintf("%v port %d", p.Node, p.Number) }

// LID returns the base LID by which the port is reached, 0 if there is none. That of a switch's port is
// the one of port 0.
func (p *Port) LID() uint16 {
	if i := p.management(); i != nil {
		return i.LID
	}
	return 0
}

// LMC returns the number of low bits of the LID that the port ignores.
func (p *Port) LMC() uint8 {
	if i := p.management(); i != nil {
		return i.LMC
	}
	return 0
}

// management returns the PortInfo with LID and capabilities: a switch has these at port 0. It is nil if
// it is not known.
func (p *Port) management() *mad.PortInfo {
	if p.Node.IsSwitch() {
		if p = p.Node.Port(0); p == nil {
			return nil
		}
	}
	return p.Info
}

// Up reports whether the link is physically up.
func (p *Port) Up() bool { return p.Info != nil && p.Info.PortPhysicalState == ib.PhysLinkUp }

// Active reports whether the port carries traffic.
func (p *Port) Active() bool { return p.Info != nil && p.Info.PortState == ib.PortActive }

// Links returns every link of the fabric once, as the port that comes first and the other one. The
// links have the order of Nodes and Ports.
func (f *Fabric) Links() iter.Seq2[*Port, *Port] {
	return func(yield func(a, b *Port) bool) {
		done := map[*Port]bool{}
		for _, n := range f.Nodes {
			for _, p := range n.Ports {
				if p.Remote == nil || done[p] {
					continue
				}
				done[p.Remote] = true
				if !yield(p, p.Remote) {
					return
				}
			}
		}
	}
}

// Node returns the node with a node GUID, or nil.
func (f *Fabric) Node(guid ib.GUID) *Node {
	for _, n := range f.Nodes {
		if n.GUID() == guid {
			return n
		}
	}
	return nil
}

// PortByLID returns the port with a LID, which may be one of several by the LMC: port 0 of a switch. It
// returns nil if there is none.
func (f *Fabric) PortByLID(lid uint16) *Port {
	for p := range f.endPorts() {
		if first := p.LID(); first != 0 && lid >= first && int(lid) < int(first)+1<<p.LMC() {
			return p
		}
	}
	return nil
}

// endPorts returns the ports that have LIDs: those of adapters and routers, and port 0 of switches.
func (f *Fabric) endPorts() iter.Seq[*Port] {
	return func(yield func(*Port) bool) {
		for _, n := range f.Nodes {
			for _, p := range n.Ports {
				if (!n.IsSwitch() || p.Number == 0) && !yield(p) {
					return
				}
			}
		}
	}
}

// Problem is something that went wrong at one place of the fabric and did not end the walk.
type Problem struct {
	Path []uint8 // Path has the ports of the directed route to the node that got the request: Path of Node, if there is one.
	Node *Node   // Node is the node, or nil if the walk did not come to know it.
	Err  error   // Err is the reason: a [*Conflict], an error of package umad or mad, or a limit of [Options].

	from *Port // the port whose neighbor got the request; nil if Node got it
}

// String returns the error with the node.
func (p *Problem) String() string {
	if p.Node == nil {
		return fmt.Sprintf("route %v: %v", p.Path, p.Err)
	}
	return fmt.Sprintf("%v (route %v): %v", p.Node, p.Path, p.Err)
}

// Conflict says that two answers cannot both be right: GUIDs are not unique, or the fabric has changed
// during the walk.
type Conflict struct {
	GUID ib.GUID // GUID is the node GUID of the answer.
	What string  // What says what differs.
}

// Error implements error.
func (e *Conflict) Error() string {
	return fmt.Sprintf("fabric: node GUID %#016x: %s: another node has the same GUID, or the fabric has changed", uint64(e.GUID), e.What)
}

// Options are the options of a walk. The zero value is fine.
type Options struct {
	Parallel int           // Parallel is how many requests wait for an answer at most; 0 means 8.
	Timeout  time.Duration // Timeout is how long the answer to each try may take; 0 means 1 s.
	Tries    int           // Tries is how often a request is sent if no answer comes; 0 means 3.
	MaxHops  int           // MaxHops limits the ports of directed routes; 0 means 63, which is the largest possible.
	MaxNodes int           // MaxNodes limits the nodes; 0 means 49151, as many as there are unicast LIDs.
	MKey     uint64        // MKey is the M_Key of the requests, which some subnets demand.

	// Progress is called for each node that is found, with the number of nodes and of requests so far. It
	// is not called concurrently, and the walk waits for it.
	Progress func(nodes, requests int)
}

// maxHops is the number of ports of the longest directed route.
const maxHops = 63
