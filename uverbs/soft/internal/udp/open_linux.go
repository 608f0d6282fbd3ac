package udp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// mmsg is the transport of Linux. It sends batches with sendmmsg, in which packets to one destination are
// segments of one buffer (UDP_SEGMENT, Linux 4.18), and receives them with recvmmsg, where the kernel
// puts segments together again (UDP_GRO, Linux 5.0).
type mmsg struct {
	file  *os.File        // in the netpoller of the Go runtime
	raw   syscall.RawConn // of file
	bound netip.AddrPort
	self  netip.AddrPort // without zone
	is4   bool
	zone  uint32 // index of the interface that link-local addresses belong to, or 0
	c     *counters
	peers *peers
	o     *Options

	gso    atomic.Bool // send segments
	closed atomic.Bool
	r      receiver

	mu      sync.Mutex
	senders []*sender // that are not in use
}

// openTransport opens the transport of Linux, or the plain one on demand.
func openTransport(local netip.AddrPort, o *Options, c *counters, p *peers) (transport, error) {
	if o.Plain {
		return openPlain(local, o, c, p)
	}
	t, err := newMmsg(local, o, c, p)
	if err != nil {
		return nil, err
	}
	ok := false
	defer func() {
		if !ok {
			t.file.Close()
		}
	}()
	if err := t.bind(local); err != nil {
		return nil, err
	}
	if err := t.chooseMulticastLink(); err != nil {
		return nil, err
	}
	// A kernel without UDP_SEGMENT refuses to set it to what it is by default.
	t.gso.Store(!o.NoGSO && t.set("UDP_SEGMENT", unix.IPPROTO_UDP, unix.UDP_SEGMENT, 0) == nil)
	gro := !o.NoGRO && t.set("UDP_GRO", unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil
	t.r.init(t, t.self, gro)
	if !gro { // the buffers are too small
		p.large = nil
	}
	ok = true
	return t, nil
}

// newMmsg creates a socket and sets its options. It is not bound, and has no receive buffers.
func newMmsg(local netip.AddrPort, o *Options, c *counters, p *peers) (*mmsg, error) {
	t := &mmsg{c: c, peers: p, o: o, is4: local.Addr().Is4()}
	family := unix.AF_INET6
	if t.is4 {
		family = unix.AF_INET
	}
	zone, err := zoneIndex(local.Addr().Zone())
	if err != nil {
		return nil, err
	}
	t.zone = zone
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	t.file = os.NewFile(uintptr(fd), "udp "+local.String())
	if t.raw, err = t.file.SyscallConn(); err == nil {
		err = t.setOptions()
	}
	if err != nil {
		t.file.Close()
		return nil, err
	}
	return t, nil
}

// zoneIndex returns the index of the interface that a zone names, 0 for none.
func zoneIndex(zone string) (uint32, error) {
	if zone == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	ifi, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, fmt.Errorf("zone %s: %w", zone, unix.EADDRNOTAVAIL)
	}
	return uint32(ifi.Index), nil
}

// control calls f with the descriptor of the socket.
func (t *mmsg) control(f func(fd int) error) (err error) {
	if e := t.raw.Control(func(fd uintptr) { err = f(int(fd)) }); e != nil {
		return net.ErrClosed
	}
	return err
}

// set sets a socket option.
func (t *mmsg) set(name string, level, option, value int) error {
	err := t.control(func(fd int) error { return unix.SetsockoptInt(fd, level, option, value) })
	if err != nil {
		return fmt.Errorf("setsockopt %s: %w", name, err)
	}
	return nil
}

// defaultHopLimit is the TTL or hop limit of packets to one destination that do not choose another.
const defaultHopLimit = 64

// sendBuffer is the size in bytes of the send buffer that a socket asks for: some batches.
const sendBuffer = 8 * BatchBytes

type option struct {
	name                 string
	level, option, value int
}

// setOptions sets the options that unicast and multicast sockets share.
func (t *mmsg) setOptions() error {
	err := t.control(func(fd int) error { return dontFragment(uintptr(fd), t.is4) })
	if err != nil {
		return fmt.Errorf("setsockopt IP_MTU_DISCOVER: %w", err)
	}
	options := []option{
		{"IP_TTL", unix.IPPROTO_IP, unix.IP_TTL, defaultHopLimit},
		{"IP_RECVTOS", unix.IPPROTO_IP, unix.IP_RECVTOS, 1},
		{"IP_RECVTTL", unix.IPPROTO_IP, unix.IP_RECVTTL, 1},
	}
	if !t.is4 {
		options = []option{
			{"IPV6_V6ONLY", unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1},
			{"IPV6_UNICAST_HOPS", unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, defaultHopLimit},
			{"IPV6_RECVTCLASS", unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1},
			{"IPV6_RECVHOPLIMIT", unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1},
			// rxe and network cards send UDP checksum 0, which IPv6 forbids without this.
			{"UDP_NO_CHECK6_RX", unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1},
		}
	}
	for _, o := range options {
		if err := t.set(o.name, o.level, o.option, o.value); err != nil {
			return err
		}
	}
	// The kernel caps these silently at net.core.rmem_max and wmem_max; FORCE needs CAP_NET_ADMIN.
	if t.set("SO_RCVBUFFORCE", unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, t.o.ReceiveBuffer) != nil {
		if err := t.set("SO_RCVBUF", unix.SOL_SOCKET, unix.SO_RCVBUF, t.o.ReceiveBuffer); err != nil {
			return err
		}
	}
	return t.set("SO_SNDBUF", unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
}

// bind binds the socket and learns which port the kernel has chosen, if any.
func (t *mmsg) bind(local netip.AddrPort) error {
	return t.control(func(fd int) error {
		var sa unix.Sockaddr = &unix.SockaddrInet6{Port: int(local.Port()), Addr: local.Addr().As16(), ZoneId: t.zone}
		if t.is4 {
			sa = &unix.SockaddrInet4{Port: int(local.Port()), Addr: local.Addr().As4()}
		}
		if err := unix.Bind(fd, sa); err != nil {
			return os.NewSyscallError("bind", err)
		}
		sa, err := unix.Getsockname(fd)
		if err != nil {
			return os.NewSyscallError("getsockname", err)
		}
		port := local.Port()
		switch sa := sa.(type) {
		case *unix.SockaddrInet4:
			port = uint16(sa.Port)
		case *unix.SockaddrInet6:
			port = uint16(sa.Port)
		}
		t.bound = netip.AddrPortFrom(local.Addr(), port)
		t.self = netip.AddrPortFrom(local.Addr().WithZone(""), port)
		return nil
	})
}

// chooseMulticastLink makes IPv6 multicast packets leave by the interface that has the socket's address.
// IPv4 does so by itself.
func (t *mmsg) chooseMulticastLink() error {
	if t.is4 {
		return nil
	}
	ifi, err := Interface(t.bound.Addr())
	if err != nil {
		return nil // the address may be used without being one of an interface: ip_nonlocal_bind
	}
	return t.set("IPV6_MULTICAST_IF", unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, ifi.Index)
}

// joinGroup opens a socket that is bound to the address of a multicast group: one that is bound to an
// address of the host receives no multicast packets.
func (t *mmsg) joinGroup(group netip.Addr) (transport, error) {
	ifi, err := Interface(t.bound.Addr())
	if err != nil {
		return nil, err
	}
	to := netip.AddrPortFrom(group, t.self.Port())
	if group.IsLinkLocalMulticast() && !t.is4 {
		to = netip.AddrPortFrom(group.WithZone(strconv.Itoa(ifi.Index)), t.self.Port())
	}
	g, err := newMmsg(to, t.o, t.c, new(peers))
	if err != nil {
		return nil, err
	}
	// Other processes with other addresses of this host may join, too.
	if err = g.set("SO_REUSEADDR", unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err == nil {
		err = g.bind(to)
	}
	if err == nil {
		err = g.control(func(fd int) error { return join(fd, group, ifi.Index) })
	}
	if err != nil {
		g.file.Close()
		return nil, err
	}
	g.r.init(g, g.self, false)
	return g, nil
}

// join makes an interface a member of a group.
func join(fd int, group netip.Addr, ifindex int) error {
	if group.Is4() {
		// Without IP_MULTICAST_ALL 0, packets come in from interfaces that others have made members.
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0); err != nil {
			return os.NewSyscallError("setsockopt IP_MULTICAST_ALL", err)
		}
		err := unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: group.As4(), Ifindex: int32(ifindex)})
		return os.NewSyscallError("setsockopt IP_ADD_MEMBERSHIP", err)
	}
	err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_ALL, 0)
	if err != nil && err != unix.ENOPROTOOPT { // Linux 4.20
		return os.NewSyscallError("setsockopt IPV6_MULTICAST_ALL", err)
	}
	err = unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(ifindex)})
	return os.NewSyscallError("setsockopt IPV6_JOIN_GROUP", err)
}

func (t *mmsg) receiveBuffer() (size int) {
	_ = t.control(func(fd int) error { size = receiveBufferOf(uintptr(fd)); return nil }) // 0 if closed
	return size
}

func (t *mmsg) drops() (n uint64) {
	_ = t.control(func(fd int) error { n = dropsOf(fd); return nil }) // 0 if closed
	return n
}

func (t *mmsg) local() netip.AddrPort { return t.bound }

func (t *mmsg) close() error {
	t.closed.Store(true)
	return t.file.Close()
}
