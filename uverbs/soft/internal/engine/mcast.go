package engine

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
)

// groups are the multicast groups of a device. Lookups take no lock.
type groups struct {
	mu      sync.Mutex
	members atomic.Pointer[map[netip.Addr][]*QP] // neither the map nor the slices change
}

// find returns the members of a group.
func (g *groups) find(group netip.Addr) []*QP {
	if m := g.members.Load(); m != nil {
		return (*m)[group]
	}
	return nil
}

// replace replaces the members of a group. The caller holds mu.
func (g *groups) replace(group netip.Addr, qps []*QP) {
	m := map[netip.Addr][]*QP{}
	if old := g.members.Load(); old != nil {
		for a, q := range *old {
			m[a] = q
		}
	}
	m[group] = qps
	if len(qps) == 0 {
		delete(m, group)
	}
	g.members.Store(&m)
}

// len returns the number of groups.
func (g *groups) len() int {
	if m := g.members.Load(); m != nil {
		return len(*m)
	}
	return 0
}

// Attach makes a UD QP a member of a multicast group, if it is not one yet. The LID has no meaning on
// Ethernet (ib_attach_mcast, rxe_attach_mcast).
func (q *QP) Attach(gid [16]byte, lid uint16) syscall.Errno {
	group := addrOfGID(gid)
	if q.typ != UD || !group.IsMulticast() {
		return syscall.EINVAL
	}
	g := &q.dev.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.find(group)
	switch {
	case slices.Contains(old, q):
		return 0
	case len(old) == 0 && g.len() >= MaxGroups, len(old) >= MaxGroupQPs:
		return syscall.ENOMEM
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return syscall.EINVAL
	}
	if n := q.dev.config.Network; n != nil && len(old) == 0 {
		if errno := n.Join(group); errno != 0 {
			return errno
		}
	}
	q.groups++
	g.replace(group, append(slices.Clip(old), q))
	return 0
}

// Detach ends a membership.
func (q *QP) Detach(gid [16]byte, lid uint16) syscall.Errno {
	group := addrOfGID(gid)
	g := &q.dev.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.find(group)
	i := slices.Index(old, q)
	if i < 0 {
		return syscall.EINVAL
	}
	g.replace(group, slices.Concat(old[:i], old[i+1:]))
	if n := q.dev.config.Network; n != nil && len(old) == 1 {
		n.Leave(group)
	}
	q.mu.Lock()
	q.groups--
	q.mu.Unlock()
	return 0
}
