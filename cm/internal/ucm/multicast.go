package ucm

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/internal/ibcm"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// group is the membership of an ID in a multicast group.
type group struct {
	id       *id
	handle   uint32
	uid      uint64 // the program's number
	reported uint32 // events that were read
	addr     netip.Addr
	sendOnly bool
}

func (f *File) joinMulticast(in, out []byte) syscall.Errno {
	req := view[abi.JoinMcast](in)
	if req == nil {
		return syscall.EINVAL
	}
	addr, ok := parseSockaddr(bytesOf(&req.Addr))
	if !ok {
		return syscall.EINVAL
	}
	if len(out) < len(bytesOf(new(abi.CreateIDResp))) {
		return syscall.ENOSPC
	}
	if int(req.AddrSize) != addr.size() || req.JoinFlags >= abi.RDMA_MC_JOIN_FLAG_RESERVED {
		return syscall.EINVAL
	}
	return f.join(req.ID, req.Uid, addr, req.JoinFlags == abi.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, out)
}

func (f *File) joinIPMulticast(in, out []byte) syscall.Errno {
	req, ok := parseJoinIP(in)
	if !ok {
		return syscall.EINVAL
	}
	if len(out) < len(bytesOf(new(abi.CreateIDResp))) {
		return syscall.ENOSPC
	}
	return f.join(req.id, req.uid, req.addr, false, out)
}

// errNotSupported is the kernel's ENOTSUPP, which is not EOPNOTSUPP. The kernel returns it for groups
// of IPv6 on RoCE v2.
const errNotSupported = syscall.Errno(524)

// join makes an ID a member of a group. Its QP receives when the program attaches it.
func (f *File) join(handle uint32, uid uint64, addr sockaddr, sendOnly bool, out []byte) syscall.Errno {
	x, errno := f.findBound(handle)
	switch {
	case errno != 0:
		return errno
	case x.state != stateBound && x.state != stateAddrResolved, x.qpType != ib.UD, !addr.ip.IsValid() || addr.ip.IsUnspecified():
		return syscall.EINVAL
	case !x.hasGID:
		return syscall.ENODEV
	case addr.family != afINET:
		return errNotSupported
	}
	g := &group{id: x, uid: uid, addr: addr.ip, sendOnly: sendOnly}
	if !sendOnly {
		if err := x.dev.Join(g.addr); err != nil {
			return errnoOf(err)
		}
	}
	g.handle = x.host.newHandle()
	x.host.groups[g.handle] = g
	x.groups = append(x.groups, g)
	if x.qkey == 0 {
		x.setDefaultQKey() // the kernel takes no notice if there is none
	}
	view[abi.CreateIDResp](out).ID = g.handle
	g.reportJoined()
	return 0
}

// errnoOf returns the errno of an error, or else EIO.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return syscall.EIO
}

// multicastQPN is the QPN of packets to a group.
const multicastQPN = 0xffffff

// reportJoined reports that the ID is a member.
func (g *group) reportJoined() {
	x := g.id
	e := &event{id: x, group: g, resp: abi.EventResp{Uid: g.uid, ID: g.handle, Event: eventMulticastJoin}}
	if _, ok := x.dev.gid(x.src.ip, x.src.zoneIndex()); ok {
		p := e.resp.Param.UD()
		p.QPNum, p.QKey = multicastQPN, x.qkey
		p.AHAttr = x.ahAttr(ibcm.Path{Dst: g.addr, HopLimit: defaultHopLimit})
	} else {
		e.resp.Event = eventMulticastError // the port no longer has the GID
	}
	if x.hasUser() {
		x.file.push(e)
	}
}

// leave ends the membership.
func (g *group) leave() {
	x := g.id
	x.groups = slices.DeleteFunc(x.groups, func(o *group) bool { return o == g })
	delete(x.host.groups, g.handle)
	if !g.sendOnly {
		x.dev.Leave(g.addr)
	}
	x.file.removeEvents(func(e *event) bool { return e.group == g })
}

func (f *File) leaveMulticast(in, out []byte) syscall.Errno {
	resp := view[abi.DestroyIDResp](out)
	if resp == nil {
		return syscall.ENOSPC
	}
	req := view[abi.DestroyID](in)
	if req == nil {
		return syscall.EINVAL
	}
	g := f.host.groups[req.ID]
	switch {
	case g == nil:
		return syscall.ENOENT
	case g.id.file != f:
		return syscall.EINVAL
	}
	g.leave()
	resp.EventsReported = g.reported
	return 0
}
