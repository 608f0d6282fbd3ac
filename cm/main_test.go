package cm

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/cmtest"
	"github.com/goverbs/goverbs/cm/rdmacm"
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

// runTests runs the tests, or plays the role of another process, on software devices if the rig has
// such. It returns the exit status.
func runTests(m *testing.M) (code int) {
	if !testenv.Slow() {
		idleGrace /= 5 // most tests wait for it, some more than once
	}
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
	if role := os.Getenv(roleEnv); role != "" {
		play(role, os.Args[1])
		return 0
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
var (
	first, second, noHost = cmtest.Addresses()

	firstAny = netip.AddrPortFrom(first, 0).String() // any port
	firstBad = netip.AddrPortFrom(first, 9).String() // a port on which nobody listens
)

// timeout bounds each step.
const timeout = 5 * time.Second

// openKernel opens a channel of the kernel's, which is closed at the end of the test.
func openKernel(t *testing.T) *rdmacm.Channel {
	t.Helper()
	testenv.Guest(t)
	c := value(rdmacm.OpenChannel(rdmacm.ChannelOptions{}))(t)
	t.Cleanup(func() { must(t, c.Close(), c.Close()) })
	return c
}

// newID makes an ID that is closed at the end of the test.
func newID(t *testing.T, c *rdmacm.Channel, space rdmacm.PortSpace) *rdmacm.ID {
	t.Helper()
	id := value(c.NewID(space))(t)
	t.Cleanup(func() { must(t, id.Close(), id.Close()) })
	return id
}

// listen makes a listener and returns its address.
func listen(t *testing.T, c *rdmacm.Channel, space rdmacm.PortSpace, ip netip.Addr) (*rdmacm.ID, netip.AddrPort) {
	t.Helper()
	id := newID(t, c, space)
	must(t, id.Bind(rdmacm.Addr{IP: ip}), id.Listen(0))
	a := value(id.Addrs())(t)
	if a.Local.IP != ip || a.Local.Port == 0 || a.Device == "" {
		t.Fatalf("listener at %+v", a)
	}
	return id, netip.AddrPortFrom(ip, a.Local.Port)
}

// end is an end of a connection with its QP.
type end struct {
	id *rdmacm.ID
	pd *uverbs.PD
	cq *uverbs.CQ
	qp *uverbs.QP
	mr *uverbs.MR
}

// newEnd makes a QP on an ID's device and brings it to INIT.
func newEnd(t *testing.T, id *rdmacm.ID, typ ib.QPType) *end {
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

// next waits for an event of a type.
func next(t *testing.T, c *rdmacm.Channel, want rdmacm.EventType) *rdmacm.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*timeout)
	defer cancel()
	e := value(c.Next(ctx))(t)
	if e.Type != want {
		t.Fatalf("event is %s, %v, want %s", e.Type, e.Err(), want)
	}
	return e
}

// resolve resolves address and route.
func resolve(t *testing.T, c *rdmacm.Channel, id *rdmacm.ID, to netip.AddrPort) {
	t.Helper()
	must(t, id.ResolveAddr(rdmacm.Addr{}, rdmacm.AddrOf(to), timeout))
	if e := next(t, c, rdmacm.EventAddrResolved); e.ID != id {
		t.Fatal("the event is another ID's")
	}
	must(t, id.ResolveRoute(timeout))
	next(t, c, rdmacm.EventRouteResolved)
}

// loopbackReached reports whether loopback addresses lead to a device: software devices have them, and on
// InfiniBand the kernel takes any device for them.
func loopbackReached() bool { return testenv.TheRig().Soft || testenv.TheRig().InfiniBand() }

// openPD opens the first device.
func openPD(t *testing.T) (*uverbs.PD, *uverbs.CQ) {
	dev := value(uverbs.Open(testenv.TheRig().Devices[0], uverbs.OpenOptions{}))(t)
	pd := value(dev.AllocPD())(t)
	cq := value(dev.CreateCQ(uverbs.CQOptions{Size: 64}))(t)
	t.Cleanup(func() { must(t, cq.Close(), pd.Close(), dev.Close()) })
	return pd, cq
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
