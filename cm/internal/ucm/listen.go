package ucm

import (
	"net/netip"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/internal/ibcm"
	"github.com/goverbs/goverbs/cm/internal/limits"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft/gsi"
)

// maxBacklog is the greatest number of requests that may wait for the program, and the default
// (net.rdma_ucm.max_backlog).
const maxBacklog = 1024

func (f *File) listen(in, _ []byte) syscall.Errno {
	req := view[abi.Listen](in)
	if req == nil {
		return syscall.EINVAL
	}
	x, errno := f.find(req.ID)
	if errno != 0 {
		return errno
	}
	x.backlog = req.Backlog
	if x.backlog == 0 || x.backlog > maxBacklog {
		x.backlog = maxBacklog
	}
	if x.state != stateBound {
		any := sockaddr{family: afINET, ip: netip.IPv4Unspecified()}
		if errno := x.bindAddr(any, x.dst); errno != 0 {
			return errno
		}
	}
	if x.reuse { // a listener has its port to itself
		if errno := x.checkPort(x.bound, false); errno != 0 {
			return errno
		}
		x.reuse = false
	}
	x.state = stateListen
	return 0
}

// portOf returns the port of a service ID of the connection manager.
func portOf(service uint64) (portKey, bool) {
	return portKey{space: uint16(service >> 16), port: uint16(service)}, service>>32 == 0
}

// listens reports whether the ID listens on a device.
func (x *id) listens(d *device) bool {
	return x.state == stateListen && (x.dev == nil || x.dev == d)
}

// listening reports whether an ID listens on a service ID of the device.
func (d *device) listening(service uint64) bool {
	k, ok := portOf(service)
	if !ok {
		return false
	}
	for _, x := range d.host.ports[k] {
		if x.listens(d) {
			return true
		}
	}
	return false
}

// request handles a request of a peer for a service on which an ID listens.
func (d *device) request(cm *ibcm.ID, e ibcm.Event) ibcm.Verdict {
	h := d.host
	r := &incoming{cm: cm, event: e}
	switch m := e.Message.(type) {
	case *ibcm.REQ:
		r.service, r.private, r.qpType = m.Service, m.Private[:], m.QPType()
	case *ibcm.SIDRREQ:
		r.service, r.private, r.qpType = m.Service, m.Private[:], ib.UD
	}
	k, _ := portOf(r.service)
	var ok bool
	if r.local, r.peer, ok = parseHeader(r.private, k.port); !ok || r.local.ip != e.Dst || r.peer.ip != e.Src {
		return ibcm.Refuse // the addresses are not those of the path
	}
	gid, ok := d.gid(r.local.ip, 0)
	if !ok {
		return ibcm.Refuse
	}
	if r.local.isLinkLocal() {
		r.local.scope, r.peer.scope = gid.Interface, gid.Interface
	}
	listener := h.findListener(d, k, r)
	if listener == nil || listener.qpType != 0 && listener.qpType != r.qpType {
		return ibcm.Refuse
	}
	if listener.backlog == 0 && !listener.makeRoom(r.peer.ip) {
		return ibcm.Ignore
	}
	listener.backlog--
	listener.unread.Add(limits.Key(r.peer.ip), limits.Count{HalfOpen: 1})
	listener.newRequest(d, gid, r)
	return ibcm.Accept
}

// incoming is a request of a peer.
type incoming struct {
	cm      *ibcm.ID
	event   ibcm.Event
	service uint64
	private []byte
	qpType  ib.QPType
	local   sockaddr // the address that the peer has asked for
	peer    sockaddr
}

// makeRoom gives up the oldest request of the address that has the most requests in the backlog, as if it had been
// lost. It returns false if no address has more than the given one would have.
func (x *id) makeRoom(peer netip.Addr) bool {
	most, ok := x.unread.Largest(limits.Key(peer))
	if !ok {
		return false
	}
	i := slices.IndexFunc(x.file.events, func(e *event) bool { return e.id == x && e.request != nil && limits.Key(e.request.dst.ip) == most })
	if i < 0 {
		return false
	}
	oldest := x.file.events[i]
	x.file.removeEvents(func(e *event) bool { return e == oldest })
	x.requestRead(oldest.request)
	if r := oldest.request; r.cm != nil { // nil if its device was removed
		r.cm.Ignore()
		r.cm = nil
	}
	oldest.request.destroy()
	return true
}

// requestRead counts a request that no longer waits for the program.
func (x *id) requestRead(r *id) {
	x.backlog++
	x.unread.Add(limits.Key(r.dst.ip), limits.Count{HalfOpen: -1})
}

// findListener returns the ID that a request is for, or nil.
func (h *Host) findListener(d *device, k portKey, r *incoming) *id {
	for _, x := range h.ports[k] {
		if x.listens(d) && h.takes(x, r) {
			return x
		}
	}
	return nil
}

// takes reports whether a request is for the address of a listener.
func (h *Host) takes(x *id, r *incoming) bool {
	any := h.isAny(x.src)
	switch {
	case any && !x.familyOnly:
		return true
	case x.src.family == afIB:
		return false
	case x.src.family != r.local.family:
		return false
	}
	return any || x.src.sameAddr(&r.local)
}

// newRequest makes an ID for a request to a listener, and reports the request.
func (x *id) newRequest(d *device, gid gsi.GIDEntry, r *incoming) {
	n := x.file.newID(x.space, r.qpType)
	n.src, n.dst = r.local, r.peer
	n.useDevice(d, gid)
	n.cm, n.state = r.cm, stateConnect
	r.cm.Handler = n.cmEvent
	e := &event{id: x, request: n, resp: abi.EventResp{Uid: x.uid, ID: n.handle, Event: eventConnectRequest}}
	if m, ok := r.event.Message.(*ibcm.REQ); ok {
		n.path = pathFromREQ(r.cm.Path(), m.Service)
		fillREQ(&e.resp, m)
		r.cm.PrepareMRA()
	} else {
		p := e.resp.Param.UD()
		p.PrivateDataLen = uint8(copy(p.PrivateData[:], r.private[headerSize:]))
	}
	x.file.push(e)
}

// fillREQ puts a REQ into an event.
func fillREQ(r *abi.EventResp, m *ibcm.REQ) {
	p := r.Param.Conn()
	p.PrivateDataLen = uint8(copy(p.PrivateData[:], m.Private[headerSize:]))
	p.ResponderResources, p.InitiatorDepth = m.InitiatorDepth, m.ResponderResources
	p.FlowControl, p.RetryCount, p.RNRRetryCount = uint8(number(m.FlowControl)), m.RetryCount, m.RNRRetryCount
	p.SRQ, p.QPNum = uint8(number(m.SRQ)), m.QPN
	r.Ece = abi.Ece{VendorID: m.ECE.VendorID, AttrMod: m.ECE.Options}
}
