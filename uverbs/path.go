package uverbs

import (
	"fmt"
	"io/fs"
	"strings"

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

// A partition key (P_Key) names a partition by its lower 15 bits. The bit above says that the port is a
// full member. Limited members exchange packets with full members only.
const (
	partitionBits = 0x7fff
	fullMember    = 0x8000
	defaultPKey   = fullMember | partitionBits // that of a full member of the default partition
	allowedPKeys  = "0x1 to 0x7fff, with or without the bit of full members, 0x8000"
)

// chosenPKey is the key in the P_Key table of a port that was chosen for PathOptions.PKey.
type chosenPKey struct {
	want       uint16 // what PathOptions have
	index, key uint16
}

// pkeyText writes a partition key as sysfs does.
func pkeyText(key uint16) string { return fmt.Sprintf("0x%04x", key) }

// pkeysTalk reports whether QPs with these keys can exchange packets.
func pkeysTalk(a, b uint16) bool { return (a^b)&partitionBits == 0 && (a|b)&fullMember != 0 }

// pkeyPeers says which keys a peer may have.
func pkeyPeers(key uint16) string {
	if key&fullMember == 0 {
		return pkeyText(key|fullMember) + ", as this side is a limited member of its partition, " + pkeyText(key) + ", whose peers must be full members"
	}
	return pkeyText(key) + " or " + pkeyText(key&partitionBits) + ", the partition of this side"
}

// pkeyIndex returns the index of a partition key in a table of n entries that read returns.
func pkeyIndex(read func(index int) (uint16, error), device string, port uint8, n int, pkey uint16) (int, error) {
	for i := range n {
		switch got, err := read(i); {
		case err != nil:
			return 0, err
		case got == pkey:
			return i, nil
		}
	}
	return 0, fmt.Errorf("uverbs: %s: port %d: partition key %#04x is not among its %d keys: %w", device, port, pkey, n, fs.ErrNotExist)
}

// choosePKey returns a key of a partition, or of any one for 0, and its index in a table of n entries that
// read returns: the first key of a full member, or else the first one. Without such a key it returns 0.
func choosePKey(read func(index int) (uint16, error), n int, partition uint16) (index int, key uint16, err error) {
	for i := range n {
		got, err := read(i)
		switch {
		case err != nil:
			return 0, 0, err
		case got&partitionBits == 0 || partition != 0 && (got^partition)&partitionBits != 0: // unused, or another partition
		case got&fullMember != 0:
			return i, got, nil
		case key == 0:
			index, key = i, got
		}
	}
	return index, key, nil
}

// pkeyList lists the keys of a table.
func pkeyList(read func(index int) (uint16, error), n int) string {
	var keys []string
	for i := range n {
		if key, err := read(i); err == nil && key&partitionBits != 0 {
			keys = append(keys, pkeyText(key))
		}
	}
	if keys == nil {
		return "none, as its table is empty; the subnet manager sets it"
	}
	return strings.Join(keys, ", ")
}
