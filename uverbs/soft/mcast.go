package soft

import (
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/soft/internal/engine"
)

// group is a multicast group.
type group struct {
	gid [16]byte
	lid uint16
}

// groups are the multicast groups that a QP is attached to.
type groups struct {
	mu     sync.Mutex
	joined []group // guarded by mu
}

// any reports whether the QP is in a group.
func (g *groups) any() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.joined) > 0
}

// JoinGroup makes the device a member of a multicast group. QPs that are attached to the group receive its
// packets only while the device is a member. Package cm joins for its connections; this is for what it does not
// support, such as groups of IPv6, where a program joins with a UDP socket if its device is in the kernel. Each
// JoinGroup needs one [Device.LeaveGroup]. The error is an errno.
func (d *Device) JoinGroup(group netip.Addr) error { return errorOf(d.engine.Join(group)) }

// LeaveGroup undoes one [Device.JoinGroup].
func (d *Device) LeaveGroup(group netip.Addr) error { return errorOf(d.engine.Leave(group)) }

// errorOf returns an errno as an error, nil for 0.
func errorOf(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// attachMcast is ATTACH_MCAST. Attaching a QP twice does nothing.
func attachMcast(k *call, req *abi.AttachMcast) syscall.Errno {
	q, errno := get[*qp](k, abi.UVERBS_OBJECT_QP, req.QPHandle)
	if errno != 0 {
		return errno
	}
	to := group{req.GID, req.MLID}
	q.groups.mu.Lock()
	defer q.groups.mu.Unlock()
	if slices.Contains(q.groups.joined, to) {
		return 0
	}
	if errno := q.checkGroup(&to); errno != 0 {
		return errno
	}
	if errno := q.queues.Attach(to.gid, to.lid); errno != 0 {
		return errno
	}
	q.groups.joined = append(q.groups.joined, to)
	return 0
}

// detachMcast is DETACH_MCAST.
func detachMcast(k *call, req *abi.DetachMcast) syscall.Errno {
	q, errno := get[*qp](k, abi.UVERBS_OBJECT_QP, req.QPHandle)
	if errno != 0 {
		return errno
	}
	from := group{req.GID, req.MLID}
	q.groups.mu.Lock()
	defer q.groups.mu.Unlock()
	i := slices.Index(q.groups.joined, from)
	if i < 0 {
		return syscall.EINVAL
	}
	q.groups.joined = slices.Delete(q.groups.joined, i, i+1)
	return q.queues.Detach(from.gid, from.lid)
}

// checkGroup checks that a QP can join groups and that the GID is a multicast GID
// (ib_attach_mcast).
func (q *qp) checkGroup(to *group) syscall.Errno {
	if q.typ != engine.UD || !netip.AddrFrom16(to.gid).Unmap().IsMulticast() {
		return syscall.EINVAL
	}
	return 0
}

// leaveAll takes the QP out of all groups.
func (g *groups) leaveAll(q *qp) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, from := range g.joined {
		q.queues.Detach(from.gid, from.lid)
	}
	g.joined = nil
}
