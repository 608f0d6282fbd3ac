package rdmacm

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// establish connects an ID that has a route to a listener on the same channel, with QPs that
// are made by hand, and has a receive posted at the listener's end.
func establish(t *testing.T, c *Channel, id *ID) (client, server *end) {
	t.Helper()
	client = newEnd(t, id, ib.RC)
	must(t, id.Connect(ConnParam{RetryCount: 7, RNRRetryCount: 6, QPN: client.qp.QPN()}))
	request := next(t, c, EventConnectRequest)
	t.Cleanup(func() { must(t, request.ID.Close()) })
	server = newEnd(t, request.ID, ib.RC)
	server.to(t, ib.QPRTR)
	server.to(t, ib.QPRTS)
	must(t, server.qp.PostRecv(1, server.mr.SGE(0, 4096)), request.ID.Accept(ConnParam{RNRRetryCount: 7, QPN: server.qp.QPN()}))
	next(t, c, EventConnectResponse)
	client.to(t, ib.QPRTR)
	client.to(t, ib.QPRTS)
	must(t, id.Establish())
	next(t, c, EventEstablished)
	return client, server
}

// TestPaths asks for the path of a route, and for the GIDs of both sides.
func TestPaths(t *testing.T) {
	c := openKernel(t)
	testenv.NeedsIB(t, "path records")
	_, addr := listen(t, c, TCP, second)
	id := newID(t, c, TCP)
	if p := value(id.Paths())(t); p != nil {
		t.Errorf("before anything else the paths are %+v", p)
	}
	if g := value(id.GIDs())(t); g.Local != (ib.GID{}) || g.NodeGUID != 0 {
		t.Errorf("before anything else the GIDs are %+v", g)
	}
	resolve(t, c, id, addr)
	a, g := value(id.Addrs())(t), value(id.GIDs())(t)
	dev := value(uverbs.Open(a.Device, uverbs.OpenOptions{}))(t)
	defer dev.Close()
	infiniBand := testenv.TheRig().InfiniBand()
	local, remote := ib.GID(a.Local.IP.As16()), ib.GID(second.As16())
	if infiniBand { // the GIDs are the port's, to which the address leads
		local = value(dev.GID(1, 0))(t).GID
		remote = local
	}
	if g.Local != local || g.Remote != remote {
		t.Errorf("GIDs are %+v, addresses %+v", g, a)
	}
	for _, s := range []struct {
		got  uint64
		port uint16
	}{{g.LocalServiceID, a.Local.Port}, {g.RemoteServiceID, a.Remote.Port}} {
		if want := uint64(TCP)<<16 | uint64(s.port); s.got != want {
			t.Errorf("service ID is %#x, want %#x", s.got, want)
		}
	}
	if want := dev.Info().NodeGUID; g.NodeGUID != want || want == 0 {
		t.Errorf("node GUID is %s, want %s", g.NodeGUID, want)
	}
	paths := value(id.Paths())(t)
	if len(paths) != 1 {
		t.Fatalf("paths are %+v, want one", paths)
	}
	p, port := paths[0], value(dev.Port(1))(t)
	if p.SGID != g.Local || p.DGID != g.Remote || p.MTU != port.ActiveMTU || p.MTUSelector != SelectExactly || !p.Reversible || p.PKey != 0xffff || (p.HopLimit == 0) != infiniBand {
		t.Errorf("path is %+v, the port's MTU %d", p, port.ActiveMTU)
	}
}

// TestSetPath connects by a route that was given, not resolved, and sees it used.
func TestSetPath(t *testing.T) {
	c := openKernel(t)
	testenv.NeedsIB(t, "path records")
	_, addr := listen(t, c, TCP, first)
	model := newID(t, c, TCP)
	resolve(t, c, model, addr)
	p := value(model.Paths())(t)[0]

	id := newID(t, c, TCP)
	if err := id.SetPath(p); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "no resolved address") {
		t.Errorf("before the address is resolved: %v", err)
	}
	must(t, id.ResolveAddr(Addr{}, AddrOf(addr), timeout))
	next(t, c, EventAddrResolved)
	p.MTU, p.Lifetime = ib.MTU512, 19
	must(t, id.SetPath(p))
	if e := next(t, c, EventRouteResolved); e.ID != id || e.Err() != nil {
		t.Fatalf("event is %+v", e)
	}
	if got := value(id.Paths())(t); len(got) != 1 || got[0].MTU != p.MTU || got[0].Lifetime != p.Lifetime || got[0].DGID != p.DGID {
		t.Errorf("paths are %+v, want %+v", got, p)
	}
	if err := id.SetPath(p); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "a route already") {
		t.Errorf("once more: %v", err)
	}
	client, server := establish(t, c, id)
	for name, e := range map[string]*end{"client": client, "server": server} {
		attr, err := e.qp.Query()
		if must(t, err); attr.PathMTU != ib.MTU512 {
			t.Errorf("the %s's path MTU is %d bytes, want 512", name, attr.PathMTU.Bytes())
		}
	}
	copy(client.mr.Bytes(), "by a route of our own")
	must(t, client.qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{client.mr.SGE(0, 2000)}}))
	client.poll(t)
	if wc := server.poll(t); wc.ByteLen != 2000 || string(server.mr.Bytes()[:21]) != "by a route of our own" {
		t.Errorf("received %d bytes, %q", wc.ByteLen, server.mr.Bytes()[:21])
	}
}

// TestAckTimeout: the time that was set for an ID is its QP's.
func TestAckTimeout(t *testing.T) {
	c := openKernel(t)
	testenv.NeedsIB(t, "acknowledgements")
	_, addr := listen(t, c, TCP, first)
	id := newID(t, c, TCP)
	const want = ib.AckTimeout(21)
	must(t, id.SetAckTimeout(want.Duration()))
	resolve(t, c, id, addr)
	client, _ := establish(t, c, id)
	if attr := value(client.qp.Query())(t); attr.Timeout != want {
		t.Errorf("the QP's timeout is %s, want %s", attr.Timeout.Duration(), want.Duration())
	}
}

// TestDatagramTraffic looks up the QP that takes datagrams, and exchanges some with it.
func TestDatagramTraffic(t *testing.T) {
	testenv.NeedsNoLoss(t, "a datagram that is lost stays lost")
	c := openKernel(t)
	testenv.NeedsIB(t, "datagrams")
	_, addr := listen(t, c, UDP, second)
	id := newID(t, c, UDP)
	resolve(t, c, id, addr)
	must(t, id.Connect(ConnParam{PrivateData: []byte("who?")}))
	request := next(t, c, EventConnectRequest)
	t.Cleanup(func() { must(t, request.ID.Close()) })
	if string(request.Param.PrivateData[:4]) != "who?" {
		t.Errorf("request is %+v", request)
	}
	server := newEnd(t, request.ID, ib.UD)
	server.to(t, ib.QPRTR)
	server.to(t, ib.QPRTS)
	must(t, server.qp.PostRecv(1, server.mr.SGE(0, 1000)), request.ID.Accept(ConnParam{PrivateData: []byte("me"), QPN: server.qp.QPN()}))
	e := next(t, c, EventEstablished)
	const defaultQKey = 0x01234567
	if e.ID != id || e.UD.QPN != server.qp.QPN() || e.UD.QKey != defaultQKey || string(e.Param.PrivateData[:2]) != "me" {
		t.Errorf("answer is %+v", e)
	}
	client := newEnd(t, id, ib.UD)
	client.to(t, ib.QPRTR)
	client.to(t, ib.QPRTS)
	must(t, client.qp.PostRecv(1, client.mr.SGE(0, 1000)))
	send := func(from *end, ah *uverbs.AH, qpn uint32, text string) {
		t.Helper()
		defer ah.Close()
		copy(from.mr.Bytes()[2048:], text)
		must(t, from.qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{from.mr.SGE(2048, len(text))},
			AH: ah, RemoteQPN: qpn, RemoteQKey: e.UD.QKey}))
		from.poll(t)
	}
	send(client, value(client.pd.CreateAH(e.UD.AH))(t), e.UD.QPN, "there")
	wc := server.poll(t)
	if got := server.mr.Bytes()[uverbs.GRHSize:wc.ByteLen]; string(got) != "there" || wc.SrcQP != client.qp.QPN() {
		t.Errorf("received %q of QP %d", got, wc.SrcQP)
	}
	send(server, value(server.pd.CreateAHFor(1, &wc, server.mr.Bytes()[:uverbs.GRHSize]))(t), wc.SrcQP, "and back")
	if wc = client.poll(t); string(client.mr.Bytes()[uverbs.GRHSize:wc.ByteLen]) != "and back" {
		t.Errorf("received %q", client.mr.Bytes()[uverbs.GRHSize:wc.ByteLen])
	}
}

// TestSpaceIB connects in InfiniBand's port space, which RoCE has too.
func TestSpaceIB(t *testing.T) {
	c := openKernel(t)
	testenv.NeedsIB(t, "port space ib")
	_, addr := listen(t, c, IB, first)
	id := newID(t, c, IB)
	resolve(t, c, id, addr)
	if g := value(id.GIDs())(t); g.RemoteServiceID != uint64(IB)<<16|uint64(addr.Port()) {
		t.Errorf("service ID is %#x", g.RemoteServiceID)
	}
	client := newEnd(t, id, ib.RC)
	must(t, id.Connect(ConnParam{PrivateData: []byte("hello"), RetryCount: 7, RNRRetryCount: 6, QPN: client.qp.QPN()}))
	request := next(t, c, EventConnectRequest)
	if request.ID.space != IB || string(request.Param.PrivateData[:5]) != "hello" || request.Param.QPN != client.qp.QPN() {
		t.Errorf("request is %+v", request)
	}
	if e := refuse(t, c, request, []byte("no"), ReasonConsumer); string(e.Param.PrivateData[:2]) != "no" || e.Status != int32(ReasonConsumer) {
		t.Errorf("event is %+v", e)
	}
}

// TestSpaceIBTraffic: in that port space there are connections as in TCP's.
func TestSpaceIBTraffic(t *testing.T) {
	c := openKernel(t)
	testenv.NeedsIB(t, "port space ib")
	_, addr := listen(t, c, IB, second)
	id := newID(t, c, IB)
	resolve(t, c, id, addr)
	client, server := establish(t, c, id)
	copy(client.mr.Bytes(), "in InfiniBand's port space")
	must(t, client.qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{client.mr.SGE(0, 26)}}))
	client.poll(t)
	if wc := server.poll(t); string(server.mr.Bytes()[:wc.ByteLen]) != "in InfiniBand's port space" {
		t.Errorf("received %q", server.mr.Bytes()[:wc.ByteLen])
	}
	must(t, id.Disconnect())
	if e := next(t, c, EventDisconnected); e.ID != server.id {
		t.Error("disconnected is another ID")
	}
}

// TestSpaceIPoIB: port space IPoIB is for the groups of IP over InfiniBand, and not for the addresses of
// Ethernet.
func TestSpaceIPoIB(t *testing.T) {
	c := openKernel(t)
	id := newID(t, c, IPoIB)
	if testenv.TheRig().InfiniBand() {
		must(t, id.Bind(Addr{IP: first}))
		g := value(id.Join(group4, JoinFullMember))(t)
		if e := next(t, c, EventMulticastJoin); e.Group != g || e.Err() != nil || e.UD.AH.DLID == 0 {
			t.Errorf("event is %+v: %v", e, e.Err())
		}
		must(t, g.Close())
		return
	}
	testenv.NotSupported(t, "IPoIB network interfaces")
	const words = "IPoIB network interface"
	if err := id.Bind(Addr{IP: first}); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), words) {
		t.Errorf("bind: %v", err)
	}
	id = newID(t, c, IPoIB)
	must(t, id.ResolveAddr(Addr{}, Addr{IP: second, Port: 1}, timeout))
	if err := next(t, c, EventAddrError).Err(); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), words) {
		t.Errorf("event is %v", err)
	}
}

// TestNeedsGRHCloses: asking a port whether packets need a GRH leaves no device open.
func TestNeedsGRHCloses(t *testing.T) {
	c := openKernel(t)
	_, to := listen(t, c, TCP, first)
	id := newID(t, c, TCP)
	must(t, id.ResolveWait(within(t), Addr{}, AddrOf(to)))
	files := func() int { return len(value(os.ReadDir("/proc/self/fd"))(t)) }
	before := files()
	const times = 20
	for range times {
		if id.needsGRH() {
			t.Fatal("a port of RoCE needs a GRH as one of InfiniBand")
		}
	}
	if n := files() - before; n >= times {
		t.Errorf("%d files more are open after %d times", n, times)
	}
}

// TestCheckPeer: the remote address of a request on RoCE must be that of the path.
func TestCheckPeer(t *testing.T) {
	to := func(ip string) []Path { return []Path{{DGID: netip.MustParseAddr(ip).As16()}} }
	for _, c := range []struct {
		remote string
		paths  []Path
		ok     bool
	}{
		{"10.0.0.1", to("10.0.0.1"), true},
		{"fd00::1", to("fd00::1"), true},
		{"fe80::1%3", to("fe80::1"), true},
		{"10.0.0.1", to("10.0.0.2"), false},
		{"10.0.0.1", to("fe80::1"), false},
		{"10.0.0.1", nil, false},
	} {
		err := checkPeer(Addr{IP: netip.MustParseAddr(c.remote), Port: 7}, c.paths)
		if (err == nil) != c.ok || err != nil && (!errors.Is(err, syscall.EADDRNOTAVAIL) || !strings.Contains(err.Error(), c.remote)) {
			t.Errorf("%s, path %v: %v", c.remote, c.paths, err)
		}
	}
}
