package subnet

import (
	"fmt"
	"math/bits"
	"strings"
)

// NodeType is the type of a node (NodeInfo.NodeType).
type NodeType uint8

// Types of nodes.
const (
	CA     NodeType = 1 // a channel adapter
	Switch NodeType = 2
	Router NodeType = 3
)

// nodeWords are the words of the types in a file: in the node's own line, in the line of its GUID, and in
// its name.
var nodeWords = map[NodeType]struct{ line, guid, name string }{
	CA: {"Ca", "caguid", "H"}, Switch: {"Switch", "switchguid", "S"}, Router: {"Rt", "rtguid", "R"},
}

// String returns the name of the type as ibnetdiscover writes it.
func (t NodeType) String() string { return nodeWords[t].line }

// Width is a link width, or a set of them (PortInfo.LinkWidthEnabled).
type Width uint8

// Link widths.
const (
	Width1X  Width = 1
	Width4X  Width = 2
	Width8X  Width = 4
	Width12X Width = 8
	Width2X  Width = 16
)

// widthNames are the names as ibnetdiscover writes them, from wide to narrow.
var widthNames = []struct {
	width Width
	name  string
}{{Width12X, "12x"}, {Width8X, "8x"}, {Width4X, "4x"}, {Width2X, "2x"}, {Width1X, "1x"}}

// String returns the name of a width.
func (w Width) String() string {
	for _, n := range widthNames {
		if n.width == w {
			return n.name
		}
	}
	return fmt.Sprintf("Width(%#x)", uint8(w))
}

// Speed is a signaling rate, or a set of them.
type Speed uint8

// Signaling rates, from slow to fast. The first three are in PortInfo.LinkSpeedEnabled, the others
// in LinkSpeedExtEnabled, except XDR, which is in LinkSpeedExtEnabled2.
const (
	SDR Speed = 1 << iota
	DDR
	QDR
	FDR
	EDR
	HDR
	NDR
	XDR
)

var speedNames = []string{"SDR", "DDR", "QDR", "FDR", "EDR", "HDR", "NDR", "XDR"}

// String returns the name of a speed.
func (s Speed) String() string {
	if i := bits.TrailingZeros8(uint8(s)); s != 0 && s == 1<<i && i < len(speedNames) {
		return speedNames[i]
	}
	return fmt.Sprintf("Speed(%#x)", uint8(s))
}

// The width and speed of ports of which a topology says nothing.
const (
	defaultWidth = Width4X
	defaultSpeed = EDR
)

// Limits of a topology.
const (
	maxPorts       = 254 // of a node: 255 stands for all ports
	maxDescription = 64
)

// Topology says which nodes there are and how they are connected.
type Topology struct {
	Nodes []*Node // Nodes are in the order of the file.

	names map[string]*Node
	next  map[NodeType]uint64 // the GUID of the next node, if nothing else gives one
}

// Node is a node of a topology.
type Node struct {
	Type          NodeType // Type is CA, Switch or Router.
	Name          string   // Name identifies the node within a file, such as "S-0002c90200001234".
	Description   string   // Description is NodeDescription, at most 64 bytes.
	GUID          uint64   // GUID is the node GUID.
	SystemGUID    uint64   // SystemGUID is SystemImageGUID.
	Vendor        uint32   // Vendor is the OUI of the vendor.
	Device        uint16   // Device is the vendor's number of the device.
	EnhancedPort0 bool     // EnhancedPort0 says that port 0 of a switch is like a port of an adapter.
	Ports         []Port   // Ports are by number; 0 is the management port of a switch, which other nodes do not have.
}

// Port is a port of a node.
type Port struct {
	GUID  uint64 // GUID is the port GUID; all ports of a switch have the same.
	Peer  End    // Peer is the other end of the link.
	Width Width  // Width is the greatest width of the port, 0 for 4X.
	Speed Speed  // Speed is the greatest speed of the port, 0 for EDR.
}

// End is an end of a link. Node is nil if the port has no link.
type End struct {
	Node *Node // Node is the node.
	Port int   // Port is the number of the port.
}

// String returns the end as a file has it.
func (e End) String() string { return fmt.Sprintf("\"%s\"[%d]", e.Node.Name, e.Port) }

// NewTopology returns a topology without nodes.
func NewTopology() *Topology {
	// The GUIDs begin as those of ibsim.
	return &Topology{names: map[string]*Node{}, next: map[NodeType]uint64{CA: 0x100000, Switch: 0x200000, Router: 0x300000}}
}

// Add adds a node. Its GUIDs follow those of the last node of its type, and it has no links.
func (t *Topology) Add(kind NodeType, name string, ports int) (*Node, error) {
	switch {
	case nodeWords[kind].line == "":
		return nil, fmt.Errorf("node %q has type %d, allowed: 1 (Ca), 2 (Switch) and 3 (Rt)", name, kind)
	case name == "" || strings.ContainsAny(name, "\"\n"):
		return nil, fmt.Errorf("a node is called %q, allowed: at least one character, and no quotes and line feeds", name)
	case t.names[name] != nil:
		return nil, fmt.Errorf("node %q is there twice", name)
	case ports < 1 || ports > maxPorts:
		return nil, fmt.Errorf("node %q has %d ports, allowed: 1 to %d", name, ports, maxPorts)
	}
	n := &Node{Type: kind, Name: name, Description: name, Ports: make([]Port, ports+1), Vendor: 0x2c9, Device: 0x1017}
	if kind == Switch {
		n.Device = 0xcb20
	}
	n.Description = n.Description[:min(len(name), maxDescription)]
	n.setGUID(t.next[kind])
	t.next[kind] += uint64(ports) + 1
	t.Nodes = append(t.Nodes, n)
	t.names[name] = n
	return n, nil
}

// setGUID sets all GUIDs of a node.
func (n *Node) setGUID(guid uint64) {
	n.GUID, n.SystemGUID = guid, guid
	for i := range n.Ports {
		n.Ports[i].GUID = guid
		if n.Type != Switch {
			n.Ports[i].GUID += uint64(i)
		}
	}
}

// Node returns the node with a name or, if there is none, the first one with a description. It returns nil
// if there is no such node.
func (t *Topology) Node(name string) *Node {
	if n := t.names[name]; n != nil {
		return n
	}
	for _, n := range t.Nodes {
		if n.Description == name {
			return n
		}
	}
	return nil
}

// Connect connects two ports. It does nothing if they are connected already.
func (t *Topology) Connect(a, b End) error {
	for _, e := range []End{a, b} {
		if e.Port < 1 || e.Port >= len(e.Node.Ports) {
			return fmt.Errorf("%v: no such port, allowed: 1 to %d", e, len(e.Node.Ports)-1)
		}
	}
	pa, pb := &a.Node.Ports[a.Port], &b.Node.Ports[b.Port]
	switch {
	case a == b:
		return fmt.Errorf("%v is connected with itself", a)
	case pa.Peer == b && pb.Peer == a:
		return nil
	case pa.Peer.Node != nil:
		return fmt.Errorf("%v is connected with %v, and cannot be connected with %v", a, pa.Peer, b)
	case pb.Peer.Node != nil:
		return fmt.Errorf("%v is connected with %v, and cannot be connected with %v", b, pb.Peer, a)
	}
	pa.Peer, pb.Peer = b, a
	return nil
}
