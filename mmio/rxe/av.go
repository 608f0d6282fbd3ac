package rxe

import (
	"encoding/binary"

	"github.com/goverbs/goverbs/mmio/rxe/internal/abi"
)

// An AV is an address vector (struct rxe_av): the address of a peer. Each datagram's work request
// contains one, for kernels that do not store address handles.
type AV struct {
	av abi.RxeAV
}

// AVAttr has the fields of an address vector. GIDs are IPv6 addresses; an IPv4 address is mapped
// into one.
type AVAttr struct {
	SGID, DGID   [16]byte // of this side and of the peer
	DMAC         [6]byte  // Ethernet address of the next hop
	FlowLabel    uint32   // 20 bits
	Port         uint8    // local port
	SGIDIndex    uint8    // index of the local GID
	HopLimit     uint8    // number of routers that a packet may cross
	TrafficClass uint8    // traffic class in the IP header
}

// NewAV makes an address vector.
func NewAV(a AVAttr) AV {
	var v AV
	v.av.PortNum = a.Port
	v.av.DMAC = a.DMAC
	*v.av.GRH.DGID.Raw() = a.DGID
	v.av.GRH.FlowLabel = a.FlowLabel
	v.av.GRH.SGIDIndex = a.SGIDIndex
	v.av.GRH.HopLimit = a.HopLimit
	v.av.GRH.TrafficClass = a.TrafficClass
	v.av.NetworkType = abi.RXE_NETWORK_TYPE_IPV6
	if isMapped(a.DGID) {
		v.av.NetworkType = abi.RXE_NETWORK_TYPE_IPV4
	}
	fillAddr(&v.av.SGIDAddr, a.SGID)
	fillAddr(&v.av.DGIDAddr, a.DGID)
	return v
}

// isMapped reports whether a GID is an IPv4 address mapped into IPv6.
func isMapped(gid [16]byte) bool {
	return [12]byte(gid[:12]) == [12]byte{10: 0xff, 11: 0xff}
}

// addressFamily6 is AF_INET6 of Linux.
const addressFamily6 = 10

// fillAddr writes a GID as a socket address, as rxe reads it: for IPv4 only the address, for IPv6
// the family and the address.
func fillAddr(to *abi.RxeAVAddr, gid [16]byte) {
	if isMapped(gid) {
		to.SockaddrIn().SinAddr.SAddr.Put(binary.BigEndian.Uint32(gid[12:]))
		return
	}
	s := to.SockaddrIn6()
	s.Sin6Family = addressFamily6
	*s.Sin6Addr.In6U.U6Addr8() = gid
}
