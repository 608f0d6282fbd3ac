package switches

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// The keys of testdata/partitions.conf. Both cards are limited members of the partition of guests, and mlx5_1, which
// does not have the subnet manager, is one of the default partition.
const (
	defaultKey = 0xffff
	workKey    = 0x8001
	guestKey   = 0x0002
)

// memberOf is a QP on a card, and what it needs.
type memberOf struct {
	dev *uverbs.Device
	pd  *uverbs.PD
	mr  *uverbs.MR
	cq  *uverbs.CQ
	qp  *uverbs.QP
}

// onCard opens a card of the guest of the step fabric/partitions.
func onCard(t *testing.T, i int) *memberOf {
	t.Helper()
	testenv.Boot(t, "GOVERBS_PARTITIONS", "fabric/partitions")
	m := &memberOf{}
	var err error
	m.dev, err = uverbs.Open(testenv.TheRig().Devices[i], uverbs.OpenOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, m.dev.Close()) })
	m.pd, err = m.dev.AllocPD()
	must(t, err)
	t.Cleanup(func() { must(t, m.pd.Close()) })
	buf, err := uverbs.AllocBuffer(4096, uverbs.BufferOptions{})
	must(t, err)
	m.mr, err = m.pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	must(t, err)
	t.Cleanup(func() { must(t, m.mr.Close(), buf.Close()) })
	m.cq, err = m.dev.CreateCQ(uverbs.CQOptions{Size: 16, Events: true})
	must(t, err)
	t.Cleanup(func() { must(t, m.cq.Close()) })
	return m
}

// options returns the options of a QP. It gives up soon on a peer that does not answer.
func (m *memberOf) options(typ ib.QPType, pkey uint16) uverbs.QPOptions {
	return uverbs.QPOptions{Type: typ, SendCQ: m.cq, RecvCQ: m.cq, MaxSendWR: 4, MaxRecvWR: 4, Path: uverbs.PathOptions{PKey: pkey, Timeout: 10, RetryCount: 1}}
}

// join returns a QP on a card with a P_Key in its path.
func join(t *testing.T, card int, typ ib.QPType, pkey uint16) *memberOf {
	t.Helper()
	m := onCard(t, card)
	var err error
	m.qp, err = m.pd.CreateQP(m.options(typ, pkey))
	must(t, err)
	t.Cleanup(func() { must(t, m.qp.Close()) })
	return m
}

// keys returns the P_Keys of a card.
func (m *memberOf) keys(t *testing.T) (all []uint16) {
	t.Helper()
	attr, err := m.dev.Port(1)
	must(t, err)
	for i := range attr.PKeyTableLen {
		key, err := m.dev.PKey(1, i)
		must(t, err)
		if key != 0 {
			all = append(all, key)
		}
	}
	return all
}

// key returns the P_Key of a QP, as the kernel knows it.
func (m *memberOf) key(t *testing.T) uint16 {
	t.Helper()
	attr, err := m.qp.Query()
	must(t, err)
	key, err := m.dev.PKey(1, int(attr.PKeyIndex))
	must(t, err)
	return key
}

// endpoint returns the endpoint of a QP.
func (m *memberOf) endpoint(t *testing.T) uverbs.Endpoint {
	t.Helper()
	e, err := m.qp.Endpoint()
	must(t, err)
	return e
}

// completes waits for a completion, and returns its error.
func (m *memberOf) completes(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), program.Patience)
	defer cancel()
	var wcs [1]uverbs.WC
	_, err := m.cq.Wait(ctx, wcs[:])
	must(t, err)
	return m.qp.Err(&wcs[0])
}

// send sends a message.
func (m *memberOf) send(t *testing.T) {
	t.Helper()
	copy(m.mr.Bytes(), "to a partition")
	must(t, m.qp.PostSend(uverbs.SendWR{Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{m.mr.SGE(0, 14)}}))
}

// passes sends a message from one QP to another, both of which are connected and b has a receive for.
func passes(t *testing.T, a, b *memberOf) {
	t.Helper()
	a.send(t)
	must(t, a.completes(t), b.completes(t))
	if got := string(b.mr.Bytes()[:14]); got != "to a partition" {
		t.Errorf("received %q", got)
	}
}

// TestPartitionChoice: a QP joins the partition of its path, and by default the first one of which the port is a full
// member, which is not the first in the table. A key that the port does not have is refused with those that it has.
func TestPartitionChoice(t *testing.T) {
	for card, def := range []uint16{defaultKey, workKey} {
		table := onCard(t, card).keys(t)
		if card == 1 && (table[0] != 0x7fff || !slices.Contains(table, workKey) || !slices.Contains(table, guestKey)) {
			t.Fatalf("the table of card %d is %#x", card, table)
		}
		for _, tt := range []struct{ given, want uint16 }{{0, def}, {workKey, workKey}, {workKey & 0x7fff, workKey}, {defaultKey, table[0]}, {guestKey, guestKey}} {
			m, ud := join(t, card, ib.RC, tt.given), join(t, card, ib.UD, tt.given)
			must(t, m.qp.Init(), ud.qp.ReadyUD(1))
			if rc, dg := m.key(t), ud.key(t); rc != tt.want || dg != tt.want {
				t.Errorf("card %d: with P_Key %#x the QPs have %#x and %#x, want %#x", card, tt.given, rc, dg, tt.want)
			}
			if e := m.endpoint(t); e.PKey != tt.want && (tt.want != defaultKey || e.PKey != 0) {
				t.Errorf("card %d: with P_Key %#x the endpoint has %#x", card, tt.given, e.PKey)
			}
		}
		m := join(t, card, ib.RC, 0x8009)
		err := m.qp.Init()
		var listed []string
		for _, key := range table {
			listed = append(listed, fmt.Sprintf("0x%04x", key))
		}
		want := fmt.Sprintf("Init: Path.PKey is 0x8009, allowed: the P_Keys of port 1 of %s: %s", m.dev.Name(), strings.Join(listed, ", "))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a key that is not there: %v, want %q", err, want)
		}
	}
}

// TestPartitionTraffic: QPs of one partition exchange messages, if one of them is of a full member. Connect refuses other
// peers, and without their keys the send that fails names the partition as a reason.
func TestPartitionTraffic(t *testing.T) {
	for _, tt := range []struct {
		a, b    uint16
		refused string // by a
	}{
		{workKey, 0, ""},
		{workKey, workKey, ""},
		{0, defaultKey, ""},
		{0, 0, "remote PKey is 0x8001, allowed: 0xffff or 0x7fff, the partition of this side"},
		{workKey, defaultKey, "remote PKey is 0x7fff, allowed: 0x8001 or 0x0001, the partition of this side"},
		{guestKey, guestKey, "remote PKey is 0x0002, allowed: 0x8002, as this side is a limited member of its partition, 0x0002"},
	} {
		t.Run(fmt.Sprintf("%#x and %#x", tt.a, tt.b), func(t *testing.T) {
			a, b := join(t, 0, ib.RC, tt.a), join(t, 1, ib.RC, tt.b)
			must(t, a.qp.Init(), b.qp.Init(), b.qp.PostRecv(1, b.mr.SGE(0, 64)))
			to := b.endpoint(t)
			err := a.qp.Connect(t.Context(), to)
			if tt.refused == "" {
				must(t, err, b.qp.Connect(t.Context(), a.endpoint(t)))
				passes(t, a, b)
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.refused) {
				t.Fatalf("Connect: %v, want %q", err, tt.refused)
			}
			to.PKey = 0
			from := a.endpoint(t)
			from.PKey = 0
			must(t, a.qp.Connect(t.Context(), to), b.qp.Connect(t.Context(), from))
			a.send(t)
			if err := a.completes(t); !errors.Is(err, uverbs.WCRetryExcErr) || !strings.Contains(err.Error(), "must be in the QPs' partition, and one of them a full member") {
				t.Errorf("a send that cannot arrive: %v", err)
			}
		})
	}
}

// TestPartitionCM: the connection manager connects by GIDs in the partition of the addresses, and its QPs have the
// index of that key from the start. The subnet administrator knows no path between limited members.
func TestPartitionCM(t *testing.T) {
	for _, tt := range []struct{ key, client, server uint16 }{{defaultKey, defaultKey, 0x7fff}, {workKey, workKey, workKey}, {guestKey, 0, 0}} {
		t.Run(fmt.Sprintf("%#x", tt.key), func(t *testing.T) {
			a, b := onCard(t, 0), onCard(t, 1)
			ctx, cancel := context.WithTimeout(t.Context(), program.Patience)
			defer cancel()
			c, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{})
			must(t, err)
			t.Cleanup(func() { must(t, c.Close()) })
			id := func() *rdmacm.ID {
				id, err := c.NewID(rdmacm.TCP)
				must(t, err)
				t.Cleanup(func() { must(t, id.Close()) })
				return id
			}
			addr := func(m *memberOf, port uint16) rdmacm.Addr {
				e, err := m.dev.GID(1, 0)
				must(t, err)
				return rdmacm.Addr{IP: netip.AddrFrom16(e.GID), Port: port, PKey: tt.key}
			}
			l, client := id(), id()
			must(t, l.Bind(addr(b, 0)), l.Listen(0))
			at, err := l.Addrs()
			must(t, err)
			err = client.ResolveWait(ctx, addr(a, 0), addr(b, at.Local.Port))
			if tt.client == 0 {
				if err == nil || ctx.Err() != nil {
					t.Errorf("a path between limited members: %v", err)
				}
				return
			}
			must(t, err)
			a.qp, err = client.CreateQP(a.pd, a.options(ib.RC, 0))
			must(t, err)
			if got := a.key(t); got != tt.client {
				t.Errorf("the client's QP has P_Key %#x, want %#x", got, tt.client)
			}
			connected := make(chan error, 1)
			go func() {
				_, err := client.ConnectWait(ctx, rdmacm.ConnParam{RetryCount: 7})
				connected <- err
			}()
			request, err := l.NextRequest(ctx)
			must(t, err)
			t.Cleanup(func() { must(t, request.ID.Close()) })
			b.qp, err = request.ID.CreateQP(b.pd, b.options(ib.RC, 0))
			must(t, err)
			if got := b.key(t); got != tt.server {
				t.Errorf("the server's QP has P_Key %#x, want %#x", got, tt.server)
			}
			must(t, b.qp.PostRecv(1, b.mr.SGE(0, 64)), request.ID.AcceptWait(ctx, rdmacm.ConnParam{}), <-connected)
			passes(t, a, b)
		})
	}
}

// inWork gives the first card a network interface in the partition of workKey, with an address.
func inWork(t *testing.T, prefix string) {
	t.Helper()
	parent, err := netlink.LinkByName(testenv.TheRig().Netdevs[0])
	must(t, err)
	child := &netlink.IPoIB{LinkAttrs: netlink.LinkAttrs{Name: "ib0.8001", ParentIndex: parent.Attrs().Index}, Pkey: workKey}
	must(t, netlink.LinkAdd(child))
	t.Cleanup(func() { must(t, netlink.LinkDel(child)) })
	addr, err := netlink.ParseAddr(prefix)
	must(t, err, netlink.AddrAdd(child, addr), netlink.LinkSetUp(child))
}

// TestPartitionGroup: a QP for datagrams, on an address of a network interface in another partition, is in that partition,
// and so is the multicast group that its ID joins.
func TestPartitionGroup(t *testing.T) {
	m := onCard(t, 0)
	inWork(t, "10.78.0.1/24")
	ctx, cancel := context.WithTimeout(t.Context(), program.Patience)
	defer cancel()
	c, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	id, err := c.NewID(rdmacm.UDP)
	must(t, err)
	t.Cleanup(func() { must(t, id.Close()) })
	must(t, id.Bind(rdmacm.Addr{IP: netip.MustParseAddr("10.78.0.1")}))
	m.qp, err = id.CreateQP(m.pd, m.options(ib.UD, 0))
	must(t, err)
	if got := m.key(t); got != workKey {
		t.Errorf("the QP has P_Key %#x, want %#x", got, workKey)
	}
	e, err := id.JoinWait(ctx, netip.MustParseAddr("239.1.2.3"), rdmacm.JoinFullMember)
	must(t, err)
	if g := e.UD.AH.GRH.DGID; g[4] != workKey>>8 || g[5] != workKey&0xff {
		t.Errorf("the group %s is not of partition %#x", g, workKey)
	}
}

// TestPartitionPrograms: pingpong and perf join the partition that --pkey names, and rping compares it with the partition
// of its connection, which the network interface decides.
func TestPartitionPrograms(t *testing.T) {
	testenv.Boot(t, "GOVERBS_PARTITIONS", "fabric/partitions")
	verbs, rig := os.Getenv("VERBS"), testenv.TheRig()
	serves := func(p *program.Program, port uint16) {
		t.Helper()
		p.Until(t, "served", func() bool {
			c, err := net.Dial("tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port).String())
			return err == nil && c.Close() == nil
		})
	}
	refused := func(want string, line ...string) {
		t.Helper()
		p := program.Launch(t, append([]string{verbs}, line...)...)
		if <-p.Ended; p.Err == nil || !strings.Contains(p.Output(), want) {
			t.Errorf("%s says %q, %v, want %q", line, p.Output(), p.Err, want)
		}
	}
	for _, key := range []string{"0x8001", "0x7fff"} {
		s := program.Launch(t, verbs, "pingpong", "-d", rig.Devices[0], "--pkey", key)
		serves(s, 18515)
		run(t, verbs, "pingpong", "-d", rig.Devices[1], "--pkey", key, "127.0.0.1")
		s.Wait(t)
	}
	refused("Path.PKey is 0x8009, allowed: the P_Keys of port 1 of "+rig.Devices[1]+": 0x7fff", "pingpong", "-d", rig.Devices[1], "--pkey", "0x8009", "127.0.0.1")
	p := program.Launch(t, verbs, "perf", "serve", "-d", rig.Devices[0])
	p.KeepRunning()
	serves(p, 18516)
	run(t, verbs, "perf", "send-bw", "-d", rig.Devices[1], "--pkey", "1", "-n", "100", "127.0.0.1")
	for _, index := range []string{"0", "1"} {
		run(t, verbs, "perf", "send-bw", "-d", rig.Devices[1], "--pkey-index", index, "-n", "100", "127.0.0.1")
	}
	refused("--pkey-index is 9, allowed: one that has a key; this entry of port 1 of "+rig.Devices[1]+" is not in use", "perf", "send-bw", "-d", rig.Devices[1], "--pkey-index", "9", "127.0.0.1")
	refused("its own output says why", "perf", "send-bw", "-d", rig.Devices[1], "-n", "100", "127.0.0.1") // the defaults of the cards differ
	p.Until(t, "refused the client", func() bool { return strings.Contains(p.Output(), "remote PKey is ") })
	refused("allowed: the P_Keys of port 1", "perf", "send-bw", "-d", rig.Devices[1], "--pkey", "0x8009", "127.0.0.1")

	inWork(t, "10.77.0.1/24")
	s := program.Launch(t, verbs, "rping", "-s", "-P", "--pkey", "0x8001")
	s.KeepRunning()
	s.Serving(t, netlinkrdma.PortSpaceTCP, 7174)
	for _, own := range []string{"--own-qp=false", "--own-qp"} {
		run(t, verbs, "rping", "-c", own, "-C", "3", "--pkey", "0x8001", "-a", "10.77.0.1")
	}
	wrong := "--pkey is 0x8001, but the network interface with the address is in partition 0xffff: use the address of one like ib0.8001"
	refused(wrong, "rping", "-c", "-C", "3", "--pkey", "0x8001", "-a", rig.Addrs[0])
	refused("REJECTED", "rping", "-c", "-C", "3", "-a", rig.Addrs[0])
	s.Until(t, "refused the client", func() bool { return strings.Contains(s.Output(), wrong) })
}
