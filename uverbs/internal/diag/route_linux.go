package diag

import (
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs/internal/rtnetlink"
)

// interfaceOf reads the network interface of a GID, nil if there is none in this network namespace.
func (p *Path) interfaceOf(g *GIDEntry) *netif {
	if g == nil || g.Netdev == 0 {
		return nil
	}
	link, err := rtnetlink.Here.Link(g.Netdev)
	if err != nil {
		return nil
	}
	h := &netif{name: link.Name, up: link.Flags&unix.IFF_UP != 0}
	addrs, _ := rtnetlink.Here.Addrs() // without an answer there are none
	for _, a := range addrs {
		if a.Link == g.Netdev {
			h.addrs = append(h.addrs, netifAddr{a.Prefix, a.Flags&unix.IFA_F_TENTATIVE != 0})
		}
	}
	return h
}

// readRoute asks the host for the route to the peer.
func (p *Path) readRoute(h *netif) {
	// Without the interface: with it, the kernel takes every IPv4 address to be on its network.
	route, err := rtnetlink.Here.RouteTo(p.To, 0)
	if err != nil || route.Link != p.From.Netdev {
		h.nearer = p.onSubnet()
		return
	}
	h.nextHop = p.To
	if route.Gateway.IsValid() {
		h.nextHop = route.Gateway
	}
	neighbours, _ := rtnetlink.Here.Neighbours(p.From.Netdev)
	for _, n := range neighbours {
		h.silent = h.silent || n.IP == h.nextHop && n.State&(unix.NUD_INCOMPLETE|unix.NUD_FAILED) != 0
	}
}
