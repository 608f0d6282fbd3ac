package uverbs

import (
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// AttachMulticast makes a UD queue pair receive the datagrams of a multicast group
// (ibv_attach_mcast). On RoCE gid is an IP multicast address and lid is 0; on InfiniBand lid is the
// group's LID (0xc000 to 0xfffe), which the subnet manager has chosen. It does not join the group: the
// host must also join it, with rdma_cm or on RoCE a UDP socket, so that the network delivers the packets.
// Attaching a QP twice has no effect; one DetachMulticast detaches it.
func (q *QP) AttachMulticast(gid ib.GID, lid uint16) error {
	return q.multicast("ATTACH_MCAST", abi.IB_USER_VERBS_CMD_ATTACH_MCAST, gid, lid)
}

// DetachMulticast detaches a queue pair from a group (ibv_detach_mcast). Close fails while the QP
// is attached.
func (q *QP) DetachMulticast(gid ib.GID, lid uint16) error {
	return q.multicast("DETACH_MCAST", abi.IB_USER_VERBS_CMD_DETACH_MCAST, gid, lid)
}

// multicast issues either command; their structs have the same layout.
func (q *QP) multicast(verb string, cmd uint32, gid ib.GID, lid uint16) error {
	if err := q.acquire(); err != nil {
		return err
	}
	defer q.release()
	if q.typ != ib.UD {
		return argErr(verb, "QP type", q.typ, "UD")
	}
	if !gid.Addr().IsMulticast() {
		return argErr(verb, "GID", gid.Addr(), "a multicast address: 224.0.0.0/4 or ff00::/8")
	}
	req := &abi.AttachMcast{GID: gid, QPHandle: q.handle, MLID: lid}
	errno := q.dev.cmd.legacy(cmd, bytesOf(req), nil, udata{})
	hint := ""
	switch {
	case errno == syscall.EINVAL && verb == "ATTACH_MCAST" && !gid.Addr().Is4() && (lid < 0xc000 || lid > 0xfffe):
		hint = fmt.Sprintf("lid is %#x, allowed: on InfiniBand the LID of the group, 0xc000 to 0xfffe", lid)
	case errno == syscall.EINVAL && verb == "DETACH_MCAST":
		hint = "the QP is not attached to the group"
	case errno == syscall.ENOMEM:
		hint = "the device has no room for another group or QP (max_mcast_grp, max_mcast_qp_attach)"
	}
	return about(q.dev.cmd.fail(verb, errno, hint), q.label(), gid.Addr().String())
}
