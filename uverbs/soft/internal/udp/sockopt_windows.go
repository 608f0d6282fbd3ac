package udp

import "golang.org/x/sys/windows"

// Socket options of ws2ipdef.h that package windows does not have.
const (
	ipDontFragment = 14 // IP_DONTFRAGMENT
	ipv6DontFrag   = 14 // IPV6_DONTFRAG
)

// dontFragment makes a socket set DF. Windows counts IDs up all the same, so that IPv4 packets have a
// wrong ICRC unless the receiver recovers the ID, as package wire does.
func dontFragment(fd uintptr, is4 bool) error {
	if is4 {
		return windows.SetsockoptInt(windows.Handle(fd), windows.IPPROTO_IP, ipDontFragment, 1)
	}
	return windows.SetsockoptInt(windows.Handle(fd), windows.IPPROTO_IPV6, ipv6DontFrag, 1)
}

// receiveBufferOf returns the size of a socket's receive buffer, or 0.
func receiveBufferOf(fd uintptr) int {
	n, err := windows.GetsockoptInt(windows.Handle(fd), windows.SOL_SOCKET, windows.SO_RCVBUF)
	if err != nil {
		return 0
	}
	return n
}
