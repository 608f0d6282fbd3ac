//go:build darwin || freebsd

package udp

import "golang.org/x/sys/unix"

// dontFragment makes a socket set DF. IPv4 packets have ID 0 then, by RFC 6864 and the default of sysctl
// net.inet.ip.rfc6864 (FreeBSD), or its like (macOS).
func dontFragment(fd uintptr, is4 bool) error {
	if is4 {
		return unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_DONTFRAG, 1)
	}
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1)
}

// receiveBufferOf returns the size of a socket's receive buffer, or 0.
func receiveBufferOf(fd uintptr) int {
	n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return 0
	}
	return n
}
