package uverbs

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/rtnetlink"
)

// hostRoute reads the route to a peer from the kernel. Fields that it cannot read stay empty, and
// the GID table alone decides.
func hostRoute(peer ib.GID) gidRoute {
	var r gidRoute
	links, linksErr := rtnetlink.Here.Links()
	for _, l := range links {
		if l.Flags&unix.IFF_UP != 0 {
			r.up = append(r.up, l.Index)
		}
		if a, ok := ofMAC(l.HardwareAddr); ok {
			r.own = append(r.own, hostAddr{a, l.Index})
		}
	}
	to := peer.Addr()
	addrs, err := rtnetlink.Here.Addrs()
	for _, a := range addrs {
		own := a.Prefix.Addr()
		r.own = append(r.own, hostAddr{own, a.Link})
		if routed(peer) && !a.Prefix.IsSingleIP() && a.Prefix.Contains(to) {
			r.near = append(r.near, own)
		}
	}
	if err != nil || linksErr != nil {
		r.own = nil
	}
	if !routed(peer) {
		return r
	}
	route, err := rtnetlink.Here.RouteTo(to, 0)
	if err != nil {
		return r
	}
	// The route to an address of this host uses the loopback interface, which has no GID. Then the
	// subnets decide.
	r.source = route.Source
	if slices.ContainsFunc(links, func(l rtnetlink.Link) bool { return l.Index == route.Link && l.Flags&unix.IFF_LOOPBACK == 0 }) {
		r.link = route.Link
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
	addrs, addrsErr := rtnetlink.Here.Addrs()
	for _, a := range addrs {
		if a.Prefix.Addr() == ip && (!ip.IsLinkLocalUnicast() || a.Link == netdev) {
			link, err := rtnetlink.Here.Link(a.Link)
			if err != nil {
				return fail(err)
			}
			return hardwareAddr(ip, link.HardwareAddr)
		}
	}
	hop := ip
	if route, err := rtnetlink.Here.RouteTo(ip, netdev); err == nil && route.Gateway.IsValid() {
		hop = route.Gateway
	}
	neighbours, err := rtnetlink.Here.Neighbours(netdev)
	for _, n := range neighbours {
		if n.IP == hop && len(n.HardwareAddr) > 0 {
			return hardwareAddr(ip, n.HardwareAddr)
		}
	}
	return fail(cmp.Or(addrsErr, err, fmt.Errorf("%s is not in the neighbour table of interface %d: %w", hop, netdev, syscall.EHOSTUNREACH)))
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
