package uverbs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// hostRoute reads the route to a peer from the kernel. Fields that it cannot read stay empty, and
// the GID table alone decides.
func hostRoute(peer ib.GID) gidRoute {
	var r gidRoute
	links, linksErr := listed(netlink.LinkList)
	for _, l := range links {
		if l.Attrs().Flags&net.FlagUp != 0 {
			r.up = append(r.up, l.Attrs().Index)
		}
		if a, ok := ofMAC(l.Attrs().HardwareAddr); ok {
			r.own = append(r.own, hostAddr{a, l.Attrs().Index})
		}
	}
	to := peer.Addr()
	addrs, err := listed(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	for _, a := range addrs {
		own, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		own = own.Unmap()
		r.own = append(r.own, hostAddr{own, a.LinkIndex})
		if ones, bits := a.Mask.Size(); ones < bits && routed(peer) && netip.PrefixFrom(own, ones).Contains(to) {
			r.near = append(r.near, own)
		}
	}
	if err != nil || linksErr != nil {
		r.own = nil
	}
	if !routed(peer) {
		return r
	}
	routes, err := netlink.RouteGet(net.IP(to.AsSlice()))
	if err != nil || len(routes) == 0 {
		return r
	}
	// The route to an address of this host uses the loopback interface, which has no GID. Then the
	// subnets decide.
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

// ethernetAddr returns the Ethernet address for a GID. The kernel has just resolved it to create
// the AH, so it is computed for multicast, read from the interface for an address of this host, and
// otherwise found in the neighbour table.
func ethernetAddr(gid ib.GID, netdev int) ([6]byte, error) {
	ip := gid.Addr()
	if ip.IsMulticast() {
		return multicastAddr(ip), nil
	}
	fail := func(err error) ([6]byte, error) {
		return [6]byte{}, fmt.Errorf("uverbs: Ethernet address of %s: %w", ip, err)
	}
	addrs, err := listed(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fail(err)
	}
	for _, a := range addrs {
		if own, ok := netip.AddrFromSlice(a.IP); ok && own.Unmap() == ip && (!ip.IsLinkLocalUnicast() || a.LinkIndex == netdev) {
			link, err := netlink.LinkByIndex(a.LinkIndex)
			if err != nil {
				return fail(err)
			}
			return hardwareAddr(ip, link.Attrs().HardwareAddr)
		}
	}
	hop := net.IP(ip.AsSlice())
	if routes, err := netlink.RouteGetWithOptions(hop, &netlink.RouteGetOptions{OifIndex: netdev}); err == nil && len(routes) > 0 && routes[0].Gw != nil {
		hop = routes[0].Gw
	}
	neighbours, err := listed(func() ([]netlink.Neigh, error) { return netlink.NeighList(netdev, netlink.FAMILY_ALL) })
	if err != nil {
		return fail(err)
	}
	for _, n := range neighbours {
		if n.IP.Equal(hop) && len(n.HardwareAddr) > 0 {
			return hardwareAddr(ip, n.HardwareAddr)
		}
	}
	return fail(fmt.Errorf("%s is not in the neighbour table of interface %d: %w", hop, netdev, syscall.EHOSTUNREACH))
}

// hardwareAddr converts an Ethernet address, and fails if it does not have 6 bytes.
func hardwareAddr(ip netip.Addr, mac net.HardwareAddr) ([6]byte, error) {
	if len(mac) != 6 {
		return [6]byte{}, fmt.Errorf("uverbs: Ethernet address of %s: the interface has %q, not an Ethernet address: %w", ip, mac, syscall.EINVAL)
	}
	return [6]byte(mac), nil
}

// multicastAddr maps a multicast group to its Ethernet address (RFC 1112, RFC 2464).
func multicastAddr(ip netip.Addr) [6]byte {
	if ip.Is4() {
		b := ip.As4()
		return [6]byte{0x01, 0x00, 0x5e, b[1] & 0x7f, b[2], b[3]}
	}
	b := ip.As16()
	return [6]byte{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// listed calls ask, which dumps a kernel table, again if the table changed during the dump: an
// entry may be missing from the result then. After 10 attempts it returns the last result.
func listed[T any](ask func() ([]T, error)) (all []T, err error) {
	const tries = 10
	for range tries {
		if all, err = ask(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return all, nil
}
