package cm

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestEventLoopUsers: a hub that is over has no more users, whoever asks at the same time.
func TestEventLoopUsers(t *testing.T) {
	for range 100 {
		h := &eventLoop{users: 1, ids: map[*rdmacm.ID]*inbound{}}
		var all sync.WaitGroup
		all.Go(func() { h.acquire() })
		all.Go(h.drain)
		all.Wait()
		if h.acquire() {
			t.Fatal("an event loop that is draining has one more user")
		}
		if h.users != 1 && h.users != 2 {
			t.Fatalf("%d users", h.users)
		}
	}
}

// TestEventLoopHungHandler: a handler that waits for a device stops the events of its own ID, which it gets in
// order, and no others.
func TestEventLoopHungHandler(t *testing.T) {
	l := &eventLoop{ids: map[*rdmacm.ID]*inbound{}}
	hung, other, gone := &rdmacm.ID{}, &rdmacm.ID{}, &rdmacm.ID{}
	wait, started := make(chan struct{}), make(chan struct{}, 3)
	var got []rdmacm.EventType // by hung's handler
	ended := make(chan error)
	l.ids[hung] = &inbound{handler: eventHandler{func(e *rdmacm.Event) {
		started <- struct{}{}
		<-wait
		got = append(got, e.Type)
	}, func(err error) { ended <- err }}}
	seen := make(chan rdmacm.EventType, 1)
	l.ids[other] = &inbound{handler: eventHandler{event: func(e *rdmacm.Event) { seen <- e.Type }}}
	l.ids[gone] = &inbound{handler: eventHandler{event: func(e *rdmacm.Event) {
		started <- struct{}{}
		<-wait
		if e.Type != rdmacm.EventEstablished {
			t.Errorf("a handler that is no longer registered gets %s", e.Type)
		}
	}}}

	for _, e := range []rdmacm.EventType{rdmacm.EventEstablished, rdmacm.EventAddrChange, rdmacm.EventDisconnected} {
		l.pass(&rdmacm.Event{ID: hung, Type: e})
		l.pass(&rdmacm.Event{ID: gone, Type: e})
	}
	<-started
	<-started
	l.unregister(gone)
	l.pass(&rdmacm.Event{ID: other, Type: rdmacm.EventDisconnected})
	if e := <-seen; e != rdmacm.EventDisconnected {
		t.Errorf("the other ID gets %s", e)
	}
	l.fail(errClosed)
	close(wait)
	if err := <-ended; err != errClosed {
		t.Errorf("there are no more events because of %v", err)
	}
	if want := []rdmacm.EventType{rdmacm.EventEstablished, rdmacm.EventAddrChange, rdmacm.EventDisconnected}; !slices.Equal(got, want) {
		t.Errorf("events are %v, want %v", got, want)
	}
}

// TestNoEventLoop: without an event loop there is no ID.
func TestNoEventLoop(t *testing.T) {
	want := errors.New("no channel")
	_, id, err := newLoopID(rdmacm.TCP, netip.Addr{}, netip.Addr{}, func(_, _ netip.Addr) (*eventLoop, error) { return nil, want })
	if id != nil || err != want {
		t.Errorf("ID %v, error %v, want %v", id, err, want)
	}
}

// TestEventLoopLastRequest: a loop whose last user leaves while a request is being refused ends nevertheless, and
// its channel is closed.
func TestEventLoopLastRequest(t *testing.T) {
	peer := openKernel(t)
	c := value(rdmacm.OpenChannel(rdmacm.ChannelOptions{}))(t)
	l := runEventLoop(c)
	id := value(c.NewID(rdmacm.TCP))(t)
	l.register(id, eventHandler{event: func(e *rdmacm.Event) {
		l.release()
		must(t, id.Close(), e.ID.Close())
	}})
	must(t, id.Bind(rdmacm.Addr{IP: first}), id.Listen(0))
	from := newID(t, peer, rdmacm.TCP)
	must(t, from.ResolveWait(t.Context(), rdmacm.Addr{}, rdmacm.Addr{IP: first, Port: value(id.Addrs())(t).Local.Port}))
	end := newEnd(t, from, ib.RC)
	must(t, from.Connect(rdmacm.ConnParam{QPN: end.qp.QPN()}))
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		end := l.err
		l.mu.Unlock()
		if end != nil {
			break
		}
		if time.Since(start) > timeout {
			t.Fatal("the loop goes on")
		}
	}
	if _, err := c.NewID(rdmacm.TCP); !errors.Is(err, os.ErrClosed) {
		t.Errorf("NewID of the loop's channel: %v, want it closed", err)
	}
}

// TestEventLoopNoHandler: a request for a listener that is no longer registered is closed, and an ID that has another
// event is not.
func TestEventLoopNoHandler(t *testing.T) {
	c := openKernel(t)
	l := &eventLoop{channel: c, ids: map[*rdmacm.ID]*inbound{}}
	id, request := newID(t, c, rdmacm.TCP), newID(t, c, rdmacm.TCP)
	l.pass(&rdmacm.Event{Type: rdmacm.EventDisconnected, ID: request})
	must(t, request.Bind(rdmacm.Addr{IP: first}))
	l.pass(&rdmacm.Event{Type: rdmacm.EventConnectRequest, Listen: id, ID: request})
	if err := request.Listen(0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the ID of the request: %v, want it closed", err)
	}
	must(t, id.Bind(rdmacm.Addr{IP: first}))
}

// TestEventLoopCloseID: an ID that the process may not destroy any more is closed without an error, and the loop
// takes no new users, so that its channel is closed some day. The caller gets any other error.
func TestEventLoopCloseID(t *testing.T) {
	testenv.Guest(t)
	var refuse atomic.Uintptr // the errno
	l := runEventLoop(interposed(t, func(cmd uint32) syscall.Errno {
		if cmd == abi.RDMA_USER_CM_CMD_DESTROY_ID {
			return syscall.Errno(refuse.Load())
		}
		return 0
	}))
	id := value(l.channel.NewID(rdmacm.TCP))(t)
	refuse.Store(uintptr(syscall.EBUSY))
	if err := l.closeID(id); !errors.Is(err, syscall.EBUSY) || !l.acquire() {
		t.Errorf("refused with EBUSY: %v", err)
	}
	refuse.Store(uintptr(syscall.EACCES))
	if err := l.closeID(id); err != nil || l.acquire() {
		t.Errorf("refused with EACCES: %v", err)
	}
	l.release()
	l.release()
}
