package wire

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"sync/atomic"
)

// The ICRC is the CRC-32 of Ethernet over, in this order:
//
//	8 bytes of ones, in place of the LRH of InfiniBand
//	the IP header, with ones in the fields that routers may change
//	the UDP header, with ones in the checksum
//	the BTH, with ones in byte 4 (FECN, BECN, reserved)
//	extension headers, payload and padding
//
// In IPv4, ones replace TOS, TTL and header checksum. Total length, ID, flags, fragment offset,
// protocol and addresses count. In IPv6, ones replace traffic class, flow label and hop limit. Payload
// length, next header and addresses count. Unlike everything else, the ICRC is little endian.
//
// A program with a UDP socket does not write the IPv4 header, and must foresee it: 20 bytes without
// options, DF set, and the ID that the caller names.

const (
	lrhSize  = 8
	ipv4Size = 20
	ipv6Size = 40
	udpSize  = 8
	protoUDP = 17
	dontFrag = 0x40 // in byte 6 of an IPv4 header

	maskedSize = lrhSize + ipv6Size + udpSize + BTHSize
)

// putMasked writes the masked headers that the ICRC of b begins with, the BTH included, and returns
// their size. The addresses are of one family.
func putMasked(m *[maskedSize]byte, src, dst netip.AddrPort, ipID uint16, b []byte) int {
	binary.BigEndian.PutUint64(m[:], 1<<64-1)
	n := lrhSize
	if s := src.Addr(); s.Is4() || s.Is4In6() {
		ip := m[n : n+ipv4Size]
		ip[0], ip[1] = 0x45, 0xff
		binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Size+udpSize+len(b)))
		binary.BigEndian.PutUint16(ip[4:], ipID)
		ip[6], ip[7] = dontFrag, 0
		ip[8], ip[9], ip[10], ip[11] = 0xff, protoUDP, 0xff, 0xff
		a := s.As4()
		copy(ip[12:], a[:])
		a = dst.Addr().As4()
		copy(ip[16:], a[:])
		n += ipv4Size
	} else {
		ip := m[n : n+ipv6Size]
		ip[0], ip[1], ip[2], ip[3] = 0x6f, 0xff, 0xff, 0xff
		binary.BigEndian.PutUint16(ip[4:], uint16(udpSize+len(b)))
		ip[6], ip[7] = protoUDP, 0xff
		a := s.As16()
		copy(ip[8:], a[:])
		a = dst.Addr().As16()
		copy(ip[24:], a[:])
		n += ipv6Size
	}
	udp := m[n : n+udpSize]
	binary.BigEndian.PutUint16(udp, src.Port())
	binary.BigEndian.PutUint16(udp[2:], dst.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(udpSize+len(b)))
	udp[6], udp[7] = 0xff, 0xff
	n += udpSize
	copy(m[n:], b[:BTHSize])
	m[n+4] = 0xff
	return n + BTHSize
}

// icrc returns the ICRC of a packet, of which the last four bytes do not count.
func icrc(src, dst netip.AddrPort, ipID uint16, b []byte) uint32 {
	var m [maskedSize]byte
	n := putMasked(&m, src, dst, ipID, b)
	return crc32.Update(^updateCRC(1<<32-1, m[:n]), crc32.IEEETable, b[BTHSize:len(b)-ICRCSize])
}

// rxe of Linux 6.2 to 7.2 makes and expects a different ICRC for a FLUSH: its table of opcodes has no
// offset of the payload for that one, so what it takes for the payload is the whole packet from the BTH
// on, which counts a second time, unmasked.

// isFlush reports whether a packet has two ICRCs.
func isFlush(b []byte) bool { return Opcode(b[0]) == Flush }

// rxeFlushICRC returns the ICRC that rxe gives a FLUSH.
func rxeFlushICRC(src, dst netip.AddrPort, ipID uint16, b []byte) uint32 {
	return crc32.Update(icrc(src, dst, ipID, b), crc32.IEEETable, b[:len(b)-ICRCSize])
}

// crcTables are the tables of updateCRC: crcTables[k][v] is what a byte v with k bytes behind it adds to
// the register.
var crcTables = func() (all [8][256]uint32) {
	all[0] = *crc32.IEEETable
	for k := 1; k < len(all); k++ {
		for v, r := range all[k-1] {
			all[k][v] = r>>8 ^ all[0][uint8(r)]
		}
	}
	return all
}()

// updateCRC feeds b into the register of a CRC, eight bytes at a time. The masked headers need it
// because their memory would escape to the heap through the function pointers of hash/crc32.
func updateCRC(crc uint32, b []byte) uint32 {
	t := &crcTables
	for ; len(b) >= 8; b = b[8:] {
		lo, hi := crc^binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
		crc = t[7][uint8(lo)] ^ t[6][uint8(lo>>8)] ^ t[5][uint8(lo>>16)] ^ t[4][lo>>24] ^
			t[3][uint8(hi)] ^ t[2][uint8(hi>>8)] ^ t[1][uint8(hi>>16)] ^ t[0][hi>>24]
	}
	for _, v := range b {
		crc = crc>>8 ^ t[0][uint8(crc)^v]
	}
	return crc
}

// SealICRC writes the ICRC into the last four bytes of a packet, which begins with its BTH. The
// addresses must be of one family; IPv4 addresses may be IPv4-mapped IPv6 addresses. ipID is the ID of
// the IPv4 header and has no meaning with IPv6. SealICRC panics if b is shorter than a BTH and an ICRC.
//
// A FLUSH gets the ICRC that rxe expects, since no other device is known to support FLUSH.
func SealICRC(src, dst netip.AddrPort, ipID uint16, b []byte) {
	seal := icrc
	if isFlush(b) {
		seal = rxeFlushICRC
	}
	binary.LittleEndian.PutUint32(b[len(b)-ICRCSize:], seal(src, dst, ipID, b))
}

// CheckICRC reports whether the ICRC of a received packet is right.
//
// A UDP socket does not show the ID of an IPv4 header, and rxe puts a counting ID into its packets.
// Therefore CheckICRC computes the ID from the ICRC, and returns it. A CRC is linear: what the ID adds
// to it depends on the ID alone. Of the 2^32 differences between the ICRC with ID 0 and the right one,
// 2^16 are due to an ID. So with IPv4, one damaged packet in 2^16 passes. A packet with a single
// flipped bit never passes, because no ID makes up for it.
//
// Of a FLUSH, CheckICRC accepts the ICRC of rxe as well as the right one, so that with IPv4 two damaged
// ones in 2^16 pass, also with a single flipped bit.
func CheckICRC(src, dst netip.AddrPort, b []byte) (ipID uint16, ok bool) {
	if len(b) < BTHSize+ICRCSize {
		return 0, false
	}
	sum := binary.LittleEndian.Uint32(b[len(b)-ICRCSize:])
	v4 := src.Addr().Unmap().Is4()
	if isFlush(b) {
		if ipID, ok = findID(v4, sum^rxeFlushICRC(src, dst, 0, b), 2*len(b)-ICRCSize); ok {
			return ipID, true
		}
	}
	return findID(v4, sum^icrc(src, dst, 0, b), len(b))
}

// findID returns the ID of the IP header, from the difference between the ICRC of a packet and the one
// with ID 0. n is the number of bytes behind the UDP header that count, ICRC included. It reports false if
// the difference is not due to an ID.
func findID(v4 bool, diff uint32, n int) (ipID uint16, ok bool) {
	if diff == 0 || !v4 {
		return 0, diff == 0
	}
	// Run the CRC backwards over the ID and everything behind it. The remainder is the ID as the
	// CRC register took it up: its two bytes in the low half, the first one lowest.
	const behindID = ipv4Size - 4 + udpSize - ICRCSize
	d := multiply(diff, inversePower(behindID+n))
	if d>>16 != 0 {
		return 0, false
	}
	return uint16(d<<8 | d>>8), true
}

// Polynomials over GF(2) modulo the one of the CRC, with reflected bits: 1<<31 is 1, and 1<<30 is x.
// Feeding a byte of zeros into the CRC multiplies its register by x^8.
const (
	polyOne      = 1 << 31
	polyReduce   = 0xedb88320 // the polynomial of the CRC, without x^32
	polyInverseX = 0xdb710641 // x^-1
)

// multiply returns the product of two polynomials.
func multiply(a, b uint32) (product uint32) {
	for range 32 {
		// All ones if the bit is set: no branch, as the bits of a CRC are random.
		product ^= b & uint32(int32(a)>>31)
		b = b>>1 ^ polyReduce&-(b&1)
		a <<= 1
	}
	return product
}

// inversePowers caches what inversePower returns; no power is 0. It covers packets of MTU 4096.
var inversePowers [4096 + 128]atomic.Uint32

// inversePower returns x^(-8n), which takes n bytes of zeros back out of a CRC.
func inversePower(n int) uint32 {
	if n >= len(inversePowers) {
		return computeInversePower(n)
	}
	p := inversePowers[n].Load()
	if p == 0 {
		p = computeInversePower(n)
		inversePowers[n].Store(p)
	}
	return p
}

func computeInversePower(n int) uint32 {
	power, square := uint32(polyOne), uint32(polyInverseX)
	for k := 8 * n; k != 0; k >>= 1 {
		if k&1 != 0 {
			power = multiply(power, square)
		}
		square = multiply(square, square)
	}
	return power
}
