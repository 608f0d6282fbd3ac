package udp

import "golang.org/x/sys/unix"

// dontFragment makes a socket set DF. As long as it is not connected, its IPv4 packets have ID 0 then.
// PROBE differs from DO in that an ICMP message does not change what may be sent: only the MTU of the
// interface counts.
func dontFragment(fd uintptr, is4 bool) error {
	if is4 {
		return unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	}
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
}

// receiveBufferOf returns the size of a socket's receive buffer, or 0.
func receiveBufferOf(fd uintptr) int {
	n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return 0
	}
	return n
}
