package diag

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// interfaceOf reads the network interface of a GID, nil if there is none in this network namespace.
func (p *Path) interfaceOf(g *GIDEntry) *netif {
	if g == nil || g.Netdev == 0 {
		return nil
	}
	link, err := netlink.LinkByIndex(g.Netdev)
	if err != nil {
		return nil
	}
	h := &netif{name: link.Attrs().Name, up: link.Attrs().Flags&net.FlagUp != 0}
	addrs, _ := netlink.AddrList(link, netlink.FAMILY_ALL) // without an answer there are none
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP)
		ones, _ := a.Mask.Size()
		h.addrs = append(h.addrs, netifAddr{netip.PrefixFrom(ip.Unmap(), ones), a.Flags&unix.IFA_F_TENTATIVE != 0})
	}
	return h
}

// readRoute asks the host for the route to the peer.
func (p *Path) readRoute(h *netif) {
	// Without the interface: with it, the kernel takes every IPv4 address to be on its network.
	routes, err := netlink.RouteGet(p.To.AsSlice())
	if err != nil || len(routes) == 0 || routes[0].LinkIndex != p.From.Netdev {
		h.nearer = p.onSubnet()
		return
	}
	h.nextHop = p.To
	if gw, ok := netip.AddrFromSlice(routes[0].Gw); ok {
		h.nextHop = gw.Unmap()
	}
	neighbours, _ := netlink.NeighList(p.From.Netdev, netlink.FAMILY_ALL)
	for _, n := range neighbours {
		ip, _ := netip.AddrFromSlice(n.IP)
		h.silent = h.silent || ip.Unmap() == h.nextHop && n.State&(unix.NUD_INCOMPLETE|unix.NUD_FAILED) != 0
	}
}
