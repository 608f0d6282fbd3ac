package perf

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// DefaultGroup is the multicast group of tests that name no other.
var DefaultGroup = netip.MustParseAddr("239.255.18.10")

// joinTime is how long joining a group may take.
const joinTime = 10 * time.Second

// validateGroup checks the multicast group against the other settings.
func (c *Config) validateGroup() error {
	if c.MGID.IsZero() {
		return nil
	}
	for _, rule := range []struct {
		broken bool
		text   string
	}{
		{c.Op != Send || c.Metric != BW, "send-bw, as a group answers nothing, and this is " + c.Name()},
		{c.Type != UD, "--type ud, and this is " + c.Type},
		{c.Both, "one direction, without --both"},
		{c.QPs != 1, fmt.Sprintf("one queue pair, as each would receive all messages, and --qps is %d", c.QPs)},
		{c.CM, "queue pairs without --cm, which is for one peer"},
	} {
		if rule.broken {
			return ValueError{fmt.Errorf("--mcg is for %s", rule.text)}
		}
	}
	if g := c.MGID.Addr(); !g.IsMulticast() {
		return field("mgid", g, "a multicast address, such as %s", DefaultGroup)
	}
	return nil
}

// joinGroup has the queue pair receive what is sent to the group: the host joins it by the connection manager.
func (e *End) joinGroup() error {
	group := e.Config.MGID
	entry, err := e.localGID(group)
	if err != nil {
		return err
	}
	from := entry.GID.Addr()
	if from.Is4() != group.Addr().Is4() {
		return refuse(field("mgid", group.Addr(), "a group of the address family of %s, GID %d of %s", from, entry.Index, e.Dev.Name()))
	}
	channel := objects.Open(&e.opened, func() (*rdmacm.Channel, error) { return rdmacm.OpenChannel(rdmacm.ChannelOptions{Local: from}) })
	id := objects.Open(&e.opened, func() (*rdmacm.ID, error) { return channel.NewID(rdmacm.UDP) })
	e.opened.Do(func() error { return id.Bind(rdmacm.Addr{IP: from}) })
	e.opened.Do(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), joinTime)
		defer cancel()
		joined, err := id.JoinWait(ctx, group.Addr(), rdmacm.JoinFullMember)
		if err != nil {
			return err
		}
		m := membership{e, joined.UD.AH.GRH.DGID}
		if err = e.QPs[0].AttachMulticast(m.gid, 0); err == nil {
			e.opened.Keep(m)
		}
		return err
	})
	if err := e.opened.Err(); err != nil {
		return fmt.Errorf("--mcg: %w", err)
	}
	return nil
}

// membership says that the queue pair of an end receives what is sent to a group.
type membership struct {
	end *End
	gid ib.GID
}

// Close ends it.
func (m membership) Close() error { return m.end.QPs[0].DetachMulticast(m.gid, 0) }

// InGroup returns where to send to instead of a peer: to its group, if the config has one.
func (c *Config) InGroup(p Peer) Peer {
	if !c.MGID.IsZero() {
		p.GID, p.QPN = c.MGID, ib.MulticastQPN
	}
	return p
}
