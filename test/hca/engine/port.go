package engine

import "slices"

// LinkState is the state of a port's link, as an attribute PortInfo has it (PortState).
type LinkState uint8

// The states of a link. A port of Ethernet is down or active.
const (
	LinkDown   LinkState = 1 // LinkDown: no packet goes in or out.
	LinkInit   LinkState = 2 // LinkInit: packets of subnet management do.
	LinkArmed  LinkState = 3 // LinkArmed: others only come in, and the first one makes the link active.
	LinkActive LinkState = 4 // LinkActive: all do.
)

// permissiveLID stands in packets that go by the link alone.
const permissiveLID = 0xffff

const notActive = "the port is not active"

// Up reports whether packets of subnet management go in and out.
func (p *PortState) Up() bool { return p.State >= LinkInit }

// refuses says why a packet can neither leave nor enter a port. It is empty if it can do one of both.
func (p *PortState) refuses(k *packet, noSMI bool) string {
	switch {
	case !p.Up():
		return "the port is down"
	case noSMI && k.toQP0():
		return "the port has no subnet management interface"
	case p.State == LinkInit && !k.toQP0():
		return notActive
	}
	return ""
}

// SetPort sets what the port is: addresses, tables and state. A change of the state is
// an event, and so is one of the LID, the P_Keys or the GIDs on InfiniBand.
func (d *Device) SetPort(p PortState) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.setPort(p)
}

// ChangePort is SetPort of what a function makes of the port. The lock is held: it must not call back.
func (d *Device) ChangePort(change func(p *PortState)) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	p := d.portCopy()
	change(&p)
	d.setPort(p)
}

func (d *Device) setPort(p PortState) {
	old := d.port
	p.GIDs, p.PKeys = slices.Clone(p.GIDs), slices.Clone(p.PKeys)
	if len(p.PKeys) == 0 {
		p.PKeys = []uint16{0xffff}
	}
	d.port = p
	d.port.State = old.State
	d.setLinkState(p.State)
	if d.cfg.LinkLayer == InfiniBand {
		if old.LID != p.LID {
			d.portEvent(PortLID)
		}
		if !slices.Equal(old.PKeys, p.PKeys) {
			d.portEvent(PortPKey)
		}
		if !slices.Equal(old.GIDs, p.GIDs) {
			d.portEvent(PortGUID)
		}
	}
}

// linkEvents are the subtypes of a port change for the states of the link that have one.
var linkEvents = map[LinkState]uint8{LinkDown: PortDown, LinkInit: PortInit, LinkActive: PortActive}

// setLinkState changes the state of the link.
func (d *Device) setLinkState(s LinkState) {
	old := d.port.State
	d.port.State = s
	if old == s {
		return
	}
	if s <= LinkDown && old >= LinkInit {
		d.counts.LinkDowned++
	}
	if sub, ok := linkEvents[s]; ok {
		d.portEvent(sub)
	}
}

// Port says what the port is.
func (d *Device) Port() PortState {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	return d.portCopy()
}

func (d *Device) portCopy() PortState {
	p := d.port
	p.GIDs, p.PKeys = slices.Clone(p.GIDs), slices.Clone(p.PKeys)
	return p
}

// SetGID sets one entry of the GID table, which grows as needed up to 256 entries.
func (d *Device) SetGID(index int, g GID) error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if index < 0 || index >= 256 {
		return refuse(BadIndex, "GID", uint32(index), "", "the table has 256 entries")
	}
	for len(d.port.GIDs) <= index {
		d.port.GIDs = append(d.port.GIDs, GID{Invalid: true})
	}
	d.port.GIDs[index] = g
	return nil
}

// Traffic counts packets.
type Traffic struct {
	Packets uint64 // Packets is their number.
	Octets  uint64 // Octets is their length in bytes, from the local route header up to the invariant CRC.
}

// Flow counts the packets of one direction.
type Flow struct {
	Unicast   Traffic // Unicast are packets to one port.
	Multicast Traffic // Multicast are packets to a group.
}

// PortCounts are the counters of a port since the device was made. Only packets of RDMA count, also those that
// the port sends to itself.
type PortCounts struct {
	Xmit         Flow   // Xmit are the packets that left the port.
	Recv         Flow   // Recv are the packets that entered the port.
	XmitDiscards uint64 // XmitDiscards are packets that did not leave, since the link was down or not active, or the port has no SMI.
	VL15Dropped  uint64 // VL15Dropped are packets of subnet management that no receive WQE was there for.
	LinkDowned   uint64 // LinkDowned is how often the link went down.

	PKeyViolations uint64 // PKeyViolations are packets that were dropped for their P_Key.
	QKeyViolations uint64 // QKeyViolations are packets that were dropped for their Q_Key.
}

// PortCounts returns the counters of the port.
func (d *Device) PortCounts() PortCounts {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	return d.counts
}

// countPort counts a packet.
func (d *Device) countPort(f *Flow, p *packet) {
	if p.kind == pktEth {
		return
	}
	t := &f.Unicast
	if p.multicast(d.cfg.LinkLayer == Ethernet) {
		t = &f.Multicast
	}
	t.Packets++
	t.Octets += uint64(p.octets())
}

// Lengths of headers in bytes.
const (
	lrhBytes    = 8
	dethBytes   = 8
	rethBytes   = 16
	aethBytes   = 4
	atomicBytes = 28
	immBytes    = 4
	xrcBytes    = 4
	dcBytes     = 16
)

// octets is the length of a packet on InfiniBand, without the variant CRC.
func (p *packet) octets() int {
	n := lrhBytes + bthBytes + (len(p.data)+3)&^3 + icrcBytes
	for _, h := range []struct {
		there bool
		bytes int
	}{
		{p.grh, grhBytes}, {p.service == UD, dethBytes}, {p.service == DCI, dcBytes}, {p.hasImm || p.invalidate, immBytes},
		{p.kind == pktWrite && p.first || p.kind == pktReadReq, rethBytes}, {p.kind == pktAtomicReq, atomicBytes},
		{p.kind == pktAck || p.kind == pktAtomicResp || p.kind == pktReadResp && (p.first || p.last), aethBytes},
		{p.service == XRC && (p.kind == pktSend || p.kind == pktWrite || p.kind == pktReadReq || p.kind == pktAtomicReq), xrcBytes},
	} {
		if h.there {
			n += h.bytes
		}
	}
	return n
}

// SetPortCounts sets the counters of the port.
func (d *Device) SetPortCounts(c PortCounts) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.counts = c
}
