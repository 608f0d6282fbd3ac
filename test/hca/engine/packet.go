package engine

import (
	"cmp"
	"fmt"
	"time"
)

// psnMask cuts a packet sequence number to its 24 bits.
const psnMask = 0xffffff

// psnDiff is how far a is behind (negative) or ahead of b.
func psnDiff(a, b uint32) int32 { return int32((a-b)<<8) >> 8 }

// pktKind is what a packet is.
type pktKind uint8

const (
	pktSend pktKind = iota
	pktWrite
	pktReadReq
	pktReadResp
	pktAtomicReq
	pktAtomicResp
	pktAck
	pktEth
	pktDisconnect // of DC: the initiator ends a connection
)

// String is the kind's name.
func (k pktKind) String() string {
	return [...]string{"SEND", "WRITE", "READ request", "READ response", "ATOMIC request", "ATOMIC response", "ACK", "Ethernet frame", "DISCONNECT"}[k]
}

// packet is what goes over the fabric.
type packet struct {
	from        *Device
	kind        pktKind
	service     QPType
	first, last bool // of its message
	dest, src   uint32
	psn         uint32
	ackReq      bool
	solicited   bool
	hasImm      bool
	invalidate  bool // imm is a key to invalidate
	imm         uint32
	data        []byte
	srqn        uint32 // of XRC

	va     uint64 // of the RDMA header
	rkey   uint32
	length uint32
	op     uint8 // the WQE's opcode, of an atomic
	args   [4]uint64

	syndrome uint8 // of an acknowledgement
	msn      uint32
	qkey     uint32
	pkey     uint16
	dc       dcHeader

	route
}

// route is how a packet is addressed.
type route struct {
	slid, dlid uint16
	sl         uint8
	grh        bool
	v2         bool
	sgid, dgid [16]byte
	tclass     uint8
	hops       uint8
	flow       uint32
	smac, dmac [6]byte
	sport      uint16
	tagged     bool // vlan counts
	vlan       uint16
}

// The syndromes of an acknowledgement: the kind in bits 5 and 6, and a value.
const (
	ackOK      = 0x00 | 0x1f // credits are not counted
	ackRNR     = 0x20
	ackNAK     = 0x60
	nakSeq     = ackNAK
	nakInvalid = ackNAK | 1
	nakAccess  = ackNAK | 2
	nakOp      = ackNAK | 3
)

// mtuBytes is the size of an encoded MTU.
func mtuBytes(code uint8) int {
	if code < 1 || code > 5 {
		return 4096
	}
	return 128 << code
}

// routeOf is the route of a connected QP's packets.
func (q *qp) routeOf(p *Path) route {
	port := &q.d.port
	r := route{sl: p.SL, dlid: p.RLID, slid: port.LID | uint16(p.PathBits), grh: p.GRH, dgid: p.RGID, tclass: p.TClass, hops: p.HopLimit, flow: p.FlowLabel, dmac: p.RMAC, sport: p.UDPSport}
	r.source(q.d, int(p.SGIDIndex))
	return r
}

// source fills in what the GID table says about the sender.
func (r *route) source(d *Device, index int) {
	eth := d.cfg.LinkLayer == Ethernet
	r.grh = r.grh || eth
	r.smac = d.port.MAC
	if !r.grh || index >= len(d.port.GIDs) {
		return
	}
	g := &d.port.GIDs[index]
	r.sgid, r.v2 = g.Addr, g.RoCEv2 && eth
	r.tagged, r.vlan = g.VLAN && eth, g.VLANID
	if g.MAC != ([6]byte{}) {
		r.smac = g.MAC
	}
}

// routeOfAV is the route of a datagram.
func (w *sendWQE) routeOfAV() route {
	a, d := &w.av, w.q.d
	r := route{sl: a.sl, dlid: a.rlid, slid: d.slid(a.rlid, a.pathBits), grh: a.grh, dgid: a.rgid, tclass: a.tclass, hops: a.hops, flow: a.flow, dmac: a.rmac}
	if d.cfg.LinkLayer == Ethernet {
		r.dlid, r.sport, r.sl = 0, a.rlid, a.sl>>1
	}
	r.source(d, int(a.sgid))
	return r
}

// slid is the source LID of a datagram. A port that goes only by its link has no LID.
func (d *Device) slid(dlid uint16, pathBits uint8) uint16 {
	if dlid == permissiveLID {
		return permissiveLID
	}
	return d.port.LID | uint16(pathBits)
}

// multicast reports whether a packet goes to a group.
func (r *route) multicast(eth bool) bool {
	if eth {
		return r.dmac[0]&1 == 1
	}
	return r.dlid >= 0xc000 && r.dlid != permissiveLID
}

// transmit sends a packet into the fabric.
func (d *Device) transmit(p *packet) {
	d.rep.packets["sent"]++
	p.from = d
	if d.cfg.Trace != nil {
		d.trace(TraceEvent{Kind: TracePacket, QPN: p.src, Text: p.String()})
	}
	if why := d.port.refuses(p, d.cfg.Traits.NoSMI); why != "" || d.port.State == LinkArmed && !p.toQP0() {
		if p.kind != pktEth {
			d.counts.XmitDiscards++
		}
		d.drop(p, cmp.Or(why, notActive))
		return
	}
	d.countPort(&d.counts.Xmit, p)
	d.count(Sent, p)
	f := d.f
	drop, dup := f.faultOf(d, p.dest)
	drop = drop || f.cfg.Loss > 0 && f.rng.Float64() < f.cfg.Loss
	dup = dup || f.cfg.Duplicate > 0 && f.rng.Float64() < f.cfg.Duplicate
	if drop {
		d.drop(p, "lost on the fabric")
		return
	}
	if d.cfg.Link != nil {
		d.sendByLink(p)
		if dup {
			d.sendByLink(p)
		}
		return
	}
	found := false
	for _, to := range f.devices {
		if to.cfg.LinkLayer == d.cfg.LinkLayer && to.cfg.Link == nil && to.owns(d, p) {
			found = true
			f.carry(to, p)
			if dup {
				f.carry(to, p)
			}
		}
	}
	if !found {
		d.drop(p, "nobody has the address")
	}
}

// carry brings a packet to a device.
func (f *Fabric) carry(to *Device, p *packet) {
	deliver := func() {
		if !to.fatal {
			to.receive(p)
		}
	}
	if f.cfg.Delay > 0 {
		f.after(time.Duration(f.rng.Int64N(int64(f.cfg.Delay))), deliver)
		return
	}
	f.soon(deliver)
}

// owns reports whether a packet is addressed to the device.
func (d *Device) owns(from *Device, p *packet) bool {
	if d.cfg.LinkLayer == Ethernet {
		if p.dmac[0]&1 == 1 {
			return p.kind != pktEth || d != from
		}
		return d.hasMAC(p.dmac)
	}
	if p.dlid == permissiveLID {
		return d != from && len(from.f.devices) == 2 // the port at the other end of the cable
	}
	if p.multicast(false) {
		return true
	}
	if !d.hasLID(p.dlid) {
		return false
	}
	switch {
	case !d.cfg.Traits.SharedLID:
		return true
	case p.grh:
		return d.hasGID(&p.route)
	}
	return d.firstOfLID()
}

// hasLID reports whether a LID is one of the port's.
func (d *Device) hasLID(lid uint16) bool {
	return d.port.LID != 0 && lid>>d.port.LMC == d.port.LID>>d.port.LMC
}

// firstOfLID reports whether no device that joined the fabric earlier has the same LID: the first one has the packets
// that do not say by a GRH which of them is meant.
func (d *Device) firstOfLID() bool {
	for _, other := range d.f.devices {
		if other.id < d.id && other.cfg.LinkLayer == InfiniBand && other.port.LID == d.port.LID {
			return false
		}
	}
	return true
}

// toQP0 reports whether a packet is a subnet management packet.
func (p *packet) toQP0() bool { return p.service == UD && p.dest == 0 }

// hasMAC reports whether an address is one of the port's.
func (d *Device) hasMAC(mac [6]byte) bool {
	if d.port.MAC == mac {
		return true
	}
	for _, g := range d.port.GIDs {
		if !g.Invalid && g.MAC == mac && mac != ([6]byte{}) {
			return true
		}
	}
	return false
}

// drop counts a packet that goes nowhere.
func (d *Device) drop(p *packet, why string) {
	d.rep.packets["dropped: "+why]++
	if d.cfg.Trace != nil {
		d.trace(TraceEvent{Kind: TraceDrop, QPN: p.dest, Text: p.String() + ": " + why})
	}
}

// String puts a packet into words.
func (p *packet) String() string {
	if p.kind == pktEth {
		return fmt.Sprintf("%s of %d bytes to %x", p.kind, len(p.data), p.dmac)
	}
	s := fmt.Sprintf("%s %s %#x->%#x psn %#x", p.service, p.kind, p.src, p.dest, p.psn)
	switch p.kind {
	case pktAck:
		s += fmt.Sprintf(" syndrome %#x", p.syndrome)
	case pktReadReq:
		s += fmt.Sprintf(" va %#x rkey %#x length %d", p.va, p.rkey, p.length)
	default:
		s += fmt.Sprintf(" %d bytes, first %v, last %v", len(p.data), p.first, p.last)
	}
	return s
}

// receive takes a packet from the fabric.
func (d *Device) receive(p *packet) {
	if why := d.port.refuses(p, d.cfg.Traits.NoSMI); why != "" {
		d.drop(p, why)
		return
	}
	d.countPort(&d.counts.Recv, p)
	if d.port.State == LinkArmed && !p.toQP0() {
		d.setLinkState(LinkActive) // as the other end of the link is active
	}
	switch {
	case p.kind == pktEth:
		d.receiveFrame(p)
		return
	case p.v2 && !d.usesRoCE():
		d.receiveAsFrame(p)
		return
	case d.cfg.Traits.GRHRequired && d.cfg.LinkLayer == InfiniBand && !p.grh && !p.toQP0():
		d.drop(p, "no GRH, which the port requires")
		return
	case p.grh && !p.multicast(d.cfg.LinkLayer == Ethernet) && !d.hasGID(&p.route):
		d.drop(p, "no such GID")
		return
	}
	d.count(Received, p)
	if p.service == UD {
		d.receiveDatagram(p)
		return
	}
	if p.service == DCI {
		d.receiveDC(p)
		return
	}
	q := d.qps[p.dest]
	switch {
	case q == nil || q.sq != nil:
		d.drop(p, "no such QP")
	case q.spec.Type != p.service:
		d.drop(p, "a QP of another service")
	case q.state < RTR || q.state == Err:
		d.drop(p, "the QP can't receive in its state")
	case q.attr.RemoteQPN != p.src:
		d.drop(p, "from a QP that it is not connected with")
	case !d.pkeyMatches(q.pkey(), p.pkey):
		d.counts.PKeyViolations++
		d.drop(p, "P_Key")
	default:
		q.receive(p)
	}
}

// hasGID reports whether the port has the GID that a packet goes to: on Ethernet of the
// same kind and on the same VLAN.
func (d *Device) hasGID(r *route) bool {
	for _, g := range d.port.GIDs {
		if g.Invalid || g.Addr != r.dgid {
			continue
		}
		if d.cfg.LinkLayer == InfiniBand || g.RoCEv2 == r.v2 && g.VLAN == r.tagged && (!g.VLAN || g.VLANID == r.vlan) {
			return true
		}
	}
	return false
}

// pkey is the P_Key in the QP's packets.
func (q *qp) pkey() uint16 {
	if i := int(q.attr.Primary.PKeyIndex); i < len(q.d.port.PKeys) {
		return q.d.port.PKeys[i]
	}
	return 0
}

// pkeyMatches compares P_Keys: the same partition, and not two limited members.
func (d *Device) pkeyMatches(a, b uint16) bool {
	return a&0x7fff == b&0x7fff && a&0x7fff != 0 && (a|b)&0x8000 != 0
}

// receive takes a packet for a connected QP.
func (q *qp) receive(p *packet) {
	if !q.commEst && q.state == RTR {
		q.commEst = true
		q.eventOf(EventCommEst)
	}
	switch p.kind {
	case pktAck, pktReadResp, pktAtomicResp:
		if q.reliable() && (q.state == RTS || q.state == SQD) {
			q.response(p)
		}
	default:
		q.request(p)
	}
}
