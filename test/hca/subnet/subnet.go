package subnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

var be = binary.BigEndian

// LIDPermissive is the LID of the port at the other end of a link.
const LIDPermissive = 0xffff

// lidMulticast is the first LID of multicast groups.
const lidMulticast = 0xc000

// maxHops is how many links a packet may cross. It stands for the life time in a switch, which ends packets
// that go in a circle.
const maxHops = 64

// maxArrivals is how often a packet and what it causes may arrive. Groups whose tables lead in circles
// multiply packets.
const maxArrivals = 1 << 16

// Packet is a packet on a link. It is not changed once it has been sent.
type Packet struct {
	SLID   uint16 // SLID is the LID of the sender.
	DLID   uint16 // DLID is the LID of the receiver or group.
	SL     uint8  // SL is the service level.
	VL15   bool   // VL15 says that it is a subnet management packet.
	DestQP uint32 // DestQP is the number of the QP to receive it.
	SrcQP  uint32 // SrcQP is the number of the QP that sent it.
	QKey   uint32 // QKey is the Q_Key of a packet to QP1.
	PKey   uint16 // PKey is the P_Key.
	MAD    []byte // MAD is the datagram of a packet to QP0 or QP1, normally 256 bytes.

	// Payload is what an endpoint sends besides. The subnet does not look at it. It is nil in what agents
	// send.
	Payload any

	Size int // Size is the number of bytes on the link for the counters, 0 for the 288 of a MAD.
}

// Config says how a subnet behaves. The zero value is one in real time.
type Config struct {
	Seed uint64 // Seed is for packets that are lost by chance.

	// After calls fn once, after a time. Without After, the subnet uses the real clock. The function may
	// also drop the call, when nothing is to happen any more.
	After func(d time.Duration, fn func())

	// TrapInterval is the time after which a trap is sent again if it is not repressed; 0 means 1 s.
	TrapInterval time.Duration
}

// Subnet is a running subnet. Its methods can be called concurrently. They do all that happens at once, so that
// what a packet causes has happened when Send returns.
type Subnet struct {
	mu     sync.Mutex
	cfg    Config
	rng    *rand.Rand
	top    *Topology
	nodes  []*node
	byName map[*Node]*node
	queue  []flight // packets that arrive next
	tid    uint64   // of the last trap
}

// flight is a packet that arrives at a port.
type flight struct {
	to   *port
	p    *Packet
	hops int
}

// node is a node with its state.
type node struct {
	s         *Subnet
	spec      *Node
	ports     []*port // by number
	intercept func(*Packet) ([]*Packet, bool)

	sw *switchState // of a switch
}

// port is a port with its state.
type port struct {
	node *node
	num  int
	guid uint64
	peer *port // the other end, nil without a link

	info      [64]byte // PortInfo, as it is on the wire
	guids     []uint64
	pkeys     []uint16
	sl2vl     [][8]byte // by input port at a switch, else one
	vlarb     [4][64]byte
	lease     int // number of the lease of the M_Key that runs, 0 if none does
	leases    int
	counters  counters
	cut       bool // by SetLink
	disabled  bool // by Set(PortInfo) or an endpoint
	loss      float64
	maxWidth  Width // by LimitLink, 0 without it
	maxSpeed  Speed
	end       Endpoint
	ownAgents bool // the endpoint's
}

// Endpoint receives packets at a port of an adapter.
type Endpoint interface {
	// Receive takes a packet and reports whether it has. If not, the model's agents answer it. It must not
	// call methods of the subnet or its ports.
	Receive(p *Packet) bool

	// LinkChanged tells that the link is up or down, under the same condition.
	LinkChanged(up bool)
}

// AttachOptions describe an endpoint.
type AttachOptions struct {
	// OwnAgents says that the endpoint has the agents and the state of the port. The model's agents are silent
	// then, and the model lets every packet of the endpoint pass.
	OwnAgents bool
}

// New makes a subnet of a topology. Links are up and ports in state INIT. The topology must not be changed
// any more.
func New(t *Topology, cfg Config) *Subnet {
	if cfg.After == nil {
		cfg.After = func(d time.Duration, fn func()) { time.AfterFunc(d, fn) }
	}
	if cfg.TrapInterval == 0 {
		cfg.TrapInterval = time.Second
	}
	s := &Subnet{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x6962)), top: t, byName: map[*Node]*node{}}
	for _, spec := range t.Nodes {
		n := &node{s: s, spec: spec}
		for i := range spec.Ports {
			n.ports = append(n.ports, &port{node: n, num: i, guid: spec.Ports[i].GUID})
		}
		if spec.Type == Switch {
			n.sw = newSwitchState(n)
		}
		s.nodes = append(s.nodes, n)
		s.byName[spec] = n
	}
	for _, n := range s.nodes {
		for i, p := range n.spec.Ports {
			if p.Peer.Node != nil {
				n.ports[i].peer = s.byName[p.Peer.Node].ports[p.Peer.Port]
			}
		}
	}
	for _, n := range s.nodes {
		for _, p := range n.ports {
			p.powerOn()
		}
	}
	for _, n := range s.nodes {
		for _, p := range n.ports {
			s.relink(p, nil)
		}
	}
	return s
}

// Topology returns the topology of the subnet.
func (s *Subnet) Topology() *Topology { return s.top }

// find returns a port by its node's name or description, and its number.
func (s *Subnet) find(name string, number int) (*port, error) {
	spec := s.top.Node(name)
	if spec == nil {
		return nil, fmt.Errorf("subnet: node %q does not exist", name)
	}
	if number < 0 || number >= len(spec.Ports) || number == 0 && spec.Type != Switch {
		first := 1
		if spec.Type == Switch {
			first = 0
		}
		return nil, fmt.Errorf("subnet: port %d of node %q, allowed: %d to %d", number, name, first, len(spec.Ports)-1)
	}
	return s.byName[spec].ports[number], nil
}

// Attachment is an endpoint's place in the subnet. Its methods can be called concurrently.
type Attachment struct{ port *port }

// ErrAttached is the error for a port that has an endpoint already.
var ErrAttached = errors.New("the port has an endpoint already")

// Attach attaches an endpoint to a port of an adapter or router, or to port 0 of a switch. The name is the name or
// description of the node.
func (s *Subnet) Attach(name string, number int, e Endpoint, o AttachOptions) (*Attachment, error) {
	p, err := s.find(name, number)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case p.node.sw != nil && number != 0:
		return nil, fmt.Errorf("subnet: port %d of switch %q, allowed: 0", number, name)
	case o.OwnAgents && (p.node.sw != nil || len(p.node.ports) > 2):
		return nil, fmt.Errorf("subnet: node %q is no adapter with one port, and cannot have agents of an endpoint", name)
	case p.end != nil:
		return nil, fmt.Errorf("subnet: port %d of node %q: %w", number, name, ErrAttached)
	}
	p.end, p.ownAgents = e, o.OwnAgents
	return &Attachment{p}, nil
}

// Detach removes the endpoint. If it had its own agents, the port enables all widths and speeds that it
// supports, from the next training of the link on.
func (a *Attachment) Detach() {
	a.port.node.s.mu.Lock()
	defer a.port.node.s.mu.Unlock()
	p := a.port
	if p.ownAgents {
		p.enableAll()
	}
	p.end, p.ownAgents = nil, false
}

// LinkUp reports whether the link is up.
func (a *Attachment) LinkUp() bool {
	a.port.node.s.mu.Lock()
	defer a.port.node.s.mu.Unlock()
	return a.port.linkUp()
}

// Rate returns the width and speed of the link, and zeros while it is down.
func (a *Attachment) Rate() (Width, Speed) {
	a.port.node.s.mu.Lock()
	defer a.port.node.s.mu.Unlock()
	if !a.port.linkUp() {
		return 0, 0
	}
	return a.port.active()
}

// Enable says which widths and speeds the endpoint enables, from the next training of the link on. Of these the link
// does not use more than the topology has. It is for endpoints with their own agents.
func (a *Attachment) Enable(w Width, v Speed) {
	a.port.node.s.mu.Lock()
	defer a.port.node.s.mu.Unlock()
	b := &a.port.info
	b[piWidthEnabled], b[piSpeed], b[piExtEnabled] = byte(w), b[piSpeed]&0xf0|byte(v&7), byte(v>>3&15)
	b[piExt2] = b[piExt2]&^7 | byte(v/XDR)
}

// LID returns the LID of the port, of an endpoint without its own agents, and how many of its low bits vary.
func (a *Attachment) LID() (lid uint16, lmc uint8) {
	a.port.node.s.mu.Lock()
	defer a.port.node.s.mu.Unlock()
	return a.port.lid(), a.port.info[piLMC] & 7
}

// Send sends a packet. One that is addressed to the port itself is answered by its agents, or comes back. The
// packet and its MAD belong to the subnet afterwards. A packet that cannot be sent is counted and dropped.
func (a *Attachment) Send(p *Packet) {
	s := a.port.node.s
	s.do(func() {
		if !a.port.ownAgents && s.local(a.port, p) {
			s.deliver(a.port, a.port, p, true)
			return
		}
		if !a.port.ownAgents && p.VL15 && isDirected(p.MAD) && !a.port.startRoute(p.MAD) {
			return
		}
		if a.port.num == 0 {
			a.port.node.switchPacket(a.port, p, 0)
			return
		}
		s.transmit(a.port, p, 0)
	})
}

// Train has the link trained again, or turned off at this end until the next call, and reports whether the link is up
// then. The endpoint is not told what becomes of its end. It is for endpoints with their own agents.
func (a *Attachment) Train(on bool) (up bool) {
	p := a.port
	phys := byte(physDisabled)
	if on {
		phys = physPolling
	}
	p.node.s.do(func() {
		p.retrain(phys)
		up = p.linkUp()
	})
	return up
}

// ClearCounters clears the counters of both ends of the link.
func (a *Attachment) ClearCounters() {
	a.port.node.s.mu.Lock()
	defer a.port.node.s.mu.Unlock()
	a.port.counters = counters{}
	if a.port.peer != nil {
		a.port.peer.counters = counters{}
	}
}

// local reports whether a packet that a port sends is for the port itself.
func (s *Subnet) local(from *port, p *Packet) bool {
	if p.VL15 && isDirected(p.MAD) {
		if be.Uint16(p.MAD[smpDrSLID:]) == LIDPermissive && p.MAD[smpHopCount] == 0 {
			return p.MAD[smpHopPointer] <= 1
		}
	}
	return p.DLID != LIDPermissive && from.hasLID(p.DLID)
}

// do runs fn and then all that it causes.
func (s *Subnet) do(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn()
	for n := 0; len(s.queue) > 0; n++ {
		if n == maxArrivals {
			s.queue = nil
			return
		}
		f := s.queue[0]
		s.queue[0] = flight{}
		s.queue = s.queue[1:]
		s.arrive(f)
	}
}

// after has fn run later, as do does.
func (s *Subnet) after(d time.Duration, fn func()) { s.cfg.After(d, func() { s.do(fn) }) }

// transmit sends a packet from a port over its link.
func (s *Subnet) transmit(from *port, p *Packet, hops int) {
	switch {
	case !from.linkUp(), !p.VL15 && !from.ownAgents && from.state() != stateActive, hops >= maxHops:
		from.counters.add(xmitDiscards, 1)
		return
	}
	from.counters.count(p, xmitData)
	to := from.peer
	if loss := max(from.loss, to.loss); loss > 0 && s.rng.Float64() < loss {
		to.counters.add(rcvErrors, 1)
		return
	}
	to.counters.count(p, rcvData)
	s.queue = append(s.queue, flight{to, p, hops + 1})
}

// arrive handles a packet that has arrived at a port.
func (s *Subnet) arrive(f flight) {
	to, p := f.to, f.p
	if !p.VL15 && !to.ownAgents {
		switch to.state() {
		case stateArmed:
			to.setState(stateActive) // by the first packet that is no SMP
		case stateActive:
		default:
			return
		}
	}
	if to.node.sw != nil && to.num > 0 {
		to.node.switchPacket(to, p, f.hops)
		return
	}
	// The port of an adapter has one LID, and drops what is for others.
	if !to.ownAgents && p.DLID != LIDPermissive && p.DLID < lidMulticast && !to.hasLID(p.DLID) {
		return
	}
	s.deliver(to, to, p, false)
}

// deliver hands a packet to the endpoint and the agents of a port. It came through port in, which is another
// one at a switch. It is local if the port sent it itself.
func (s *Subnet) deliver(to, in *port, p *Packet, local bool) {
	if p.VL15 && isDirected(p.MAD) && to.num > 0 && !to.ownAgents {
		p = p.clone()
		if !to.endOfRoute(p.MAD) {
			return
		}
	}
	if to.end != nil && to.end.Receive(p) || to.ownAgents {
		return
	}
	if to.node.intercept != nil {
		if answers, done := to.node.intercept(p); done {
			for _, a := range answers {
				s.reply(to, in, a, local)
			}
			return
		}
	}
	if a := to.answer(in, p, local); a != nil {
		s.reply(to, in, a, local)
	}
}

// clone returns a copy of the packet with its own MAD.
func (p *Packet) clone() *Packet {
	q := *p
	q.MAD = append([]byte(nil), p.MAD...)
	return &q
}
