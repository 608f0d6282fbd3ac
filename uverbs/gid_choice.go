package uverbs

import (
	"bytes"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// GIDChoice selects the entry of the GID table that a QP uses. The zero value lets the library
// choose.
type GIDChoice struct {
	index int
	given bool
}

// GIDAt selects the entry with the given index.
func GIDAt(index int) GIDChoice { return GIDChoice{index, true} }

// fixed returns the index and whether one was given.
func (c GIDChoice) fixed() (int, bool) { return c.index, c.given }

// ChooseGID returns the entry that the library would use to reach peer, or, for the zero GID, to
// tell a peer that is not known yet. On RoCE these decide, in this order:
//
//   - routable before link-local, unless the peer is link-local;
//   - the address family of the peer, and IPv4 without a peer;
//   - the host's route to the peer: the source address that the kernel would use, then an address
//     whose subnet the peer is in, then the network interface that the route leaves by;
//   - RoCE v2 before v1;
//   - a network interface that is up, then one in this network namespace;
//   - the lowest index.
//
// On InfiniBand it is the first entry with the peer's subnet prefix, or else the first one. The
// host is asked only if several addresses are equal otherwise. ok is false if the table is empty.
func ChooseGID(table []GIDEntry, peer GID) (e GIDEntry, ok bool) {
	return chooseGID(table, peer, hostRoute)
}

// chooseGID is ChooseGID by what route tells of the host.
func chooseGID(table []GIDEntry, peer GID, route func(peer GID) gidRoute) (best GIDEntry, ok bool) {
	if len(table) == 0 {
		return GIDEntry{}, false
	}
	most := 0
	for _, e := range table {
		most = max(most, gidSuits(e, peer))
	}
	suit := slices.DeleteFunc(slices.Clone(table), func(e GIDEntry) bool { return gidSuits(e, peer) < most })
	first := suit[0]
	var r gidRoute
	if slices.ContainsFunc(suit, func(e GIDEntry) bool { return e.Type != GIDTypeIB && (e.GID != first.GID || e.Netdev != first.Netdev) }) {
		r = route(peer)
	}
	most = -1
	for _, e := range suit {
		if s := r.rank(e); s > most {
			most, best = s, e
		}
	}
	return best, true
}

// gidSuits ranks an entry by what the GIDs say: link-local and then the family of addresses on RoCE,
// the subnet on InfiniBand.
func gidSuits(e GIDEntry, peer GID) int {
	if e.Type == GIDTypeIB {
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

// gidRoute is what the host knows of the way to a peer.
type gidRoute struct {
	source netip.Addr   // the source address that the kernel would use; the zero Addr if there is no route
	link   int          // the network interface that the route leaves by
	near   []netip.Addr // own addresses whose subnet the peer is in
	up     []int        // network interfaces that are up
}

// rank ranks an entry among those that suit alike; the differences between the weights make the
// order that ChooseGID promises.
func (r *gidRoute) rank(e GIDEntry) int {
	addr, score := e.GID.Addr(), 0
	if addr == r.source && (r.link == 0 || e.Netdev == r.link) {
		score += 32
	}
	if slices.Contains(r.near, addr) {
		score += 16
	}
	if e.Netdev != 0 && e.Netdev == r.link {
		score += 8
	}
	if e.Type == GIDTypeRoCEv2 {
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

// routed reports whether the host's routes say how to reach a peer. They do not for a link-local
// address, fe80::/10, which is on every link. Those of IPv4, 169.254.0.0/16, have a route.
func routed(peer GID) bool {
	return !peer.IsZero() && !peer.Addr().IsMulticast() && !peer.LinkLocal()
}

// hostRoute asks the kernel for the way to a peer. If the kernel refuses an answer, that part of the
// result stays empty and the GID table alone decides.
func hostRoute(peer GID) gidRoute {
	var r gidRoute
	links, _ := listed(netlink.LinkList)
	for _, l := range links {
		if l.Attrs().Flags&net.FlagUp != 0 {
			r.up = append(r.up, l.Attrs().Index)
		}
	}
	if !routed(peer) {
		return r
	}
	to := peer.Addr()
	addrs, _ := listed(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	for _, a := range addrs {
		own, ok := netip.AddrFromSlice(a.IP)
		if ones, bits := a.Mask.Size(); ok && ones < bits {
			if subnet := netip.PrefixFrom(own.Unmap(), ones); subnet.Contains(to) {
				r.near = append(r.near, own.Unmap())
			}
		}
	}
	routes, err := netlink.RouteGet(net.IP(to.AsSlice()))
	if err != nil || len(routes) == 0 {
		return r
	}
	// The route to an address of this host goes by the loopback interface, which has no GID: the
	// subnets decide then.
	if source, ok := netip.AddrFromSlice(routes[0].Src); ok {
		r.source = source.Unmap()
	}
	if link := routes[0].LinkIndex; slices.ContainsFunc(links, func(l netlink.Link) bool {
		return l.Attrs().Index == link && l.Attrs().Flags&net.FlagLoopback == 0
	}) {
		r.link = link
	}
	return r
}
