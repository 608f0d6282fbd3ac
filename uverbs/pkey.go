package uverbs

import (
	"fmt"
	"io/fs"
	"strings"
)

// A partition key (P_Key) names a partition by its lower 15 bits. The bit above says that the port is a
// full member. Limited members exchange packets with full members only.
const (
	partitionBits = 0x7fff
	fullMember    = 0x8000
	defaultPKey   = fullMember | partitionBits // that of a full member of the default partition
)

// chosenPKey is the key in the P_Key table of a port that was chosen for PathOptions.PKey.
type chosenPKey struct {
	port       uint8
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
	return strings.Join(keys, ", ")
}
