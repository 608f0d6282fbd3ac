package ucm

import (
	"slices"
	"syscall"
)

// portKey is a port of a port space.
type portKey struct {
	space uint16
	port  uint16
}

// Range of the ports that are chosen for a program (net.ipv4.ip_local_port_range).
const (
	firstPort = 32768
	lastPort  = 60999
)

// space returns the port space of the ID's ports. It is 0 if the address does not fit.
func (x *id) portSpace() uint16 {
	if x.src.family != afIB {
		return x.space
	}
	const allPorts = 1<<16 - 1
	mask := x.src.mask &^ allPorts
	given := x.src.service & mask
	for _, space := range []uint16{spaceIB, spaceTCP, spaceUDP} {
		if (x.space == spaceIB || x.space == space) && given == uint64(space)<<16&mask {
			x.src.service = uint64(space)<<16 | uint64(x.src.port)
			x.src.mask |= ^uint64(allPorts)
			return space
		}
	}
	return 0
}

// takePort gives the ID the port of its address, or any port if that is 0.
func (x *id) takePort() syscall.Errno {
	space := x.portSpace()
	if space == 0 {
		return syscall.EPROTONOSUPPORT
	}
	if x.src.port == 0 {
		return x.takeAnyPort(space)
	}
	k := portKey{space, x.src.port}
	if errno := x.checkPort(k, x.reuse); errno != 0 {
		return errno
	}
	x.bindPort(k)
	return 0
}

// takeAnyPort gives the ID a port that no other ID uses in the same way.
func (x *id) takeAnyPort(space uint16) syscall.Errno {
	const ports = lastPort - firstPort + 1
	first := int(x.host.rand() % ports)
	for i := range ports {
		k := portKey{space, uint16(firstPort + (first+i)%ports)}
		if k.port != x.host.port && x.isUnique(k) {
			x.host.port = k.port // which is not used again at once
			x.bindPort(k)
			return 0
		}
	}
	return syscall.EADDRNOTAVAIL
}

// bindPort gives the ID a port.
func (x *id) bindPort(k portKey) {
	x.src.setPort(k.port)
	x.bound = k
	x.host.ports[k] = slices.Insert(x.host.ports[k], 0, x)
}

// releasePort gives the ID's port back.
func (x *id) releasePort() {
	if x.bound == (portKey{}) {
		return
	}
	left := slices.DeleteFunc(x.host.ports[x.bound], func(o *id) bool { return o == x })
	if len(left) == 0 {
		delete(x.host.ports, x.bound)
	} else {
		x.host.ports[x.bound] = left
	}
	x.bound = portKey{}
}

// isUnique reports whether the ID differs from every ID with a port in its addresses or the port of
// the peer.
func (x *id) isUnique(k portKey) bool {
	h := x.host
	return !slices.ContainsFunc(h.ports[k], func(o *id) bool {
		switch {
		case x.dst.port != 0 && o.dst.port != 0 && x.dst.port != o.dst.port:
			return false
		case !h.isAny(x.src) && !h.isAny(o.src) && !x.src.sameAddr(&o.src):
			return false
		case !h.isAny(x.dst) && !h.isAny(o.dst) && !x.dst.sameAddr(&o.dst):
			return false
		}
		return true
	})
}

// checkPort returns an error if the ID must not have a port because of the IDs that have it. With
// reuse they may share it if they agree.
func (x *id) checkPort(k portKey, reuse bool) syscall.Errno {
	h := x.host
	for _, o := range h.ports[k] {
		switch {
		case o == x, reuse && o.reuse, x.familyOnly && o.familyOnly && x.src.family != o.src.family:
		case h.isAny(x.src) || h.isAny(o.src):
			return syscall.EADDRNOTAVAIL
		case x.src.sameAddr(&o.src):
			return syscall.EADDRINUSE
		}
	}
	return 0
}
