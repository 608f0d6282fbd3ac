package engine

import (
	"encoding/binary"
	"net/netip"

	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
)

// A source says where a packet came from, as far as its receiver is told.
type source struct {
	src, dst netip.Addr
	ip       udp.IP
	id       uint16 // of an IPv4 header
	size     int    // bytes from the BTH to the ICRC
}

// Sizes of headers, in bytes.
const (
	ipv4Size = 20
	udpSize  = 8
	udpProto = 17
)

// grh writes the 40 bytes that precede a datagram in the receiver's memory: an IPv6 header, or 20 zero
// bytes and an IPv4 header.
func (s *source) grh(b *[GRHSize]byte) {
	if s.src.Is4() && s.dst.Is4() {
		clear(b[:GRHSize-ipv4Size])
		s.ipv4(b[GRHSize-ipv4Size:])
		return
	}
	binary.BigEndian.PutUint32(b[:], 6<<28|uint32(s.ip.TrafficClass)<<20|s.ip.FlowLabel&0xfffff)
	binary.BigEndian.PutUint16(b[4:], uint16(udpSize+s.size))
	b[6], b[7] = udpProto, s.ip.HopLimit
	src, dst := s.src.As16(), s.dst.As16()
	copy(b[8:], src[:])
	copy(b[24:], dst[:])
}

// ipv4 writes an IPv4 header with the flag that packets are not to be fragmented.
func (s *source) ipv4(b []byte) {
	b[0], b[1] = 0x45, s.ip.TrafficClass
	binary.BigEndian.PutUint16(b[2:], uint16(ipv4Size+udpSize+s.size))
	binary.BigEndian.PutUint16(b[4:], s.id)
	binary.BigEndian.PutUint16(b[6:], 0x4000)
	b[8], b[9] = s.ip.HopLimit, udpProto
	binary.BigEndian.PutUint16(b[10:], 0)
	src, dst := s.src.As4(), s.dst.As4()
	copy(b[12:], src[:])
	copy(b[16:], dst[:])
	sum := uint32(0)
	for i := 0; i < ipv4Size; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
}
