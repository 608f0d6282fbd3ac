//go:build !linux && !darwin && !freebsd && !windows

package udp

// dontFragment leaves the socket as it is. A peer that does not recover the ID of IPv4 headers will not
// accept packets over IPv4.
func dontFragment(uintptr, bool) error { return nil }

// receiveBufferOf returns 0: not known.
func receiveBufferOf(uintptr) int { return 0 }
