package uverbs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// channelHold is the time that the tests of a holding channel have it hold.
const channelHold = 2 * time.Millisecond

// testChannel is a completion channel over a pipe, with three CQs of handles 1 to 3.
type testChannel struct {
	*CompChannel
	w  *os.File // what is written here are the kernel's events
	cq [4]*CQ   // by handle
}

// newTestChannel makes a channel. Its pipe breaks after a while, so that a Wait that
// misses its event ends.
func newTestChannel(tb testing.TB, hold time.Duration) *testChannel {
	crowdedUntil.Store(0) // whatever an earlier test has found
	tb.Helper()
	var fds [2]int
	must(tb, unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	w := os.NewFile(uintptr(fds[1]), "events")
	breaks := time.AfterFunc(20*time.Second, func() { w.Close() })
	tb.Cleanup(func() { breaks.Stop(); w.Close() })
	c := &testChannel{CompChannel: &CompChannel{}, w: w}
	dev := bareDevice("rxe0")
	dev.cmd = newCommands(nil, pathAuto, "rxe0", rxeDriver{}) // it gets no command
	if err := c.addParents(dev, "CompChannel", "DESTROY_COMP_CHANNEL", &dev.object); err != nil {
		tb.Fatal(err)
	}
	must(tb, c.open(uint32(fds[0]), "events"))
	tb.Cleanup(func() {
		if !c.closed.Load() {
			must(tb, c.closeFiles())
			channelClosed()
		}
	})
	for i := range c.cq[1:] {
		c.cq[i+1] = &CQ{}
		if got := dev.targets.add(c.cq[i+1]); got != uint64(i+1) {
			tb.Fatalf("handle %d of CQ %d", got, i+1)
		}
	}
	if err := c.SetBusyWait(hold); err != nil {
		tb.Fatal(err)
	}
	return c
}

// raise writes events in one go (struct ib_uverbs_comp_event_desc).
func (c *testChannel) raise(tb testing.TB, handles ...uint64) {
	var b []byte
	for _, h := range handles {
		b = binary.NativeEndian.AppendUint64(b, h)
	}
	if _, err := c.w.Write(b); err != nil && !errors.Is(err, os.ErrClosed) { // closed: the test has failed already
		tb.Error(err)
	}
}

// expect waits for the event of a handle.
func (c *testChannel) expect(tb testing.TB, ctx context.Context, handle int) {
	tb.Helper()
	if cq, err := c.Next(ctx); err != nil || cq != c.cq[handle] {
		tb.Fatalf("Wait is %p, %v; want CQ %d, %p", cq, err, handle, c.cq[handle])
	}
}

// expectErr waits and gets an error.
func (c *testChannel) expectErr(tb testing.TB, ctx context.Context, want error) {
	tb.Helper()
	if cq, err := c.Next(ctx); cq != nil || !errors.Is(err, want) {
		tb.Fatalf("Wait is %p, %v; want %v", cq, err, want)
	}
}

// eachHold runs a test with a channel that parks at once and with one that holds.
func eachHold(t *testing.T, test func(t *testing.T, c *testChannel)) {
	for _, hold := range []time.Duration{0, channelHold} {
		t.Run(fmt.Sprintf("hold %s", hold), func(t *testing.T) { test(t, newTestChannel(t, hold)) })
	}
}

// TestWait: events are delivered one by one and in order, those that are there already,
// those that come soon and those that come when no hold lasts any more.
func TestWait(t *testing.T) {
	eachHold(t, func(t *testing.T, c *testChannel) {
		c.raise(t, 2, 1, 3)
		for _, h := range []int{2, 1, 3} {
			c.expect(t, context.Background(), h)
		}
		for _, late := range []time.Duration{channelHold / 4, 5 * channelHold} {
			for h := range 4 {
				if h == 0 {
					continue
				}
				time.AfterFunc(late, func() { c.raise(t, uint64(h)) })
				c.expect(t, t.Context(), h)
			}
		}
	})
}

// TestWaitUnknown: events of CQs that are not there any more, or never were, are skipped.
func TestWaitUnknown(t *testing.T) {
	eachHold(t, func(t *testing.T, c *testChannel) {
		c.dev.targets.drop(2)
		c.raise(t, 2, 0, math.MaxUint64, 3)
		c.expect(t, context.Background(), 3)
		c.raise(t, 4, 4)
		time.AfterFunc(5*channelHold, func() { c.raise(t, 2, 1) })
		c.expect(t, context.Background(), 1)
	})
}

// TestWaitDone: a context that has ended already ends Wait, and the event stays.
func TestWaitDone(t *testing.T) {
	eachHold(t, func(t *testing.T, c *testChannel) {
		c.raise(t, 2)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		c.expectErr(t, ctx, context.Canceled)
		past, cancel := context.WithDeadline(context.Background(), longAgo)
		defer cancel()
		c.expectErr(t, past, context.DeadlineExceeded)
		c.expect(t, context.Background(), 2)
	})
}

// TestWaitCanceled ends contexts during Wait, by cancel and by deadline.
func TestWaitCanceled(t *testing.T) {
	eachHold(t, func(t *testing.T, c *testChannel) {
		for _, after := range []time.Duration{channelHold / 4, 5 * channelHold} {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(after, cancel)
			c.expectErr(t, ctx, context.Canceled)
			c.expectErr(t, ctx, context.Canceled)
			ctx, cancel = context.WithTimeout(context.Background(), after)
			c.expectErr(t, ctx, context.DeadlineExceeded)
			cancel()
			c.raise(t, 1, 2)
			c.expect(t, t.Context(), 1)
			c.expect(t, context.Background(), 2)
		}
	})
}

// TestWaitAfterCancel: the end of one context never ends the Wait with another one,
// however close the two are.
func TestWaitAfterCancel(t *testing.T) {
	eachHold(t, func(t *testing.T, c *testChannel) {
		long, cancelLong := context.WithCancel(context.Background())
		defer cancelLong()
		for i := range 500 {
			ctx, cancel := context.WithCancel(context.Background())
			fresh, cancelFresh := context.WithTimeout(context.Background(), time.Hour)
			next := []context.Context{long, context.Background(), fresh}[i%3]
			h := 1 + i%3
			switch i % 4 {
			case 0, 1: // no event: only the context ends the Wait
				go cancel()
				c.expectErr(t, ctx, context.Canceled)
				go c.raise(t, uint64(h))
				c.expect(t, next, h)
			case 2: // event and end at the same time: either may be first, and no event is lost
				c.raise(t, uint64(h))
				go cancel()
				cq, err := c.Next(ctx)
				if err == nil && cq == c.cq[h] {
					c.raise(t, uint64(h))
				} else if !errors.Is(err, context.Canceled) {
					t.Fatalf("round %d: Wait is %p, %v", i, cq, err)
				}
				c.expect(t, next, h)
			case 3: // the end of a context that is not waited with
				c.raise(t, uint64(h))
				c.expect(t, ctx, h)
				go cancel()
				time.AfterFunc(10*time.Microsecond, func() { c.raise(t, uint64(h)) })
				c.expect(t, next, h)
			}
			cancel()
			cancelFresh()
		}
	})
}

// TestWaitClose closes the channel during Wait and before.
func TestWaitClose(t *testing.T) {
	for name, ctx := range map[string]context.Context{"without end": context.Background(), "with an end": t.Context()} {
		t.Run(name, func(t *testing.T) {
			eachHold(t, func(t *testing.T, c *testChannel) {
				closed := make(chan error)
				time.AfterFunc(5*channelHold, func() { closed <- c.Close() })
				c.expectErr(t, ctx, os.ErrClosed)
				if err := <-closed; err != nil {
					t.Errorf("Close: %v", err)
				}
				c.expectErr(t, ctx, os.ErrClosed)
			})
		})
	}
}

// TestWaitShutdown: Shutdown ends a Wait that is under way and every later one, even if an event is
// there. No context that ends before or after undoes it.
func TestWaitShutdown(t *testing.T) {
	eachHold(t, func(t *testing.T, c *testChannel) {
		done := make(chan error)
		time.AfterFunc(5*channelHold, func() { done <- c.Shutdown() })
		c.expectErr(t, t.Context(), os.ErrClosed)
		if err := <-done; err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		c.raise(t, 1)
		c.expectErr(t, t.Context(), os.ErrClosed)
		c.only.Store(c.cq[1])
		c.expectErr(t, t.Context(), os.ErrClosed)
		ctx, cancel := context.WithCancel(t.Context())
		c.expectErr(t, ctx, os.ErrClosed)
		cancel()
		c.expectErr(t, ctx, context.Canceled)
		c.expectErr(t, context.Background(), os.ErrClosed)
		if err := errors.Join(c.Shutdown(), c.Close()); err != nil {
			t.Errorf("Shutdown again, and Close: %v", err)
		}
		errorIs(t, c.Shutdown(), os.ErrClosed, "Shutdown after Close")
	})
}

// TestWaitShort: what is not a whole event is none.
func TestWaitShort(t *testing.T) {
	eachHold(t, func(t *testing.T, c *testChannel) {
		if _, err := c.w.Write([]byte{1, 0, 0}); err != nil {
			t.Fatal(err)
		}
		c.expectErr(t, t.Context(), io.ErrUnexpectedEOF)
		if err := c.w.Close(); err != nil {
			t.Fatal(err)
		}
		c.expectErr(t, t.Context(), io.EOF)
	})
}

// TestWatcher: an event makes the file in the netpoller readable while a Wait parks, and not after a busy
// wait. Otherwise an idle thread of Go's, which sleeps in the netpoller, would wake up with each event.
func TestWatcher(t *testing.T) {
	c := newTestChannel(t, time.Second)
	told := func() bool {
		t.Helper()
		c.raise(t, 1)
		fds := []unix.PollFd{{Events: unix.POLLIN}}
		must(t, c.raw.Control(func(fd uintptr) { fds[0].Fd = int32(fd) }))
		n, err := unix.Poll(fds, 0)
		must(t, err)
		c.expect(t, t.Context(), 1)
		return n == 1
	}
	wait := func(d time.Duration) {
		t.Helper()
		must(t, c.SetBusyWait(d))
		c.raise(t, 1)
		c.expect(t, t.Context(), 1)
	}
	wait(0)
	if !told() {
		t.Error("after a wait that parks, an event does not make the file readable")
	}
	busy := func() bool { // on a busy machine a wait parks instead
		c.slot = nil
		crowdedUntil.Store(0)
		wait(time.Second)
		return c.slot != nil
	}
	for range 2 { // the second does not begin with a series
		for try := 0; !busy(); try++ {
			if try == 1000 {
				t.Fatal("no wait is a busy wait")
			}
		}
		if told() {
			t.Error("after a busy wait, an event makes the file readable")
		}
	}
	wait(0)
	if !told() {
		t.Error("after another wait that parks, an event does not make the file readable")
	}
	c.told = false // although the events are in the watcher
	if _, err := c.Next(t.Context()); !errors.Is(err, unix.EEXIST) || !strings.Contains(err.Error(), "epoll_ctl") {
		t.Errorf("the events cannot be put into the watcher: error %v, want one of epoll_ctl with EEXIST", err)
	}
	errorIs(t, second(openWatcher(-1, "events of x")), unix.EBADF, "a watcher of no file: error")
}

// TestWaitUnread: while a channel has one CQ, Wait returns for an event before it is read. It
// returns for it once, whatever comes next.
func TestWaitUnread(t *testing.T) {
	unread := func(t *testing.T, c *testChannel) int {
		n, err := unix.IoctlGetInt(c.fd, unix.TIOCINQ)
		must(t, err)
		return n / eventSize
	}
	told := func(t *testing.T) *testChannel {
		c := newTestChannel(t, channelHold)
		c.only.Store(c.cq[1])
		c.raise(t, 1)
		c.expect(t, t.Context(), 1)
		if n := unread(t, c); n != 1 {
			t.Fatalf("%d events are unread, want 1", n)
		}
		return c
	}
	nothing := func(t *testing.T, c *testChannel) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 3*channelHold)
		defer cancel()
		c.expectErr(t, ctx, context.DeadlineExceeded)
		if n := unread(t, c); n != 0 {
			t.Errorf("%d events are unread, want none", n)
		}
	}
	t.Run("nothing more", func(t *testing.T) { nothing(t, told(t)) })
	t.Run("the next", func(t *testing.T) {
		c := told(t)
		for range 3 {
			c.raise(t, 1)
			c.expect(t, t.Context(), 1)
		}
		nothing(t, c)
	})
	t.Run("the next, late", func(t *testing.T) {
		c := told(t)
		time.AfterFunc(3*channelHold, func() { c.raise(t, 1) })
		c.expect(t, t.Context(), 1)
		nothing(t, c)
	})
	t.Run("another CQ", func(t *testing.T) {
		c := told(t)
		c.only.Store(nil)
		c.raise(t, 2, 1)
		c.expect(t, t.Context(), 2)
		c.expect(t, t.Context(), 1)
		nothing(t, c)
	})
	t.Run("no hold", func(t *testing.T) {
		c := told(t)
		must(t, c.SetBusyWait(0))
		c.raise(t, 1)
		c.expect(t, t.Context(), 1)
		nothing(t, c)
	})
	// The kernel forgets the events of a CQ that is closed.
	for _, then := range []struct {
		name string
		do   func(c *testChannel)
	}{
		{"the next", func(c *testChannel) { c.raise(t, 2) }},
		{"the next, late", func(c *testChannel) { time.AfterFunc(3*channelHold, func() { c.raise(t, 2) }) }},
	} {
		t.Run("closed, "+then.name, func(t *testing.T) {
			c := told(t)
			if _, err := unix.Read(c.fd, make([]byte, eventSize)); err != nil {
				t.Fatal(err)
			}
			c.only.Store(c.cq[2])
			then.do(c)
			c.expect(t, t.Context(), 2)
			nothing(t, c)
		})
	}
}

// TestChannelSoleCQ: a channel knows its CQ while only one uses it.
func TestChannelSoleCQ(t *testing.T) {
	c := newTestChannel(t, 0)
	join := func() *CQ {
		cq := &CQ{}
		must(t, cq.addParents(c.dev, "CQ", "DESTROY_CQ", &c.dev.object, &c.object))
		c.only.Store(nil)
		c.addCQ(cq)
		return cq
	}
	first := join()
	if got := c.only.Load(); got != first {
		t.Errorf("the only CQ is %p, want %p", got, first)
	}
	second := join()
	if got := c.only.Load(); got != nil {
		t.Errorf("the only CQ of two is %p", got)
	}
	second.removeParents()
	if got := c.only.Load(); got != nil {
		t.Errorf("the only CQ is %p, but there may be events of another", got)
	}
	first.removeParents()
	third := join()
	if got := c.only.Load(); got != third {
		t.Errorf("the only CQ is %p, want %p", got, third)
	}
}

// TestSetBusyWait: a time out of range changes nothing.
func TestSetBusyWait(t *testing.T) {
	c := newTestChannel(t, channelHold)
	for _, d := range []time.Duration{-1, maxBusyWait + 1, math.MinInt64, math.MaxInt64} {
		if arg, ok := errors.AsType[*ArgError](c.SetBusyWait(d)); !ok || arg.Given != d.String() {
			t.Errorf("SetBusyWait(%s): %v, want an ArgError", d, arg)
		}
		if got := time.Duration(c.busyTime.Load()); got != channelHold {
			t.Errorf("SetBusyWait(%s) fails and changes the time to %s", d, got)
		}
	}
	for _, d := range []time.Duration{maxBusyWait, 0} {
		if err := c.SetBusyWait(d); err != nil || time.Duration(c.busyTime.Load()) != d {
			t.Errorf("SetBusyWait(%s): %v, and the time is %s", d, err, time.Duration(c.busyTime.Load()))
		}
	}
	c.raise(t, 1)
	c.expect(t, t.Context(), 1)
}

func TestWaitDoesNotAllocate(t *testing.T) {
	cancellable, cancel := context.WithCancel(context.Background())
	defer cancel()
	for name, ctx := range map[string]context.Context{"without end": context.Background(), "with an end": cancellable} {
		t.Run(name, func(t *testing.T) {
			eachHold(t, func(t *testing.T, c *testChannel) {
				event := host64(3)
				if n := testing.AllocsPerRun(200, func() {
					if _, err := c.w.Write(event); err != nil {
						t.Fatal(err)
					}
					c.expect(t, ctx, 3)
				}); n != 0 {
					t.Errorf("Wait makes %v allocations, want 0", n)
				}
			})
		})
	}
}

// TestDescriptorsNotInherited: programs that this one starts get none of the descriptors of a channel.
func TestDescriptorsNotInherited(t *testing.T) {
	flags := func() map[int]int {
		all := map[int]int{}
		for _, e := range value(os.ReadDir("/proc/self/fd"))(t) {
			fd := value(strconv.Atoi(e.Name()))(t)
			if f, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil { // not that of the directory
				all[fd] = f
			}
		}
		return all
	}
	must(t, poller())
	before := flags()
	d, _ := fakeDevice(t, pathAuto)
	ch := value(d.CreateCompChannel())(t)
	must(t, ch.SetBusyWait(time.Millisecond))
	opened := 0
	for fd, f := range flags() {
		if _, old := before[fd]; old {
			continue
		}
		opened++
		if f&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d is inherited", fd)
		}
	}
	if opened < 2 {
		t.Errorf("%d descriptors were opened, want those of the channel and of its clock", opened)
	}
	must(t, ch.Close())
}
