// Package wire encodes and decodes the packets of RoCE v2: the payload of a UDP datagram to port 4791.
//
// A packet is a BTH, extension headers that the opcode decides, data, padding to a multiple of 4 bytes,
// and an ICRC. Header has the fields of the BTH and of all extension headers. Put writes them and Parse
// reads them. SealICRC and CheckICRC write and check the ICRC, which also covers the addresses and
// ports of the datagram.
//
// No function of this package allocates memory, and all are safe for concurrent use on different
// packets.
package wire

import "encoding/binary"

// Port is the UDP destination port of RoCE v2.
const Port = 4791

// Numbers of 24 bits.
const (
	QPNMask = 1<<24 - 1
	PSNMask = 1<<24 - 1
)

// DefaultPKey is the P_Key of full members of the default partition, the only one that rxe has.
const DefaultPKey = 0xffff

// Well-known QPNs.
const (
	GSIQP       = 1        // the QP for management datagrams, used by the connection manager
	MulticastQP = 0xffffff // destination QPN of multicast packets
)

// GSIQKey is the Q_Key of packets to GSIQP.
const GSIQKey = 0x80010000

// Placement types and selectivity levels of a FLUSH.
const (
	FlushGlobal     = 1 // FlushType: data become visible to all devices of the host
	FlushPersistent = 2 // FlushType: data reach persistent memory
	FlushRange      = 0 // FlushLevel: the range of the RETH
	FlushMR         = 1 // FlushLevel: the whole MR
)

// Header is a BTH with its extension headers. A field that Opcode has no place for is ignored by Put
// and zero after Parse. Put cuts numbers off at the width of their fields.
type Header struct {
	Opcode    Opcode
	Solicited bool   // solicited event: the receiver wakes for the completion
	MigReq    bool   // migration state; true without an alternate path
	AckReq    bool   // the responder must acknowledge this packet
	FECN      bool   // forward congestion notification
	BECN      bool   // backward congestion notification
	Pad       uint8  // bytes of padding behind the payload, 0 to 3: Padding of the payload's length
	TVer      uint8  // version of the transport header, 0. Parse accepts no other.
	PKey      uint16 // partition key
	DestQP    uint32 // 24 bits
	PSN       uint32 // 24 bits

	Addr   uint64 // RETH, AtomicETH: address of the remote memory
	RKey   uint32 // RETH, AtomicETH: key of the remote memory
	Length uint32 // RETH: length of the whole message, or of what a READ Request reads, in bytes

	Syndrome uint8  // AETH: acknowledgement or the reason of a NAK, see SyndromeType
	MSN      uint32 // AETH: message sequence number, 24 bits

	Compare  uint64 // AtomicETH: value to compare with
	SwapAdd  uint64 // AtomicETH: value to store or add
	Original uint64 // AtomicAckETH: value before the operation

	// Imm is the immediate as a number. The verbs hand over four bytes in network order, so this is
	// their big-endian value, and not the uint32 that lies in memory on a little-endian host.
	Imm    uint32
	InvKey uint32 // IETH: rkey to invalidate

	QKey  uint32 // DETH
	SrcQP uint32 // DETH: QPN of the sender, 24 bits

	FlushType  uint8 // FETH: FlushGlobal, FlushPersistent or both
	FlushLevel uint8 // FETH: FlushRange or FlushMR
}

// Padding returns how many bytes make a payload of n bytes a multiple of 4.
func Padding(n int) int { return -n & 3 }

// PacketSize returns the size in bytes of a packet with a payload of n bytes, ICRC included.
func PacketSize(op Opcode, n int) int { return op.HeaderSize() + n + Padding(n) + ICRCSize }

// Size returns the size in bytes of the BTH and the extension headers.
func (h *Header) Size() int { return h.Opcode.HeaderSize() }

// Bits of the bytes of a BTH.
const (
	bitSolicited = 0x80 // byte 1
	bitMigReq    = 0x40
	padShift     = 4
	padMask      = 3
	tverMask     = 0x0f
	bitFECN      = 0x80 // byte 4
	bitBECN      = 0x40
	bitAckReq    = 0x80 // byte 8
)

const (
	flushTypeMask   = 0x0f
	flushLevelShift = 4
	flushLevelMask  = 3
)

// bit returns a bit if a condition holds, and 0 otherwise.
func bit(condition bool, bit uint8) uint8 {
	if condition {
		return bit
	}
	return 0
}

// Put writes the BTH and the extension headers and returns their size. Reserved bits are zero.
// It panics if b is shorter than Size.
func (h *Header) Put(b []byte) int {
	n := h.Size()
	b = b[:n]
	binary.BigEndian.PutUint32(b[4:], h.DestQP&QPNMask)
	binary.BigEndian.PutUint32(b[8:], h.PSN&PSNMask)
	b[0] = byte(h.Opcode)
	b[1] = bit(h.Solicited, bitSolicited) | bit(h.MigReq, bitMigReq) | h.Pad&padMask<<padShift | h.TVer&tverMask
	binary.BigEndian.PutUint16(b[2:], h.PKey)
	b[4] = bit(h.FECN, bitFECN) | bit(h.BECN, bitBECN)
	b[8] = bit(h.AckReq, bitAckReq)
	h.putExtensions(b[BTHSize:])
	return n
}

// putExtensions writes the extension headers.
func (h *Header) putExtensions(b []byte) {
	in := opcodes[h.Opcode]
	if in&hasDETH != 0 {
		binary.BigEndian.PutUint32(b, h.QKey)
		binary.BigEndian.PutUint32(b[4:], h.SrcQP&QPNMask)
		b = b[DETHSize:]
	}
	if in&hasFETH != 0 {
		bits := h.FlushLevel&flushLevelMask<<flushLevelShift | h.FlushType&flushTypeMask
		binary.BigEndian.PutUint32(b, uint32(bits))
		b = b[FETHSize:]
	}
	if in&hasRETH != 0 {
		binary.BigEndian.PutUint64(b, h.Addr)
		binary.BigEndian.PutUint32(b[8:], h.RKey)
		binary.BigEndian.PutUint32(b[12:], h.Length)
		b = b[RETHSize:]
	}
	if in&hasAtomicETH != 0 {
		binary.BigEndian.PutUint64(b, h.Addr)
		binary.BigEndian.PutUint32(b[8:], h.RKey)
		binary.BigEndian.PutUint64(b[12:], h.SwapAdd)
		binary.BigEndian.PutUint64(b[20:], h.Compare)
		b = b[AtomicETHSize:]
	}
	if in&hasAETH != 0 {
		binary.BigEndian.PutUint32(b, uint32(h.Syndrome)<<24|h.MSN&PSNMask)
		b = b[AETHSize:]
	}
	if in&hasAtomicAckETH != 0 {
		binary.BigEndian.PutUint64(b, h.Original)
		b = b[AtomicAckETHSize:]
	}
	if in&hasImm != 0 {
		binary.BigEndian.PutUint32(b, h.Imm)
		b = b[ImmSize:]
	}
	if in&hasIETH != 0 {
		binary.BigEndian.PutUint32(b, h.InvKey)
	}
}
