package diag

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
)

// GIDEntry is an entry of a port's GID table.
type GIDEntry struct {
	Addr       netip.Addr // the IP address that the GID is on RoCE, IPv4 unmapped
	Netdev     int        // index of the network interface, 0 if it is not known
	Type       uint32     // how packets are encapsulated
	InfiniBand bool       // the GID is not an IP address
	Text       string     // the entry as messages show it
}

// Path is a path to a peer that the kernel has refused with Errno.
type Path struct {
	Errno      syscall.Errno
	Device     string
	Port       uint8
	Table      []GIDEntry // the port's GID table
	Index      int        // the requested GID index
	From       *GIDEntry  // the entry with that index, nil if it is not in use
	To         netip.Addr // the peer
	Better     *GIDEntry  // the entry that the library would choose, nil if the table is empty
	Fabric     bool       // the port is of a network of its own, neither InfiniBand nor Ethernet, as on EFA
	GRHMissing bool       // the port needs a GRH in every packet, and the path is without a GRH
	NoSocket   bool       // the device is in software and reaches only devices of this process
}

// Hint says what may be wrong with the path.
func (p *Path) Hint() string {
	hint := ""
	switch p.Errno {
	case syscall.ETIMEDOUT, syscall.ENETUNREACH, syscall.EHOSTUNREACH:
		hint = "it cannot be reached"
		if p.NoSocket {
			hint = "it is not in this process, and " + p.Device + " has no socket to reach others; make it with an address or Auto, as with GOVERBS_SOFT=auto"
		} else if h := p.interfaceOf(p.From); h != nil {
			p.readRoute(h)
			hint = h.routeHint(p)
		}
	case syscall.ENODEV:
		hint = "the GID's network interface is not in this network namespace"
		if h := p.interfaceOf(p.From); h != nil {
			hint = "the kernel does not send by " + h.name
			if !h.up {
				hint = h.name + " is down"
			}
		}
	case syscall.EINVAL:
		if p.GRHMissing {
			return fmt.Sprintf("port %d of %s needs a GRH in every packet: Global is not set", p.Port, p.Device)
		}
		hint = "the GID index may be unused or the path MTU above the port's"
		if p.Fabric && p.From != nil {
			hint = "likely its network does not lead to the peer: on AWS both must be in one VPC and one availability zone"
		}
	default:
		return ""
	}
	if family := p.wrongFamily(); family != "" {
		hint = family
	}
	from := fmt.Sprintf("%d (unused)", p.Index)
	if p.From != nil {
		from = p.From.Text
	}
	return fmt.Sprintf("peer %s from GID %s: %s", p.To, from, hint)
}

// wrongFamily says which GID suits the peer's family of addresses, if the GID in use is of the other.
func (p *Path) wrongFamily() string {
	if p.From == nil || p.From.InfiniBand || p.To.IsMulticast() || p.From.Addr.Is4() == p.To.Is4() {
		return ""
	}
	name := map[bool]string{true: "IPv4", false: "IPv6"}
	hint := fmt.Sprintf("the peer is %s and the GID %s", name[p.To.Is4()], name[!p.To.Is4()])
	if p.Better != nil && p.Better.Addr.Is4() == p.To.Is4() {
		return hint + "; GID " + p.Better.Text + " matches the peer's family"
	}
	return hint + "; no GID of this port matches the peer's family"
}

// netif is a network interface, and the host's route to a peer.
type netif struct {
	name  string
	up    bool
	addrs []netifAddr

	nearer  string     // a GID of another interface whose subnet the peer is on, if there is one
	nextHop netip.Addr // the zero Addr if the route to the peer does not leave by this interface
	silent  bool       // the next hop does not answer ARP or neighbour discovery
}

// netifAddr is an address of a network interface with its subnet.
type netifAddr struct {
	netip.Prefix
	tentative bool // the kernel still checks it for duplicates
}

// routeHint says why the peer cannot be reached by the interface.
func (h *netif) routeHint(p *Path) string {
	if !h.up {
		return h.name + " is down"
	}
	var all []string
	for _, a := range h.addrs {
		if a.tentative && a.Addr() == p.From.Addr {
			return fmt.Sprintf("%s of %s is not usable yet: it is being checked for duplicates, which takes a second or two", a.Addr(), h.name)
		}
		all = append(all, a.String())
	}
	if !h.nextHop.IsValid() {
		if all == nil {
			all = []string{"no address"}
		}
		hint := fmt.Sprintf("there is no route to it by %s, which has %s", h.name, strings.Join(all, ", "))
		if h.nearer != "" {
			hint += "; GID " + h.nearer + " is on its subnet"
		}
		return hint
	}
	protocol := "neighbour discovery"
	if h.nextHop.Is4() {
		protocol = "ARP"
	}
	if h.silent {
		return fmt.Sprintf("%s does not answer %s on %s; it is not there, or %s is not on its network", h.nextHop, protocol, h.name, h.name)
	}
	return fmt.Sprintf("there is a route by %s to %s, but no answer to %s", h.name, h.nextHop, protocol)
}

// onSubnet returns a GID of another network interface whose subnet the peer is on, or "".
func (p *Path) onSubnet() string {
	for i := range p.Table {
		g := &p.Table[i]
		if g.Netdev == p.From.Netdev || g.Type != p.From.Type || p.To.IsLinkLocalUnicast() {
			continue
		}
		if h := p.interfaceOf(g); h != nil && h.reaches(g.Addr, p.To) {
			return g.Text
		}
	}
	return ""
}

// reaches reports whether a peer is on the subnet of an address of the interface.
func (h *netif) reaches(own, peer netip.Addr) bool {
	for _, a := range h.addrs {
		if a.Addr() == own && a.Contains(peer) {
			return true
		}
	}
	return false
}
