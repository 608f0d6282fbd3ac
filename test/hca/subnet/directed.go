package subnet

// Places in an SMP: InfiniBand architecture, chapter 14.
const (
	smpDirection  = 4 // the D bit is the uppermost bit of the status
	smpHopPointer = 6
	smpHopCount   = 7
	smpMKey       = 24
	smpDrSLID     = 32
	smpDrDLID     = 34
	smpData       = 64
	smpInitial    = 128
	smpReturn     = 192
	madSize       = 256

	maxRoute = 63 // the paths have 64 places, of which the first is not used
)

// isDirected reports whether a MAD is an SMP with a directed route.
func isDirected(m []byte) bool { return len(m) >= madSize && m[madClass] == classDirected }

// startRoute moves the hop pointer of an SMP that a port of an adapter sends, as the kernel does, and reports
// whether the SMP can be sent.
func (p *port) startRoute(m []byte) bool {
	ptr, count := m[smpHopPointer], m[smpHopCount]
	back := m[smpDirection]&0x80 != 0
	first := be.Uint16(m[smpDrSLID:])
	if back {
		first = be.Uint16(m[smpDrDLID:])
	}
	switch {
	case count > maxRoute:
		return false
	case p.num == 0 || first != LIDPermissive: // a switch moves it
		return true
	case back:
		m[smpHopPointer]--
		return count > 0 && ptr == count+1 && int(m[smpReturn+int(count)]) == p.num
	}
	m[smpHopPointer]++
	return count > 0 && ptr == 0 && int(m[smpInitial+1]) == p.num
}

// endOfRoute moves the hop pointer of an SMP that is at the end of its route at this port of an adapter, or
// comes back to where it began. It reports whether that is so.
func (p *port) endOfRoute(m []byte) bool {
	ptr, count := m[smpHopPointer], m[smpHopCount]
	if count > maxRoute {
		return false
	}
	if m[smpDirection]&0x80 != 0 {
		if ptr == 1 && be.Uint16(m[smpDrSLID:]) == LIDPermissive {
			m[smpHopPointer] = 0
			return true
		}
		return ptr == 0 // the LID routed part led here
	}
	if ptr != count {
		return ptr == count+1 // the LID routed part led here
	}
	if be.Uint16(m[smpDrDLID:]) != LIDPermissive {
		return false // an adapter does not pass it on
	}
	if count > 0 {
		m[smpReturn+int(count)] = byte(p.num)
	}
	m[smpHopPointer]++
	return true
}

// switchDirected handles an SMP with a directed route at a switch: it is passed on, by port or by LID, or
// answered.
func (n *node) switchDirected(in *port, p *Packet, hops int) {
	p = p.clone()
	m := p.MAD
	if m[smpHopCount] > maxRoute {
		return
	}
	if m[smpDirection]&0x80 != 0 {
		n.directedBack(in, p, hops)
		return
	}
	ptr, count := int(m[smpHopPointer]), int(m[smpHopCount])
	switch {
	case ptr == 0 && count > 0:
		// The LID routed part before the directed route ends here; a neighbor must have moved the pointer.
		if be.Uint16(m[smpDrSLID:]) == LIDPermissive && in.num != 0 {
			return
		}
		n.hop(p, 1, int(m[smpInitial+1]), hops)
	case ptr > 0 && ptr < count:
		m[smpReturn+ptr] = byte(in.num)
		n.hop(p, ptr+1, int(m[smpInitial+ptr+1]), hops)
	case ptr == count:
		if count > 0 {
			m[smpReturn+count] = byte(in.num)
		}
		m[smpHopPointer]++
		if lid := be.Uint16(m[smpDrDLID:]); lid != LIDPermissive {
			p.SLID, p.DLID = n.ports[0].lid(), lid
			n.forward(n.ports[0], p, hops)
			return
		}
		n.toAgents(in, p, in.num == 0)
	case ptr == count+1:
		n.toAgents(in, p, in.num == 0)
	}
}

// directedBack is switchDirected for an answer.
func (n *node) directedBack(in *port, p *Packet, hops int) {
	m := p.MAD
	ptr, count := int(m[smpHopPointer]), int(m[smpHopCount])
	switch {
	case count > 0 && ptr == count+1, ptr >= 2 && ptr <= count:
		n.hop(p, ptr-1, int(m[smpReturn+ptr-1]), hops)
	case ptr == 1:
		m[smpHopPointer] = 0
		if lid := be.Uint16(m[smpDrSLID:]); lid != LIDPermissive {
			p.SLID, p.DLID = n.ports[0].lid(), lid
			n.forward(n.ports[0], p, hops)
			return
		}
		n.toAgents(in, p, in.num == 0)
	case ptr == 0:
		n.toAgents(in, p, in.num == 0)
	}
}

// hop passes an SMP on through a port.
func (n *node) hop(p *Packet, ptr, out int, hops int) {
	if out < 1 || out >= len(n.ports) {
		return
	}
	p.MAD[smpHopPointer] = byte(ptr)
	p.SLID, p.DLID = LIDPermissive, LIDPermissive
	n.s.transmit(n.ports[out], p, hops)
}

// reply sends the answer of an agent at a port to a packet that came through port in.
func (s *Subnet) reply(from, in *port, a *Packet, local bool) {
	if a.VL15 && isDirected(a.MAD) {
		s.replyDirected(from, a, local)
		return
	}
	switch {
	case local && from.end != nil:
		from.end.Receive(a)
	case local:
	case a.DLID == LIDPermissive:
		s.transmit(in, a, 0)
	default:
		s.sendFrom(from, a)
	}
}

// replyDirected sends an answer along the way back.
func (s *Subnet) replyDirected(from *port, a *Packet, local bool) {
	m := a.MAD
	ptr, count := int(m[smpHopPointer]), int(m[smpHopCount])
	switch {
	case be.Uint16(m[smpDrDLID:]) != LIDPermissive:
		s.sendFrom(from, a) // the LID routed part comes first
	case count > maxRoute:
	case count > 0 && ptr == count+1:
		if out := int(m[smpReturn+count]); out > 0 && out < len(from.node.ports) {
			m[smpHopPointer]--
			a.SLID, a.DLID = LIDPermissive, LIDPermissive
			s.transmit(from.node.ports[out], a, 0)
		}
	case be.Uint16(m[smpDrSLID:]) != LIDPermissive && ptr == 1:
		m[smpHopPointer] = 0
		a.SLID, a.DLID = from.lid(), be.Uint16(m[smpDrSLID:])
		s.sendFrom(from, a)
	case local && from.end != nil:
		m[smpHopPointer] = 0
		from.end.Receive(a)
	}
}

// sendFrom sends a packet of an agent by its DLID.
func (s *Subnet) sendFrom(from *port, a *Packet) {
	if from.num == 0 {
		from.node.forward(from, a, 0)
		return
	}
	s.transmit(from, a, 0)
}
