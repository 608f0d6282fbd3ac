package rdmacm

import (
	"encoding/binary"
	"net/netip"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// defaultPKey is the partition that every port belongs to.
const defaultPKey = 0xffff

// GIDAddr returns the address of the InfiniBand port with the given GID, in the default partition
// (AF_IB). It is for an [ID], and needs no IP over InfiniBand. On a network without a subnet
// administrator, set the route with [ID.SetPath].
func GIDAddr(gid ib.GID, port uint16) Addr {
	return Addr{IP: netip.AddrFrom16(gid), Port: port, PKey: defaultPKey}
}

// isGID reports whether the address is a GID.
func (a Addr) isGID() bool { return a.PKey != 0 }

// sockaddrIBSize is the size of struct sockaddr_ib in bytes.
const sockaddrIBSize = 48

// gidStorage returns the address as a struct sockaddr_ib.
func (a Addr) gidStorage() (s abi.KernelSockaddrStorage, size uint16) {
	*s.SsFamily() = afIB
	be, b, gid := binary.BigEndian, s.Data()[:], a.IP.As16()
	be.PutUint16(b, a.PKey) // a sockaddrIB
	copy(b[6:], gid[:])
	be.PutUint64(b[22:], uint64(a.Space)<<16|uint64(a.Port))
	be.PutUint64(b[30:], 1<<64-1)
	return s, sockaddrIBSize
}

// gidAddress decodes a struct sockaddr_ib.
func gidAddress(s *abi.KernelSockaddrStorage, space PortSpace) Addr {
	ib := decodeIB(s)
	return Addr{IP: netip.AddrFrom16(ib.Addr), Port: uint16(ib.ServiceID), Space: space, PKey: ib.PKey}
}
