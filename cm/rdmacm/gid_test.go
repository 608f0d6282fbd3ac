package rdmacm

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestGIDAddrBytes compares an address with struct sockaddr_ib.
func TestGIDAddrBytes(t *testing.T) {
	c, k := newFake(t)
	id := value(c.NewID(TCP))(t)
	gid := ib.GID{0: 0xfe, 1: 0x80, 15: 9}
	a := GIDAddr(gid, 0x1234)
	must(t, id.Bind(a))
	want := []byte{101, 0, 0, 0, 48, 0, 0, 0, 27, 0, 0xff, 0xff, 0, 0, 0, 0, 0xfe, 0x80, 31: 9, 36: 1, 6, 0x12, 0x34,
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0}
	got := k.last[abi.RDMA_USER_CM_CMD_BIND][:len(want)]
	if !bytes.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	s, _, err := a.storage()
	a.Space = TCP
	if back := address(&s, TCP); err != nil || back != a || back.String() != "[fe80::9]:4660" {
		t.Errorf("%+v becomes %+v", a, back)
	}
	var arg *ArgError
	for field, err := range map[string]error{
		"local":  id.Bind(Addr{IP: netip.AddrFrom16(gid), Space: UDP}),
		"remote": id.ResolveAddr(Addr{}, Addr{Space: TCP}, timeout),
	} {
		if !errors.As(err, &arg) || arg.Field != field || err.Error() != fmt.Sprintf("cm: %s: %s is %s, allowed: %s", arg.Op, field, arg.Given, arg.Allowed) {
			t.Errorf("%s: %v", field, err)
		}
	}
	must(t, id.Close())
}

// TestGIDAddr connects two InfiniBand ports by their GIDs and a route that was given, without IP and
// without a subnet administrator, in both port spaces of connections.
func TestGIDAddr(t *testing.T) {
	c := openKernel(t)
	rig := testenv.TheRig()
	if !rig.InfiniBand() {
		testenv.NotSupported(t, "GIDs as addresses")
		id := newID(t, c, TCP)
		if err := id.Bind(GIDAddr(ib.GID{0: 0xfe, 1: 0x80, 15: 9}, 0)); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("a GID without InfiniBand: %v", err)
		}
		return
	}
	port := func(name string) (ib.GID, uint16) {
		dev := value(uverbs.Open(name, uverbs.OpenOptions{}))(t)
		defer dev.Close()
		return value(dev.GID(1, 0))(t).GID, value(dev.Port(1))(t).LID
	}
	sgid, slid := port(rig.Devices[0])
	dgid, dlid := port(rig.Devices[1])
	lost := newID(t, c, TCP)
	must(t, lost.ResolveAddr(Addr{}, GIDAddr(dgid, 9), timeout))
	next(t, c, EventAddrResolved)
	if rig.Netdevs[0] != "" {
		must(t, lost.ResolveRoute(timeout))
		next(t, c, EventRouteResolved)
	} else { // without a subnet administrator nobody knows the way
		must(t, lost.ResolveRoute(timeout/5))
		if e := next(t, c, EventRouteError); e.ID != lost || e.Err() == nil || !strings.Contains(e.Err().Error(), GIDAddr(dgid, 9).String()) {
			t.Errorf("event is %+v, %v", e, e.Err())
		}
	}
	for _, space := range []PortSpace{TCP, IB} {
		l := newID(t, c, space)
		must(t, l.Bind(GIDAddr(dgid, 0)), l.Listen(0))
		a := value(l.Addrs())(t)
		if a.Local.IP != netip.AddrFrom16(dgid) || a.Local.Port == 0 || a.Device != rig.Devices[1] || a.Local.PKey == 0 {
			t.Fatalf("listener at %+v", a)
		}
		id := newID(t, c, space)
		must(t, id.ResolveAddr(GIDAddr(sgid, 0), GIDAddr(dgid, a.Local.Port), timeout))
		next(t, c, EventAddrResolved)
		must(t, id.SetPath(Path{SGID: sgid, DGID: dgid, SLID: slid, DLID: dlid, PKey: defaultPKey, MTU: ib.MTU1024, Rate: 3, Lifetime: 14, Reversible: true, Count: 1,
			MTUSelector: SelectExactly, RateSelector: SelectExactly, LifetimeSelector: SelectExactly}))
		next(t, c, EventRouteResolved)
		client, server := establish(t, c, id)
		copy(client.mr.Bytes(), "by LID")
		must(t, client.qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{client.mr.SGE(0, 6)}}))
		client.poll(t)
		if wc := server.poll(t); string(server.mr.Bytes()[:wc.ByteLen]) != "by LID" {
			t.Errorf("received %q", server.mr.Bytes()[:wc.ByteLen])
		}
		must(t, id.Disconnect())
		if e := next(t, c, EventDisconnected); e.ID != server.id {
			t.Error("disconnected is another ID")
		}
	}
}
