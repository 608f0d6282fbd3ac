package ucm

import "encoding/binary"

// The commands of older programs have addresses of the size of struct sockaddr_in6.

// bindIP is struct rdma_ucm_bind_ip.
type bindIP struct {
	id   uint32
	addr sockaddr
}

// parseBindIP decodes a struct rdma_ucm_bind_ip.
func parseBindIP(b []byte) (r bindIP, ok bool) {
	const addr, id, size = 8, 36, 40
	if len(b) < size {
		return r, false
	}
	r.id = binary.NativeEndian.Uint32(b[id:])
	r.addr, ok = parseSockaddr(b[addr : addr+sizeINET6])
	return r, ok
}

// resolveIP is struct rdma_ucm_resolve_ip.
type resolveIP struct {
	id       uint32
	src, dst sockaddr
}

// parseResolveIP decodes a struct rdma_ucm_resolve_ip. The source may be left out.
func parseResolveIP(b []byte) (r resolveIP, ok bool) {
	const src, dst, id, size = 0, 28, 56, 64
	if len(b) < size {
		return r, false
	}
	r.id = binary.NativeEndian.Uint32(b[id:])
	if binary.NativeEndian.Uint16(b[src:]) != 0 {
		if r.src, ok = parseSockaddr(b[src : src+sizeINET6]); !ok {
			return r, false
		}
	}
	r.dst, ok = parseSockaddr(b[dst : dst+sizeINET6])
	return r, ok
}

// joinIP is struct rdma_ucm_join_ip_mcast.
type joinIP struct {
	uid  uint64
	id   uint32
	addr sockaddr
}

// parseJoinIP decodes a struct rdma_ucm_join_ip_mcast.
func parseJoinIP(b []byte) (r joinIP, ok bool) {
	const uid, addr, id, size = 8, 16, 44, 48
	if len(b) < size {
		return r, false
	}
	r.uid = binary.NativeEndian.Uint64(b[uid:])
	r.id = binary.NativeEndian.Uint32(b[id:])
	r.addr, ok = parseSockaddr(b[addr : addr+sizeINET6])
	return r, ok
}
