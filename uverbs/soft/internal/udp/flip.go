package udp

import (
	"net/netip"

	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// damage is a bit of a packet to invert behind the ICRC.
type damage struct {
	bit  int  // 1 + the number of the bit, 0 for none
	done bool // the bit is inverted
}

// Flip makes the packet that was reserved last arrive damaged, for tests of losses: a Socket inverts
// one bit after it has made the ICRC, and the receiver drops the packet. Bit 0 is the highest bit of
// byte 0. A function that delivers packets inside the process must drop the packet instead.
func (b *Batch) Flip(bit int) { b.packets[len(b.packets)-1].damage = damage{bit: 1 + bit} }

// Flipped returns the bit that Flip chose for packet i, and whether there is one.
func (b *Batch) Flipped(i int) (bit int, ok bool) {
	d := b.packets[i].damage
	return d.bit - 1, d.bit > 0
}

// seal makes the ICRC of packet i, unless the peer wants none, and then inverts the bit that Flip chose. A packet is
// sealed again if the system has refused to send it as a segment.
func (b *Batch) seal(i int, src, dst netip.AddrPort, ipID uint16, marks uint8) {
	p := &b.packets[i]
	data := b.memory[p.off:p.end]
	if p.damage.done {
		p.damage.invert(data)
	}
	if p.damage.bit > 0 || !mayBeUnsealed(data) {
		marks &^= bitUnsealed
	}
	data[4] = data[4]&^allBits | marks
	if marks&bitUnsealed != 0 {
		clear(data[len(data)-wire.ICRCSize:])
		return
	}
	wire.SealICRC(src, dst, ipID, data)
	if p.damage.bit > 0 {
		p.damage.invert(data)
		p.damage.done = true
	}
}

// invert inverts the bit.
func (d damage) invert(data []byte) {
	i := d.bit - 1
	data[i/8] ^= 0x80 >> (i % 8)
}
