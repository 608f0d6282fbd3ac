//go:build !linux

package uverbs

import (
	"net"
	"net/netip"
	"slices"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// hostRoute finds the route to a peer. Fields that it cannot find stay empty, and the GID table
// alone decides.
func hostRoute(peer ib.GID) gidRoute {
	var r gidRoute
	links, _ := net.Interfaces()
	for _, l := range links {
		if l.Flags&net.FlagUp != 0 {
			r.up = append(r.up, l.Index)
		}
		for _, p := range subnets(l) {
			r.own = append(r.own, hostAddr{p.Addr().WithZone(""), l.Index})
		}
	}
	if !routed(peer) {
		return r
	}
	to := peer.Addr()
	// Connecting a UDP socket sends nothing.
	if c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, rocePort))); err == nil {
		r.source = c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
		c.Close()
	}
	for _, l := range links {
		own := subnets(l)
		for _, p := range own {
			if p.Contains(to) && !p.IsSingleIP() {
				r.near = append(r.near, p.Addr())
			}
		}
		if l.Flags&net.FlagLoopback == 0 && slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Addr() == r.source }) {
			r.link = l.Index
		}
	}
	return r
}

// rocePort is the UDP port of RoCE v2.
const rocePort = 4791

// subnets returns the addresses of a network interface with their subnets.
func subnets(l net.Interface) []netip.Prefix {
	var all []netip.Prefix
	addrs, _ := l.Addrs() // none if the interface was just removed
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			all = append(all, netip.PrefixFrom(p.Addr().Unmap(), p.Bits()))
		}
	}
	return all
}

// ethernetAddr fails: only devices of the kernel need Ethernet addresses.
func ethernetAddr(ib.GID, int) ([6]byte, error) { return [6]byte{}, errLinuxOnly }
