package engine

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
)

// groups are the multicast groups of a device. Lookups take no lock. A QP that is attached to a group receives its
// packets while the device is a member of the group.
type groups struct {
	mu      sync.Mutex
	members atomic.Pointer[map[netip.Addr][]*QP] // QPs that are attached; neither the map nor the slices change
	joined  atomic.Pointer[map[netip.Addr]int]   // how often the device has joined a group; the map does not change
}

// isJoined reports whether the device is a member of a group.
func (g *groups) isJoined(group netip.Addr) bool {
	m := g.joined.Load()
	return m != nil && (*m)[group] > 0
}

// count changes how often the device has joined a group, and returns the new number. The caller holds mu.
func (g *groups) count(group netip.Addr, by int) int {
	m := map[netip.Addr]int{}
	if old := g.joined.Load(); old != nil {
		maps.Copy(m, *old)
	}
	m[group] += by
	n := m[group]
	if n == 0 {
		delete(m, group)
	}
	g.joined.Store(&m)
	return n
}

// Join makes the device a member of a multicast group: packets to the group arrive. Each Join needs one Leave.
func (d *Device) Join(group netip.Addr) syscall.Errno {
	if group = unmapped(group); !group.IsMulticast() {
		return syscall.EINVAL
	}
	g := &d.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := d.config.Network; n != nil && !g.isJoined(group) {
		if errno := n.Join(group); errno != 0 {
			return errno
		}
	}
	g.count(group, 1)
	return 0
}

// Leave undoes one Join. It fails with EADDRNOTAVAIL if the device is not a member.
func (d *Device) Leave(group netip.Addr) syscall.Errno {
	group = unmapped(group)
	g := &d.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.isJoined(group) {
		return syscall.EADDRNOTAVAIL
	}
	if left := g.count(group, -1); left == 0 && d.config.Network != nil {
		d.config.Network.Leave(group)
	}
	return 0
}

// find returns the QPs that are attached to a group.
func (g *groups) find(group netip.Addr) []*QP {
	if m := g.members.Load(); m != nil {
		return (*m)[group]
	}
	return nil
}

// replace replaces the QPs of a group. The caller holds mu.
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

// Attach attaches a UD QP to a multicast group, if it is not yet. The LID has no meaning on Ethernet
// (ib_attach_mcast, rxe_attach_mcast).
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
	q.groups++
	g.replace(group, append(slices.Clip(old), q))
	return 0
}

// Detach detaches a QP from a group.
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
	q.mu.Lock()
	q.groups--
	q.mu.Unlock()
	return 0
}
