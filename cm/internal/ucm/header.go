package ucm

import (
	"encoding/binary"
	"net/netip"
)

// headerSize is the size of the header in the private data of requests (struct cma_hdr).
const headerSize = 36

// headerVersion is the version of the header.
const headerVersion = 0

// putHeader encodes the addresses of the ID at the beginning of private data.
func (x *id) putHeader(b []byte) {
	b[0], b[1] = headerVersion, 6<<4
	if x.src.family == afINET {
		b[1] = 4 << 4
	}
	binary.BigEndian.PutUint16(b[2:], x.src.port)
	putHeaderAddr(b[4:20], x.src.ip)
	putHeaderAddr(b[20:36], x.dst.ip)
}

// putHeaderAddr encodes an address in 16 bytes. An IPv4 address is in the last 4.
func putHeaderAddr(b []byte, ip netip.Addr) {
	raw := ip.AsSlice()
	copy(b[len(b)-len(raw):], raw)
}

// parseHeader decodes the addresses of a request to a port. The local address is the one that the
// peer has asked for.
func parseHeader(b []byte, port uint16) (local, peer sockaddr, ok bool) {
	if b[0] != headerVersion {
		return local, peer, false
	}
	addr := func(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)) }
	family := uint16(afINET6)
	switch b[1] >> 4 {
	case 4:
		family = afINET
		addr = func(b []byte) netip.Addr { return netip.AddrFrom4([4]byte(b[12:16])) }
	case 6:
	default:
		return local, peer, false
	}
	local = sockaddr{family: family, ip: addr(b[20:36]), port: port}
	peer = sockaddr{family: family, ip: addr(b[4:20]), port: binary.BigEndian.Uint16(b[2:])}
	return local, peer, true
}
