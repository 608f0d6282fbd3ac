package ucm

import (
	"encoding/binary"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/abi"
)

func (f *File) query(in, out []byte) syscall.Errno {
	req := view[abi.Query](in)
	if req == nil {
		return syscall.EINVAL
	}
	x, errno := f.find(req.ID)
	if errno != 0 {
		return errno
	}
	switch req.Option {
	case abi.RDMA_USER_CM_QUERY_ADDR:
		return x.queryAddr(out)
	case abi.RDMA_USER_CM_QUERY_PATH:
		return x.queryPath(out)
	case abi.RDMA_USER_CM_QUERY_GID:
		return x.queryGID(out)
	case abi.RDMA_USER_CM_QUERY_IB_SERVICE:
		if len(out) < len(bytesOf(new(abi.QueryIbServiceResp))) {
			return syscall.ENOSPC
		}
		return errNoData
	}
	return syscall.ENOSYS
}

// addrRespMin is the size of the answer to a query of addresses without the index of the device.
const addrRespMin = 280 - 8

// fillDevice puts the device into an answer.
func (x *id) fillDevice(r *abi.QueryAddrResp) {
	if x.dev == nil {
		return
	}
	r.NodeGUID = networkOrder(x.dev.info.NodeGUID)
	r.IbdevIndex = x.dev.info.Index
	r.PortNum = portNum
	binary.BigEndian.PutUint16(bytesOf(&r.PKey), defaultPKey)
}

// networkOrder returns a number whose bytes in memory are in network byte order.
func networkOrder(v uint64) (n uint64) {
	binary.BigEndian.PutUint64(bytesOf(&n), v)
	return n
}

func (x *id) queryAddr(out []byte) syscall.Errno {
	if len(out) < addrRespMin {
		return syscall.ENOSPC
	}
	var r abi.QueryAddrResp
	r.SrcSize, r.DstSize = uint16(x.src.size()), uint16(x.dst.size())
	x.src.put(bytesOf(&r.SrcAddr))
	x.dst.put(bytesOf(&r.DstAddr))
	x.fillDevice(&r)
	copy(out, bytesOf(&r))
	return 0
}

// queryGID is queryAddr with addresses of family AF_IB.
func (x *id) queryGID(out []byte) syscall.Errno {
	if len(out) < addrRespMin {
		return syscall.ENOSPC
	}
	var r abi.QueryAddrResp
	x.fillDevice(&r)
	r.SrcSize, r.DstSize = sizeIB, sizeIB
	for _, a := range []struct {
		from *sockaddr
		to   []byte
	}{{&x.src, bytesOf(&r.SrcAddr)}, {&x.dst, bytesOf(&r.DstAddr)}} {
		ib := *a.from
		if ib.family != afIB {
			ib = sockaddr{family: afIB, pkey: binary.BigEndian.Uint16(bytesOf(&r.PKey)), service: serviceID(x.space, a.from)}
			if x.dev != nil {
				ib.ip = a.from.ip
			}
		}
		ib.put(a.to)
		if ib.ip.Is4() { // which a GID has in the form of IPv6
			g := ib.gid()
			copy(a.to[8:], g[:])
		}
	}
	copy(out, bytesOf(&r))
	return 0
}

func (x *id) queryPath(out []byte) syscall.Errno {
	r := view[abi.QueryPathResp](out)
	if r == nil {
		return syscall.ENOSPC
	}
	clear(out)
	if x.path == nil {
		return 0
	}
	r.NumPaths = 1
	const head, flags, size = 8, 8, 8 + pathRecordSize
	if rest := out[head:]; len(rest) >= size {
		binary.NativeEndian.PutUint32(rest, abi.IB_PATH_GMP|abi.IB_PATH_PRIMARY|abi.IB_PATH_BIDIRECTIONAL)
		putPath(rest[flags:], *x.path)
	}
	return 0
}

// Offsets of struct rdma_ucm_query_route_resp.
const (
	routePaths    = 8
	routeSrc      = 136
	routeDst      = 164
	routeNumPaths = 192
	routePort     = 196
	routeIndex    = 200
	routeSize     = 208
)

func (f *File) queryRoute(in, out []byte) syscall.Errno {
	if len(out) < routeIndex {
		return syscall.ENOSPC
	}
	req := view[abi.Query](in)
	if req == nil {
		return syscall.EINVAL
	}
	x, errno := f.find(req.ID)
	if errno != 0 {
		return errno
	}
	var r [routeSize]byte
	for _, a := range []struct {
		from *sockaddr
		to   []byte
	}{{&x.src, r[routeSrc:]}, {&x.dst, r[routeDst:]}} {
		if a.from.family != afIB { // for which there is no room
			a.from.put(a.to)
		}
	}
	if x.dev != nil {
		binary.BigEndian.PutUint64(r[:], x.dev.info.NodeGUID)
		binary.NativeEndian.PutUint32(r[routeIndex:], x.dev.info.Index)
		r[routePort] = portNum
		path := abi.IbUserPathRec{DGID: x.dst.gid(), SGID: x.src.gid()}
		path.PKey.Put(defaultPKey)
		if x.path != nil {
			binary.NativeEndian.PutUint32(r[routeNumPaths:], 1)
			path = userPath(x.path)
		}
		copy(r[routePaths:], bytesOf(&path))
	}
	copy(out, r[:])
	return 0
}
