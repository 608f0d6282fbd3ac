package ib

import (
	"bytes"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad/fabric"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// The texts of infiniband-diags, which programs parse. They list nodes from the last that was found to the
// first.

// nodeWords has the words for a type of node: in the lines of ibnetdiscover, in its reports of ports, and of
// iblinkinfo and ibtracert.
var nodeWords = map[ib.NodeType]struct{ letter, line, guid, short, links, trace string }{
	ib.NodeCA:     {"H", "Ca", "ca", "CA", "CA", "ca"},
	ib.NodeSwitch: {"S", "Switch", "switch", "SW", "Switch", "switch"},
	ib.NodeRouter: {"R", "Rt", "rt", "RT", "Router", "router"},
}

// nodeName is the name of a node in a topology.
func nodeName(n *fabric.Node) string {
	letter := "?"
	if k, ok := nodeWords[n.Info.NodeType]; ok {
		letter = k.letter
	}
	return fmt.Sprintf(`"%s-%016x"`, letter, uint64(n.GUID()))
}

// description is the node description, as it is printed.
func description(n *fabric.Node) string { return fabric.Printable(n.Description) }

// portInfo returns the PortInfo, with zeros if the port did not answer.
func portInfo(p *fabric.Port) *mad.PortInfo {
	if p.Info == nil {
		return &mad.PortInfo{}
	}
	return p.Info
}

// rateName is the width and speed of a link, such as "4xEDR".
func rateName(p *fabric.Port) string {
	width, speed := "??", p.Speed() // not known without port 0 of a switch
	if i := portInfo(p); bits.OnesCount8(uint8(i.LinkWidthActive)) == 1 && i.LinkWidthActive <= mad.Width2X {
		width = fmt.Sprintf("%dx", p.Lanes())
	}
	if bits.OnesCount16(uint16(speed)) != 1 {
		return width + "???"
	}
	return width + speed.String()
}

// A vendor's nodes have more in their lines: Xsigo's GUIDs begin with its OUI and the kind of node.
const (
	xsigoHCA = 0x00139702
	xsigoTCA = 0x00139703
)

// topology is the text of ibnetdiscover.
func topology(f *fabric.Fabric, now time.Time) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "#\n# Topology file: generated on %s\n#\n", now.Format(time.ANSIC))
	fmt.Fprintf(&b, "# Initiated from node %016x port %016x\n", uint64(f.From.Node.GUID()), uint64(f.From.Node.Info.PortGUID))
	for _, kind := range []ib.NodeType{ib.NodeSwitch, ib.NodeCA, ib.NodeRouter} {
		for _, n := range slices.Backward(f.Nodes) {
			if n.Info.NodeType != kind {
				continue
			}
			topologyNode(&b, n)
			for _, p := range n.Ports {
				if p.Number != 0 && p.Remote != nil {
					topologyPort(&b, p)
				}
			}
		}
	}
	return b.Bytes()
}

// topologyNode prints the lines of a node.
func topologyNode(b *bytes.Buffer, n *fabric.Node) {
	k := nodeWords[n.Info.NodeType]
	fmt.Fprintf(b, "\nvendid=0x%x\ndevid=0x%x\n", n.Info.VendorID, n.Info.DeviceID)
	if guid := n.Info.SystemImageGUID; guid != 0 {
		fmt.Fprintf(b, "sysimgguid=0x%x\n", uint64(guid))
	}
	fmt.Fprintf(b, "%sguid=0x%x", k.guid, uint64(n.GUID()))
	if n.IsSwitch() {
		fmt.Fprintf(b, "(%x)", uint64(n.Info.PortGUID))
	}
	fmt.Fprintf(b, "\n%s\t%d %s\t\t# \"%s\"", k.line, n.Info.NumPorts, nodeName(n), description(n))
	if n.IsSwitch() {
		kind, lid, lmc := "base", uint16(0), uint8(0)
		if n.Switch != nil && n.Switch.EnhancedPort0 {
			kind = "enhanced"
		}
		if p := n.Port(0); p != nil {
			lid, lmc = p.LID(), p.LMC()
		}
		fmt.Fprintf(b, " %s port 0 lid %d lmc %d", kind, lid, lmc)
	}
	b.WriteByte('\n')
}

// topologyPort prints the line of a link.
func topologyPort(b *bytes.Buffer, p *fabric.Port) {
	r := p.Remote
	fmt.Fprintf(b, "[%d]", p.Number)
	if p.Node.IsSwitch() {
		fmt.Fprintf(b, "\t%s[%d]", nodeName(r.Node), r.Number)
		if !r.Node.IsSwitch() {
			fmt.Fprintf(b, "(%x) ", uint64(r.GUID))
		}
		fmt.Fprintf(b, "\t\t# \"%s\" lid %d %s", description(r.Node), r.LID(), rateName(p))
		switch uint64(r.GUID) >> 32 {
		case xsigoTCA:
			fmt.Fprintf(b, " slot %d", p.Number)
		case xsigoHCA:
			b.WriteString(" (scp)")
		}
		b.WriteByte('\n')
		return
	}
	fmt.Fprintf(b, "(%x) \t%s[%d]", uint64(p.GUID), nodeName(r.Node), r.Number)
	if !r.Node.IsSwitch() {
		fmt.Fprintf(b, " (%x) ", uint64(r.GUID))
	}
	fmt.Fprintf(b, "\t\t# lid %d lmc %d \"%s\" lid %d %s\n", p.LID(), p.LMC(), description(r.Node), r.LID(), rateName(p))
}

// portsReport is the text of ibnetdiscover --ports.
func portsReport(f *fabric.Fabric) []byte {
	var b bytes.Buffer
	short := func(n *fabric.Node) string {
		if k, ok := nodeWords[n.Info.NodeType]; ok {
			return k.short
		}
		return "??"
	}
	for _, n := range slices.Backward(f.Nodes) {
		for _, p := range slices.Backward(n.Ports) {
			if p.Number == 0 {
				continue
			}
			fmt.Fprintf(&b, "%2s %5d %2d 0x%016x %s", short(n), p.LID(), p.Number, uint64(p.GUID), rateSpaced(p))
			if r := p.Remote; r != nil {
				fmt.Fprintf(&b, " - %2s %5d %2d 0x%016x ( '%s' - '%s' )\n", short(r.Node), r.LID(), r.Number, uint64(r.GUID), description(n), description(r.Node))
			} else {
				fmt.Fprintf(&b, "%36s'%s'\n", "", description(n))
			}
		}
	}
	return b.Bytes()
}

// rateSpaced is rateName with a space between the two.
func rateSpaced(p *fabric.Port) string {
	width, speed, _ := bytes.Cut([]byte(rateName(p)), []byte("x"))
	if len(speed) == 0 {
		return "?? " + string(width[len("??"):])
	}
	return string(width) + "x " + string(speed)
}

// linkInfo is the text of iblinkinfo.
func linkInfo(f *fabric.Fabric) []byte {
	var b bytes.Buffer
	for _, n := range slices.Backward(f.Nodes) {
		head := false
		for _, p := range n.Ports {
			if p.Number == 0 {
				continue
			}
			if !head {
				head = true
				linkInfoNode(&b, n)
			}
			linkInfoPort(&b, p)
		}
	}
	return b.Bytes()
}

// linkInfoNode prints the line above the ports of a node.
func linkInfoNode(b *bytes.Buffer, n *fabric.Node) {
	kind := "??"
	if k, ok := nodeWords[n.Info.NodeType]; ok {
		kind = k.links
	}
	b.WriteString(kind + ": ")
	if n.IsSwitch() {
		fmt.Fprintf(b, "0x%016x ", uint64(n.Info.PortGUID))
	}
	b.WriteString(description(n) + ":\n")
}

// linkInfoPort prints the line of a port.
func linkInfoPort(b *bytes.Buffer, p *fabric.Port) {
	i := *portInfo(p)
	if p.Node.IsSwitch() && p.Node.Port(0) == nil {
		i.LinkSpeedActive, i.LinkWidthActive, i.LinkSpeedExtActive = 0, 0, 0
	}
	speed := words["speed"](uint64(i.LinkSpeedActive))
	switch {
	case p.Speed() > fabric.FDR10:
		speed = words["extspeed"](extendedSet(p.Speed()))
	case p.Speed() == fabric.FDR10:
		speed = "10.0 Gbps (FDR10)"
	}
	state, phys := words["state"](uint64(i.PortState)), words["phys"](uint64(i.PortPhysicalState))
	down := i.PortState == ib.PortDown
	b.WriteString("      ")
	if !p.Node.IsSwitch() {
		fmt.Fprintf(b, "0x%016x ", uint64(p.GUID))
	}
	fmt.Fprintf(b, "%6d %4d[  ] ==(", p.LID(), p.Number)
	if down {
		fmt.Fprintf(b, "              %6s/%8s)==>  ", state, phys)
	} else {
		fmt.Fprintf(b, "%3s %18s %6s/%8s)==>  ", words["width"](uint64(i.LinkWidthActive)), speed, state, phys)
	}
	switch r := p.Remote; {
	case r != nil:
		width, speed := couldBe(p)
		fmt.Fprintf(b, "%6d %4d[  ] \"%s\" (%s %s)\n", r.LID(), r.Number, description(r.Node), width, speed)
	case down:
		b.WriteString("           [  ] \"\" ( )\n")
	default:
		b.WriteString("    \"Port not available\"\n")
	}
}

// extendedSet returns the extended speeds of a set by the numbers that infiniband-diags gives them: XDR, which PortInfo has
// in a field of its own, is 32.
func extendedSet(s fabric.Speed) uint64 { return uint64(s>>4&15 | s>>8<<5) }

// couldBe says what width and speed a link could have and does not.
func couldBe(p *fabric.Port) (width, speed string) {
	i, r := portInfo(p), portInfo(p.Remote)
	const could = "Could be "
	best := mad.Width1X
	for _, w := range []mad.Width{mad.Width12X, mad.Width8X, mad.Width4X, mad.Width2X} {
		if i.LinkWidthSupported&r.LinkWidthSupported&w != 0 {
			best = w
			break
		}
	}
	if best&i.LinkWidthActive == 0 {
		width = could + words["width"](uint64(best))
	}
	fastest := func(set uint64) uint64 { return 1 << (max(bits.Len64(set), 1) - 1) }
	ours, theirs := extendedSet(p.SpeedsSupported()), extendedSet(p.Remote.SpeedsSupported())
	switch basic := fastest(uint64(i.LinkSpeedSupported & r.LinkSpeedSupported)); {
	case ours != 0 && theirs != 0:
		if best := fastest(ours & theirs); best&extendedSet(p.Speed()) == 0 {
			speed = could + words["extspeed"](best)
		}
	case p.SpeedsSupported()&p.Remote.SpeedsSupported()&fabric.FDR10 != 0:
		switch {
		case p.Speed() == fabric.FDR10:
		case i.LinkSpeedActive == uint8(fabric.QDR):
			speed = could + "FDR10 (Found link at QDR but expected speed is FDR10)"
		default:
			speed = could + "FDR10"
		}
	case basic&uint64(i.LinkSpeedActive) == 0:
		speed = could + words["speed"](basic)
	}
	return width, speed
}
