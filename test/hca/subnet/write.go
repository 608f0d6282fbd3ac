package subnet

import (
	"fmt"
	"io"
	"strings"
)

// WriteTo writes the topology in the format that [Read] reads. LIDs are 0.
func (t *Topology) WriteTo(w io.Writer) (int64, error) {
	n, err := io.WriteString(w, t.String())
	return int64(n), err
}

// String returns what WriteTo writes.
func (t *Topology) String() string {
	var b strings.Builder
	for _, n := range t.Nodes {
		fmt.Fprintf(&b, "vendid=%#x\ndevid=%#x\nsysimgguid=%#x\n", n.Vendor, n.Device, n.SystemGUID)
		fmt.Fprintf(&b, "%s=%#x", nodeWords[n.Type].guid, n.GUID)
		if n.Type == Switch {
			fmt.Fprintf(&b, "(%x)", n.Ports[0].GUID)
		}
		fmt.Fprintf(&b, "\n%v\t%d \"%s\"\t\t# \"%s\"", n.Type, len(n.Ports)-1, n.Name, n.Description)
		if n.Type == Switch {
			fmt.Fprintf(&b, " %s port 0 lid 0 lmc 0", map[bool]string{false: "base", true: "enhanced"}[n.EnhancedPort0])
		}
		b.WriteByte('\n')
		for i, p := range n.Ports {
			if p.Peer.Node != nil {
				n.writePort(&b, i, p)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// writePort writes the line of a port.
func (n *Node) writePort(b *strings.Builder, i int, p Port) {
	guid := func(n *Node, port int) string {
		if n.Type == Switch {
			return ""
		}
		return fmt.Sprintf("(%x)", n.Ports[port].GUID)
	}
	fmt.Fprintf(b, "[%d]%s\t%v%s\t\t# ", i, guid(n, i), p.Peer, guid(p.Peer.Node, p.Peer.Port))
	if n.Type != Switch {
		b.WriteString("lid 0 lmc 0 ")
	}
	width, speed := p.rate()
	fmt.Fprintf(b, "\"%s\" lid 0 %v%v\n", p.Peer.Node.Description, width, speed)
}

// rate returns the greatest width and speed of a port.
func (p *Port) rate() (Width, Speed) {
	w, s := p.Width, p.Speed
	if w == 0 {
		w = defaultWidth
	}
	if s == 0 {
		s = defaultSpeed
	}
	return w, s
}
