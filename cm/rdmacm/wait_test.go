package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// put has the channel get an event.
func put(t *testing.T, c *Channel, id *ID, typ EventType) {
	t.Helper()
	e := c.newEvent(eventResp(id.uid, id.handle, typ, 0))
	if e == nil || !c.deliver(e, nil) {
		t.Fatal("the event goes nowhere")
	}
}

// TestWaitAndNextEvents: an ID that is waited for has its events for itself.
func TestWaitAndNextEvents(t *testing.T) {
	c, k := newFake(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	mine, other := value(c.NewID(TCP))(t), value(c.NewID(TCP))(t)
	if _, err := mine.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Wait: %v", err)
	}
	put(t, c, mine, EventAddrResolved)
	put(t, c, other, EventAddrResolved)
	put(t, c, mine, EventRouteResolved)
	if e := value(c.Next(t.Context()))(t); e.ID != other {
		t.Error("Next has taken what is waited for")
	}
	for _, want := range []EventType{EventAddrResolved, EventRouteResolved} {
		if e := value(mine.Next(t.Context()))(t); e.ID != mine || e.Type != want {
			t.Errorf("Wait returned %s, want %s", e.Type, want)
		}
	}
	// Requests that nobody takes go with the listener, waiters too.
	if e := c.newEvent(eventResp(mine.uid, 77, EventConnectRequest, 0)); e == nil || !c.deliver(e, nil) || !e.ID.exclusive.Load() {
		t.Errorf("request is %+v", e)
	}
	done := make(chan error)
	go func() {
		_, err := other.Next(context.Background())
		done <- err
	}()
	for { // until it waits
		c.mu.Lock()
		n := len(c.waiters)
		c.mu.Unlock()
		if n == 1 {
			break
		}
	}
	must(t, mine.Close(), other.Close())
	if err := <-done; !isClosedError(err) {
		t.Errorf("Wait of a closed ID: %v", err)
	}
	if _, err := other.Next(t.Context()); !isClosedError(err) {
		t.Errorf("Wait after Close: %v", err)
	}
	if len(k.gone) != 3 || len(c.pending)+len(c.waiters)+len(c.ids) != 0 {
		t.Errorf("destroyed are %v; left: %d events, %d waiters, %d IDs", k.gone, len(c.pending), len(c.waiters), len(c.ids))
	}
	must(t, c.Close())
}

// TestShareEvents: Next returns the events of an ID again, also those that have arrived before.
func TestShareEvents(t *testing.T) {
	c, _ := newFake(t)
	id := value(c.NewID(TCP))(t)
	t.Cleanup(func() { must(t, id.Close()) })
	ended, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := id.Next(ended); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Wait: %v", err)
	}
	put(t, c, id, EventAddrResolved)
	id.ShareEvents()
	put(t, c, id, EventRouteResolved)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for _, want := range []EventType{EventAddrResolved, EventRouteResolved} {
		if e := value(c.Next(ctx))(t); e.ID != id || e.Type != want {
			t.Errorf("Next returned %s, want %s", e.Type, want)
		}
	}
}

// TestShareEventsBesideClose: requests whose listener is closed meanwhile do not get lost.
func TestShareEventsBesideClose(t *testing.T) {
	c, k := newFake(t)
	const rounds, requests = 200, 50
	for range rounds {
		id := value(c.NewID(TCP))(t)
		id.exclusive.Store(true)
		for range requests {
			put(t, c, id, EventConnectRequest)
		}
		var sharing sync.WaitGroup
		sharing.Go(id.ShareEvents)
		for id.exclusive.Load() { // until it shares, or has shared
			runtime.Gosched()
		}
		must(t, id.Close())
		sharing.Wait()
	}
	if len(k.gone) != rounds*(requests+1) || len(c.pending) != 0 {
		t.Errorf("%d IDs were destroyed, want %d with the requests; %d events are left", len(k.gone), rounds*(requests+1), len(c.pending))
	}
	must(t, c.Close())
}

// TestReaderIsGivenEvent: the goroutine that reads the channel is woken if another one has an event for it, as
// when an ID moves to the channel.
func TestReaderIsGivenEvent(t *testing.T) {
	c, _ := newFake(t)
	ctx := within(t)
	id := value(c.NewID(TCP))(t)
	for range 5 {
		done := make(chan error)
		go func() {
			_, err := id.Next(ctx)
			done <- err
		}()
		for reads := false; !reads; time.Sleep(time.Millisecond) {
			c.mu.Lock()
			reads = c.reader != nil
			c.mu.Unlock()
		}
		put(t, c, id, EventAddrResolved)
		if err := <-done; err != nil || ctx.Err() != nil {
			t.Fatalf("Wait: %v; its context: %v", err, ctx.Err())
		}
	}
	must(t, id.Close(), c.Close())
}

// TestWaitEndsAmongOthers: who waits for an ID's event sees the end of its context, too, while
// there is always one more event of another ID.
func TestWaitEndsAmongOthers(t *testing.T) {
	c, k := newFake(t)
	mine, other := value(c.NewID(TCP))(t), value(c.NewID(TCP))(t)
	ctx, cancel := context.WithCancel(t.Context())
	const last = 3
	read := 0
	k.event = func() *abi.EventResp {
		if read++; read == last {
			cancel()
		}
		if read > last {
			t.Error("there are more reads than events before the end of the context")
			return eventResp(mine.uid, mine.handle, EventAddrResolved, 0)
		}
		return eventResp(other.uid, other.handle, EventAddrResolved, 0)
	}
	if _, err := mine.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait: %v", err)
	}
	for range last {
		if e := value(c.Next(t.Context()))(t); e.ID != other {
			t.Errorf("the event is of %p, want %p", e.ID, other)
		}
	}
	must(t, mine.Close(), other.Close(), c.Close())
}

// TestUnexpectedEvent: a step that waits says what has come instead.
func TestUnexpectedEvent(t *testing.T) {
	c, k := newFake(t)
	id := value(c.NewID(TCP))(t)
	put(t, c, id, EventDisconnected)
	var e *EventError
	if _, err := id.ConnectWait(t.Context(), ConnParam{}); !errors.As(err, &e) || e.Type != EventDisconnected || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("ConnectWait: %v", err)
	}
	k.refuse[abi.RDMA_USER_CM_CMD_RESOLVE_ADDR] = syscall.ENODEV
	if err := id.ResolveWait(t.Context(), Addr{}, Addr{IP: first, Port: 1}); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("Resolve: %v", err)
	}
	must(t, id.Close())
}

// TestResolveAgain: an address that was not found in time is looked for again, until the
// context ends.
func TestResolveAgain(t *testing.T) {
	c, k := newFake(t)
	id := value(c.NewID(TCP))(t)
	timedOut := func() {
		if e := c.newEvent(eventResp(id.uid, id.handle, EventAddrError, -int32(syscall.ETIMEDOUT))); !c.deliver(e, nil) {
			t.Fatal("the event goes nowhere")
		}
	}
	timedOut()
	timedOut()
	put(t, c, id, EventAddrResolved)
	put(t, c, id, EventRouteResolved)
	must(t, id.ResolveWait(t.Context(), Addr{}, Addr{IP: first, Port: 1}))
	if n := k.given[abi.RDMA_USER_CM_CMD_RESOLVE_ADDR]; n != 3 {
		t.Errorf("the address was looked for %d times, want 3", n)
	}
	timedOut()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := id.ResolveWait(ctx, Addr{}, Addr{IP: first, Port: 1})
	if !errors.Is(err, syscall.ETIMEDOUT) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Resolve: %v", err)
	}
	must(t, id.Close())
}

// TestNeighbour resolves the address of a neighbour that has to be asked for its own, and
// answers at once.
func TestNeighbour(t *testing.T) {
	c := openKernel(t)
	for range 3 {
		for _, n := range value(netlink.NeighList(0, netlink.FAMILY_V4))(t) {
			if n.IP.Equal(first.AsSlice()) {
				must(t, netlink.NeighDel(&n))
			}
		}
		id := newID(t, c, TCP)
		ctx, cancel := context.WithTimeout(t.Context(), 2*timeout)
		defer cancel()
		must(t, id.ResolveWait(ctx, Addr{IP: second}, Addr{IP: first, Port: 1}))
	}
}

// pair connects two IDs with QPs of CreateQP.
func pair(t *testing.T, ctx context.Context, c *Channel, l *ID, addr netip.AddrPort, pd *uverbs.PD, cq *uverbs.CQ) (client, server *ID) {
	t.Helper()
	o := uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}
	client = value(c.NewID(TCP))(t)
	must(t, client.ResolveWait(ctx, Addr{}, AddrOf(addr)))
	value(client.CreateQP(pd, o))(t)
	accepted := make(chan error, 1)
	go func() {
		e, err := l.NextRequest(ctx)
		if err == nil {
			server = e.ID
			if _, err = server.CreateQP(pd, o); err == nil {
				err = server.AcceptWait(ctx, ConnParam{PrivateData: e.Param.PrivateData[:4], ResponderResources: 2, InitiatorDepth: 4})
			}
		}
		accepted <- err
	}()
	answer, err := client.ConnectWait(ctx, ConnParam{PrivateData: []byte("ping"), ResponderResources: 4, InitiatorDepth: 2, RetryCount: 7})
	must(t, err, <-accepted)
	if string(answer.Param.PrivateData[:4]) != "ping" || answer.Type != EventEstablished {
		t.Errorf("answer is %+v", answer)
	}
	return client, server
}

// openPD opens the first device.
func openPD(t *testing.T) (*uverbs.PD, *uverbs.CQ) {
	dev := value(uverbs.Open(testenv.TheRig().Devices[0], uverbs.OpenOptions{}))(t)
	pd := value(dev.AllocPD())(t)
	cq := value(dev.CreateCQ(uverbs.CQOptions{Size: 64}))(t)
	t.Cleanup(func() { must(t, cq.Close(), pd.Close(), dev.Close()) })
	return pd, cq
}

// TestQPOfID: the steps that wait, with QPs that follow their IDs.
func TestQPOfID(t *testing.T) {
	c := openKernel(t)
	l, addr := listen(t, c, TCP, first)
	pd, cq := openPD(t)
	ctx, cancel := context.WithTimeout(t.Context(), 6*timeout)
	defer cancel()
	client, server := pair(t, ctx, c, l, addr, pd, cq)
	for id, want := range map[*ID][2]uint8{client: {4, 2}, server: {2, 4}} {
		a := value(id.queues.qp.Load().Query())(t)
		remote, state := uverbs.AccessRemoteWrite|uverbs.AccessRemoteRead|uverbs.AccessRemoteAtomic, ib.QPRTS
		if onIWARP(pd.Device()) { // the side that accepts has heard nothing yet
			remote &^= uverbs.AccessRemoteAtomic
			if id == server {
				state = ib.QPRTR
			}
		}
		if a.State != state || a.Access&remote != remote || a.MaxDestRdAtomic != want[0] || a.MaxRdAtomic != want[1] {
			t.Errorf("QP is %+v", a)
		}
		if _, err := id.CreateQP(pd, uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("a second QP: %v", err)
		}
		if _, err := id.CreateSRQ(pd, uverbs.SRQOptions{}); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("an SRQ beside the QP: %v", err)
		}
	}
	gone := make(chan error, 1)
	go func() {
		_, err := server.waitFor(ctx, "wait", EventDisconnected)
		if err == nil {
			err = server.Disconnect()
		}
		gone <- err
	}()
	must(t, client.DisconnectWait(ctx), <-gone)
	if s := client.queues.qp.Load().State(); s != ib.QPErr {
		t.Errorf("the QP is in %s", s)
	}
	qp := client.queues.qp.Load()
	must(t, client.Close(), server.Close())
	if err := qp.PostRecv(1); !isClosedError(err) {
		t.Errorf("QP of a closed ID: %v", err)
	}

	// An SRQ of the ID's.
	id := newID(t, c, TCP)
	if _, err := id.CreateSRQ(pd, uverbs.SRQOptions{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("an SRQ without a device: %v", err)
	}
	must(t, id.Bind(Addr{IP: first}))
	srq := value(id.CreateSRQ(pd, uverbs.SRQOptions{}))(t)
	must(t, srq.PostRecv(1))
	id2 := newID(t, c, TCP)
	must(t, id2.Bind(Addr{IP: second}))
	var arg *ArgError
	if _, err := id2.CreateQP(pd, uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}); !errors.As(err, &arg) || arg.Field != "pd" {
		t.Errorf("a PD of another device: %v", err)
	}
	if _, err := id2.CreateQP(nil, uverbs.QPOptions{}); !errors.As(err, &arg) || arg.Field != "pd" {
		t.Errorf("no PD: %v", err)
	}
}

// TestManyWait: goroutines deal with an ID each on one channel, while another reads what is
// left; one that gives up takes nothing along.
func TestManyWait(t *testing.T) {
	c := openKernel(t)
	_, addr := listen(t, c, TCP, first)
	ctx, cancel := context.WithTimeout(t.Context(), 6*timeout)
	defer cancel()
	rest, stop := context.WithCancel(ctx)
	read := make(chan error, 1)
	go func() {
		e, err := c.Next(rest)
		if err == nil {
			err = fmt.Errorf("event %s of an ID that is waited for", e.Type)
		}
		read <- err
	}()
	var all sync.WaitGroup
	for i := range 100 {
		id := newID(t, c, TCP)
		all.Go(func() {
			if i%10 == 0 && !testenv.TheRig().Soft { // which has no neighbors
				short, cancel := context.WithTimeout(ctx, time.Millisecond)
				defer cancel()
				if err := id.ResolveWait(short, Addr{}, Addr{IP: noHost, Port: 1}); err == nil {
					t.Error("an address of nobody was resolved")
				}
				return
			}
			if err := id.ResolveWait(ctx, Addr{}, AddrOf(addr)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	stop()
	if err := <-read; !errors.Is(err, context.Canceled) {
		t.Errorf("Next: %v", err)
	}
}

// TestResolveWaitErrors: ResolveWait says that the ID is in another state, or that an argument is wrong, and not that
// the address leads to no device.
func TestResolveWaitErrors(t *testing.T) {
	c := openKernel(t)
	_, addr := listen(t, c, TCP, first)
	id := newID(t, c, TCP)
	must(t, id.ResolveWait(within(t), Addr{}, AddrOf(addr)))
	if err := id.ResolveWait(within(t), Addr{}, AddrOf(addr)); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "state") {
		t.Errorf("of an ID that is resolved: %v", err)
	}
	var arg *ArgError
	if err := newID(t, c, UDP).ResolveWait(within(t), Addr{}, Addr{Space: TCP, IP: addr.Addr(), Port: addr.Port()}); !errors.As(err, &arg) || arg.Field != "remote" {
		t.Errorf("of another port space: %v", err)
	}
}

// TestMigrateWaiter: who waits for an ID that moves goes on waiting there.
func TestMigrateWaiter(t *testing.T) {
	c, d := openKernel(t), openKernel(t)
	id := newID(t, c, TCP)
	ctx, cancel := context.WithTimeout(t.Context(), 6*timeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := id.waitFor(ctx, "wait", EventAddrResolved)
		done <- err
	}()
	time.Sleep(20 * time.Millisecond)
	must(t, id.Migrate(d))
	must(t, id.ResolveAddr(Addr{}, Addr{IP: first, Port: 1}, timeout), <-done)
	go func() {
		_, err := id.Next(ctx)
		done <- err
	}()
	time.Sleep(20 * time.Millisecond)
	must(t, id.Close())
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Wait of a closed ID: %v", err)
	}
}

// TestReadHungDevice: Read does not wait for an ID whose QP a goroutine creates or destroys, on a device that hangs.
func TestReadHungDevice(t *testing.T) {
	c, _ := newFake(t)
	id := value(c.NewID(TCP))(t)
	id.queues.mu.Lock()
	defer id.queues.mu.Unlock()
	put(t, c, id, EventDisconnected)
	if e := value(c.Read(t.Context()))(t); e.ID != id || e.Type != EventDisconnected {
		t.Errorf("got %+v", e)
	}
}
