package wire

import "encoding/binary"

// ParseError is a reason why Parse rejects a packet. As small numbers, they count in an array with
// NumParseErrors elements, and converting one to error does not allocate.
type ParseError uint8

// Reasons why Parse rejects a packet.
const (
	TooShort               ParseError = iota // no room for the headers, the padding and the ICRC
	BadLength                                // the size of the packet is not a multiple of 4
	UnknownOpcode                            // neither RC, UC nor UD has the opcode
	CongestionNotification                   // a CNP, which is not supported
	BadVersion                               // the version of the transport header is not 0
	ZeroQPN                                  // the destination is QP 0, which RoCE does not have

	NumParseErrors = int(iota) // the number of reasons
)

var parseErrors = [NumParseErrors]struct{ counter, text string }{
	TooShort:               {"rx_too_short", "the packet is shorter than its headers, padding and ICRC"},
	BadLength:              {"rx_bad_length", "the length of the packet is not a multiple of 4"},
	UnknownOpcode:          {"rx_unknown_opcode", "the opcode (BTH byte 0) is unknown"},
	CongestionNotification: {"rx_cnp", "the packet is a congestion notification (opcode 0x81)"},
	BadVersion:             {"rx_bad_tver", "the transport version (BTH TVer) is not 0"},
	ZeroQPN:                {"rx_zero_qpn", "the destination QPN (BTH DestQP) is 0"},
}

// Error says which field of the packet is wrong.
func (e ParseError) Error() string { return "roce: " + parseErrors[e].text }

// Counter returns the name of the counter of packets that were dropped for this reason.
func (e ParseError) Counter() string { return parseErrors[e].counter }

// Parse reads the headers of a packet, from the BTH to the ICRC, and returns the payload without its
// padding, a part of b. The ICRC is not checked. Every error is a ParseError; h is undefined then.
// Reserved bits are ignored, and so is the content of the padding, as in rxe.
func Parse(b []byte, h *Header) (payload []byte, err error) {
	if len(b) < BTHSize+ICRCSize {
		return nil, TooShort
	}
	op := Opcode(b[0])
	flags := b[1]
	qpn, psn := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	pad := flags >> padShift & padMask
	start, end := op.HeaderSize(), len(b)-ICRCSize-int(pad)
	switch {
	case !op.Known():
		if op == CNP {
			return nil, CongestionNotification
		}
		return nil, UnknownOpcode
	case flags&tverMask != 0:
		return nil, BadVersion
	case qpn&QPNMask == 0:
		return nil, ZeroQPN
	case start > end:
		return nil, TooShort
	case len(b)%4 != 0:
		return nil, BadLength
	}
	*h = Header{
		Opcode:    op,
		Solicited: flags&bitSolicited != 0,
		MigReq:    flags&bitMigReq != 0,
		AckReq:    b[8]&bitAckReq != 0,
		FECN:      b[4]&bitFECN != 0,
		BECN:      b[4]&bitBECN != 0,
		Pad:       pad,
		PKey:      binary.BigEndian.Uint16(b[2:]),
		DestQP:    qpn & QPNMask,
		PSN:       psn & PSNMask,
	}
	h.parseExtensions(b[BTHSize:start])
	return b[start:end:end], nil
}

// parseExtensions reads the extension headers of h.Opcode, of which b has exactly the size.
func (h *Header) parseExtensions(b []byte) {
	in := opcodes[h.Opcode]
	if in&hasDETH != 0 {
		h.QKey = binary.BigEndian.Uint32(b)
		h.SrcQP = binary.BigEndian.Uint32(b[4:]) & QPNMask
		b = b[DETHSize:]
	}
	if in&hasFETH != 0 {
		bits := b[FETHSize-1]
		h.FlushType, h.FlushLevel = bits&flushTypeMask, bits>>flushLevelShift&flushLevelMask
		b = b[FETHSize:]
	}
	if in&hasRETH != 0 {
		h.Addr = binary.BigEndian.Uint64(b)
		h.RKey = binary.BigEndian.Uint32(b[8:])
		h.Length = binary.BigEndian.Uint32(b[12:])
		b = b[RETHSize:]
	}
	if in&hasAtomicETH != 0 {
		h.Addr = binary.BigEndian.Uint64(b)
		h.RKey = binary.BigEndian.Uint32(b[8:])
		h.SwapAdd = binary.BigEndian.Uint64(b[12:])
		h.Compare = binary.BigEndian.Uint64(b[20:])
		b = b[AtomicETHSize:]
	}
	if in&hasAETH != 0 {
		bits := binary.BigEndian.Uint32(b)
		h.Syndrome, h.MSN = uint8(bits>>24), bits&PSNMask
		b = b[AETHSize:]
	}
	if in&hasAtomicAckETH != 0 {
		h.Original = binary.BigEndian.Uint64(b)
		b = b[AtomicAckETHSize:]
	}
	if in&hasImm != 0 {
		h.Imm = binary.BigEndian.Uint32(b)
		b = b[ImmSize:]
	}
	if in&hasIETH != 0 {
		h.InvKey = binary.BigEndian.Uint32(b)
	}
}
