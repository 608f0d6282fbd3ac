package uverbs

import (
	"fmt"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// QPTypes is a set of QP types.
type QPTypes uint32

// Has reports whether the set contains a type (ibv_is_qpt_supported).
func (s QPTypes) Has(t ib.QPType) bool { return t < 32 && s>>t&1 != 0 }

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
	QPN  uint32 // QPN is the QP number, 24 bits.
	PSN  uint32 // PSN is the first packet sequence number that this side sends, 24 bits.
	LID  uint16 // LID is the port's LID; 0 on Ethernet.
	GID  ib.GID // GID is the port's GID; required on Ethernet and on ports that need a GRH.
	MTU  ib.MTU // MTU is the longest path MTU of this side; 0 if it is not known. Not for datagrams.
	PKey uint16 // PKey is the P_Key of this side on InfiniBand; 0 if it is not known, or 0xffff.
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

// GIDEntry is an entry of a port's GID table. Unless the system's netns mode is exclusive, the table has
// the GIDs of all network namespaces. An entry belongs to the network namespace of the process if an
// interface there has the index Netdev and the address of the GID.
type GIDEntry struct {
	Port   uint8      // Port is the port number, from 1.
	Index  int        // Index is the position in the table (the "GID index").
	GID    ib.GID     // GID is the identifier.
	Type   ib.GIDType // Type is the encapsulation of packets.
	Netdev int        // Netdev is the index of the network interface in its own network namespace; 0 if there is none.
}

// String describes the entry in one line.
func (e GIDEntry) String() string {
	return fmt.Sprintf("%d: %s (%s, %s)", e.Index, e.GID, e.GID.Addr(), e.Type)
}
