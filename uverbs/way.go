package uverbs

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// noWay says why there is no way from a GID to an address, as far as the routing table and
// the neighbour table of the GID's network interface tell.
func noWay(from GIDEntry, table []GIDEntry, to netip.Addr) string {
	link, err := netlink.LinkByIndex(from.Netdev)
	if err != nil {
		return "there is no way to it"
	}
	name := link.Attrs().Name
	if link.Attrs().Flags&net.FlagUp == 0 {
		return name + " is down"
	}
	addrs, _ := netlink.AddrList(link, netlink.FAMILY_ALL) // none is as good as an error
	for _, a := range addrs {
		if a.Flags&unix.IFA_F_TENTATIVE != 0 && a.IP.Equal(from.GID.Addr().AsSlice()) {
			return fmt.Sprintf("%s of %s is not usable yet: it is being checked for duplicates, which takes a second or two", a.IP, name)
		}
	}
	// Without the interface: with it, the kernel takes every IPv4 address to be on its network.
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil || len(routes) == 0 || routes[0].LinkIndex != from.Netdev {
		hint := fmt.Sprintf("there is no route to it by %s, which has %s", name, listAddrs(addrs))
		if e, ok := onSubnet(table, from, to); ok {
			hint += "; GID " + e.String() + " is on its subnet"
		}
		return hint
	}
	hop := net.IP(to.AsSlice())
	if routes[0].Gw != nil {
		hop = routes[0].Gw
	}
	protocol := "neighbour discovery"
	if hop.To4() != nil {
		protocol = "ARP"
	}
	neighbours, _ := netlink.NeighList(from.Netdev, netlink.FAMILY_ALL)
	for _, n := range neighbours {
		if n.IP.Equal(hop) && n.State&(unix.NUD_INCOMPLETE|unix.NUD_FAILED) != 0 {
			return fmt.Sprintf("%s does not answer %s on %s; it is not there, or %s is not on its network", hop, protocol, name, name)
		}
	}
	return fmt.Sprintf("there is a route by %s to %s, but no answer to %s", name, hop, protocol)
}

// onSubnet finds a GID of another network interface whose subnet an address is on.
func onSubnet(table []GIDEntry, from GIDEntry, to netip.Addr) (GIDEntry, bool) {
	for _, e := range table {
		if e.Netdev == 0 || e.Netdev == from.Netdev || e.Type != from.Type || to.IsLinkLocalUnicast() {
			continue
		}
		link, err := netlink.LinkByIndex(e.Netdev)
		if err != nil {
			continue
		}
		addrs, _ := netlink.AddrList(link, netlink.FAMILY_ALL)
		for _, a := range addrs {
			if a.IP.Equal(e.GID.Addr().AsSlice()) && a.Contains(to.AsSlice()) {
				return e, true
			}
		}
	}
	return GIDEntry{}, false
}

// listAddrs lists addresses with their subnets.
func listAddrs(addrs []netlink.Addr) string {
	if len(addrs) == 0 {
		return "no address"
	}
	var all []string
	for _, a := range addrs {
		all = append(all, a.IPNet.String())
	}
	return strings.Join(all, ", ")
}
