package hca

import (
	"github.com/goverbs/goverbs/test/hca/prm"
)

// What flow tables match: fte_match_set_lyr_2_4_bits (mlx5_ifc.h).
var (
	matchSMACHigh  = prm.Field{Off: 0x00, Width: 32}
	matchSMACLow   = prm.Field{Off: 0x20, Width: 16}
	matchEtherType = prm.Field{Off: 0x30, Width: 16}
	matchDMACHigh  = prm.Field{Off: 0x40, Width: 32}
	matchDMACLow   = prm.Field{Off: 0x60, Width: 16}
	matchPrio      = prm.Field{Off: 0x70, Width: 3}
	matchCFI       = prm.Field{Off: 0x73, Width: 1}
	matchVID       = prm.Field{Off: 0x74, Width: 12}
	matchProtocol  = prm.Field{Off: 0x80, Width: 8}
	matchDSCP      = prm.Field{Off: 0x88, Width: 6}
	matchECN       = prm.Field{Off: 0x8e, Width: 2}
	matchCVLAN     = prm.Field{Off: 0x90, Width: 1}
	matchSVLAN     = prm.Field{Off: 0x91, Width: 1}
	matchFrag      = prm.Field{Off: 0x92, Width: 1}
	matchIPVersion = prm.Field{Off: 0x93, Width: 4}
	matchTCPFlags  = prm.Field{Off: 0x97, Width: 9}
	matchTCPSport  = prm.Field{Off: 0xa0, Width: 16}
	matchTCPDport  = prm.Field{Off: 0xb0, Width: 16}
	matchTTL       = prm.Field{Off: 0xd8, Width: 8}
	matchUDPSport  = prm.Field{Off: 0xe0, Width: 16}
	matchUDPDport  = prm.Field{Off: 0xf0, Width: 16}
)

const (
	matchSource = 0x100 / 8 // 16 bytes; an IPv4 address is in the last four
	matchDest   = 0x180 / 8
)

// matched are the fields and the bits of flow_table_fields_supported_bits that go with them.
var matched = []struct {
	bit    int
	fields []prm.Field
}{
	{0x00, []prm.Field{matchDMACHigh, matchDMACLow}},
	{0x01, []prm.Field{matchSMACHigh, matchSMACLow}},
	{0x02, []prm.Field{matchEtherType}},
	{0x03, []prm.Field{matchIPVersion}},
	{0x04, []prm.Field{matchPrio}},
	{0x05, []prm.Field{matchCFI}},
	{0x06, []prm.Field{matchVID, matchCVLAN, matchSVLAN}},
	{0x07, []prm.Field{matchTTL}},
	{0x0e, []prm.Field{matchFrag}},
	{0x0f, []prm.Field{matchProtocol}},
	{0x10, []prm.Field{matchECN}},
	{0x11, []prm.Field{matchDSCP}},
	{0x12, []prm.Field{matchUDPSport}},
	{0x13, []prm.Field{matchUDPDport}},
	{0x14, []prm.Field{matchTCPSport}},
	{0x15, []prm.Field{matchTCPDport}},
	{0x16, []prm.Field{matchTCPFlags}},
}

// Addresses are matched too, and are no fields of at most 32 bits.
const (
	bitSourceIP = 0x0c
	bitDestIP   = 0x0d
)

// supportedMatches is what the card says that it can match.
func supportedMatches() []byte {
	b := make([]byte, prm.CapFTFieldsSize)
	for _, m := range matched {
		prm.Field{Off: m.bit, Width: 1}.Put(b, 1)
	}
	prm.Field{Off: bitSourceIP, Width: 1}.Put(b, 1)
	prm.Field{Off: bitDestIP, Width: 1}.Put(b, 1)
	return b
}

// knownMatches has a 1 for every bit that can be matched.
func knownMatches() []byte {
	b := make([]byte, matchSize)
	for _, m := range matched {
		for _, f := range m.fields {
			f.Put(b, ^uint64(0))
		}
	}
	for i := range 32 {
		b[matchSource+i] = 0xff
	}
	return b
}

const (
	etherVLAN  = 0x8100
	etherSVLAN = 0x88a8
	etherIPv4  = 0x0800
	etherIPv6  = 0x86dd
	protoTCP   = 6
	protoUDP   = 17
)

// matchFields writes what is in a frame's headers where flow tables look for it. A frame that
// is too short for an Ethernet header gives nil.
func matchFields(frame []byte) []byte {
	if len(frame) < 14 {
		return nil
	}
	b := make([]byte, matchSize)
	matchDMACHigh.Put(b, uint64(be.Uint32(frame)))
	matchDMACLow.Put(b, uint64(be.Uint16(frame[4:])))
	matchSMACHigh.Put(b, uint64(be.Uint32(frame[6:])))
	matchSMACLow.Put(b, uint64(be.Uint16(frame[10:])))
	kind, rest := be.Uint16(frame[12:]), frame[14:]
	if (kind == etherVLAN || kind == etherSVLAN) && len(rest) >= 4 {
		tag := be.Uint16(rest)
		matchPrio.Put(b, uint64(tag>>13))
		matchCFI.Put(b, uint64(tag>>12&1))
		matchVID.Put(b, uint64(tag&0xfff))
		matchCVLAN.PutBool(b, kind == etherVLAN)
		matchSVLAN.PutBool(b, kind == etherSVLAN)
		kind, rest = be.Uint16(rest[2:]), rest[4:]
	}
	matchEtherType.Put(b, uint64(kind))
	switch {
	case kind == etherIPv4 && len(rest) >= 20:
		matchIPVersion.Put(b, uint64(rest[0]>>4))
		matchDSCP.Put(b, uint64(rest[1]>>2))
		matchECN.Put(b, uint64(rest[1]&3))
		frag := be.Uint16(rest[6:])&0x3fff != 0
		matchFrag.PutBool(b, frag)
		matchTTL.Put(b, uint64(rest[8]))
		matchProtocol.Put(b, uint64(rest[9]))
		copy(b[matchSource+12:], rest[12:16])
		copy(b[matchDest+12:], rest[16:20])
		if head := int(rest[0]&15) * 4; !frag && head >= 20 && head <= len(rest) {
			matchPorts(b, rest[9], rest[head:])
		}
	case kind == etherIPv6 && len(rest) >= 40:
		matchIPVersion.Put(b, uint64(rest[0]>>4))
		class := be.Uint16(rest) >> 4
		matchDSCP.Put(b, uint64(class>>2))
		matchECN.Put(b, uint64(class&3))
		matchTTL.Put(b, uint64(rest[7]))
		matchProtocol.Put(b, uint64(rest[6]))
		copy(b[matchSource:], rest[8:24])
		copy(b[matchDest:], rest[24:40])
		matchPorts(b, rest[6], rest[40:])
	}
	return b
}

func matchPorts(b []byte, proto byte, p []byte) {
	switch {
	case proto == protoUDP && len(p) >= 8:
		matchUDPSport.Put(b, uint64(be.Uint16(p)))
		matchUDPDport.Put(b, uint64(be.Uint16(p[2:])))
	case proto == protoTCP && len(p) >= 20:
		matchTCPSport.Put(b, uint64(be.Uint16(p)))
		matchTCPDport.Put(b, uint64(be.Uint16(p[2:])))
		matchTCPFlags.Put(b, uint64(be.Uint16(p[12:])&0x1ff))
	}
}
