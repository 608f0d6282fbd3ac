package uverbs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/mmio/rxe"
)

// newPollRig makes a CQ of 1<<log2Len - 1 completions and its ring.
func newPollRig(tb testing.TB, log2Len int) (*CQ, *ringBytes) {
	tb.Helper()
	r := newRingBytes(6, log2Len)
	cq := &CQ{object: object{dev: bareDevice("rxe0"), kind: "CQ"}, kind: rxeDriver{}.kind()}
	cq.object.kind = "CQ"
	var err error
	if cq.rxe.ring, err = rxe.NewCompQueue(r.mem, int(r.mask)); err != nil {
		tb.Fatal(err)
	}
	return cq, r
}

// TestPollFields decodes struct ib_uverbs_wc with another value in every byte.
func TestPollFields(t *testing.T) {
	cq, r := newPollRig(t, 3)
	for _, f := range []slotField{
		{"wr_id", 0, host64(0x0102030405060708)},
		{"status", 8, host32(0x11121314)},
		{"opcode", 12, host32(0x21222324)},
		{"vendor_err", 16, host32(0x31323334)},
		{"byte_len", 20, host32(0x41424344)},
		{"ex.imm_data", 24, wire32(0x51525354)},
		{"qp_num", 28, host32(0x61626364)},
		{"src_qp", 32, host32(0x71727374)},
		{"wc_flags", 36, host32(0x81828383)},
		{"pkey_index", 40, binary.NativeEndian.AppendUint16(nil, 0x9192)},
		{"slid", 42, binary.NativeEndian.AppendUint16(nil, 0xa1a2)},
		{"sl", 44, []byte{0xb1}},
		{"dlid_path_bits", 45, []byte{0xb2}},
		{"port_num", 46, []byte{0xb3}},
	} {
		copy(r.slot(0)[f.at:], f.want)
	}
	r.put(1)
	wcs := make([]WC, 2)
	if n, err := cq.Poll(wcs); n != 1 || err != nil {
		t.Fatalf("Poll is %d, %v; want 1", n, err)
	}
	want := []WC{{
		ID: 0x0102030405060708, Status: 0x11121314, Opcode: 0x21222324, VendorErr: 0x31323334, ByteLen: 0x41424344,
		Imm: 0x51525354, QPN: 0x61626364, SrcQP: 0x71727374, Flags: WCWithGRH | WCWithImm,
		PKeyIndex: 0x9192, SLID: 0xa1a2, SL: 0xb1, PathBits: 0xb2,
	}, {}}
	if diff := cmp.Diff(want, wcs); diff != "" {
		t.Errorf("completions (-want +got):\n%s", diff)
	}
}

// TestPollFlags: of the kernel's flags only those come through that WC has names for.
func TestPollFlags(t *testing.T) {
	for kernel, want := range map[uint32]WCFlags{0: 0, 1: WCWithGRH, 2: WCWithImm, 3: WCWithGRH | WCWithImm, 4: WCWithInv, 8: 0, math.MaxUint32: WCWithGRH | WCWithImm | WCWithInv} {
		cq, r := newPollRig(t, 3)
		copy(r.slot(0)[36:], host32(kernel))
		r.put(1)
		var wcs [1]WC
		if n, err := cq.Poll(wcs[:]); n != 1 || err != nil || wcs[0].Flags != want {
			t.Errorf("wc_flags %#x: %d, %v, flags %#x; want %#x", kernel, n, err, wcs[0].Flags, want)
		}
	}
}

// TestPollInvalidated: the key takes the place of the immediate, in the order of the host.
func TestPollInvalidated(t *testing.T) {
	cq, r := newPollRig(t, 3)
	copy(r.slot(0)[24:], host32(0x51525354))
	copy(r.slot(0)[36:], host32(1<<2))
	r.put(1)
	var wcs [1]WC
	if n, err := cq.Poll(wcs[:]); n != 1 || err != nil || wcs[0].InvalidatedRKey != 0x51525354 || wcs[0].Imm != 0 {
		t.Errorf("%d, %v: %+v", n, err, wcs[0])
	}
}

// TestPollInParts takes completions in the order of the ring, around its end, and gives
// back what it has taken and no more.
func TestPollInParts(t *testing.T) {
	cq, r := newPollRig(t, 3)
	wcs := make([]WC, 3)
	next := uint64(0)
	for range 5 {
		for i := range uint64(5) {
			copy(r.slot(uint32(next+i)), host64(next+i))
		}
		r.put(5)
		if n, err := cq.Poll(nil); n != 0 || err != nil {
			t.Errorf("Poll of nothing is %d, %v", n, err)
		}
		for _, want := range []int{3, 2, 0} {
			n, err := cq.Poll(wcs)
			if n != want || err != nil {
				t.Fatalf("Poll is %d, %v; want %d", n, err, want)
			}
			for _, wc := range wcs[:n] {
				if wc.ID != next {
					t.Errorf("ID is %d, want %d", wc.ID, next)
				}
				next++
			}
			if got, want := r.get(ringConsumer), uint32(next)&7; got != want {
				t.Errorf("the consumer index is %d, want %d", got, want)
			}
		}
	}
}

func TestPollHostileIndex(t *testing.T) {
	for name, producer := range map[string]uint32{
		"past the ring":         8,
		"right but for one bit": 1<<16 + 3,
		"back":                  1,
		"all ones":              math.MaxUint32,
	} {
		cq, r := newPollRig(t, 3)
		r.put(3)
		var wcs [2]WC
		if n, err := cq.Poll(wcs[:1]); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		r.set(ringProducer, producer)
		wcs = [2]WC{{ID: 77}, {ID: 77}}
		n, err := cq.Poll(wcs[:])
		if n != 0 || !errors.Is(err, ErrCQOverrun) || !errors.Is(err, rxe.ErrCorrupt) {
			t.Errorf("%s: %d, %v; want ErrCQOverrun", name, n, err)
		}
		if wcs[0].ID != 77 || r.get(ringConsumer) != 1 {
			t.Errorf("%s: a completion was taken: %+v, consumer index %d", name, wcs[0], r.get(ringConsumer))
		}
	}
}

func TestPollClosed(t *testing.T) {
	cq, r := newPollRig(t, 3)
	r.put(1)
	cq.gone.Store(true)
	var wcs [1]WC
	if n, err := cq.Poll(wcs[:]); n != 0 || !errors.Is(err, os.ErrClosed) {
		t.Errorf("Poll of a closed CQ is %d, %v; want os.ErrClosed", n, err)
	}
	if err := cq.Notify(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Notify of a closed CQ: %v, want os.ErrClosed", err)
	}
}

func TestPollDoesNotAllocate(t *testing.T) {
	cq, r := newPollRig(t, 5)
	wcs := make([]WC, 16)
	for name, want := range map[string]int{"empty": 0, "full": 16} {
		if n := testing.AllocsPerRun(100, func() {
			r.put(uint32(want))
			if n, err := cq.Poll(wcs); n != want || err != nil {
				t.Fatal(n, err)
			}
		}); n != 0 {
			t.Errorf("%s: Poll makes %v allocations, want 0", name, n)
		}
	}
}

func BenchmarkPoll16(b *testing.B) {
	cq, r := newPollRig(b, 6)
	wcs := make([]WC, 16)
	b.ReportAllocs()
	for b.Loop() {
		r.put(16)
		if n, err := cq.Poll(wcs); n != 16 || err != nil {
			b.Fatal(n, err)
		}
	}
}

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
	tb.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	breaks := time.AfterFunc(20*time.Second, func() { w.Close() })
	tb.Cleanup(func() { breaks.Stop(); w.Close(); r.Close() })
	c := &testChannel{CompChannel: &CompChannel{f: r}, w: w}
	raw, err := r.SyscallConn()
	must(tb, err, raw.Control(func(fd uintptr) { c.fd = int(fd) }))
	dev := bareDevice("rxe0")
	if err := c.addParents(dev, "CompChannel", "DESTROY_COMP_CHANNEL", &dev.object); err != nil {
		tb.Fatal(err)
	}
	for i := range c.cq[1:] {
		c.cq[i+1] = &CQ{}
		if got := dev.addTarget(c.cq[i+1]); got != uint64(i+1) {
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
	if cq, err := c.Wait(ctx); err != nil || cq != c.cq[handle] {
		tb.Fatalf("Wait is %p, %v; want CQ %d, %p", cq, err, handle, c.cq[handle])
	}
}

// expectErr waits and gets an error.
func (c *testChannel) expectErr(tb testing.TB, ctx context.Context, want error) {
	tb.Helper()
	if cq, err := c.Wait(ctx); cq != nil || !errors.Is(err, want) {
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
		c.dev.dropTarget(2)
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
				cq, err := c.Wait(ctx)
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
		if err := c.Shutdown(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("Shutdown after Close: %v", err)
		}
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

// TestWaitUnread: while a channel has one CQ, Wait tells of an event before it is read. It is told of
// once, whatever comes next.
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

// TestOnly: a channel knows the CQ that alone has used it since the last one that it shared it with.
func TestOnly(t *testing.T) {
	c := newTestChannel(t, 0)
	join := func() *CQ {
		cq := &CQ{}
		must(t, cq.addParents(c.dev, "CQ", "DESTROY_CQ", &c.dev.object, &c.object))
		c.gains(cq)
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

func TestSetBusyWait(t *testing.T) {
	c := newTestChannel(t, channelHold)
	for _, d := range []time.Duration{-1, maxHold + 1, math.MinInt64, math.MaxInt64} {
		if arg, ok := errors.AsType[*ArgError](c.SetBusyWait(d)); !ok || arg.Given != d.String() {
			t.Errorf("SetBusyWait(%s): %v, want an ArgError", d, arg)
		}
		if c.wait == nil || c.wait.time != channelHold {
			t.Errorf("SetBusyWait(%s) fails and changes the time", d)
		}
	}
	if err := c.SetBusyWait(maxHold); err != nil || c.wait == nil || c.wait.time != maxHold {
		t.Errorf("the longest hold: %v", err)
	}
	if err := c.SetBusyWait(0); err != nil || c.wait != nil {
		t.Errorf("no hold: %v", err)
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
