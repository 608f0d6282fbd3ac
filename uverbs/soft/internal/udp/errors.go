package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// OpenError says why a socket could not be opened, or not join or leave a multicast group.
type OpenError struct {
	Addr   netip.AddrPort // the local address, or that of the group
	Reason string         // the cause in words
	Err    error          // normally a syscall.Errno
}

// Error returns the address and the reason.
func (e *OpenError) Error() string {
	if e.Reason == e.Err.Error() {
		return fmt.Sprintf("udp %v: %v", e.Addr, e.Reason)
	}
	return fmt.Sprintf("udp %v: %s: %v", e.Addr, e.Reason, e.Err)
}

// Unwrap returns the system's error.
func (e *OpenError) Unwrap() error { return e.Err }

// newOpenError explains an error of opening a socket.
func newOpenError(addr netip.AddrPort, err error) error {
	reason := "the socket cannot be opened"
	switch {
	case errors.Is(err, errAddrNotAvail):
		reason = fmt.Sprintf("%v is not an address of this host", addr.Addr())
	case errors.Is(err, errAddrInUse):
		reason = "the port is taken"
		if holder := portHolder(addr); holder != "" {
			reason += " by " + holder
		}
	case errors.Is(err, errAFNoSupport) && addr.Addr().Is6():
		reason = "this system has no IPv6"
	case errors.Is(err, errAcces), errors.Is(err, syscall.EPERM):
		reason = "this process may not open such a socket"
	case errors.Is(err, errors.ErrUnsupported):
		reason = "not supported on this system"
	}
	return &OpenError{addr, reason, err}
}

// SendError says why the system refused to send a packet.
type SendError struct {
	To   netip.AddrPort // the destination
	Size int            // of the packet, in bytes
	Err  error          // normally a syscall.Errno
}

// Error says what was refused and why.
func (e *SendError) Error() string {
	for _, r := range refusals {
		if errors.Is(e.Err, r.errno) {
			return fmt.Sprintf("udp: send of %d bytes to %v: %s: %v", e.Size, e.To, r.reason, e.Err)
		}
	}
	return fmt.Sprintf("udp: send of %d bytes to %v: %v", e.Size, e.To, e.Err)
}

// Unwrap returns the system's error.
func (e *SendError) Unwrap() error { return e.Err }

// refused counts a packet that the system refused to send, and returns the reason.
func (c *counters) refused(to netip.AddrPort, size int, err error) *SendError {
	counter := &c.sendFailures
	for _, r := range refusals {
		if errors.Is(err, r.errno) {
			counter = r.count(c)
			break
		}
	}
	counter.Add(1)
	return &SendError{to, size, err}
}

// MaxHeaders is how many bytes of a link's MTU the kernel keeps for the headers and the ICRC of a packet
// when it chooses the MTU of RoCE.
const MaxHeaders = 80

// MaxMTU returns the largest MTU of RoCE that fits a link, from 256 to 4096, or 0 if none does. A link with
// an MTU of 0 counts as one of Ethernet, with 1500 bytes: no interface with an address has 0 in Linux, but gVisor
// reports it for the interfaces of the host.
func MaxMTU(link int) int {
	if link == 0 {
		link = 1500
	}
	for mtu := 4096; mtu >= 256; mtu /= 2 {
		if mtu+MaxHeaders <= link {
			return mtu
		}
	}
	return 0
}

// checkLocal checks what the system would not refuse: that an address tells where packets to it were
// sent, and that its link carries packets of an MTU.
func checkLocal(addr netip.Addr, mtu int) error {
	if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() {
		return errors.New("the local address must be one address of this host")
	}
	if mtu == 0 {
		return nil
	}
	ifi, err := Interface(addr)
	if err != nil {
		return nil // the system knows better, and says so
	}
	return checkMTU(ifi, mtu)
}

// checkMTU checks whether a link carries packets of an MTU of RoCE.
func checkMTU(ifi *net.Interface, mtu int) error {
	if mtu > MaxMTU(ifi.MTU) {
		return fmt.Errorf("interface %s has an MTU of %d bytes, which is too small for an MTU of RoCE of %d bytes: at least %d are needed", ifi.Name, ifi.MTU, mtu, mtu+MaxHeaders)
	}
	return nil
}

// Interface returns the network interface that has an address.
func Interface(addr netip.Addr) (*net.Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	plain := addr.Unmap().WithZone("")
	hasIPv6 := false
	for _, ifi := range all {
		if addr.Zone() != "" && addr.Zone() != ifi.Name && addr.Zone() != fmt.Sprint(ifi.Index) {
			continue
		}
		addrs, err := ifi.Addrs()
		if err != nil {
			continue // it has just been removed
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil {
				continue
			}
			hasIPv6 = hasIPv6 || p.Addr().Is6()
			// All of 127.0.0.0/8 belongs to the loopback interface.
			if own := p.Addr().Unmap().WithZone(""); own == plain || plain.IsLoopback() && own.IsLoopback() && p.Contains(plain) {
				return &ifi, nil
			}
		}
	}
	if plain.Is6() && !hasIPv6 {
		return nil, &OpenError{netip.AddrPortFrom(addr, 0), "no interface of this host has any IPv6 address", errAFNoSupport}
	}
	return nil, &OpenError{netip.AddrPortFrom(addr, 0), "no interface of this host has the address", errAddrNotAvail}
}
