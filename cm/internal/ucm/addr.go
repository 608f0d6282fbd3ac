package ucm

import (
	"encoding/binary"
	"math"
	"net"
	"net/netip"
	"strconv"

	"github.com/goverbs/goverbs/cm/internal/abi"
)

// Address families of Linux, which the commands use on every system.
const (
	afINET  = 2
	afINET6 = 10
	afIB    = 27
)

// Sizes of addresses in bytes.
const (
	sizeINET  = 16 // struct sockaddr_in
	sizeINET6 = 28 // struct sockaddr_in6
	sizeIB    = 48 // struct sockaddr_ib
)

// sockaddr is an address of an ID. The zero value is no address.
type sockaddr struct {
	family   uint16
	ip       netip.Addr // without a zone; of AF_IB, the GID
	port     uint16     // of AF_IB, the bits of the service ID in the mask
	flowinfo uint32     // AF_INET6 and AF_IB
	scope    uint32     // AF_INET6: index of a network interface

	pkey    uint16 // AF_IB
	service uint64 // AF_IB: service ID
	mask    uint64 // AF_IB: which bits of the service ID are set
}

// sockaddrOf returns the address for an IP address.
func sockaddrOf(ip netip.Addr, port uint16) sockaddr {
	s := sockaddr{family: afINET6, ip: ip.Unmap().WithZone(""), port: port, scope: scopeOf(ip.Zone())}
	if s.ip.Is4() {
		s.family = afINET
	}
	return s
}

// scopeOf returns the index of the network interface that a zone names, 0 if there is no zone, and an
// index that no interface has if there is no such interface.
func scopeOf(zone string) uint32 {
	if zone == "" {
		return 0
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n)
	}
	if i, err := net.InterfaceByName(zone); err == nil {
		return uint32(i.Index)
	}
	return math.MaxUint32
}

// parseSockaddr decodes an address in the kernel's layout. b begins with the family in native byte
// order. It returns false if the family is unknown or b is too short for it.
func parseSockaddr(b []byte) (sockaddr, bool) {
	s := sockaddr{family: binary.NativeEndian.Uint16(b)}
	if size := s.size(); size == 0 || size > len(b) {
		return s, false
	}
	switch s.family {
	case afINET:
		s.port = binary.BigEndian.Uint16(b[2:])
		s.ip = netip.AddrFrom4([4]byte(b[4:]))
	case afINET6:
		s.port = binary.BigEndian.Uint16(b[2:])
		s.flowinfo = binary.BigEndian.Uint32(b[4:])
		s.ip = netip.AddrFrom16([16]byte(b[8:]))
		s.scope = binary.NativeEndian.Uint32(b[24:])
	case afIB:
		s.pkey = binary.BigEndian.Uint16(b[2:])
		s.flowinfo = binary.BigEndian.Uint32(b[4:])
		s.ip = netip.AddrFrom16([16]byte(b[8:]))
		s.service = binary.BigEndian.Uint64(b[24:])
		s.mask = binary.BigEndian.Uint64(b[32:])
		s.port = uint16(s.service & s.mask)
	}
	return s, true
}

// size returns the size of the address in the kernel's layout, 0 if there is none.
func (s *sockaddr) size() int {
	switch s.family {
	case afINET:
		return sizeINET
	case afINET6:
		return sizeINET6
	case afIB:
		return sizeIB
	}
	return 0
}

// put encodes the address in the kernel's layout.
func (s *sockaddr) put(b []byte) {
	switch s.family {
	case afINET:
		binary.BigEndian.PutUint16(b[2:], s.port)
		copy(b[4:], s.ip.AsSlice())
	case afINET6:
		binary.BigEndian.PutUint16(b[2:], s.port)
		binary.BigEndian.PutUint32(b[4:], s.flowinfo)
		copy(b[8:], s.ip.AsSlice())
		binary.NativeEndian.PutUint32(b[24:], s.scope)
	case afIB:
		binary.BigEndian.PutUint16(b[2:], s.pkey)
		binary.BigEndian.PutUint32(b[4:], s.flowinfo)
		copy(b[8:], s.ip.AsSlice())
		binary.BigEndian.PutUint64(b[24:], s.service)
		binary.BigEndian.PutUint64(b[32:], s.mask)
	default:
		return
	}
	binary.NativeEndian.PutUint16(b, s.family)
}

// setPort sets the port.
func (s *sockaddr) setPort(port uint16) {
	s.port = port
	if s.family == afIB {
		s.service = s.service&s.mask | uint64(port)
		s.mask = 1<<64 - 1
	}
}

// gid returns the address as a GID.
func (s *sockaddr) gid() (g [16]byte) {
	if s.ip.IsValid() {
		g = s.ip.As16()
	}
	return g
}

// isLinkLocal reports whether the address is one of IPv6 that needs a network interface.
func (s *sockaddr) isLinkLocal() bool { return s.family == afINET6 && s.ip.IsLinkLocalUnicast() }

// zoneIndex returns the index of the network interface of a link-local address, or 0.
func (s *sockaddr) zoneIndex() uint32 {
	if s.isLinkLocal() {
		return s.scope
	}
	return 0
}

// zoned returns the IP address with the zone that a link-local address needs.
func (s *sockaddr) zoned() netip.Addr {
	if i := s.zoneIndex(); i != 0 {
		return s.ip.WithZone(strconv.FormatUint(uint64(i), 10))
	}
	return s.ip
}

// sameAddr reports whether two addresses differ at most in the port.
func (s *sockaddr) sameAddr(o *sockaddr) bool {
	return s.family == o.family && s.ip == o.ip && s.zoneIndex() == o.zoneIndex()
}

// isAny reports whether an address stands for any address. As in the kernel, those are also the
// loopback addresses, unless a device has one. Then they are addresses like others, which devices of
// other processes may have.
func (h *Host) isAny(s sockaddr) bool {
	if !s.ip.IsValid() || s.ip.IsUnspecified() {
		return true
	}
	if !s.ip.IsLoopback() {
		return false
	}
	d, _ := h.loopbackDevice(s.ip.Is4())
	return d == nil
}

// Numbers of the port spaces in service IDs (RDMA_IB_IP_PS).
const (
	spaceIPoIB = abi.RDMA_PS_IPOIB
	spaceIB    = abi.RDMA_PS_IB
	spaceTCP   = abi.RDMA_PS_TCP
	spaceUDP   = abi.RDMA_PS_UDP
)

// serviceID returns the service ID for an address of an ID in a port space.
func serviceID(space uint16, s *sockaddr) uint64 {
	if s.family == afIB {
		return s.service
	}
	return uint64(space)<<16 + uint64(s.port)
}
