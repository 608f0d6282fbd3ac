package rdmacm

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Addr is an address of the connection manager: an IP address, which selects the RDMA device, and a
// port in a port space. It implements [net.Addr].
type Addr struct {
	IP    netip.Addr // IP has a zone if it is a link-local address.
	Port  uint16     // Port is the port in the port space; 0 lets the kernel choose one.
	Space PortSpace  // Space is the port space of Port; 0 stands for the port space of the ID.
	PKey  uint16     // PKey is the partition if IP is the GID of an InfiniBand port, and otherwise 0; see [GIDAddr].
}

// ip returns the IP address without a zone, and without the prefix of an IPv4 address in IPv6.
func (a Addr) ip() netip.Addr { return a.IP.Unmap().WithZone("") }

// AddrOf returns the Addr with the IP address and the port of ap. For the zero value it returns the
// zero Addr.
func AddrOf(ap netip.AddrPort) Addr { return Addr{IP: ap.Addr(), Port: ap.Port()} }

// scope returns the index of the network interface that the zone names, 0 if there is no zone.
func (a Addr) scope() (uint32, error) {
	zone := a.IP.Zone()
	if zone == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, argErr("address", "zone of "+a.String(), strconv.Quote(zone), "the name or the index of a network interface; %v", err)
	}
	return uint32(i.Index), nil
}

// Network returns "rdma+" and the name of the port space, such as "rdma+tcp", or "rdma" without a
// port space.
func (a Addr) Network() string {
	if a.Space == 0 {
		return "rdma"
	}
	return "rdma+" + a.Space.String()
}

// String returns the IP address and the port as [net.JoinHostPort] does.
func (a Addr) String() string {
	if !a.IP.IsValid() {
		return ":" + strconv.Itoa(int(a.Port))
	}
	return netip.AddrPortFrom(a.IP, a.Port).String()
}

// storage returns the address in the kernel's layout.
func (a Addr) storage() (s abi.KernelSockaddrStorage, size uint16, err error) {
	if a.isGID() {
		s, size = a.gidStorage()
		return s, size, nil
	}
	scope, err := a.scope()
	if err != nil {
		return s, 0, err
	}
	s, size = sockaddr(a.ip(), a.Port, scope)
	return s, size, nil
}

// PortSpace is a set of port numbers. It determines the transport of an ID (enum
// rdma_ucm_port_space).
type PortSpace uint16

// Port spaces.
const (
	TCP   PortSpace = abi.RDMA_PS_TCP   // reliable connections (RDMA_PS_TCP)
	UDP   PortSpace = abi.RDMA_PS_UDP   // datagrams (RDMA_PS_UDP)
	IB    PortSpace = abi.RDMA_PS_IB    // any transport; ports are part of InfiniBand's service IDs (RDMA_PS_IB)
	IPoIB PortSpace = abi.RDMA_PS_IPOIB // datagrams with the multicast groups of IP over InfiniBand (RDMA_PS_IPOIB)
)

// String returns the name of the port space.
func (p PortSpace) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case IB:
		return "ib"
	case IPoIB:
		return "ipoib"
	}
	return fmt.Sprintf("port space %#x", uint16(p))
}

// qpType returns the default QP type of an ID (enum ib_qp_type).
func (p PortSpace) qpType() uint8 {
	if p == UDP || p == IPoIB {
		return uint8(ib.UD)
	}
	return uint8(ib.RC)
}
