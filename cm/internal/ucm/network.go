package ucm

import (
	"net"
	"net/netip"
)

// discardPort is a port for a socket that sends nothing.
const discardPort = 9

// systemNetwork answers for the machine.
type systemNetwork struct{}

// IsLocal implements Network.
func (systemNetwork) IsLocal(addr netip.Addr) bool {
	if addr.IsLoopback() {
		return true
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range addrs {
		if p, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(p.IP); ok && ip.Unmap() == addr.WithZone("") {
				return true
			}
		}
	}
	return false
}
