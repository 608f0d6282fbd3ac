package ib

import (
	"fmt"
	"sync"

	"github.com/goverbs/goverbs/test/ibsim"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// Ports of the switches of a line.
const (
	linePorts = 8
	toHost    = 1
	toNext    = 2
	toLast    = 3
)

// line is a subnet of switches in a line, each with a host: switch1 with host1 and so on. It answers without the
// code of any subnet, so that tests know what a command has to print. The LIDs are 1 for switch1, 2 for host1,
// 3 for switch2 and so on.
type line struct {
	length int
	narrow string                                  // the link of this host is 1X QDR; the others are 4X EDR
	errors map[string]uint16                       // SymbolErrorCounter by node
	silent func(node string, req *mad.Packet) bool // reports whether a request gets no answer
	edit   func(port uint8, i *mad.PortInfo)       // changes the PortInfo of every node

	mu   sync.Mutex
	sets []*mad.Packet // guarded by mu: the requests that change PortInfo
}

// lineNode is a node of a line.
type lineNode struct {
	number int // from 1
	host   bool
}

// String returns the description.
func (n lineNode) String() string {
	if n.host {
		return fmt.Sprintf("host%d", n.number)
	}
	return fmt.Sprintf("switch%d", n.number)
}

// lid returns the LID.
func (n lineNode) lid() uint16 {
	if n.host {
		return uint16(2 * n.number)
	}
	return uint16(2*n.number - 1)
}

// neighbor returns the node behind a port and its port there, 0 if there is none.
func (l *line) neighbor(n lineNode, port uint8) (lineNode, uint8) {
	switch {
	case n.host:
		return lineNode{n.number, false}, toHost
	case port == toHost:
		return lineNode{n.number, true}, 1
	case port == toNext && n.number < l.length:
		return lineNode{n.number + 1, false}, toLast
	case port == toLast && n.number > 1:
		return lineNode{n.number - 1, false}, toNext
	}
	return n, 0
}

// system is a System with the port of host1.
func (l *line) system() *System {
	m := machine(nil, "host1/1 ib active")
	m.Open = func(device string, port int) (*umad.Port, error) {
		return umad.NewPort(device, port, ibsim.NewAnswers(l.send)), nil
	}
	m.Own = func() ([]ib.GUID, error) { return []ib.GUID{nodeInfoOf(lineNode{1, true}, 1).NodeGUID}, nil }
	return m
}

// send answers a message of host1.
func (l *line) send(m *umad.Message) ([]byte, error) {
	req, err := mad.Parse(m.MAD)
	if err != nil {
		return nil, err
	}
	at, entry := lineNode{1, true}, uint8(1)
	if req.Class == mad.ClassSubnDirected {
		for i, port := range req.Route() {
			if i > 0 && at.host {
				return nil, nil // hosts do not forward
			}
			if at, entry = l.neighbor(at, port); entry == 0 {
				return nil, nil
			}
		}
	} else {
		at = lineNode{int(m.Addr.LID+1) / 2, m.Addr.LID%2 == 0}
	}
	if l.silent != nil && l.silent(at.String(), req) {
		return nil, nil
	}
	p := req.Reply()
	switch {
	case req.Class == mad.ClassPerf && req.Attribute == mad.AttrPortCounters:
		err = p.Put(&mad.PortCounters{PortSelect: 1, SymbolErrorCounter: l.errors[at.String()]})
	case req.Class == mad.ClassPerf:
		p = refuse(req)
	case req.Attribute == mad.AttrNodeInfo:
		err = p.Put(nodeInfoOf(at, entry))
	case req.Attribute == mad.AttrNodeDescription:
		err = p.Put(&mad.NodeDescription{NodeString: at.String()})
	case req.Attribute == mad.AttrPortInfo && req.Method == mad.MethodSet:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.sets, p.Data = append(l.sets, req), req.Data
	case req.Attribute == mad.AttrPortInfo:
		err = p.Put(l.portInfo(at, uint8(req.Modifier), entry))
	case req.Attribute == mad.AttrSwitchInfo:
		err = p.Put(&mad.SwitchInfo{LinearFDBCap: 100, LinearFDBTop: uint16(2 * l.length), EnhancedPort0: true})
	case req.Attribute == mad.AttrLinearForwardingTable:
		err = p.Put(l.forwarding(at))
	default:
		p = refuse(req)
	}
	if err != nil {
		return nil, err
	}
	return ibsim.Encode(p)
}

// nodeInfoOf returns the NodeInfo of a node that a request enters by a port.
func nodeInfoOf(n lineNode, entry uint8) *mad.NodeInfo {
	if n.host {
		guid := ib.GUID(0x100000 + 2*(n.number-1))
		return &mad.NodeInfo{NodeType: ib.NodeCA, NumPorts: 1, NodeGUID: guid, PortGUID: guid + 1, LocalPortNum: 1}
	}
	guid := ib.GUID(0x200000 + (linePorts+1)*(n.number-1))
	return &mad.NodeInfo{NodeType: ib.NodeSwitch, NumPorts: linePorts, NodeGUID: guid, PortGUID: guid, LocalPortNum: entry}
}

// portInfo returns the PortInfo of a port; 0 is the port by which the request enters a host.
func (l *line) portInfo(n lineNode, port, entry uint8) *mad.PortInfo {
	i := &mad.PortInfo{
		LocalPortNum: entry, CapabilityMask: mad.CapExtSpeeds,
		LinkWidthSupported: mad.Width1X | mad.Width4X, LinkWidthEnabled: mad.Width1X | mad.Width4X, LinkWidthActive: mad.Width4X,
		LinkSpeedSupported: 7, LinkSpeedEnabled: 7, LinkSpeedActive: 4,
		LinkSpeedExtSupported: 3, LinkSpeedExtEnabled: 3, LinkSpeedExtActive: 2,
		PortState: ib.PortActive, PortPhysicalState: ib.PhysLinkUp,
	}
	if n.host || port == 0 {
		i.LID = n.lid()
	}
	if _, up := l.neighbor(n, port); !n.host && port > 0 && up == 0 {
		i.PortState, i.PortPhysicalState = ib.PortDown, ib.PhysPolling
	}
	if (n.host || port == toHost) && (lineNode{n.number, true}).String() == l.narrow {
		i.LinkWidthActive, i.LinkSpeedExtActive = mad.Width1X, 0
	}
	if l.edit != nil {
		l.edit(port, i)
	}
	return i
}

// forwarding returns the forwarding table of a switch.
func (l *line) forwarding(n lineNode) *mad.LinearForwardingTable {
	t := new(mad.LinearForwardingTable)
	for lid := range t.Port {
		switch to := (lid + 1) / 2; {
		case to == 0 || to > l.length:
			t.Port[lid] = 255
		case to > n.number:
			t.Port[lid] = toNext
		case to < n.number:
			t.Port[lid] = toLast
		case lid%2 == 0:
			t.Port[lid] = toHost
		}
	}
	return t
}
