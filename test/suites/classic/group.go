package classic

import (
	"context"
	"errors"
	"net/netip"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Member is an end that is in a multicast group.
type Member struct {
	*End
	way  *uverbs.AH
	qkey uint32
	gid  ib.GID // of the group
	lid  uint16 // of the group on InfiniBand
}

// Join makes an end at a local address that receives what is sent to a group, and can send to
// it.
func Join(ctx context.Context, c *rdmacm.Channel, local, group netip.Addr, o Options) (_ *Member, err error) {
	id, err := c.NewID(rdmacm.UDP)
	if err != nil {
		return nil, err
	}
	m := &Member{End: &End{ID: id}}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	if err := id.Bind(rdmacm.Addr{IP: local}); err != nil {
		return nil, err
	}
	if err := m.Open(o); err != nil {
		return nil, err
	}
	if _, err := id.Join(group, rdmacm.JoinFullMember); err != nil {
		return nil, err
	}
	joined, err := id.Next(ctx)
	if err == nil {
		err = joined.Err()
	}
	if err != nil {
		return nil, err
	}
	m.gid, m.lid, m.qkey = joined.UD.AH.GRH.DGID, joined.UD.AH.DLID, joined.UD.QKey
	if m.way, err = m.PD.CreateAH(joined.UD.AH); err != nil {
		return nil, err
	}
	return m, m.QP.AttachMulticast(m.gid, m.lid)
}

// Say sends the first bytes of a slot to the group, with the sender's QPN.
func (m *Member) Say(slot, length int) error {
	return m.QP.PostSend(uverbs.SendWR{ID: uint64(slot), Opcode: uverbs.WRSendWithImm, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{m.SGE(slot, length)},
		Imm: m.QP.QPN(), AH: m.way, RemoteQPN: rdmacm.MulticastQPN, RemoteQKey: m.qkey})
}

// Leave leaves the group, and closes the end.
func (m *Member) Leave() error { return errors.Join(m.QP.DetachMulticast(m.gid, m.lid), m.Close()) }
