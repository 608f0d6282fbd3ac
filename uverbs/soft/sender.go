package soft

import (
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// Every user of a host can send UDP packets from each address of the host, but the port of a software device belongs
// to the device at its address. All software devices send from their port. So a packet from an address of this host
// counts only if it comes from the port that the devices have. Another user can bind that port at another address and
// choose the device's address as the source of a packet (IP_PKTINFO); only the random numbers protect from that. Other
// hosts may have rxe or a card, which choose the port of each connection.

// hostAddrs are the addresses of this host, apart from loopback addresses. They stand in where no linkWatch knows
// those of the device's network namespace.
type hostAddrs struct {
	read  time.Time
	addrs map[netip.Addr]bool
}

// hostAddrsAge is how old the knowledge of the addresses may be. Only the administrator changes them.
const hostAddrsAge = time.Second

// ownAddrs are the addresses of this host as they were read last.
var ownAddrs atomic.Pointer[hostAddrs]

// isOwnAddr reports whether an address is one of this host, in the network namespace of the device: another namespace
// is another host. It allocates only when it reads the addresses again.
func (n *network) isOwnAddr(a netip.Addr) bool {
	a = a.WithZone("")
	if a.IsLoopback() {
		return true
	}
	if own, ok := n.link.ownAddrs(); ok {
		return own[a]
	}
	h := ownAddrs.Load()
	if now := time.Now(); h == nil || now.Sub(h.read) > hostAddrsAge {
		h = &hostAddrs{now, map[netip.Addr]bool{}}
		all, _ := net.InterfaceAddrs() // none if the system does not tell
		for _, ip := range all {
			if n, ok := ip.(*net.IPNet); ok {
				if a, ok := netip.AddrFromSlice(n.IP); ok {
					h.addrs[a.Unmap()] = true
				}
			}
		}
		ownAddrs.Store(h)
	}
	return h.addrs[a]
}

// fromDevice reports whether a packet may come from an RDMA device, and counts it if not.
func (n *network) fromDevice(from netip.AddrPort) bool {
	if from.Port() == n.socket.LocalAddr().Port() || !n.isOwnAddr(from.Addr()) {
		return true
	}
	n.engine.CountWrongPort()
	return false
}
