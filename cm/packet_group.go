package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// membership is a membership in a multicast group. It has an ID of its own, because the kernel does
// not let an ID join that listens or is connected.
type membership struct {
	id   *rdmacm.ID
	dgid ib.GID // the group that the QP is attached to, zero if none
	mlid uint16 // its LID on InfiniBand, else 0
}

// Join joins a multicast group and returns the [Peer] that reaches all members. From then on Recv
// also returns what the members send, including p itself, unless flags is [rdmacm.JoinSendOnly]. If ctx has no
// deadline, Join gives up after two minutes.
func (p *PacketConn) Join(ctx context.Context, group netip.Addr, flags rdmacm.JoinFlags) (Peer, error) {
	const what = "join"
	m, err := p.addMembership(group)
	if err != nil {
		return Peer{}, err
	}
	to, err := p.joinGroup(ctx, m, group, flags)
	if err != nil {
		return Peer{}, p.opError(what+" "+group.String(), errors.Join(err, p.leave(group, m)))
	}
	return to, nil
}

// addMembership makes a membership that has not joined yet.
func (p *PacketConn) addMembership(group netip.Addr) (*membership, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing.Load() {
		return nil, p.opError("join", errClosed)
	}
	if p.joined[group] != nil {
		return nil, argErr("Join", "group", group, "a group that p has not joined")
	}
	id, err := p.loop.channel.NewID(rdmacm.UDP)
	if err != nil {
		return nil, err
	}
	m := &membership{id: id}
	p.joined[group] = m
	return m, nil
}

// joinGroup joins the group of a membership.
func (p *PacketConn) joinGroup(ctx context.Context, m *membership, group netip.Addr, flags rdmacm.JoinFlags) (Peer, error) {
	if err := m.id.Bind(rdmacm.Addr{IP: p.addrs.Local.IP}); err != nil {
		return Peer{}, err
	}
	if _, err := m.id.Addrs(); err != nil { // with which its errors name the device
		return Peer{}, err
	}
	e, err := m.id.JoinWait(ctx, group, flags)
	if err != nil {
		return Peer{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.joined[group] != m {
		return Peer{}, fmt.Errorf("the group was left before it was joined: %w", errClosed)
	}
	if flags != rdmacm.JoinSendOnly {
		to := e.UD.AH
		if err := p.qp.AttachMulticast(to.GRH.DGID, to.DLID); err != nil {
			return Peer{}, err
		}
		m.dgid, m.mlid = to.GRH.DGID, to.DLID
	}
	return peerOf(e.UD, group), nil
}

// Leave leaves a multicast group.
func (p *PacketConn) Leave(group netip.Addr) error {
	p.mu.Lock()
	m := p.joined[group]
	p.mu.Unlock()
	if m == nil {
		return argErr("Leave", "group", group, "a group that p has joined")
	}
	return p.leave(group, m)
}

// leave ends a membership.
func (p *PacketConn) leave(group netip.Addr, m *membership) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.joined[group] != m {
		return nil
	}
	if m.dgid != (ib.GID{}) {
		if err := p.qp.DetachMulticast(m.dgid, m.mlid); err != nil {
			return err
		}
		m.dgid = ib.GID{}
	}
	if err := p.loop.closeID(m.id); err != nil {
		return err
	}
	delete(p.joined, group)
	return nil
}
