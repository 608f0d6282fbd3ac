package uverbs

import (
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// complete puts completions with these IDs into a CQ's ring.
func (k *fakeKernel) complete(cq *CQ, ids ...uint64) {
	r := k.rings[cq.handle][0]
	for _, id := range ids {
		at := r.producer.Acquire()
		copy(r.mem[384+int(at)<<r.shift:], u64(id))
		r.producer.Release((at + 1) & r.mask)
	}
}

// polled polls for completions and returns their IDs.
func polled(t *testing.T, cq *CQ, n int) []uint64 {
	t.Helper()
	wcs := make([]WC, n)
	got := value(cq.Poll(wcs))(t)
	ids := []uint64{}
	for _, wc := range wcs[:got] {
		ids = append(ids, wc.ID)
	}
	return ids
}

// TestResize: what is in the ring moves along, the old ring is unmapped, and the new one
// is used up to its end and around.
func TestResize(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		cq := value(d.CreateCQ(CQOptions{Size: 7}))(t)
		k.complete(cq, 0, 1, 2, 3, 4, 5)
		want := func(n int, ids ...uint64) {
			t.Helper()
			if diff := cmp.Diff(append([]uint64{}, ids...), polled(t, cq, n)); diff != "" {
				t.Errorf("completions (-want +got):\n%s", diff)
			}
		}
		want(4, 0, 1, 2, 3)
		k.complete(cq, 6, 7, 8)
		k.took()
		must(t, cq.Resize(100))
		c := k.last("RESIZE_CQ")
		k.sent(legacy + " RESIZE_CQ")
		var req abi.ResizeCQ
		copy(bytesOf(&req), c.in)
		if req.CQHandle != cq.handle || req.CQE != 100 {
			t.Errorf("request is %+v", req)
		}
		if cq.Size() != 127 {
			t.Errorf("Size is %d, want 127", cq.Size())
		}
		if got, want := k.ringsMapped(), len(k.rings[cq.handle][0].mem); got != want {
			t.Errorf("%d bytes of rings are mapped, want %d", got, want)
		}
		want(1, 4)
		want(1000, 5, 6, 7, 8)
		want(1)
		for round := range uint64(30) {
			for i := range uint64(20) {
				k.complete(cq, 100*round+i)
			}
			if got := polled(t, cq, 100); len(got) != 20 || got[0] != 100*round || got[19] != 100*round+19 {
				t.Fatalf("round %d: %d", round, got)
			}
		}
		must(t, cq.Resize(1))
		k.complete(cq, 77)
		want(10, 77)
		must(t, cq.Close())
		if n := k.ringsMapped(); n != 0 {
			t.Errorf("%d bytes of rings stay mapped", n)
		}
		errorIs(t, cq.Resize(10), os.ErrClosed, "Resize after Close")
	})
}

// TestResizeRefused: nothing changes, and the error says what to do.
func TestResizeRefused(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	cq := value(d.CreateCQ(CQOptions{Size: 7}))(t)
	k.took()
	for _, cqe := range []int{0, -1, 1001, math.MaxInt} {
		if arg, ok := errors.AsType[*ArgError](cq.Resize(cqe)); !ok || arg.Field != "size" || !strings.HasPrefix(arg.Allowed, "1 to 1000") {
			t.Errorf("Resize(%d): %v", cqe, arg)
		}
	}
	k.sent()
	k.complete(cq, 1, 2, 3)
	if err := cq.Resize(2); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "more than 2 completions") {
		t.Errorf("too small: %v", err)
	}
	k.refuse["RESIZE_CQ"] = syscall.EOPNOTSUPP
	if f, ok := errors.AsType[*FeatureError](cq.Resize(10)); !ok || f.Feature != "RESIZE_CQ" || f.Driver != "rxe" {
		t.Errorf("not supported: %v", f)
	}
	d.driver = plainDriver{d.driver}
	if f, ok := errors.AsType[*FeatureError](cq.Resize(10)); !ok || f.Feature != "RESIZE_CQ" || f.Driver != "rxe" {
		t.Errorf("not in the library: %v", f)
	}
	if got := polled(t, cq, 9); cq.Size() != 7 || len(got) != 3 {
		t.Errorf("Size is %d, completions are %d", cq.Size(), got)
	}
	must(t, cq.Close(), d.Close())
}

// plainDriver hides what not every driver has.
type plainDriver struct{ driver }

// TestResizeLost: the kernel has moved the completions to a ring that cannot be used. The
// old ring must not be read on, as if nothing were completed any more.
func TestResizeLost(t *testing.T) {
	for name, spoil := range map[string]func(k *fakeKernel, c *fakeCall){
		"no ring there":  func(k *fakeKernel, c *fakeCall) { k.put(c.drv, u64(1)) },
		"size 0":         func(k *fakeKernel, c *fakeCall) { k.put(c.drv[8:], u32(0)) },
		"fewer entries":  func(k *fakeKernel, c *fakeCall) { k.put(c.core, u32(1<<20)) },
		"indices beyond": func(k *fakeKernel, c *fakeCall) { k.rings[c.handle()][0].producer.Release(4711) },
	} {
		t.Run(name, func(t *testing.T) {
			d, k := fakeDevice(t, pathAuto)
			cq := value(d.CreateCQ(CQOptions{Size: 7}))(t)
			k.complete(cq, 1)
			k.after(func(c *fakeCall, _ syscall.Errno) {
				if c.verb == "RESIZE_CQ" {
					spoil(k, c)
				}
			})
			if err := cq.Resize(20); err == nil {
				t.Error("Resize succeeds")
			}
			if n, err := cq.Poll(make([]WC, 1)); n != 0 || !errors.Is(err, ErrCQOverrun) {
				t.Errorf("Poll is %d, %v, want ErrCQOverrun", n, err)
			}
			must(t, cq.Close())
			if n := k.ringsMapped(); n != 0 {
				t.Errorf("%d bytes of rings stay mapped", n)
			}
			must(t, d.Close())
		})
	}
}

// handle returns the CQ handle of RESIZE_CQ.
func (c fakeCall) handle() uint32 {
	var req abi.ResizeCQ
	copy(bytesOf(&req), c.in)
	return req.CQHandle
}

func TestModifyCQ(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		cq := value(d.CreateCQ(CQOptions{Size: 1}))(t)
		k.took()
		for _, c := range []struct {
			count  int
			period time.Duration
			micros uint16
		}{{0, 0, 0}, {5, 20 * time.Microsecond, 20}, {1, 1, 1}, {41, 42*time.Microsecond - 1, 42}} {
			must(t, cq.Modify(c.count, c.period))
			call := k.last("EX_MODIFY_CQ")
			k.sent(legacy + " EX_MODIFY_CQ")
			// struct ib_uverbs_ex_modify_cq; IB_CQ_MODERATE is 1.
			compare(t, call.in, []word{
				{"cq_handle", 4, uint64(cq.handle)}, {"attr_mask", 4, 1}, {"cq_count", 2, uint64(c.count)}, {"cq_period", 2, uint64(c.micros)},
				{"reserved", 4, 0},
			})
		}
		for _, c := range []struct {
			count  int
			period time.Duration
			field  string
		}{{-1, 0, "count"}, {42, 0, "count"}, {0, -1, "period"}, {0, 42*time.Microsecond + 1, "period"}} {
			if arg, ok := errors.AsType[*ArgError](cq.Modify(c.count, c.period)); !ok || arg.Field != c.field {
				t.Errorf("Modify(%d, %s): %v, want an ArgError about %s", c.count, c.period, arg, c.field)
			}
		}
		k.sent()
		d.attr.MaxCQModerationCount, d.attr.MaxCQModerationPeriod = 0, 0 // where there is none, the kernel says so
		must(t, cq.Modify(math.MaxUint16, math.MaxUint16*time.Microsecond))
		k.refuse["EX_MODIFY_CQ"] = syscall.EOPNOTSUPP
		if f, ok := errors.AsType[*FeatureError](cq.Modify(1, 1)); !ok || f.Feature != "MODIFY_CQ" || f.Driver != "rxe" {
			t.Errorf("not supported: %v", f)
		}
		must(t, cq.Close())
		errorIs(t, cq.Modify(1, 1), os.ErrClosed, "Modify after Close")
	})
}

func TestCQFlags(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		ch := value(d.CreateCompChannel())(t)
		k.took()
		o := CQOptions{Size: 5, Channel: ch, Vector: 1, Flags: CQTimestamp | CQIgnoreOverrun}
		cq := value(d.CreateCQ(o))(t)
		if method == "ioctl" {
			c := k.last("CREATE_CQ")
			if a := c.attr(abi.UVERBS_ATTR_CREATE_CQ_FLAGS); a.Data != 3 || a.Len != 4 {
				t.Errorf("flags are %+v, want 3", a)
			}
		} else {
			compare(t, k.last("EX_CREATE_CQ").in, []word{
				{"user_handle", 8, cq.cookie}, {"cqe", 4, 5}, {"comp_vector", 4, 1}, {"comp_channel", 4, uint64(ch.fd)}, {"comp_mask", 4, 0},
				{"flags", 4, 3}, {"reserved", 4, 0},
			})
		}
		if cq.Size() != 7 || k.rings[cq.handle] == nil {
			t.Errorf("Size is %d, handle %d", cq.Size(), cq.handle)
		}
		must(t, cq.Close())
		for _, errno := range []syscall.Errno{syscall.EINVAL, syscall.EOPNOTSUPP} {
			k.refuse["CREATE_CQ"], k.refuse["EX_CREATE_CQ"] = errno, errno
			_, err := d.CreateCQ(o)
			if f, ok := errors.AsType[*FeatureError](err); !ok || f.Feature != "CREATE_CQ with CQTimestamp|CQIgnoreOverrun" || f.Driver != "rxe" || !errors.Is(err, errno) {
				t.Errorf("%v: %v", errno, err)
			}
		}
		k.refuse["CREATE_CQ"] = syscall.EINVAL
		if _, err := d.CreateCQ(CQOptions{Size: 5}); !errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("EINVAL without flags: %v", err)
		}
		if len(d.targets.all) != 0 {
			t.Errorf("%d CQs are left", len(d.targets.all))
		}
		k.took()
		if arg, ok := errors.AsType[*ArgError](func() error { _, err := d.CreateCQ(CQOptions{Size: 1, Flags: 5}); return err }()); !ok ||
			arg.Given != "CQTimestamp|0x4" || arg.Allowed != "CQTimestamp|CQIgnoreOverrun|CQCompressed" {
			t.Errorf("an unknown flag: %v", arg)
		}
		k.sent()
		must(t, ch.Close())
	})
}

// TestCreateCQLeft: a CQ that cannot be used and not be destroyed either says both.
func TestCreateCQLeft(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	k.after(func(c *fakeCall, _ syscall.Errno) {
		if c.verb == "CREATE_CQ" {
			copy(k.rings[k.next][0].mem, u32(40)) // log2_elem_size
		}
	})
	k.refuse["DESTROY_CQ"] = syscall.EIO
	if _, err := d.CreateCQ(CQOptions{Size: 1}); err == nil || !strings.Contains(err.Error(), "log2_elem_size") || !errors.Is(err, syscall.EIO) {
		t.Errorf("error is %v", err)
	}
}

// TestWaitAfterClose: waiting on a closed channel leaves nothing with the context.
func TestWaitAfterClose(t *testing.T) {
	c := newTestChannel(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	must(t, c.Close())
	c.expectErr(t, ctx, os.ErrClosed)
	c.watch.follow(ctx, c.f) // as by a Wait that Close has overtaken
	if c.watch.registered() {
		t.Error("a closed channel is registered with the context")
	}
}

// arrival is a poller of a device in the process.
type arrival func()

// Poll implements [kernel.Poller].
func (a arrival) Poll() { a() }

// TestPollArrivals: Poll of an empty CQ handles what has arrived, and returns the completions of that.
func TestPollArrivals(t *testing.T) {
	d, k := objectDevice(t)
	cq := value(d.CreateCQ(CQOptions{Size: 7}))(t)
	arrivals := 0
	d.poller = arrival(func() {
		if arrivals++; arrivals == 1 {
			k.complete(cq, 5, 6)
		}
	})
	if diff := cmp.Diff([]uint64{5, 6}, polled(t, cq, 4)); diff != "" {
		t.Errorf("completions (-want +got):\n%s", diff)
	}
	k.complete(cq, 7)
	if got := polled(t, cq, 4); len(got) != 1 || arrivals != 1 {
		t.Errorf("%d completions and %d looks at the network, want the one that was there", len(got), arrivals)
	}
	if got := polled(t, cq, 4); len(got) != 0 || arrivals != 2 {
		t.Errorf("%d completions and %d looks at the network, want none and 2", len(got), arrivals)
	}
}
