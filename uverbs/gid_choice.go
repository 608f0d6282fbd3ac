package uverbs

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// ChooseGID returns the entry that the library would use to reach peer. The zero GID stands for a
// peer that is not known yet. On RoCE these criteria decide, in this order:
//
//   - for an unknown peer, an entry of this network namespace, see [GIDEntry];
//   - routable before link-local, unless the peer is link-local;
//   - the address family of the peer, or IPv4 for an unknown peer;
//   - an entry of this network namespace;
//   - the host's route to the peer: the source address that the kernel would use, then an address
//     on the peer's subnet, then the network interface of the route;
//   - RoCE v2 before v1;
//   - a network interface that is up, then one that is known;
//   - the lowest index.
//
// On InfiniBand it returns the first entry with the peer's subnet prefix, or else the first entry.
// It reads the host's addresses and routes only if several addresses are equal otherwise or, for an
// unknown peer, if there are several. Criteria that need what it cannot read do not count. It reports
// false if the table is empty.
func ChooseGID(table []GIDEntry, peer ib.GID) (e GIDEntry, ok bool) {
	return chooseGID(table, peer, hostRoute)
}

// chooseGID is ChooseGID with a function that reads the host's routes.
func chooseGID(table []GIDEntry, peer ib.GID, route func(peer ib.GID) gidRoute) (best GIDEntry, ok bool) {
	if len(table) == 0 {
		return GIDEntry{}, false
	}
	unknown := peer.IsZero()
	most := 0
	var suit []GIDEntry // those with the highest rank, or all for an unknown peer
	for i := range table {
		switch rank := gidSuits(&table[i], peer); {
		case rank > most && !unknown || suit == nil:
			most, suit = rank, table[i:i+1:i+1]
		case rank == most || unknown:
			suit = append(suit, table[i])
		}
	}
	first := &suit[0]
	var r gidRoute
	if slices.ContainsFunc(suit, func(e GIDEntry) bool {
		return e.Type != ib.GIDTypeIB && (e.GID != first.GID || e.Netdev != first.Netdev)
	}) {
		r = route(peer)
	}
	most = -1
	for _, e := range suit {
		s := r.rank(e) + gidSuits(&e, peer)*mostRank
		if unknown && r.isOwn(&e) {
			s += mostRank * mostRank
		}
		if s > most {
			most, best = s, e
		}
	}
	return best, true
}

// gidRoute is the host's route to a peer.
type gidRoute struct {
	source netip.Addr   // the source address that the kernel would use; the zero Addr if there is no route
	link   int          // the network interface that the route leaves by
	near   []netip.Addr // addresses of this host on the peer's subnet
	up     []int        // network interfaces that are up
	own    []hostAddr   // the addresses of the network interfaces; nil if they cannot be read
}

// hostAddr is an address of a network interface of this network namespace.
type hostAddr struct {
	addr netip.Addr // IPv4 unmapped, without a zone
	link int        // the index of the network interface
}

// isOwn reports whether an entry belongs to this network namespace. Its interface has the address, or
// the MAC address that the kernel has made a link-local GID of.
func (r *gidRoute) isOwn(e *GIDEntry) bool {
	return slices.Contains(r.own, hostAddr{e.GID.Addr(), e.Netdev})
}

// ofMAC returns the link-local address that the kernel makes of an Ethernet address for the GID table,
// whatever addresses the interface has.
func ofMAC(mac []byte) (netip.Addr, bool) {
	if len(mac) != 6 {
		return netip.Addr{}, false
	}
	return netip.AddrFrom16([16]byte{0: 0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}), true
}

// gidSuits ranks an entry by the GIDs alone: on RoCE by link-local and address family, on
// InfiniBand by subnet.
func gidSuits(e *GIDEntry, peer ib.GID) int {
	if e.Type == ib.GIDTypeIB {
		if bytes.Equal(e.GID[:8], peer[:8]) {
			return 1
		}
		return 0
	}
	score := 0
	if wantLinkLocal := !peer.IsZero() && peer.LinkLocal(); e.GID.LinkLocal() == wantLinkLocal {
		score += 2
	}
	if wantIPv4 := peer.IsZero() || peer.Addr().Is4(); e.GID.Addr().Is4() == wantIPv4 {
		score++
	}
	return score
}

// mostRank is more than rank returns.
const mostRank = 128

// rank ranks an entry among those that gidSuits ranks equally. Each weight exceeds the sum of the
// lower ones, which makes the order that ChooseGID documents.
func (r *gidRoute) rank(e GIDEntry) int {
	addr, score := e.GID.Addr(), 0
	switch {
	case r.isOwn(&e):
		score += 64
	case r.own != nil: // in this network namespace the index stands for another interface
		e.Netdev = 0
	}
	if addr == r.source && (r.link == 0 || e.Netdev == r.link) {
		score += 32
	}
	if slices.Contains(r.near, addr) {
		score += 16
	}
	if e.Netdev != 0 && e.Netdev == r.link {
		score += 8
	}
	if e.Type == ib.GIDTypeRoCEv2 {
		score += 4
	}
	if slices.Contains(r.up, e.Netdev) {
		score += 2
	}
	if e.Netdev != 0 {
		score++
	}
	return score
}

// routed reports whether the host's routes determine how to reach a peer. They do not for an IPv6
// link-local address, which is on every link. IPv4 link-local addresses have a route.
func routed(peer ib.GID) bool {
	return !peer.IsZero() && !peer.Addr().IsMulticast() && !peer.LinkLocal()
}
