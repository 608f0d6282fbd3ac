package cm

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/goverbs/goverbs/cm/internal/abi"
)

// Addr is an address of the connection manager: an IP address, which RDMA devices are found
// by, and a port of a port space. It implements [net.Addr].
type Addr struct {
	IP    netip.Addr // IP may have a zone, as link-local addresses must.
	Port  uint16     // Port is 0 where the kernel shall choose.
	Space PortSpace  // Space is what Port is a port of.
	PKey  uint16     // PKey is the partition, if IP is the GID of an InfiniBand port, and else 0: see [GIDAddr].

	scope int // index of the zone's interface
}

// ip returns the address without a zone, IPv4 as such.
func (a Addr) ip() netip.Addr { return a.IP.Unmap().WithZone("") }

// AddrOf makes an address, and finds the interface of its zone.
func AddrOf(space PortSpace, ap netip.AddrPort) (Addr, error) {
	a := Addr{IP: ap.Addr(), Port: ap.Port(), Space: space}
	if !a.IP.IsValid() {
		return Addr{}, argErr("AddrOf", "address", "the zero value", "an IP address")
	}
	zone := a.IP.Zone()
	if zone == "" {
		return a, nil
	}
	if n, err := strconv.Atoi(zone); err == nil {
		a.scope = n
		return a, nil
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return Addr{}, fmt.Errorf("cm: zone of %s: %w", ap, err)
	}
	a.scope = i.Index
	return a, nil
}

// Network returns "rdma+tcp", "rdma+udp" and so on.
func (a Addr) Network() string { return "rdma+" + a.Space.String() }

// String returns address and port as [net.JoinHostPort] does.
func (a Addr) String() string {
	if !a.IP.IsValid() {
		return ":" + strconv.Itoa(int(a.Port))
	}
	return netip.AddrPortFrom(a.IP, a.Port).String()
}

// storage returns the address as the kernel has it.
func (a Addr) storage() (abi.KernelSockaddrStorage, uint16) {
	if a.isGID() {
		return a.gidStorage()
	}
	return sockaddr(a)
}

// PortSpace says what a port is a port of, and what transport an ID has (enum
// rdma_ucm_port_space).
type PortSpace uint16

// Port spaces.
const (
	TCP   PortSpace = abi.RDMA_PS_TCP   // reliable connections (RDMA_PS_TCP)
	UDP   PortSpace = abi.RDMA_PS_UDP   // datagrams (RDMA_PS_UDP)
	IB    PortSpace = abi.RDMA_PS_IB    // any transport, ports by InfiniBand's service IDs (RDMA_PS_IB)
	IPoIB PortSpace = abi.RDMA_PS_IPOIB // datagrams beside IP over InfiniBand (RDMA_PS_IPOIB)
)

// String returns the space's name.
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

// qpType returns the type of QP that IDs of the space have by default (enum ib_qp_type).
func (p PortSpace) qpType() uint8 {
	if p == UDP || p == IPoIB {
		return ibQPTypeUD
	}
	return ibQPTypeRC
}

// Types of QPs as CREATE_ID wants them (enum ib_qp_type, rdma/ib_verbs.h).
const (
	ibQPTypeRC = 2
	ibQPTypeUD = 4
)
