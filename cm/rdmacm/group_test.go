package rdmacm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Groups that the tests join.
var (
	group4 = netip.MustParseAddr("239.1.2.4")
	group6 = netip.MustParseAddr("ff0e::1:2:4")
)

// member is a member of a group with its QP.
type member struct {
	*end
	group  *Group
	joined *Event
}

// join makes a member of a group; one that receives has a receive posted.
func join(t *testing.T, c *Channel, ip, group netip.Addr, flags JoinFlags) *member {
	t.Helper()
	testenv.NeedsIB(t, "datagrams")
	testenv.NeedsNoLoss(t, "a datagram that is lost stays lost")
	id := newID(t, c, UDP)
	must(t, id.Bind(Addr{IP: ip}))
	m := &member{end: newEnd(t, id, ib.UD)}
	m.to(t, ib.QPRTR)
	m.to(t, ib.QPRTS)
	m.group = value(id.Join(group, flags))(t)
	m.joined = next(t, c, EventMulticastJoin)
	must(t, m.joined.Err())
	if m.joined.Group != m.group || m.joined.ID != id || m.joined.UD.QPN != MulticastQPN {
		t.Fatalf("joined is %+v", m.joined)
	}
	if flags == JoinFullMember {
		to := m.joined.UD.AH
		must(t, m.qp.AttachMulticast(to.GRH.DGID, to.DLID), m.qp.PostRecv(1, m.mr.SGE(0, 2048)))
		t.Cleanup(func() { m.qp.DetachMulticast(to.GRH.DGID, to.DLID) })
	}
	return m
}

// say sends a datagram to the group.
func (m *member) say(t *testing.T, text string) {
	t.Helper()
	ah := value(m.pd.CreateAH(m.joined.UD.AH))(t)
	defer ah.Close()
	copy(m.mr.Bytes()[2048:], text)
	must(t, m.qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled,
		SGL: []uverbs.SGE{m.mr.SGE(2048, len(text))}, AH: ah, RemoteQPN: m.joined.UD.QPN, RemoteQKey: m.joined.UD.QKey}))
	if wc := m.poll(t); wc.ID != 2 {
		t.Fatalf("completion is of %d, want the send", wc.ID)
	}
}

// hears fails the test unless the member receives a datagram.
func (m *member) hears(t *testing.T, text string) {
	t.Helper()
	wc := m.poll(t)
	if got := m.mr.Bytes()[uverbs.GRHSize:wc.ByteLen]; wc.ID != 1 || !bytes.Equal(got, []byte(text)) {
		t.Fatalf("received %q by %d, want %q", got, wc.ID, text)
	}
	must(t, m.qp.PostRecv(1, m.mr.SGE(0, 2048)))
}

// TestGroup: a member that only sends reaches two that receive; one that leaves receives no
// more, and the other goes on.
func TestGroup(t *testing.T) {
	c := openKernel(t)
	one, two := join(t, c, first, group4, JoinFullMember), join(t, c, first, group4, JoinFullMember)
	sender := join(t, c, first, group4, JoinSendOnly)
	awaitMembers(t, "the interface is a member", 2)
	sender.say(t, "to two")
	one.hears(t, "to two")
	two.hears(t, "to two")

	to := two.joined.UD.AH
	must(t, two.qp.DetachMulticast(to.GRH.DGID, to.DLID), two.group.Close(), two.group.Close())
	awaitMembers(t, "one of two members has left", 1)
	sender.say(t, "to one")
	one.hears(t, "to one")
	sender.say(t, "again")
	one.hears(t, "again")
	if wcs := make([]uverbs.WC, 1); value(two.cq.Poll(wcs))(t) != 0 { // the second has passed both by now
		t.Errorf("who has left receives %q", two.mr.Bytes()[uverbs.GRHSize:wcs[0].ByteLen])
	}

	// Who has left may join again.
	g := value(two.id.Join(group4, JoinFullMember))(t)
	if e := next(t, c, EventMulticastJoin); e.Group != g || e.Err() != nil {
		t.Errorf("joined is %+v", e)
	}
	must(t, two.qp.AttachMulticast(to.GRH.DGID, to.DLID))
	sender.say(t, "welcome")
	one.hears(t, "welcome")
	two.hears(t, "welcome")
	must(t, g.Close(), one.group.Close())
	awaitMembers(t, "all have left", 0)
}

// awaitMembers waits until the first device's interface has joined group4 n times. A software device
// leaves the interface alone, because it needs no network here, and on InfiniBand the port joins.
func awaitMembers(t *testing.T, what string, n int) {
	t.Helper()
	if rig := testenv.TheRig(); !rig.Soft && !rig.InfiniBand() {
		until(t, what, func() bool { return memberships(t) == n })
	}
}

// memberships is how often the first device's interface has joined group4, by what the kernel's IGMP says.
func memberships(t *testing.T) (users int) {
	t.Helper()
	a := group4.As4()
	group := fmt.Sprintf("%08X", binary.NativeEndian.Uint32(a[:]))
	for line := range strings.Lines(string(value(os.ReadFile("/proc/net/igmp"))(t))) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == group {
			users += value(strconv.Atoi(f[1]))(t)
		}
	}
	return users
}

// TestGroupJoinWait: an ID waits for its own membership.
func TestGroupJoinWait(t *testing.T) {
	c := openKernel(t)
	testenv.NeedsIB(t, "datagrams")
	id := newID(t, c, UDP)
	must(t, id.Bind(Addr{IP: first}))
	e := value(id.JoinWait(within(t), group4, JoinFullMember))(t)
	if e.Type != EventMulticastJoin || e.ID != id || e.Group == nil || e.UD.QPN != MulticastQPN {
		t.Errorf("joined is %+v", e)
	}
	must(t, e.Group.Close())
	if _, err := id.JoinWait(within(t), first, JoinFullMember); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("join of %s: %v", first, err)
	}
}

// TestGroupTwoDevices: members on two devices, one of which receives what the other sends.
func TestGroupTwoDevices(t *testing.T) {
	c := openKernel(t)
	receiver, sender := join(t, c, second, group4, JoinFullMember), join(t, c, first, group4, JoinSendOnly)
	sender.say(t, "over the link")
	receiver.hears(t, "over the link")
}

// TestGroupRefused: what is said of a group that cannot be joined.
func TestGroupRefused(t *testing.T) {
	c, k := newFake(t)
	id := value(c.NewID(UDP))(t)
	defer id.Close()
	for errno, words := range map[syscall.Errno]string{
		524:             "RoCE v2 does not support IPv6 groups",
		syscall.EINVAL:  "bind the ID to an address",
		syscall.ENODEV:  "bind the ID to an address",
		syscall.ENOBUFS: "no buffer space",
	} {
		k.refuse[abi.RDMA_USER_CM_CMD_JOIN_MCAST] = errno
		_, err := id.Join(group6, JoinFullMember)
		if err == nil || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), group6.String()) || len(c.groups) != 0 {
			t.Errorf("errno %d: %v, %d groups are left", errno, err, len(c.groups))
		}
		if errors.Is(err, errors.ErrUnsupported) != (errno == 524) {
			t.Errorf("errno %d: %v", errno, err)
		}
	}
}

// TestGroupIPv6 joins IPv6 groups on InfiniBand. The kernel does not support them with RoCE v2,
// which is the only RoCE of rxe and the setting of others.
func TestGroupIPv6(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsIB(t, "datagrams")
	c := openKernel(t)
	id := newID(t, c, UDP)
	must(t, id.Bind(AddrOf(netip.AddrPortFrom(first6(t), 0))))
	for _, flags := range []JoinFlags{JoinFullMember, JoinSendOnly} {
		for _, group := range []string{group6.String(), "ff02::1:2:4%" + testenv.TheRig().Netdevs[0]} {
			g, err := id.Join(netip.MustParseAddr(group), flags)
			if testenv.TheRig().InfiniBand() {
				must(t, err)
				if e := next(t, c, EventMulticastJoin); e.Group != g || e.Err() != nil || e.UD.AH.DLID == 0 {
					t.Errorf("%s: event is %+v: %v", group, e, e.Err())
				}
				must(t, g.Close())
				continue
			}
			if err == nil {
				t.Errorf("%s is joined", group)
			} else if !strings.Contains(err.Error(), group) || !strings.Contains(err.Error(), "RoCE v2 does not support IPv6 groups") {
				t.Errorf("join %s: %v", group, err)
			}
			if !testenv.Lacks(t, err) {
				t.Errorf("join %s: %v", group, err)
			}
		}
	}
	if len(c.groups) != 0 {
		t.Errorf("%d groups are left", len(c.groups))
	}
}

// TestGroupUnbound: an ID without a device joins nothing.
func TestGroupUnbound(t *testing.T) {
	c := openKernel(t)
	if _, err := newID(t, c, UDP).Join(group4, JoinFullMember); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "bind the ID to an address") {
		t.Errorf("join: %v", err)
	}
}

// TestGroupFails: who joins from an address that is gone is no member, and learns why.
func TestGroupFails(t *testing.T) {
	c := openKernel(t)
	testenv.NeedsIB(t, "datagrams")
	testenv.NeedsKernel(t, "addresses that come and go")
	testenv.NeedsRoCE(t, "GIDs of IP addresses")
	rig := testenv.TheRig()
	link := value(netlink.LinkByName(rig.Netdevs[0]))(t)
	addr := value(netlink.ParseAddr("10.1.0.77/24"))(t)
	must(t, netlink.AddrAdd(link, addr))
	there := true
	remove := func() {
		if there {
			there = false
			must(t, netlink.AddrDel(link, addr))
		}
	}
	t.Cleanup(remove)
	local := netip.MustParseAddr("10.1.0.77")
	gids := func() bool {
		dev := value(uverbs.Open(rig.Devices[0], uverbs.OpenOptions{}))(t)
		defer dev.Close()
		for _, e := range value(dev.GIDTable(1))(t) {
			if e.GID.Addr().Unmap() == local {
				return true
			}
		}
		return false
	}
	until(t, "the address has a GID", gids)
	id := newID(t, c, UDP)
	must(t, id.Bind(Addr{IP: local}))
	remove()
	until(t, "the address has no GID", func() bool { return !gids() })
	g := value(id.Join(group4, JoinFullMember))(t)
	e := next(t, c, EventMulticastError)
	if err := e.Err(); e.Group != g || err == nil || !strings.Contains(fmt.Sprint(err), group4.String()) || !strings.Contains(fmt.Sprint(err), "GID") {
		t.Errorf("event is %+v: %v", e, err)
	}
	must(t, g.Close())
}

// until waits for something, also in a cleanup, when the test's context has ended.
func until(t *testing.T, what string, happens func() bool) {
	t.Helper()
	for late := time.Now().Add(4 * timeout); !happens(); {
		if time.Now().After(late) {
			t.Fatalf("it did not come about that %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
