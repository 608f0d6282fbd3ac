package subnet

import "slices"

// relink takes a link up or down if the settings of its ports require it. A node does not report a
// change that it was told to make: that is quiet.
func (s *Subnet) relink(p *port, quiet *node) {
	if p.peer == nil {
		return
	}
	w, v := p.negotiate()
	up := !p.cut && !p.disabled && !p.peer.cut && !p.peer.disabled && w != 0 && v != 0
	switch {
	case up && !p.linkUp():
		for _, e := range []*port{p, p.peer} {
			e.setSpeed(w, v)
			e.setPhys(physLinkUp)
			e.setState(stateInit)
			e.changed(quiet)
		}
	case !up:
		s.takeDown(p, quiet)
	}
	for _, e := range []*port{p, p.peer} {
		if !up && e.disabled {
			e.setPhys(physDisabled)
		}
	}
}

// retrain takes the link down, and up again unless the port is disabled, as Set(PortInfo) of a physical state does.
func (p *port) retrain(phys byte) {
	p.disabled = phys == physDisabled
	p.node.s.takeDown(p, p.node)
	p.setPhys(phys)
	p.node.s.relink(p, p.node)
}

// takeDown takes a link down if it is up.
func (s *Subnet) takeDown(p *port, quiet *node) {
	if !p.linkUp() {
		return
	}
	for _, e := range []*port{p, p.peer} {
		e.setPhys(e.info[piPhysState] & 15)
		e.setState(stateDown)
		e.counters.add(linkDowned, 1)
	}
	p.changed(quiet)
	p.peer.changed(quiet)
}

// negotiate returns the width and speed of a link, or 0 if its ports do not have a common one.
func (p *port) negotiate() (Width, Speed) {
	w, v := p.enabled()
	pw, pv := p.peer.enabled()
	w, v = w&pw, v&pv
	type rate struct { // the most that is possible, 0 for any
		width Width
		speed Speed
	}
	var limits []rate
	for _, e := range []*port{p, p.peer} {
		limits = append(limits, rate{e.maxWidth, e.maxSpeed})
		if e.ownAgents {
			// The endpoint's enabled rates do not respect the topology, so it limits them here.
			width, speed := e.node.spec.Ports[e.num].rate()
			limits = append(limits, rate{width, speed})
		}
	}
	for _, l := range limits {
		if l.speed != 0 {
			v &= l.speed | (l.speed - 1)
		}
	}
	for s := XDR; s != 0; s >>= 1 {
		if v&s != 0 {
			v = s
			break
		}
	}
	for _, n := range widthNames {
		if w&n.width != 0 && !slices.ContainsFunc(limits, func(l rate) bool { return !n.width.fits(l.width) }) {
			return n.width, v
		}
	}
	return 0, v
}

// fits reports whether a width is not greater than another one, which may be 0 for any.
func (w Width) fits(limit Width) bool {
	lanes := map[Width]int{Width1X: 1, Width2X: 2, Width4X: 4, Width8X: 8, Width12X: 12}
	return limit == 0 || lanes[w] <= lanes[limit]
}

// changed tells that the link of a port is up or down now.
func (p *port) changed(quiet *node) {
	if p.node == quiet {
		return
	}
	if p.end != nil {
		p.end.LinkChanged(p.linkUp())
	}
	if p.node.sw != nil {
		p.node.sw.info[siStateChange] |= siChanged
		p.node.sendTrap()
	}
}

// trap is a trap that a switch repeats until it is repressed.
type trap struct{ tid uint64 }

// Places in a notice: InfiniBand architecture, chapter 13.
const (
	attrNotice       = 0x02
	noticeUrgent     = 0x80 | 1 // generic
	trapLinkState    = 128
	noticeProducer   = 3 // 24 bits that begin at 1
	noticeNumber     = 4
	noticeIssuer     = 6
	noticeDetailsLID = 10
)

// sendTrap sends trap 128 to the subnet manager, and repeats it.
func (n *node) sendTrap() {
	n.s.tid++
	t := &trap{n.s.tid}
	n.sw.trap = t
	n.repeatTrap(t)
}

func (n *node) repeatTrap(t *trap) {
	p0 := n.ports[0]
	sm := be.Uint16(p0.info[piSMLID:])
	if n.sw.trap != t || sm == 0 || p0.lid() == 0 {
		return
	}
	m := make([]byte, madSize)
	m[madBase], m[madClass], m[madClassVersion], m[madMethod] = 1, classSubnet, 1, methodTrap
	be.PutUint64(m[madTID:], t.tid)
	be.PutUint16(m[madAttribute:], attrNotice)
	d := m[smpData:]
	d[0], d[noticeProducer] = noticeUrgent, byte(Switch)
	be.PutUint16(d[noticeNumber:], trapLinkState)
	be.PutUint16(d[noticeIssuer:], p0.lid())
	be.PutUint16(d[noticeDetailsLID:], p0.lid())
	n.forward(p0, &Packet{SLID: p0.lid(), DLID: sm, SL: p0.info[piMTU] & 15, VL15: true, MAD: m}, 0)
	n.s.after(n.s.cfg.TrapInterval, func() { n.repeatTrap(t) })
}

// repress ends a trap.
func (n *node) repress(tid uint64) {
	if n.sw.trap != nil && n.sw.trap.tid == tid {
		n.sw.trap = nil
	}
}
