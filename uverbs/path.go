package uverbs

import "fmt"

// StaticRate limits how fast a QP sends, for a peer whose link is slower than the local one (enum
// ibv_rate). The zero value is no limit. rxe ignores it.
type StaticRate uint8

// Static rates.
const (
	RateMax   StaticRate = 0  // no limit (IBV_RATE_MAX)
	Rate2500M StaticRate = 2  // 2.5 Gbit/s (IBV_RATE_2_5_GBPS)
	Rate5G    StaticRate = 5  // 5 Gbit/s (IBV_RATE_5_GBPS)
	Rate10G   StaticRate = 3  // 10 Gbit/s (IBV_RATE_10_GBPS)
	Rate20G   StaticRate = 6  // 20 Gbit/s (IBV_RATE_20_GBPS)
	Rate30G   StaticRate = 4  // 30 Gbit/s (IBV_RATE_30_GBPS)
	Rate40G   StaticRate = 7  // 40 Gbit/s (IBV_RATE_40_GBPS)
	Rate60G   StaticRate = 8  // 60 Gbit/s (IBV_RATE_60_GBPS)
	Rate80G   StaticRate = 9  // 80 Gbit/s (IBV_RATE_80_GBPS)
	Rate120G  StaticRate = 10 // 120 Gbit/s (IBV_RATE_120_GBPS)
	Rate14G   StaticRate = 11 // 14 Gbit/s (IBV_RATE_14_GBPS)
	Rate56G   StaticRate = 12 // 56 Gbit/s (IBV_RATE_56_GBPS)
	Rate112G  StaticRate = 13 // 112 Gbit/s (IBV_RATE_112_GBPS)
	Rate168G  StaticRate = 14 // 168 Gbit/s (IBV_RATE_168_GBPS)
	Rate25G   StaticRate = 15 // 25 Gbit/s (IBV_RATE_25_GBPS)
	Rate100G  StaticRate = 16 // 100 Gbit/s (IBV_RATE_100_GBPS)
	Rate200G  StaticRate = 17 // 200 Gbit/s (IBV_RATE_200_GBPS)
	Rate300G  StaticRate = 18 // 300 Gbit/s (IBV_RATE_300_GBPS)
	Rate28G   StaticRate = 19 // 28 Gbit/s (IBV_RATE_28_GBPS)
	Rate50G   StaticRate = 20 // 50 Gbit/s (IBV_RATE_50_GBPS)
	Rate400G  StaticRate = 21 // 400 Gbit/s (IBV_RATE_400_GBPS)
	Rate600G  StaticRate = 22 // 600 Gbit/s (IBV_RATE_600_GBPS)
	Rate800G  StaticRate = 23 // 800 Gbit/s (IBV_RATE_800_GBPS)
	Rate1200G StaticRate = 24 // 1200 Gbit/s (IBV_RATE_1200_GBPS)
)

// rates are the values of the rates in Mbit/s and in multiples of 2.5 Gbit/s. A rate that is not
// such a multiple on its link has 0.
var rates = [...]struct{ mbps, mult int }{
	Rate2500M: {2500, 1}, Rate5G: {5000, 2}, Rate10G: {10000, 4}, Rate20G: {20000, 8}, Rate30G: {30000, 12},
	Rate40G: {40000, 16}, Rate60G: {60000, 24}, Rate80G: {80000, 32}, Rate120G: {120000, 48},
	Rate14G: {14062, 0}, Rate56G: {56250, 0}, Rate112G: {112500, 0}, Rate168G: {168750, 0},
	Rate25G: {25781, 0}, Rate100G: {103125, 0}, Rate200G: {206250, 0}, Rate300G: {309375, 0},
	Rate28G: {28125, 11}, Rate50G: {53125, 20}, Rate400G: {425000, 160}, Rate600G: {637500, 240},
	Rate800G: {850000, 320}, Rate1200G: {1275000, 480},
}

// Mbps returns the signaling rate in Mbit/s, for example 14062 for [Rate14G], or 0 for no limit and
// for an unknown rate (ibv_rate_to_mbps).
func (r StaticRate) Mbps() int {
	if int(r) >= len(rates) {
		return 0
	}
	return rates[r].mbps
}

// Mult returns the rate as a multiple of 2.5 Gbit/s, or 0 if it is not one (ibv_rate_to_mult).
func (r StaticRate) Mult() int {
	if int(r) >= len(rates) {
		return 0
	}
	return rates[r].mult
}

// String returns the rate in Mbit/s, or "no limit".
func (r StaticRate) String() string {
	switch {
	case r == RateMax:
		return "no limit"
	case r.Mbps() == 0:
		return fmt.Sprintf("rate %d", uint8(r))
	}
	return fmt.Sprintf("%d Mbit/s", r.Mbps())
}

// RateFromMbps returns the rate with the given value of [StaticRate.Mbps], or [RateMax] if there is
// none (mbps_to_ibv_rate).
func RateFromMbps(mbps int) StaticRate {
	for code, r := range rates {
		if mbps > 0 && r.mbps == mbps {
			return StaticRate(code)
		}
	}
	return RateMax
}

// RateFromMult returns the rate with the given multiple of 2.5 Gbit/s, or [RateMax] if there is
// none (mult_to_ibv_rate).
func RateFromMult(mult int) StaticRate {
	for code, r := range rates {
		if mult > 0 && r.mult == mult {
			return StaticRate(code)
		}
	}
	return RateMax
}

// FlowLabelPort returns the UDP source port of RoCE v2 packets with a 20-bit flow label, on devices
// that derive it from [GRH].FlowLabel (ibv_flow_label_to_udp_sport). Both sides of a connection and
// a packet capture can use it to identify the packets.
func FlowLabelPort(label uint32) uint16 {
	return uint16(label^label>>14&0x3f)&0x3fff | minUDPSourcePort
}

// QPTypes is a set of QP types.
type QPTypes uint32

// Has reports whether the set contains a type (ibv_is_qpt_supported).
func (s QPTypes) Has(t QPType) bool { return t < 32 && s>>t&1 != 0 }

// InOrder says which data of an incoming message becomes visible in memory in order, before the
// message completes (enum ibv_query_qp_data_in_order_caps).
type InOrder uint32

// Units of data that are written in order.
const (
	InOrderMessage InOrder = 1 << iota // the whole message (IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG)
	InOrder128                         // each aligned block of 128 bytes (IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES)
)

// Endpoint identifies one side of a connection. Each side must send its own to the other, for
// example over a TCP connection.
type Endpoint struct {
	QPN uint32 // QPN is the QP number, 24 bits.
	PSN uint32 // PSN is the first packet sequence number that this side sends, 24 bits.
	LID uint16 // LID is the port's LID; 0 on Ethernet.
	GID GID    // GID is the port's GID; required on Ethernet and on ports that need a GRH.
	MTU MTU    `json:",omitzero"` // MTU is the longest path MTU of this side; 0 if it is not known. Not for datagrams.
}

// String returns the address and the QP number, for messages.
func (e Endpoint) String() string {
	if e.GID.IsZero() {
		return fmt.Sprintf("LID %d QP %d", e.LID, e.QPN)
	}
	return fmt.Sprintf("%s QP %d", e.GID.Addr(), e.QPN)
}

// check returns an ArgError if a number is out of range.
func (e Endpoint) check() error {
	if e.QPN > maxQPN {
		return argErr("Connect", "remote QPN", e.QPN, "0 to %d (24 bits)", maxQPN)
	}
	if e.PSN > maxPSN {
		return argErr("Connect", "remote PSN", e.PSN, "0 to %d (24 bits)", maxPSN)
	}
	if e.MTU != 0 && e.MTU.Bytes() == 0 {
		return argErr("Connect", "remote MTU", e.MTU, "MTU256 to MTU4096, and 0 if it is not known")
	}
	return nil
}

// minUDPSourcePort is the first dynamic port (IB_ROCE_UDP_ENCAP_VALID_PORT_MIN).
const minUDPSourcePort = 0xc000
