package soft

import (
	"encoding/binary"
	"net/netip"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/soft/internal/engine"
)

// gidTableLen is the number of entries of the GID table (RXE_PORT_GID_TBL_LEN).
const gidTableLen = 1024

// gidEntry is an entry of the GID table. Its index is that in Device.table.
type gidEntry struct {
	index  int
	addr   netip.Addr // without a zone
	netdev int
}

// gid returns the GID of the entry.
func (g *gidEntry) gid() [16]byte { return g.addr.As16() }

// entry returns the entry as commands return it.
func (g *gidEntry) entry() abi.GIDEntry {
	e := abi.GIDEntry{GIDIndex: uint32(g.index), PortNum: 1, GIDType: abi.IB_UVERBS_GID_TYPE_ROCE_V2, NetdevIfindex: uint32(g.netdev)}
	gid := g.gid()
	copy(kernel.Bytes(&e.GID), gid[:])
	return e
}

// uniqueLocal is the prefix of the IPv6 address that a device with an IPv4 address has in addition. It
// is of the range for addresses that are used within a site (RFC 4193).
var uniqueLocal = [8]byte{0xfd, 's', 'o', 'f', 't'}

// linkLocal is the prefix of link-local addresses.
var linkLocal = [8]byte{0xfe, 0x80}

// newGIDs returns the GID table, which has the order of the kernel's: the link-local address of the
// GUID comes first.
func (d *Device) newGIDs() []gidEntry {
	addrs := []netip.Addr{d.ipv6(linkLocal)}
	if own := d.addr.WithZone(""); own != addrs[0] {
		addrs = append(addrs, own)
	}
	if d.addr.Is4() {
		addrs = append(addrs, d.ipv6(uniqueLocal))
	}
	var table []gidEntry
	for i, a := range addrs {
		table = append(table, gidEntry{index: i, addr: a, netdev: d.link.index})
	}
	return table
}

// ipv6 returns the IPv6 address of a prefix and the GUID, which is an interface identifier.
func (d *Device) ipv6(prefix [8]byte) netip.Addr {
	var a [16]byte
	copy(a[:], prefix[:])
	binary.BigEndian.PutUint64(a[8:], d.guid)
	return netip.AddrFrom16(a)
}

// gid returns an entry of the GID table. An unused one is ENODATA.
func (d *Device) gid(index uint64) (*gidEntry, syscall.Errno) {
	if index >= gidTableLen {
		return nil, syscall.EINVAL
	}
	for _, g := range d.gids() {
		if uint64(g.index) == index {
			return &g, 0
		}
	}
	return nil, kernel.ENODATA
}

// engineGIDs returns the GID table for the engine.
func (d *Device) engineGIDs() []engine.GIDEntry {
	all := make([]engine.GIDEntry, len(d.table))
	for _, g := range d.gids() {
		all[g.index] = engine.GIDEntry{GID: g.gid(), Valid: true}
	}
	return all
}
