//go:build !linux

package ucm

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
)

// Source implements Network. It asks for the name of a UDP socket that is connected to the address.
func (systemNetwork) Source(src, dst netip.Addr) (netip.Addr, syscall.Errno) {
	var local *net.UDPAddr
	if src.IsValid() {
		local = net.UDPAddrFromAddrPort(netip.AddrPortFrom(src, 0))
	}
	c, err := net.DialUDP("udp", local, net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, discardPort)))
	if err != nil {
		var errno syscall.Errno
		if !errors.As(err, &errno) {
			errno = syscall.EHOSTUNREACH
		}
		return netip.Addr{}, errno
	}
	defer c.Close()
	a, ok := c.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.Addr{}, syscall.EHOSTUNREACH
	}
	return a.AddrPort().Addr(), 0
}
