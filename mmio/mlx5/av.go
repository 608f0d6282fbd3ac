package mlx5

import "unsafe"

// An AV is an address vector: the address of a peer, which is part of each datagram's WQE.
type AV struct {
	b [avSize]byte
}

// AVAttr has the fields of an address vector.
type AVAttr struct {
	RoCE bool // RoCE says that the port is Ethernet.

	MAC   [6]byte // MAC is the Ethernet address of the peer or of the next router, for RoCE.
	Sport uint16  // Sport is the UDP source port for RoCE v2; otherwise 0.

	LID      uint16 // LID is the peer's LID, for InfiniBand.
	PathBits uint8  // PathBits are the low bits of the local LID, for InfiniBand.

	SL           uint8    // SL is the service level.
	Rate         uint8    // Rate is a value of enum ib_rate; 0 is the rate of the port.
	Global       bool     // Global says that packets have a GRH; on RoCE they always do.
	GID          [16]byte // GID is the peer's GID.
	GIDIndex     uint8    // GIDIndex is the index of the local GID.
	HopLimit     uint8    // HopLimit is the number of routers that a packet may cross.
	TrafficClass uint8    // TrafficClass is the traffic class of the GRH or the IP header.
	FlowLabel    uint32   // FlowLabel has 20 bits.
}

// rates are the device's codes of the rates of enum ib_rate. Rates of InfiniBand up to 120 Gb/s
// have their own code, plus rateOffset; later rates use the code of the next higher one. 0 is no
// limit.
var rates = [...]uint8{
	2: 2 + rateOffset, 3: 3 + rateOffset, 4: 4 + rateOffset, 5: 5 + rateOffset, 6: 6 + rateOffset,
	7: 7 + rateOffset, 8: 8 + rateOffset, 9: 9 + rateOffset, 10: 10 + rateOffset,
	11: 6 + rateOffset,  // 14 Gb/s, as 20
	12: 8 + rateOffset,  // 56 Gb/s, as 60
	13: 10 + rateOffset, // 112 Gb/s, as 120
	15: 4 + rateOffset,  // 25 Gb/s, as 30
	16: 10 + rateOffset, // 100 Gb/s, as 120
	19: 4 + rateOffset,  // 28 Gb/s, as 30
	20: 8 + rateOffset,  // 50 Gb/s, as 60
}

// NewAV makes an address vector.
func NewAV(a *AVAttr) AV {
	var v AV
	p := unsafe.Pointer(&v.b)
	rate := uint8(0)
	if int(a.Rate) < len(rates) {
		rate = rates[a.Rate]
	}
	var grh uint32
	if a.RoCE {
		put8(p, avRateSL, rate<<4|a.SL&7<<1)
		put16(p, avRLID, a.Sport)
		copy(v.b[avMAC:], a.MAC[:])
	} else {
		put8(p, avRateSL, rate<<4|a.SL&0xf)
		put8(p, avMLID, a.PathBits&0x7f)
		put16(p, avRLID, a.LID)
		grh = grhPresent
	}
	if a.Global {
		put8(p, avTClass, a.TrafficClass)
		put8(p, avHopLimit, a.HopLimit)
		put32(p, avGRH, grh|uint32(a.GIDIndex)<<20|a.FlowLabel&0xfffff)
		copy(v.b[avGID:], a.GID[:])
	}
	return v
}

// MinSourcePort is the lowest source port of RoCE v2; the highest is 0xffff
// (IB_ROCE_UDP_ENCAP_VALID_PORT_MIN).
const MinSourcePort = 0xc000

// SourcePort returns the UDP source port of RoCE v2 for a flow label other than 0. Routers choose
// the path by the port, and all packets of one flow must take the same path
// (rdma_flow_label_to_udp_sport).
func SourcePort(flowLabel uint32) uint16 {
	low, high := flowLabel&0x3fff, flowLabel&0xfc000>>14
	return uint16(low^high) | MinSourcePort
}
