package engine

import "time"

// Link is what the port of an InfiniBand device is connected with, in place of the wire that joins all devices.
type Link interface {
	// Transmit takes a packet from the device. The fabric's lock is held.
	Transmit(p LinkPacket)
}

// LinkPacket is a packet on a Link.
type LinkPacket struct {
	SLID, DLID uint16 // SLID and DLID are the LIDs of sender and receiver.
	SL         uint8  // SL is the service level.
	PKey       uint16 // PKey is the P_Key.
	Dest, Src  uint32 // Dest and Src are the numbers of the QPs.
	QKey       uint32 // QKey is the Q_Key of a datagram.
	Octets     int    // Octets is the length on the link, without the variant CRC.

	// MAD is the data of a datagram to QP0 or QP1. It may be changed on the way, or be all that there is of a
	// packet that no device has sent.
	MAD []byte

	packet *packet // what the device has sent
}

// linkPacket makes a packet for a link.
func (p *packet) linkPacket() LinkPacket {
	l := LinkPacket{SLID: p.slid, DLID: p.dlid, SL: p.sl, PKey: p.pkey, Dest: p.dest, Src: p.src, QKey: p.qkey, Octets: p.octets(), packet: p}
	if p.service == UD && p.dest <= 1 {
		l.MAD = p.data
	}
	return l
}

// Deliver brings a packet to the device from its link. One that has another port's LID is dropped. The fabric's lock is
// held.
func (d *Device) Deliver(l LinkPacket) {
	p := &packet{kind: pktSend, service: UD, first: true, last: true}
	if l.packet != nil {
		*p = *l.packet
	}
	if l.MAD != nil {
		p.data, p.dest, p.src, p.qkey, p.pkey = l.MAD, l.Dest, l.Src, l.QKey, l.PKey
		p.slid, p.dlid, p.sl = l.SLID, l.DLID, l.SL
	}
	if p.dlid != permissiveLID && !p.multicast(false) && !d.hasLID(p.dlid) {
		d.drop(p, "another port has the LID")
		return
	}
	d.f.carry(d, p)
}

// sendByLink sends a packet by the device's link. A packet for the device itself does not leave it.
func (d *Device) sendByLink(p *packet) {
	if d.owns(d, p) {
		d.f.carry(d, p)
		if !p.multicast(false) {
			return
		}
	}
	d.cfg.Link.Transmit(p.linkPacket())
}

// Do calls fn with the fabric's lock, for what Links do by themselves.
func (f *Fabric) Do(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn()
}

// After has fn called after a time, with the fabric's lock. It is held now, too.
func (f *Fabric) After(delay time.Duration, fn func()) { f.after(delay, fn) }
