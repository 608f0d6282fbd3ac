package pcap

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// Numbers of pcapng (draft-ietf-opsawg-pcapng).
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 6 // enhanced packet block
	byteOrderMagic = 0x1a2b3c4d

	optEnd         = 0
	optComment     = 1
	optPacketFlags = 2
	optDeviceName  = 2
	optProgram     = 4
	optResolution  = 9

	linkTypeRaw = 101 // packets begin with an IPv4 or IPv6 header
	nanoseconds = 9   // timestamps are in units of 10^-9 seconds
)

// Sizes in bytes and numbers of headers.
const (
	ipv4Size = 20
	ipv6Size = 40
	udpSize  = 8
	protoUDP = 17
)

// A block collects the bytes of blocks. All numbers are little endian, which the section says.
type block struct {
	bytes []byte
	start int // of the last block
}

func (b *block) u16(v uint16) { b.bytes = binary.LittleEndian.AppendUint16(b.bytes, v) }
func (b *block) u32(v uint32) { b.bytes = binary.LittleEndian.AppendUint32(b.bytes, v) }

// begin begins a block of a type, with room for its length.
func (b *block) begin(typ uint32) {
	b.start = len(b.bytes)
	b.u32(typ)
	b.u32(0)
}

// end ends the options of the block, and writes its length before and behind it.
func (b *block) end() {
	b.option(optEnd, 0)
	length := uint32(len(b.bytes) - b.start + 4)
	binary.LittleEndian.PutUint32(b.bytes[b.start+4:], length)
	b.u32(length)
}

// pad fills up to a multiple of 4 bytes.
func (b *block) pad() {
	for len(b.bytes)%4 != 0 {
		b.bytes = append(b.bytes, 0)
	}
}

// option begins an option: its value of the given length and pad must follow.
func (b *block) option(code uint16, length int) {
	b.u16(code)
	b.u16(uint16(length))
}

// text writes an option with a text, as long as fits an option, or none if the text is empty.
func (b *block) text(code uint16, s string) {
	s = s[:min(len(s), 1<<16-1)]
	if s == "" {
		return
	}
	b.option(code, len(s))
	b.bytes = append(b.bytes, s...)
	b.pad()
}

// section writes the block that a file begins with.
func (b *block) section(program string) {
	b.begin(blockSection)
	b.u32(byteOrderMagic)
	b.u16(1) // version 1.0
	b.u16(0)
	b.u32(1<<32 - 1) // the length of the section is not known
	b.u32(1<<32 - 1)
	b.text(optProgram, program)
	b.end()
}

// device writes the block that describes where packets were seen.
func (b *block) device(name string) {
	b.begin(blockInterface)
	b.u16(linkTypeRaw)
	b.u16(0)
	b.u32(0) // packets of any length
	b.text(optDeviceName, name)
	b.option(optResolution, 1)
	b.bytes = append(b.bytes, nanoseconds)
	b.pad()
	b.end()
}

// packet writes a packet.
func (b *block) packet(p *Packet, from, to netip.Addr) {
	size := headersSize(from) + len(p.Data)
	b.begin(blockPacket)
	b.u32(0) // the first and only device
	t := uint64(p.Time.UnixNano())
	b.u32(uint32(t >> 32))
	b.u32(uint32(t))
	b.u32(uint32(size)) // captured
	b.u32(uint32(size)) // of the packet
	at := len(b.bytes)
	b.bytes = slices.Grow(b.bytes, size)[:at+size]
	putIP(b.bytes[at:], p, from, to)
	b.pad()
	if p.Direction != Unknown {
		b.option(optPacketFlags, 4)
		b.u32(uint32(p.Direction))
	}
	b.text(optComment, p.Comment)
	b.end()
}
