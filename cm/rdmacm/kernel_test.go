package rdmacm

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/cmtest"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// lacking is what kernels lack, lackingMLX5 with ConnectX adapters and lackingSiw with soft iWARP.
var (
	//go:embed lacking.txt
	lacking string
	//go:embed lacking_mlx5.txt
	lackingMLX5 string
	//go:embed lacking_siw.txt
	lackingSiw string
)

// lackingSoft lists what software devices lack in addition to rxe, which they play.
//
//go:embed lacking_soft.txt
var lackingSoft string

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

// runTests runs the tests, on software devices if the rig has such. It returns the exit status.
func runTests(m *testing.M) (code int) {
	if testenv.TheRig().Soft {
		closeAll, err := cmtest.MakeSoft()
		if err != nil {
			fmt.Fprintln(os.Stderr, "software devices:", err)
			return 2
		}
		defer func() {
			if err := closeAll(); err != nil {
				fmt.Fprintln(os.Stderr, "software devices:", err)
				code = max(code, 1)
			}
		}()
	}
	return testenv.MainFor(m, map[string]string{"rxe": lacking, "mlx5": lackingMLX5, "siw": lackingSiw, "soft": lacking + lackingSoft})
}

// must fails the test on an error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// value returns v, or fails the test.
func value[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// Addresses of the guest's devices, or of the software devices, and one that no device has.
var first, second, noHost = cmtest.Addresses()

// first6 returns an IPv6 address of the first device.
func first6(t *testing.T) netip.Addr {
	t.Helper()
	rig := testenv.TheRig()
	if !rig.Soft {
		return netip.MustParseAddr("fd00:1::1")
	}
	dev := value(uverbs.Open(rig.Devices[0], uverbs.OpenOptions{}))(t)
	defer dev.Close()
	for _, e := range value(dev.GIDTable(1))(t) {
		if e.Index == rig.GID6 {
			return e.GID.Addr()
		}
	}
	t.Fatalf("%s has no GID %d", dev.Name(), rig.GID6)
	return netip.Addr{}
}

// timeout bounds each step.
const timeout = 5 * time.Second

// openKernel opens a channel of the kernel's, which is closed at the end of the test.
func openKernel(t *testing.T) *Channel {
	t.Helper()
	testenv.Guest(t)
	c := value(OpenChannel(ChannelOptions{}))(t)
	t.Cleanup(func() { must(t, c.Close(), c.Close()) })
	return c
}

// newID makes an ID that is closed at the end of the test.
func newID(t *testing.T, c *Channel, space PortSpace) *ID {
	t.Helper()
	id := value(c.NewID(space))(t)
	t.Cleanup(func() { must(t, id.Close(), id.Close()) })
	return id
}

// next waits for an event of a type.
func next(t *testing.T, c *Channel, want EventType) *Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*timeout)
	defer cancel()
	e := value(c.Next(ctx))(t)
	if e.Type != want {
		t.Fatalf("event is %s, %v, want %s", e.Type, e.Err(), want)
	}
	return e
}

// refuse rejects a request, and returns the event of the peer. A peer that loses the refusal asks again.
func refuse(t *testing.T, c *Channel, request *Event, data []byte, reason Reason) *Event {
	t.Helper()
	ctx := within(t)
	for {
		must(t, request.ID.Reject(data, reason), request.ID.Close())
		e := value(c.Next(ctx))(t)
		if e.Type == EventRejected {
			return e
		}
		if e.Type != EventConnectRequest || testenv.SoftFaults() == "" {
			t.Fatalf("event is %s, %v, want %s", e.Type, e.Err(), EventRejected)
		}
		request = e
	}
}

// listen makes a listener and returns its address.
func listen(t *testing.T, c *Channel, space PortSpace, ip netip.Addr) (*ID, netip.AddrPort) {
	t.Helper()
	id := newID(t, c, space)
	must(t, id.Bind(Addr{IP: ip}), id.Listen(0))
	a := value(id.Addrs())(t)
	if a.Local.IP != ip || a.Local.Port == 0 || a.Device == "" {
		t.Fatalf("listener at %+v", a)
	}
	return id, netip.AddrPortFrom(ip, a.Local.Port)
}

// resolve resolves address and route.
func resolve(t *testing.T, c *Channel, id *ID, to netip.AddrPort) {
	t.Helper()
	must(t, id.ResolveAddr(Addr{}, AddrOf(to), timeout))
	if e := next(t, c, EventAddrResolved); e.ID != id {
		t.Fatal("the event is another ID's")
	}
	must(t, id.ResolveRoute(timeout))
	next(t, c, EventRouteResolved)
}

// end is an end of a connection with its QP.
type end struct {
	id *ID
	pd *uverbs.PD
	cq *uverbs.CQ
	qp *uverbs.QP
	mr *uverbs.MR
}

// newEnd makes a QP on an ID's device and brings it to INIT.
func newEnd(t *testing.T, id *ID, typ ib.QPType) *end {
	t.Helper()
	closeLater := func(close func() error) { t.Cleanup(func() { must(t, close()) }) }
	dev := value(uverbs.Open(value(id.Addrs())(t).Device, uverbs.OpenOptions{}))(t)
	closeLater(dev.Close)
	pd := value(dev.AllocPD())(t)
	closeLater(pd.Close)
	buf := value(uverbs.AllocBuffer(4096, uverbs.BufferOptions{}))(t)
	closeLater(buf.Close)
	e := &end{id: id, pd: pd, mr: value(pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite}))(t)}
	closeLater(e.mr.Close)
	e.cq = value(dev.CreateCQ(uverbs.CQOptions{Size: 8}))(t)
	closeLater(e.cq.Close)
	e.qp = value(pd.CreateQP(uverbs.QPOptions{Type: typ, SendCQ: e.cq, RecvCQ: e.cq}))(t)
	closeLater(e.qp.Close)
	e.to(t, ib.QPInit)
	return e
}

// to brings the QP into a state, with the connection manager's attributes.
func (e *end) to(t *testing.T, state ib.QPState) {
	t.Helper()
	attr, mask, err := e.id.QPAttr(state)
	must(t, err, e.qp.Modify(attr, mask))
}

// poll waits for a completion.
func (e *end) poll(t *testing.T) uverbs.WC {
	t.Helper()
	wcs := make([]uverbs.WC, 1)
	for end := time.Now().Add(timeout); time.Now().Before(end); {
		if value(e.cq.Poll(wcs))(t) == 1 {
			must(t, e.qp.Err(&wcs[0]))
			return wcs[0]
		}
	}
	t.Fatal("no completion")
	return uverbs.WC{}
}

// TestConnection connects two devices, talks and disconnects, all on one channel.
func TestConnection(t *testing.T) {
	c := openKernel(t)
	testenv.NeedsIB(t, "MODIFY_QP to RTS")
	l, addr := listen(t, c, TCP, first)
	id := newID(t, c, TCP)
	resolve(t, c, id, addr)
	if a := value(id.Addrs())(t); a.Remote.IP != first || a.Remote.Port != addr.Port() || !a.Local.IP.IsValid() || a.Local.Port == 0 {
		t.Errorf("addresses are %+v", a)
	}
	client := newEnd(t, id, ib.RC)
	hello, welcome := bytes.Repeat([]byte("h"), 56), bytes.Repeat([]byte("w"), 196)
	param := ConnParam{PrivateData: hello, ResponderResources: 3, InitiatorDepth: 2, RetryCount: 7, RNRRetryCount: 6, QPN: client.qp.QPN()}
	must(t, id.Connect(param))

	request := next(t, c, EventConnectRequest)
	if request.Listen != l || request.ID == l || !bytes.Equal(request.Param.PrivateData[:56], hello) ||
		request.Param.ResponderResources != 2 || request.Param.InitiatorDepth != 3 || request.Param.QPN != client.qp.QPN() {
		t.Errorf("request is %+v", request)
	}
	t.Cleanup(func() { must(t, request.ID.Close()) })
	server := newEnd(t, request.ID, ib.RC)
	server.to(t, ib.QPRTR)
	server.to(t, ib.QPRTS)
	must(t, server.qp.PostRecv(1, server.mr.SGE(0, 4096)))
	must(t, request.ID.Accept(ConnParam{PrivateData: welcome, ResponderResources: 2, InitiatorDepth: 2, RNRRetryCount: 7, QPN: server.qp.QPN()}))

	if e := next(t, c, EventConnectResponse); e.ID != id || !bytes.Equal(e.Param.PrivateData[:196], welcome) {
		t.Errorf("answer is %+v", e)
	}
	client.to(t, ib.QPRTR)
	client.to(t, ib.QPRTS)
	must(t, id.Establish())
	if e := next(t, c, EventEstablished); e.ID != request.ID {
		t.Error("established is another ID")
	}
	copy(client.mr.Bytes(), "over the connection manager")
	must(t, client.qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{client.mr.SGE(0, 27)}}))
	client.poll(t)
	if wc := server.poll(t); string(server.mr.Bytes()[:wc.ByteLen]) != "over the connection manager" {
		t.Errorf("received %q", server.mr.Bytes()[:wc.ByteLen])
	}
	must(t, id.Disconnect())
	if e := next(t, c, EventDisconnected); e.ID != request.ID {
		t.Error("disconnected is another ID")
	}
	must(t, request.ID.Disconnect())
	if e := next(t, c, EventDisconnected); e.ID != id {
		t.Error("disconnected is another ID")
	}
}

// TestErrorMessages: what goes wrong, and what is said of it.
func TestErrorMessages(t *testing.T) {
	c := openKernel(t)
	testenv.NeedsIB(t, "reasons of rejections")
	says := func(err error, is error, words ...string) {
		t.Helper()
		if !errors.Is(err, is) {
			t.Errorf("error is %v, want %v", err, is)
			return
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("error %q does not say %q", err, w)
			}
		}
	}
	// Nobody listens.
	id := newID(t, c, TCP)
	resolve(t, c, id, netip.AddrPortFrom(first, 9))
	client := newEnd(t, id, ib.RC)
	must(t, id.Connect(ConnParam{QPN: client.qp.QPN()}))
	e := next(t, c, EventRejected)
	says(e.Err(), syscall.ECONNREFUSED, "nobody listens", "reason 8")

	// The program rejects.
	_, addr := listen(t, c, TCP, first)
	id = newID(t, c, TCP)
	resolve(t, c, id, addr)
	client = newEnd(t, id, ib.RC)
	must(t, id.Connect(ConnParam{QPN: client.qp.QPN()}))
	request := next(t, c, EventConnectRequest)
	e = refuse(t, c, request, []byte("not you"), ReasonConsumer)
	says(e.Err(), syscall.ECONNREFUSED, "the program there has rejected the request", "reason 28")
	if string(e.Param.PrivateData[:7]) != "not you" {
		t.Errorf("private data is %q", e.Param.PrivateData)
	}

	// Addresses.
	id = newID(t, c, TCP)
	says(id.Bind(AddrOf(netip.MustParseAddrPort("192.0.2.1:1"))), syscall.EADDRNOTAVAIL, "no network interface", "192.0.2.1:1")
	says(id.Bind(AddrOf(addr)), syscall.EADDRINUSE, "taken", addr.String())
	id = newID(t, c, TCP)
	if !testenv.TheRig().Soft { // which has no neighbors
		must(t, id.ResolveAddr(Addr{}, Addr{IP: noHost, Port: 1}, 200*time.Millisecond))
		says(next(t, c, EventAddrError).Err(), syscall.ETIMEDOUT, noHost.String()+":1", "no host on the network")
	}

	if !loopbackReached() {
		id = newID(t, c, TCP) // the kernel takes any device for it, and finds no route by that
		must(t, id.ResolveAddr(Addr{}, AddrOf(netip.MustParseAddrPort("127.0.0.1:7471")), timeout))
		next(t, c, EventAddrResolved)
		says(id.ResolveRoute(timeout), syscall.ENODEV, "127.0.0.1:7471", "loopback is a network interface without an RDMA device; use an address of a device here: ")
	}
	id = newID(t, c, TCP)
	err := id.ResolveAddr(Addr{}, AddrOf(netip.MustParseAddrPort("192.0.2.1:1")), timeout)
	if err == nil {
		err = next(t, c, EventAddrError).Err()
	}
	says(err, cmtest.NoRoute(), "192.0.2.1:1")

	// Too much, and what is closed.
	id = newID(t, c, TCP)
	for _, err := range []error{
		id.Connect(ConnParam{PrivateData: make([]byte, 57)}), id.Accept(ConnParam{PrivateData: make([]byte, 197)}),
		id.Reject(make([]byte, 149), ReasonConsumer), id.Reject(nil, ReasonStaleConn), id.Connect(ConnParam{RetryCount: 8}), id.Connect(ConnParam{MTU: 200}),
		id.ResolveRoute(0), id.Listen(-1), id.Bind(Addr{}),
	} {
		var arg *ArgError
		if !errors.As(err, &arg) {
			t.Errorf("error is %v, want an ArgError", err)
		}
	}
	says(id.Accept(ConnParam{}), syscall.EINVAL, "does not allow it")
	says(c.Close(), syscall.EBUSY, "IDs; close them first")
	must(t, id.Close())
	says(id.Listen(1), os.ErrClosed)
	_, err = id.Addrs()
	says(err, os.ErrClosed)
	_, _, err = id.QPAttr(ib.QPInit)
	says(err, os.ErrClosed)
}

// TestOptions sets each option.
func TestOptions(t *testing.T) {
	c := openKernel(t)
	id := newID(t, c, TCP)
	must(t, id.SetTOS(0x10), id.SetReuseAddr(true), id.SetAFOnly(false), id.SetAckTimeout(time.Second))
}

// TestNextEnds: a wait ends with its context, and with the channel.
func TestNextEnds(t *testing.T) {
	testenv.Guest(t)
	c := value(OpenChannel(ChannelOptions{}))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the context: %v", err)
	}
	if _, err := c.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the context, once more: %v", err)
	}
	id := value(c.NewID(TCP))(t) // the deadline is gone
	must(t, id.ResolveAddr(Addr{}, Addr{IP: first, Port: 1}, timeout))
	next(t, c, EventAddrResolved)
	must(t, id.Close())
	done := make(chan error)
	go func() {
		_, err := c.Next(context.Background())
		done <- err
	}()
	time.Sleep(20 * time.Millisecond)
	must(t, c.Close())
	if err := <-done; !isClosedError(err) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := c.NewID(TCP); !isClosedError(err) {
		t.Errorf("NewID after Close: %v", err)
	}
}

// loopbackReached reports whether loopback addresses lead to a device: software devices have them, and on
// InfiniBand the kernel takes any device for them.
func loopbackReached() bool { return testenv.TheRig().Soft || testenv.TheRig().InfiniBand() }

// TestMulticast joins a group with two IDs and sends a datagram to it.
func TestMulticast(t *testing.T) {
	c := openKernel(t)
	testenv.NeedsIB(t, "datagrams")
	testenv.NeedsNoLoss(t, "a datagram that is lost stays lost")
	group := netip.MustParseAddr("239.1.2.3")
	join := func(flags JoinFlags) (*end, *Event) {
		id := newID(t, c, UDP)
		must(t, id.Bind(Addr{IP: first}))
		e := newEnd(t, id, ib.UD)
		e.to(t, ib.QPRTR)
		e.to(t, ib.QPRTS)
		g := value(id.Join(group, flags))(t)
		t.Cleanup(func() { must(t, g.Close(), g.Close()) })
		joined := next(t, c, EventMulticastJoin)
		if joined.ID != id || joined.Group != g || joined.UD.QPN != MulticastQPN || joined.Err() != nil || !joined.UD.AH.GRH.DGID.Addr().IsMulticast() {
			t.Errorf("joined is %+v", joined)
		}
		return e, joined
	}
	receiver, joined := join(JoinFullMember)
	to := joined.UD.AH
	must(t, receiver.qp.AttachMulticast(to.GRH.DGID, to.DLID))
	defer receiver.qp.DetachMulticast(to.GRH.DGID, to.DLID)
	must(t, receiver.qp.PostRecv(1, receiver.mr.SGE(0, 1000)))
	sender, joined := join(JoinFullMember)
	ah := value(sender.pd.CreateAH(joined.UD.AH))(t)
	defer ah.Close()
	copy(sender.mr.Bytes(), "to all")
	must(t, sender.qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{sender.mr.SGE(0, 6)},
		AH: ah, RemoteQPN: joined.UD.QPN, RemoteQKey: joined.UD.QKey}))
	sender.poll(t)
	if wc := receiver.poll(t); string(receiver.mr.Bytes()[uverbs.GRHSize:wc.ByteLen]) != "to all" {
		t.Errorf("received %q", receiver.mr.Bytes()[uverbs.GRHSize:wc.ByteLen])
	}
	id := newID(t, c, TCP)
	for _, group := range []string{"239.1.2.3", first.String()} {
		var arg *ArgError
		if _, err := id.Join(netip.MustParseAddr(group), JoinFullMember); !errors.As(err, &arg) {
			t.Errorf("join %s of TCP: %v", group, err)
		}
	}
}

// TestMigrate: an ID takes its events along to another channel, and what is on neither is
// closed.
func TestMigrate(t *testing.T) {
	c, d := openKernel(t), openKernel(t)
	id := newID(t, c, TCP)
	must(t, id.ResolveAddr(Addr{}, Addr{IP: first, Port: 1}, timeout))
	time.Sleep(50 * time.Millisecond) // the event is there, and unread
	must(t, id.Migrate(d), id.Migrate(d))
	if e := next(t, d, EventAddrResolved); e.ID != id {
		t.Error("the event is another ID's")
	}
	must(t, id.ResolveRoute(timeout))
	next(t, d, EventRouteResolved)
	l, addr := listen(t, c, TCP, first)
	if err := l.Migrate(d); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "a listener stays") {
		t.Errorf("Migrate of a listener: %v", err)
	}
	client := newID(t, c, TCP)
	resolve(t, c, client, addr)
	must(t, client.Connect(ConnParam{QPN: newEnd(t, client, ib.RC).qp.QPN()}))
	request := next(t, c, EventConnectRequest).ID
	must(t, request.Migrate(d), request.Reject(nil, ReasonConsumer), request.Close())
	must(t, id.Migrate(c), id.Close())
	if err := id.Migrate(d); !isClosedError(err) {
		t.Errorf("Migrate after Close: %v", err)
	}
}

// within returns a context for a whole test.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 12*timeout)
	t.Cleanup(cancel)
	return ctx
}

// second1 returns the second of two results.
func second1[T any](_ T, err error) error { return err }
