package ucm

import (
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/internal/ibcm"
	"github.com/goverbs/goverbs/cm/internal/limits"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft/gsi"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// state is the state of an ID (enum rdma_cm_state). There are no states of queries, as these end at
// once.
type state uint8

const (
	stateIdle state = iota
	stateBound
	stateAddrResolved
	stateRouteResolved
	stateConnect
	stateDisconnect
	stateListen
	stateRemoved // the device was removed
)

// Events (enum rdma_cm_event_type).
const (
	eventAddrResolved = iota
	eventAddrError
	eventRouteResolved
	eventRouteError
	eventConnectRequest
	eventConnectResponse
	eventConnectError
	eventUnreachable
	eventRejected
	eventEstablished
	eventDisconnected
	eventDeviceRemoval
	eventMulticastJoin
	eventMulticastError
	eventAddrChange
	eventTimewaitExit
	eventAddrInfoResolved
	eventAddrInfoError
	eventUser
	eventInternal
)

// id is an ID: the counterpart of struct rdma_id_private and struct ucma_context of the kernel. All of it is
// guarded by host.mu.
type id struct {
	host     *Host
	file     *File
	handle   uint32
	uid      uint64 // the program's number, 0 until it has accepted a request
	reported uint32 // events that were read
	backlog  uint32 // requests that may still come before the program reads one

	unread limits.Usage // of a listener: requests that the program has not read, as half-open ones

	space  uint16
	qpType ib.QPType // 0 is any
	state  state

	src      sockaddr
	dst      sockaddr
	bound    portKey      // the zero value if there is no port
	dev      *device      // nil if none is chosen
	gid      gsi.GIDEntry // entry of the GID table for src, valid if hasGID
	hasGID   bool
	hopLimit uint8
	path     *mad.PathRecord // nil until there is one

	reuse         bool // SO_REUSEADDR
	familyOnly    bool // an IPv6 address does not stand for IPv4
	familyOnlySet bool // the program has set familyOnly
	tos           uint8
	timeout       uint8 // local ACK timeout, if timeoutSet
	timeoutSet    bool

	psn  uint32 // the first that the peer is to send
	qpn  uint32
	srq  bool
	qkey uint32
	ece  ibcm.ECE

	cm     *ibcm.ID // nil before a request
	groups []*group
}

// hasUser reports whether events of the ID are for the program.
func (x *id) hasUser() bool { return x.uid != 0 }

// newID makes an ID.
func (f *File) newID(space uint16, qpType ib.QPType) *id {
	h := f.host
	x := &id{host: h, file: f, handle: h.newHandle(), space: space, qpType: qpType, psn: h.rand() & 0xffffff}
	h.ids[x.handle] = x
	f.ids[x] = true
	return x
}

func (f *File) createID(in, out []byte) syscall.Errno {
	resp := view[abi.CreateIDResp](out)
	if resp == nil {
		return syscall.ENOSPC
	}
	req := view[abi.CreateID](in)
	if req == nil {
		return syscall.EINVAL
	}
	qpType := ib.QPType(req.QPType)
	switch req.Ps {
	case spaceTCP:
		qpType = ib.RC
	case spaceUDP, spaceIPoIB:
		qpType = ib.UD
	case spaceIB:
	default:
		return syscall.EINVAL
	}
	x := f.newID(req.Ps, qpType)
	x.uid = req.Uid
	resp.ID = x.handle
	return 0
}

func (f *File) destroyID(in, out []byte) syscall.Errno {
	resp := view[abi.DestroyIDResp](out)
	if resp == nil {
		return syscall.ENOSPC
	}
	req := view[abi.DestroyID](in)
	if req == nil {
		return syscall.EINVAL
	}
	x, errno := f.find(req.ID)
	if errno != 0 && errno != syscall.ENXIO {
		return errno
	}
	if x == nil {
		x = f.host.ids[req.ID]
	}
	x.destroy()
	resp.EventsReported = x.reported
	return 0
}

// destroy destroys the ID, its events and the requests to it that the program has not seen.
func (x *id) destroy() {
	x.end()
	delete(x.host.ids, x.handle)
	delete(x.file.ids, x)
	for _, e := range x.file.removeEvents(func(e *event) bool { return e.id == x }) {
		if r := e.request; r != nil && x.host.ids[r.handle] == r {
			r.destroy()
		}
	}
}

// end ends the activity of the ID on the network and on its device.
func (x *id) end() {
	if x.cm != nil {
		x.cm.Destroy()
		x.cm = nil
	}
	for len(x.groups) > 0 {
		x.groups[0].leave()
	}
	x.releasePort()
	x.dev, x.hasGID = nil, false
}

// deviceRemoved handles the removal of the device.
func (x *id) deviceRemoved() {
	x.pushEvent(eventDeviceRemoval, 0, nil)
	x.end()
	x.state = stateRemoved
}

// pushEvent adds an event for the program. fill sets more of it and may be nil. There are no events
// for an ID whose request the program has not accepted.
func (x *id) pushEvent(typ uint32, status int32, fill func(*abi.EventResp)) {
	if !x.hasUser() {
		return
	}
	e := &event{id: x, resp: abi.EventResp{Uid: x.uid, ID: x.handle, Event: typ, Status: uint32(status)}}
	if fill != nil {
		fill(&e.resp)
	}
	x.file.push(e)
}

// useDevice chooses the device and the GID of the ID.
func (x *id) useDevice(d *device, g gsi.GIDEntry) { x.dev, x.gid, x.hasGID = d, g, true }

func (f *File) bind(in, _ []byte) syscall.Errno {
	req := view[abi.Bind](in)
	if req == nil {
		return syscall.EINVAL
	}
	addr, ok := parseSockaddr(bytesOf(&req.Addr))
	if !ok || int(req.AddrSize) != addr.size() {
		return syscall.EINVAL
	}
	return f.bindTo(req.ID, addr)
}

func (f *File) bindIP(in, _ []byte) syscall.Errno {
	req, ok := parseBindIP(in)
	if !ok {
		return syscall.EINVAL
	}
	return f.bindTo(req.id, req.addr)
}

// bindTo binds an ID to an address.
func (f *File) bindTo(handle uint32, addr sockaddr) syscall.Errno {
	x, errno := f.find(handle)
	if errno != 0 {
		return errno
	}
	return x.bindAddr(addr, x.dst)
}

// bindAddr gives the ID a local address, a port, and the address that it is to resolve, if any.
func (x *id) bindAddr(addr, dst sockaddr) syscall.Errno {
	if x.state != stateIdle || addr.isLinkLocal() && addr.scope == 0 {
		return syscall.EINVAL
	}
	oldSrc, oldDst := x.src, x.dst
	x.src, x.dst = addr, dst
	x.dst.family = addr.family
	errno := x.acquireDevice()
	if errno == 0 {
		if !x.familyOnlySet {
			x.familyOnly = addr.family == afINET
		}
		errno = x.takePort()
	}
	if errno != 0 {
		x.src, x.dst = oldSrc, oldDst
		x.dev, x.hasGID = nil, false
		return errno
	}
	x.state = stateBound
	return 0
}

// acquireDevice chooses the device of the local address, unless that stands for any.
func (x *id) acquireDevice() syscall.Errno {
	h := x.host
	if h.isAny(x.src) {
		return 0
	}
	if x.src.family == afIB { // which RoCE does not have
		return syscall.ENODEV
	}
	d, g := h.deviceWith(x.src.ip, x.src.zoneIndex())
	switch {
	case d == nil && !h.network.IsLocal(x.src.zoned()):
		return syscall.EADDRNOTAVAIL
	case d == nil:
		return syscall.ENODEV
	case x.space == spaceIPoIB: // which is for InfiniBand
		return syscall.EINVAL
	}
	x.useDevice(d, g)
	return 0
}
