package rdmacm

import (
	"errors"
	"net/netip"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// MulticastQPN is [ib.MulticastQPN], the destination QP number of datagrams to a multicast group.
const MulticastQPN = ib.MulticastQPN

// JoinFlags selects the kind of membership in a multicast group.
type JoinFlags uint16

// Kinds of membership.
const (
	JoinFullMember JoinFlags = abi.RDMA_MC_JOIN_FLAG_FULLMEMBER          // send and receive (RDMA_MC_JOIN_FLAG_FULLMEMBER)
	JoinSendOnly   JoinFlags = abi.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER // send only (RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER)
)

// Group is the membership of an ID in a multicast group. It is safe for concurrent use.
type Group struct {
	id   *ID
	addr netip.Addr
	uid  uint64 // the number that events of the group carry

	mu     sync.Mutex // held by Join until the handle is known
	handle uint32     // guarded by mu
	closed bool       // guarded by mu: the group was not joined, or was left
}

// Join starts to join a multicast group (rdma_join_multicast_ex). The ID must have a port space for
// datagrams and must be bound to an address of a device. The result is [EventMulticastJoin], whose
// UD says how to send to the group, or [EventMulticastError], which also reports a membership that
// is lost later. To receive, attach the QP to the group: call [uverbs.QP.AttachMulticast] with
// UD.AH.GRH.DGID and UD.AH.DLID.
//
// The kernel does not support IPv6 groups on RoCE v2; the error then matches
// [errors.ErrUnsupported].
func (id *ID) Join(group netip.Addr, flags JoinFlags) (*Group, error) {
	if !group.IsMulticast() {
		return nil, argErr("Join", "group", group, "a multicast address")
	}
	if flags > JoinSendOnly {
		return nil, argErr("Join", "flags", uint16(flags), "JoinFullMember or JoinSendOnly")
	}
	if !id.datagrams() {
		return nil, argErr("Join", "port space", id.space, "UDP or IPoIB")
	}
	s, size, err := Addr{IP: group}.storage()
	if err != nil {
		return nil, err
	}
	g := &Group{id: id, addr: group, uid: lastUID.Add(1)}
	err = opError(opJoin, group.String(), g.join(&abi.JoinMcast{Uid: g.uid, ID: id.handle, AddrSize: size, JoinFlags: uint16(flags), Addr: s}))
	switch {
	case errors.Is(err, syscall.EOPNOTSUPP):
		return nil, &uverbs.FeatureError{Feature: "JOIN_MCAST", Err: err}
	case errors.Is(err, syscall.ENOSYS): // the transport does not support it
		return nil, &uverbs.FeatureError{Feature: "JOIN_MCAST", Driver: id.driver(), Err: err}
	case err != nil:
		return nil, err
	}
	return g, nil
}

// join joins the group. Its event, which has the group, may arrive before the answer to the command.
func (g *Group) join(req *abi.JoinMcast) syscall.Errno {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.id.hold()
	if c == nil {
		return errClosedID
	}
	defer g.id.release()
	c.addGroup(g)
	resp := &abi.CreateIDResp{}
	req.Response = abi.PtrTo(resp)
	errno := query(c.file, abi.RDMA_USER_CM_CMD_JOIN_MCAST, req, resp)
	if g.handle, g.closed = resp.ID, errno != 0; g.closed {
		c.removeGroup(g)
	}
	return errno
}

// addGroup adds a group to the channel.
func (c *Channel) addGroup(g *Group) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups[g.uid] = g
}

// removeGroup removes a group from the channel.
func (c *Channel) removeGroup(g *Group) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.groups, g.uid)
}

// Close leaves the group (rdma_leave_multicast). Closing the ID leaves all of its groups.
func (g *Group) Close() error {
	if g.id == nil {
		return errZero("group")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.id.hold()
	if c == nil {
		return nil
	}
	defer g.id.release()
	if g.closed {
		return nil
	}
	resp := &abi.DestroyIDResp{}
	errno := query(c.file, abi.RDMA_USER_CM_CMD_LEAVE_MCAST, &abi.DestroyID{Response: abi.PtrTo(resp), ID: g.handle}, resp)
	if errno != 0 {
		return opError("leave group", "", errno)
	}
	g.closed = true
	c.removeGroup(g)
	return nil
}
