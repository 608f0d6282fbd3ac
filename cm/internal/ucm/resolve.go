package ucm

import (
	"cmp"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/abi"
)

func (f *File) resolveAddr(in, _ []byte) syscall.Errno {
	req := view[abi.ResolveAddr](in)
	if req == nil {
		return syscall.EINVAL
	}
	var src sockaddr
	if req.SrcSize != 0 {
		var ok bool
		if src, ok = parseSockaddr(bytesOf(&req.SrcAddr)); !ok || int(req.SrcSize) != src.size() {
			return syscall.EINVAL
		}
	}
	dst, ok := parseSockaddr(bytesOf(&req.DstAddr))
	if !ok || int(req.DstSize) != dst.size() {
		return syscall.EINVAL
	}
	return f.resolve(req.ID, src, dst)
}

func (f *File) resolveIP(in, _ []byte) syscall.Errno {
	req, ok := parseResolveIP(in)
	if !ok {
		return syscall.EINVAL
	}
	return f.resolve(req.id, req.src, req.dst)
}

// resolve chooses the local address and the device for a peer.
func (f *File) resolve(handle uint32, src, dst sockaddr) syscall.Errno {
	x, errno := f.find(handle)
	if errno != 0 {
		return errno
	}
	if x.state == stateBound {
		x.dst = dst
	} else if errno := x.bindAddr(sourceFor(src, dst), dst); errno != 0 {
		return errno
	}
	if x.src.family != dst.family {
		return syscall.EINVAL
	}
	return x.resolvePeer()
}

// sourceFor returns the address to bind an ID to before its peer is resolved.
func sourceFor(src, dst sockaddr) sockaddr {
	if src.family != 0 {
		return src
	}
	return sockaddr{family: dst.family, scope: dst.scope, pkey: dst.pkey}
}

// ErrNoSocket is the errno of resolving a peer that is not in this process for a device that has no socket to reach
// others. No system has it.
const ErrNoSocket = syscall.Errno(1<<16 + 2)

// resolvePeer resolves the address of the peer, and reports the result as an event.
func (x *id) resolvePeer() syscall.Errno {
	h := x.host
	switch {
	case h.isAny(x.dst):
		return x.resolveLoopback()
	case x.dst.family == afIB:
		return syscall.ENODEV // no port of RoCE
	}
	from, dev, gid, errno := h.route(x.src, x.dst)
	if errno != 0 {
		return errno
	}
	at := cmp.Or(x.dev, dev)
	if peer, _ := h.deviceWith(x.dst.ip, x.dst.zoneIndex()); at != nil && at.info.NoSocket && peer == nil && !x.dst.ip.IsMulticast() {
		return ErrNoSocket
	}
	switch {
	case x.dev != nil:
	case dev == nil:
		errno = syscall.ENODEV
	case x.space == spaceIPoIB:
		errno = syscall.EINVAL
	default:
		x.useDevice(dev, gid)
	}
	if errno != 0 {
		x.pushEvent(eventAddrError, -int32(errno), nil)
		return 0
	}
	x.src.ip = from
	x.hopLimit = defaultHopLimit
	x.state = stateAddrResolved
	x.pushEvent(eventAddrResolved, 0, nil)
	return 0
}

// defaultHopLimit is the number of routers that packets may cross (net.ipv4.ip_default_ttl).
const defaultHopLimit = 64

// resolveLoopback handles an address of the peer that stands for this machine. As in the kernel there
// is no route to it afterwards.
func (x *id) resolveLoopback() syscall.Errno {
	h := x.host
	if x.dev == nil {
		if len(h.devices) == 0 {
			return syscall.ENODEV
		}
		x.dev = h.devices[0]
		x.src.ip = loopbackOf(x.src.family)
	}
	x.state = stateAddrResolved
	x.pushEvent(eventAddrResolved, 0, nil)
	return 0
}

func (f *File) resolveRoute(in, _ []byte) syscall.Errno {
	req := view[abi.ResolveRoute](in)
	if req == nil {
		return syscall.EINVAL
	}
	x, errno := f.findBound(req.ID)
	switch {
	case errno != 0:
		return errno
	case req.TimeoutMs == 0 || x.state != stateAddrResolved:
		return syscall.EINVAL
	case !x.hasGID:
		return syscall.ENODEV
	case x.dev.MTU() == 0:
		return syscall.EINVAL
	}
	x.path = x.makePath()
	x.state = stateRouteResolved
	x.pushEvent(eventRouteResolved, 0, nil)
	return 0
}

// resolveIBService: RoCE has no subnet administrator that knows services.
func (f *File) resolveIBService(in, _ []byte) syscall.Errno {
	req := view[abi.ResolveIbService](in)
	if req == nil {
		return syscall.EINVAL
	}
	x, errno := f.find(req.ID)
	switch {
	case errno != 0:
		return errno
	case x.dev == nil || x.state != stateBound:
		return syscall.EINVAL
	}
	return syscall.EOPNOTSUPP
}
