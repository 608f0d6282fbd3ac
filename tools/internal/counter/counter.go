// Package counter says what the hardware counters of RDMA ports count. Each driver has names of its own, and most
// agree in parts of them.
package counter

import (
	"slices"
	"strings"
)

// The parts of names. Counters of congestion count packets that were marked or held back, and what was done about them.
var (
	errorWords = []string{"err", "discard", "drop", "violation", "timeout", "exceeded", "out_of_", "link_downed", "overrun", "naks", "rnr",
		"invalid", "retrans", "duplicate", "icrc", "rx_bad_", "rx_wrong_", "rx_unknown_", "rx_refused", "overflow", "failures",
		"unresponsive", "impaired"}
	congestionWords = []string{"ecn", "cnp", "ce_pkts", "slow_restart", "xmit_wait", "congestion", "pause"}
)

// IsCongestion reports whether a counter is about congestion.
func IsCongestion(name string) bool { return has(name, congestionWords) }

// IsError reports whether a counter is about errors, or packets that were dropped or sent again. A counter of bytes is
// not, because sums of errors are of events.
func IsError(name string) bool {
	return has(name, errorWords) && !IsCongestion(name) && !strings.HasSuffix(name, "_bytes")
}

func has(name string, words []string) bool {
	name = strings.ReplaceAll(strings.ToLower(name), "deferred", "") // has "err", and is none
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(name, word) })
}

// Traffic is what a port has received and sent.
type Traffic int

// The kinds of traffic.
const (
	RxBytes Traffic = iota
	TxBytes
	RxPackets
	TxPackets
	Kinds // the number of kinds
)

// names are the counters of traffic: of the specification, whose data is in words of 4 bytes, of rxe and the software
// device, of efa and bnxt_re, of erdma, and the optional ones of mlx5.
var names = [Kinds][]string{
	RxBytes:   {"port_rcv_data", "rcvd_bytes", "rx_bytes", "hw_rx_bytes_cnt", "rdma_rx_bytes"},
	TxBytes:   {"port_xmit_data", "sent_bytes", "tx_bytes", "hw_tx_bytes_cnt", "rdma_tx_bytes"},
	RxPackets: {"port_rcv_packets", "rcvd_pkts", "rx_pkts", "hw_rx_packets_cnt", "rdma_rx_packets"},
	TxPackets: {"port_xmit_packets", "sent_pkts", "tx_pkts", "hw_tx_packets_cnt", "rdma_tx_packets"},
}

// Of returns a kind of traffic, given the counters of a port by name. It returns false if the port does not count it.
func (t Traffic) Of(counters map[string]uint64) (uint64, bool) {
	for i, name := range names[t] {
		if v, ok := counters[name]; ok {
			if i == 0 && t <= TxBytes {
				v *= 4 // words
			}
			return v, true
		}
	}
	return 0, false
}
