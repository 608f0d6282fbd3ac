package subnet

import "math/bits"

// Sizes of a switch's tables.
const (
	linearCap    = 0xc000
	multicastCap = 1024
	enforceCap   = 32 // P_Keys of an external port
)

// noRoute is the entry of a forwarding table that leads nowhere.
const noRoute = 0xff

// switchState is what a switch has besides its ports.
type switchState struct {
	info   [64]byte // SwitchInfo, as it is on the wire
	linear []uint8
	groups map[uint16]*[16]uint16 // port masks of multicast LIDs, by position
	trap   *trap                  // the one that is repeated
}

func newSwitchState(n *node) *switchState {
	w := &switchState{linear: make([]uint8, linearCap), groups: map[uint16]*[16]uint16{}}
	for i := range w.linear {
		w.linear[i] = noRoute
	}
	be.PutUint16(w.info[siLinearCap:], linearCap)
	be.PutUint16(w.info[siMulticastCap:], multicastCap)
	w.info[siDefaultMulticast], w.info[siDefaultNotPrimary] = noRoute, noRoute
	be.PutUint16(w.info[siEnforceCap:], enforceCap)
	if n.spec.EnhancedPort0 {
		w.info[siFlags] = siEnhanced
	}
	return w
}

// switchPacket handles a packet that arrives at a port of a switch.
func (n *node) switchPacket(in *port, p *Packet, hops int) {
	if p.VL15 && isDirected(p.MAD) && (p.DLID == LIDPermissive || n.ports[0].hasLID(p.DLID)) {
		n.switchDirected(in, p, hops)
		return
	}
	if p.DLID == LIDPermissive {
		n.toAgents(in, p, false)
		return
	}
	n.forward(in, p, hops)
}

// toAgents hands a packet to port 0 of a switch, in the name of the port through which it came.
func (n *node) toAgents(in *port, p *Packet, local bool) { n.s.deliver(n.ports[0], in, p, local) }

// forward passes a packet on by its DLID. The input port is port 0 for packets of the switch itself.
func (n *node) forward(in *port, p *Packet, hops int) {
	if p.DLID >= lidMulticast {
		n.multicast(in, p, hops)
		return
	}
	if n.ports[0].hasLID(p.DLID) {
		n.toAgents(in, p, in.num == 0)
		return
	}
	out := noRoute
	if p.DLID <= be.Uint16(n.sw.info[siLinearTop:]) {
		out = int(n.sw.linear[p.DLID])
	}
	if out == 0 || out >= len(n.ports) || out == in.num || !n.lane(in, n.ports[out], p) {
		in.counters.add(relayErrors, 1)
		return
	}
	n.s.transmit(n.ports[out], p, hops)
}

// lane reports whether the mapping of service levels gives the packet a virtual lane.
func (n *node) lane(in, out *port, p *Packet) bool {
	if p.VL15 {
		return true
	}
	vl := out.sl2vl[in.num][p.SL&15/2] >> (4 * (1 - p.SL&1)) & 15
	return vl < lanes(out.info[piOperVLs]>>4)
}

// lanes is the number of data VLs by the code of OperationalVLs.
func lanes(code byte) byte {
	if code < 1 || code > 5 {
		return 1
	}
	return []byte{1, 2, 4, 8, 15}[code-1]
}

// multicast passes a packet on to all ports of a group but the one through which it came.
func (n *node) multicast(in *port, p *Packet, hops int) {
	masks := n.sw.groups[p.DLID]
	if masks == nil || p.VL15 {
		in.counters.add(relayErrors, 1)
		return
	}
	for position, mask := range masks {
		for ; mask != 0; mask &= mask - 1 {
			num := position*16 + bits.TrailingZeros16(mask)
			switch {
			case num == in.num || num >= len(n.ports):
			case num == 0:
				n.toAgents(in, p, false)
			case n.lane(in, n.ports[num], p):
				n.s.transmit(n.ports[num], p, hops)
			}
		}
	}
}
