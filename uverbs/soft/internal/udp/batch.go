package udp

import "net/netip"

// Limits of a Batch.
const (
	BatchPackets = 128       // packets
	BatchBytes   = 256 << 10 // bytes of all packets together
)

// IP has the fields of an IP header that a sender chooses and a receiver of UD packets is told.
type IP struct {
	TrafficClass uint8 // TOS of IPv4. 0 is also the default.
	HopLimit     uint8 // TTL of IPv4. 0 means the default of the system.

	// FlowLabel is the flow label of IPv6. Only packets inside the process have it: a Socket
	// neither sets nor reads it.
	FlowLabel uint32
}

// Batch collects packets to send. They stand in one memory, in the order of the calls of Reserve. A
// batch knows no socket: what delivers packets inside the process reads it with Packet.
//
// The zero value is an empty batch. The first Reserve allocates its memory, and Reset keeps it. A batch
// is not safe for concurrent use.
type Batch struct {
	memory  []byte // the reserved bytes; the capacity is BatchBytes
	packets []packet
}

// packet is one reserved packet.
type packet struct {
	to       netip.AddrPort
	off, end int // in Batch.memory
	ip       IP
	damage   damage
}

// Reserve returns memory for a packet of n bytes, the ICRC at its end included. The caller fills all
// but the ICRC; the memory holds old bytes. Reserve returns nil if the batch has no room: send and
// Reset it, then try again. An empty batch has room for every packet of up to BatchBytes bytes.
func (b *Batch) Reserve(to netip.AddrPort, n int) []byte {
	if b.memory == nil {
		b.memory = make([]byte, 0, BatchBytes)
		b.packets = make([]packet, 0, BatchPackets)
	}
	off := len(b.memory)
	if n > cap(b.memory)-off || len(b.packets) == cap(b.packets) {
		return nil
	}
	b.memory = b.memory[:off+n]
	b.packets = append(b.packets, packet{to: to, off: off, end: off + n})
	return b.memory[off : off+n : off+n]
}

// SetIP chooses the fields of the IP header of the packet that was reserved last.
func (b *Batch) SetIP(ip IP) { b.packets[len(b.packets)-1].ip = ip }

// SetPort chooses the port to which all packets go.
func (b *Batch) SetPort(port uint16) {
	for i := range b.packets {
		p := &b.packets[i]
		p.to = netip.AddrPortFrom(p.to.Addr(), port)
	}
}

// Append adds the packets of another batch, or none if there is no room for all.
func (b *Batch) Append(other *Batch) bool {
	if len(other.memory) > cap(b.memory)-len(b.memory) || len(other.packets) > cap(b.packets)-len(b.packets) {
		return false
	}
	off := len(b.memory)
	b.memory = append(b.memory, other.memory...)
	for _, p := range other.packets {
		p.off, p.end = p.off+off, p.end+off
		b.packets = append(b.packets, p)
	}
	return true
}

// Drop removes the packet that was reserved last.
func (b *Batch) Drop() {
	last := len(b.packets) - 1
	b.memory = b.memory[:b.packets[last].off]
	b.packets = b.packets[:last]
}

// Len returns the number of packets.
func (b *Batch) Len() int { return len(b.packets) }

// Packet returns the destination and the bytes of packet i, counted from 0.
func (b *Batch) Packet(i int) (to netip.AddrPort, data []byte) {
	p := &b.packets[i]
	return p.to, b.memory[p.off:p.end:p.end]
}

// IP returns what SetIP chose for packet i.
func (b *Batch) IP(i int) IP { return b.packets[i].ip }

// span returns n bytes from packet i on: that and the packets behind it.
func (b *Batch) span(i, n int) []byte {
	off := b.packets[i].off
	return b.memory[off : off+n]
}

// Reset empties the batch. The memory of its packets will be overwritten.
func (b *Batch) Reset() { b.memory, b.packets = b.memory[:0], b.packets[:0] }
