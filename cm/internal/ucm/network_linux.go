package ucm

import (
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Source implements Network. It asks for the name of a UDP socket that is connected to the address. Package
// net would have its netpoller watch the socket, which costs several times as much.
func (systemNetwork) Source(src, dst netip.Addr) (netip.Addr, syscall.Errno) {
	from, err := sourceOf(src, dst)
	if err != nil {
		errno, ok := err.(syscall.Errno)
		if !ok {
			errno = syscall.EHOSTUNREACH
		}
		return netip.Addr{}, errno
	}
	return from, 0
}

// sourceOf is Source, with the error of package unix.
func sourceOf(src, dst netip.Addr) (netip.Addr, error) {
	family := unix.AF_INET6
	if dst.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return netip.Addr{}, err
	}
	defer unix.Close(fd)
	if src.IsValid() {
		if err := unix.Bind(fd, socketAddr(src, 0)); err != nil {
			return netip.Addr{}, err
		}
	}
	if err := unix.Connect(fd, socketAddr(dst, discardPort)); err != nil {
		return netip.Addr{}, err
	}
	name, err := unix.Getsockname(fd)
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(name.Addr), err
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(name.Addr), err
	}
	return netip.Addr{}, err
}

// socketAddr returns a socket address. The zone of an IPv6 address is the index of a network interface.
func socketAddr(a netip.Addr, port int) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: port, Addr: a.As4()}
	}
	zone, _ := strconv.ParseUint(a.Zone(), 10, 32) // 0: none
	return &unix.SockaddrInet6{Port: port, Addr: a.As16(), ZoneId: uint32(zone)}
}
