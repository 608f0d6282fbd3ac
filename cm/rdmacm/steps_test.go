package rdmacm

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestChannelInProcess: a channel says for which kind of devices it is, and an ID which device it has.
func TestChannelInProcess(t *testing.T) {
	c := openKernel(t)
	if got, want := c.InProcess(), testenv.TheRig().Soft; got != want {
		t.Errorf("InProcess is %t, want %t", got, want)
	}
	id := newID(t, c, TCP)
	must(t, id.Bind(Addr{IP: first}))
	a, index, err := id.AddrsByIndex()
	must(t, err, a.CheckReachable())
	named := value(id.Addrs())(t)
	dev := value(uverbs.Open(named.Device, uverbs.OpenOptions{}))(t)
	defer dev.Close()
	if a.Device = named.Device; a != named || index != dev.Info().Index {
		t.Errorf("addresses are %+v and %+v, device %d, want %d", a, named, index, dev.Info().Index)
	}
}

// TestECE: options for enhanced connections go both ways, and who does not like them says so.
func TestECE(t *testing.T) {
	c := openKernel(t)
	testenv.NeedsIB(t, "options for enhanced connections")
	_, addr := listen(t, c, TCP, first)
	ask := func(ece ECE) (*ID, *Event) {
		id := newID(t, c, TCP)
		resolve(t, c, id, addr)
		client := newEnd(t, id, ib.RC)
		must(t, id.Connect(ConnParam{RetryCount: 7, RNRRetryCount: 6, QPN: client.qp.QPN(), ECE: ece}))
		request := next(t, c, EventConnectRequest)
		t.Cleanup(func() { must(t, request.ID.Close()) })
		if request.Param.ECE != ece {
			t.Errorf("the request has %+v, want %+v", request.Param.ECE, ece)
		}
		return id, request
	}
	its := ECE{VendorID: 0x15b3, Options: 0x10000005}
	id, request := ask(its)
	server := newEnd(t, request.ID, ib.RC)
	server.to(t, ib.QPRTR)
	server.to(t, ib.QPRTS)
	mine := ECE{VendorID: 0x15b3, Options: 0x1}
	must(t, request.ID.Accept(ConnParam{RNRRetryCount: 7, QPN: server.qp.QPN(), ECE: mine}))
	if e := next(t, c, EventConnectResponse); e.ID != id || e.Param.ECE != mine {
		t.Errorf("the answer has %+v, want %+v", e.Param.ECE, mine)
	}
	id, request = ask(ECE{})
	if e := refuse(t, c, request, nil, ReasonVendorOption); e.ID != id || e.Status != int32(ReasonVendorOption) || !strings.Contains(e.Err().Error(), "enhanced connections") {
		t.Errorf("event is %+v, %v", e, e.Err())
	}
}

// TestNotify: a side that hears from its peer before that says that it is ready tells the connection
// manager, and is connected.
func TestNotify(t *testing.T) {
	c := openKernel(t)
	testenv.NeedsIB(t, "MODIFY_QP to RTS")
	_, addr := listen(t, c, TCP, first)
	id := newID(t, c, TCP)
	resolve(t, c, id, addr)
	client := newEnd(t, id, ib.RC)
	must(t, id.Connect(ConnParam{RetryCount: 7, RNRRetryCount: 6, QPN: client.qp.QPN()}))
	request := next(t, c, EventConnectRequest)
	t.Cleanup(func() { must(t, request.ID.Close()) })
	server := newEnd(t, request.ID, ib.RC)
	server.to(t, ib.QPRTR)
	server.to(t, ib.QPRTS)
	must(t, server.qp.PostRecv(1, server.mr.SGE(0, 4096)), request.ID.Accept(ConnParam{RNRRetryCount: 7, QPN: server.qp.QPN()}))
	next(t, c, EventConnectResponse)
	client.to(t, ib.QPRTR)
	client.to(t, ib.QPRTS)
	must(t, client.qp.PostSend(uverbs.SendWR{Opcode: uverbs.WRSend, SGL: []uverbs.SGE{client.mr.SGE(0, 10)}}))
	server.poll(t) // though the client has not said that it is ready
	must(t, request.ID.Notify(uverbs.EventCommEst))
	if e := next(t, c, EventEstablished); e.ID != request.ID {
		t.Error("established is another ID")
	}
	must(t, id.Establish()) // comes late, and does no harm
	must(t, request.ID.Disconnect())
	if e := next(t, c, EventDisconnected); e.ID != id {
		t.Error("disconnected is another ID")
	}
	if err := newID(t, c, TCP).Notify(uverbs.EventCommEst); err == nil {
		t.Error("an ID without a device is notified")
	}
}

// TestAnswerLimit: a step gives up when the peer's program does not answer, though its context has no deadline.
func TestAnswerLimit(t *testing.T) {
	c := openKernel(t)
	testenv.NeedsIB(t, "steps that do not wait for TCP")
	defer func(old time.Duration) { answerLimit = old }(answerLimit)
	answerLimit = 100 * time.Millisecond
	_, addr := listen(t, c, TCP, first)
	bg, cancel := context.WithCancel(t.Context()) // without a deadline
	defer cancel()
	defer time.AfterFunc(timeout, cancel).Stop()
	asked := func() (id, request *ID, p ConnParam) {
		id = newID(t, c, TCP)
		resolve(t, c, id, addr)
		p = ConnParam{RetryCount: 7, RNRRetryCount: 6, QPN: newEnd(t, id, ib.RC).qp.QPN()}
		must(t, id.Connect(p))
		request = next(t, c, EventConnectRequest).ID
		t.Cleanup(func() { must(t, request.Close()) })
		return id, request, p
	}
	for name, step := range map[string]func() error{
		"ConnectWait": func() error {
			id := newID(t, c, TCP)
			resolve(t, c, id, addr)
			_, err := id.ConnectWait(bg, ConnParam{QPN: newEnd(t, id, ib.RC).qp.QPN()})
			request := next(t, c, EventConnectRequest).ID
			return errors.Join(err, request.Close())
		},
		"AcceptWait": func() error { // the peer does not say that it is ready
			_, request, p := asked()
			p.QPN = newEnd(t, request, ib.RC).qp.QPN()
			err := request.AcceptWait(bg, p)
			next(t, c, EventConnectResponse)
			return err
		},
		"DisconnectWait": func() error { // the peer does not disconnect
			id, request, p := asked()
			p.QPN = newEnd(t, request, ib.RC).qp.QPN()
			must(t, request.Accept(p))
			next(t, c, EventConnectResponse)
			must(t, id.Establish())
			next(t, c, EventEstablished)
			err := id.DisconnectWait(bg)
			next(t, c, EventDisconnected)
			return err
		},
	} {
		if err := step(); !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestReuseAddr: IDs that both allow it share an address, and others do not.
func TestReuseAddr(t *testing.T) {
	c := openKernel(t)
	one := newID(t, c, TCP)
	must(t, one.SetReuseAddr(true), one.Bind(Addr{IP: first}))
	addr := value(one.Addrs())(t).Local
	if err := newID(t, c, TCP).Bind(addr); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "taken") {
		t.Errorf("an ID that does not share: %v", err)
	}
	off := newID(t, c, TCP)
	must(t, off.SetReuseAddr(true), off.SetReuseAddr(false))
	if err := off.Bind(addr); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("an ID that does not share any more: %v", err)
	}
	two := newID(t, c, TCP)
	must(t, two.SetReuseAddr(true), two.Bind(addr))
	if err := two.Listen(0); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a listener on a shared address: %v", err)
	}
	must(t, one.Close(), two.Listen(0))
}

// TestAFOnly: a listener on all addresses of IPv6 is one for IPv4 too, unless it is told not to.
func TestAFOnly(t *testing.T) {
	c := openKernel(t)
	testenv.NeedsIB(t, "reasons of rejections")
	testenv.NeedsNoLoss(t, "a refusal that is lost is not repeated")
	ctx := within(t)
	for _, only := range []bool{false, true} {
		l := newID(t, c, TCP)
		must(t, l.SetAFOnly(only), l.Bind(Addr{IP: netip.IPv6Unspecified()}))
		port := value(l.Addrs())(t).Local.Port
		v4 := newID(t, c, TCP)
		if err := v4.Bind(Addr{IP: netip.IPv4Unspecified(), Port: port}); only && err != nil || !only && !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("IPv6 only is %t: the same port for IPv4: %v", only, err)
		}
		must(t, v4.Close(), l.Listen(0))
		for _, ip := range []netip.Addr{first, first6(t)} {
			id := newID(t, c, TCP)
			must(t, id.ResolveWait(ctx, Addr{}, Addr{IP: ip, Port: port}))
			client := newEnd(t, id, ib.RC)
			must(t, id.Connect(ConnParam{QPN: client.qp.QPN()}))
			if reached := !only || ip.Is6(); reached {
				e := next(t, c, EventConnectRequest)
				must(t, e.ID.Reject(nil, ReasonConsumer), e.ID.Close())
				e = value(id.Next(ctx))(t)
				if e.Status != int32(ReasonConsumer) {
					t.Errorf("%s: %v", ip, e.Err())
				}
			} else if e := value(id.Next(ctx))(t); e.Type != EventRejected { // by the kernel: l gets no request
				t.Errorf("IPv6 only, %s: %s, %v", ip, e.Type, e.Err())
			}
		}
		must(t, l.Close())
	}
}

// TestSRQOfID: QPs of both sides take their receives from SRQs of their IDs.
func TestSRQOfID(t *testing.T) {
	c := openKernel(t)
	ctx := within(t)
	l, addr := listen(t, c, TCP, first)
	pd, cq := openPD(t)
	buf := value(uverbs.AllocBuffer(8192, uverbs.BufferOptions{}))(t)
	mr := value(pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite}))(t)
	defer func() { must(t, mr.Close(), buf.Close()) }()
	create := func(id *ID, wr uint64) (*uverbs.QP, *uverbs.SRQ) {
		srq := value(id.CreateSRQ(pd, uverbs.SRQOptions{MaxWR: 4, MaxSGE: 1}))(t)
		must(t, srq.PostRecv(wr, mr.SGE(int(wr)*1024, 1024)))
		return value(id.CreateQP(pd, uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))(t), srq
	}
	id := newID(t, c, TCP)
	must(t, id.ResolveWait(ctx, Addr{}, AddrOf(addr)))
	clientQP, _ := create(id, 1)
	must(t, id.Connect(ConnParam{RetryCount: 7, RNRRetryCount: 6}))
	request := value(l.NextRequest(ctx))(t)
	if !testenv.TheRig().IWARP() && !request.Param.SRQ {
		t.Errorf("the request does not announce the SRQ: %+v", request.Param)
	}
	serverQP, serverSRQ := create(request.ID, 2)
	must(t, request.ID.Accept(ConnParam{RNRRetryCount: 6}))
	if e := value(id.Next(ctx))(t); e.Type != EventEstablished {
		t.Fatalf("event is %s, %v", e.Type, e.Err())
	}
	if e := value(request.ID.Next(ctx))(t); e.Type != EventEstablished {
		t.Fatalf("event is %s, %v", e.Type, e.Err())
	}
	e := end{cq: cq}
	for i, from := range []*uverbs.QP{clientQP, serverQP} {
		text := []string{"to the server", "to the client"}[i]
		copy(buf.Bytes()[4096:], text)
		must(t, from.PostSend(uverbs.SendWR{ID: 9, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{mr.SGE(4096, len(text))}}))
		for range 2 {
			e.qp = from
			wc := e.poll(t)
			if wc.ID == 9 {
				continue
			}
			if want := uint64(2 - i); wc.ID != want || string(buf.Bytes()[wc.ID*1024:][:wc.ByteLen]) != text {
				t.Errorf("received %q by %d, want %q by %d", buf.Bytes()[wc.ID*1024:][:wc.ByteLen], wc.ID, text, want)
			}
		}
	}
	must(t, request.ID.Close())
	if err := serverSRQ.PostRecv(3); !isClosedError(err) {
		t.Errorf("the SRQ of a closed ID: %v", err)
	}
}

// TestCloseFails: an ID whose SRQ cannot be closed, since a QP of the program uses it, stays open.
func TestCloseFails(t *testing.T) {
	c := openKernel(t)
	pd, cq := openPD(t)
	id := newID(t, c, TCP)
	must(t, id.Bind(Addr{IP: first}))
	srq := value(id.CreateSRQ(pd, uverbs.SRQOptions{MaxWR: 4, MaxSGE: 1}))(t)
	qp := value(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, SRQ: srq}))(t)
	if err := id.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("Close: %v, want EBUSY", err)
	}
	must(t, id.Listen(0), qp.Close())
}

// TestTimewaitExit: after the end of a connection there is an event when its QP may be used again.
func TestTimewaitExit(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	c := openKernel(t)
	testenv.NeedsIB(t, "MODIFY_QP to RTS")
	_, addr := listen(t, c, TCP, first)
	id := newID(t, c, TCP)
	resolve(t, c, id, addr)
	_, server := establish(t, c, id)
	must(t, id.Disconnect())
	next(t, c, EventDisconnected)
	must(t, server.id.Disconnect())
	seen := map[*ID]int{}
	ctx := within(t)
	for seen[id] < 2 || seen[server.id] < 1 {
		e := value(c.Next(ctx))(t)
		if seen[e.ID]++; e.Err() != nil || e.Type != EventTimewaitExit && e.Type != EventDisconnected {
			t.Fatalf("event is %s, %v", e.Type, e.Err())
		}
	}
}

// TestConnectError: a side that cannot bring its QP to where the peer's answer wants it says so to both.
func TestConnectError(t *testing.T) {
	c := openKernel(t)
	testenv.NeedsIB(t, "MODIFY_QP to RTS")
	ctx := within(t)
	l, addr := listen(t, c, TCP, first)
	pd, cq := openPD(t)
	id := newID(t, c, TCP)
	must(t, id.ResolveWait(ctx, Addr{}, AddrOf(addr)))
	qp := value(id.CreateQP(pd, uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
	must(t, id.Connect(ConnParam{RetryCount: 7}))
	request := value(l.NextRequest(ctx))(t)
	value(request.ID.CreateQP(pd, uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
	must(t, qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
	must(t, request.ID.Accept(ConnParam{}))
	if e := value(id.Next(ctx))(t); e.Type != EventConnectError || e.Err() == nil || !strings.Contains(e.Err().Error(), addr.String()) || e.Status >= 0 {
		t.Errorf("the event is %s, %v", e.Type, e.Err())
	}
	if e := value(request.ID.Next(ctx))(t); e.Type != EventRejected || e.Status != int32(ReasonConsumer) {
		t.Errorf("the peer's is %s, %v", e.Type, e.Err())
	}
	must(t, request.ID.Close())
}

// TestUnreachable: the peer's hardware address changes, so that the way is none any more.
func TestUnreachable(t *testing.T) {
	c := openKernel(t)
	testenv.NeedsIB(t, "hardware addresses")
	testenv.NeedsKernel(t, "neighbors")
	testenv.NeedsRoCE(t, "Ethernet addresses")
	if v := testenv.Kernel(t); v[0] < 6 {
		testenv.Skip(t, &uverbs.FeatureError{Feature: "events of neighbours", Since: uverbs.Version{6, 0}})
	}
	_, addr := listen(t, c, TCP, first)
	id := newID(t, c, TCP)
	must(t, id.ResolveAddr(Addr{IP: second}, AddrOf(addr), timeout))
	next(t, c, EventAddrResolved)
	must(t, id.ResolveRoute(timeout))
	next(t, c, EventRouteResolved)
	establish(t, c, id)
	link := value(netlink.LinkByName(testenv.TheRig().Netdevs[1]))(t)
	changed := false
	for _, n := range value(netlink.NeighList(link.Attrs().Index, netlink.FAMILY_V4))(t) {
		if !n.IP.Equal(first.AsSlice()) {
			continue
		}
		old := n
		n.HardwareAddr, n.State = net.HardwareAddr{2, 0, 0, 0, 0, 9}, netlink.NUD_REACHABLE
		must(t, netlink.NeighSet(&n))
		t.Cleanup(func() { must(t, netlink.NeighDel(&old)) })
		changed = true
	}
	if !changed {
		t.Fatal("the peer is no neighbour")
	}
	if e := next(t, c, EventUnreachable); e.ID != id || !errors.Is(e.Err(), syscall.ETIMEDOUT) || !strings.Contains(e.Err().Error(), addr.String()) {
		t.Errorf("event is %+v, %v", e, e.Err())
	}
}

// TestRejectedMeanwhile: a peer that accepts and then takes that back is reported as one that rejects, also if this side
// has learned of neither when it moves its QP.
func TestRejectedMeanwhile(t *testing.T) {
	c := openKernel(t)
	testenv.NeedsIB(t, "MODIFY_QP to RTS")
	ctx := within(t)
	l, addr := listen(t, c, TCP, first)
	pd, cq := openPD(t)
	rejections := 0
	for range 50 {
		id := value(c.NewID(TCP))(t)
		must(t, id.ResolveWait(ctx, Addr{}, AddrOf(addr)))
		value(id.CreateQP(pd, uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
		closed := make(chan error, 1)
		go func() {
			request, err := l.NextRequest(ctx)
			if err == nil {
				_, err = request.ID.CreateQP(pd, uverbs.QPOptions{SendCQ: cq, RecvCQ: cq})
				err = errors.Join(err, request.ID.Accept(ConnParam{}), request.ID.Close())
			}
			closed <- err
		}()
		_, err := id.ConnectWait(ctx, ConnParam{RetryCount: 7})
		if err != nil { // else it was through before
			rejections++
			if e, ok := errors.AsType[*EventError](err); !ok || e.Type != EventRejected || !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("ConnectWait: %v", err)
			}
		}
		must(t, <-closed, id.Close())
	}
	if rejections == 0 {
		t.Error("the peer has never rejected")
	}
}
