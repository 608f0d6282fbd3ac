package uverbs

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// raiseAsync plays the kernel that queues an asynchronous event.
func (k *fakeKernel) raiseAsync(t testing.TB, typ EventType, element uint64) {
	t.Helper()
	if _, err := k.async.Write(bytesOf(&abi.AsyncEventDesc{Element: element, EventType: uint32(typ)})); err != nil {
		t.Error(err)
	}
}

// waitEvent waits, but not forever.
func waitEvent(t testing.TB, d *Device) (Event, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return d.NextEvent(ctx)
}

// TestEventOf: each type of event says what it is about, and what a type is not about
// does not show, whatever number the kernel gives.
func TestEventOf(t *testing.T) {
	d := bareDevice("rxe0")
	cq, qp, wq := &CQ{}, &QP{}, &WQ{}
	cqHandle, qpHandle, wqHandle := d.targets.add(cq), d.targets.add(qp), d.targets.add(wq)
	for typ := range EventDeviceSpeedChange + 2 {
		name := typ.String()
		if known := typ <= EventDeviceSpeedChange; known == strings.HasPrefix(name, "event type ") || name == "" {
			t.Errorf("type %d is %q", typ, name)
		}
		var want Event
		wantOK := true
		element := qpHandle
		switch {
		case typ == EventCQErr:
			element, want.CQ = cqHandle, cq
		case typ <= EventPathMigErr || typ == EventQPLastWQEReached:
			want.QP = qp
		case typ == EventWQFatal:
			element, want.WQ = wqHandle, wq
		case typ == EventSRQErr || typ == EventSRQLimitReached:
			wantOK = false
		case typ != EventDeviceFatal && typ <= EventDeviceSpeedChange:
			want.Port = uint8(element)
		}
		want.Type = typ
		if got, ok := d.event(typ, element); got != want || ok != wantOK {
			t.Errorf("%s: %+v, %v, want %+v, %v", typ, got, ok, want, wantOK)
		}
		if want.CQ == nil && want.QP == nil && want.WQ == nil {
			continue
		}
		for _, bad := range []uint64{0, element%wqHandle + 1, wqHandle + 1, math.MaxUint64} {
			if got, ok := d.event(typ, bad); ok || got.CQ != nil || got.QP != nil || got.WQ != nil {
				t.Errorf("%s of handle %d: %+v, %v, want none", typ, bad, got, ok)
			}
		}
	}
	if _, ok := d.event(EventCQErr, cqHandle); ok { // the first one is a moment ago
		t.Error("EventCQErr is repeated")
	}
	cq.overrun.Add(-int64(overrunPause))
	if _, ok := d.event(EventCQErr, cqHandle); !ok {
		t.Errorf("EventCQErr is not repeated after %v", overrunPause)
	}
	d.targets.drop(cqHandle)
	if got, ok := d.event(EventCQErr, cqHandle); ok {
		t.Errorf("event of a CQ that is dropped: %+v", got)
	}
	if h := d.targets.add(cq); h == cqHandle || h == qpHandle || h == 0 {
		t.Errorf("handle %d is used again", h)
	}
}

func TestEventString(t *testing.T) {
	sized := func(n uint32) *CQ {
		cq := &CQ{}
		cq.cqe.Store(n)
		return cq
	}
	for want, e := range map[string]Event{
		"CQ error: a CQ with room for 7 completions has lost one; poll it in time, or create it with a larger CQOptions.Size": {Type: EventCQErr, CQ: sized(7)},
		"communication established: QP 0x11": {Type: EventCommEst, QP: &QP{qpn: 0x11}},
		"WQ fatal: WQ 0x12":                  {Type: EventWQFatal, WQ: &WQ{num: 0x12}},
		"port error: port 2":                 {Type: EventPortErr, Port: 2},
		"local catastrophic error":           {Type: EventDeviceFatal},
		"event type 4294967295":              {Type: math.MaxUint32},
	} {
		if got := e.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestWaitEvent: events come in order, those that were there before anybody waited first,
// and not those of a CQ that has been closed.
func TestWaitEvent(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		cq, closed := value(d.CreateCQ(CQOptions{Size: 1}))(t), value(d.CreateCQ(CQOptions{Size: 1}))(t)
		if cq.cookie == 0 || cq.cookie == closed.cookie {
			t.Errorf("the user handles are %d and %d", cq.cookie, closed.cookie)
		}
		k.raiseAsync(t, EventCQErr, closed.cookie)
		must(t, closed.Close())
		k.raiseAsync(t, EventPortErr, 1)
		k.raiseAsync(t, EventCQErr, cq.cookie)
		k.raiseAsync(t, EventSRQErr, 1)
		var late sync.WaitGroup
		defer late.Wait()
		late.Go(func() {
			time.Sleep(5 * time.Millisecond)
			k.raiseAsync(t, EventDeviceFatal, 0)
		})
		for _, want := range []Event{{Type: EventPortErr, Port: 1}, {Type: EventCQErr, CQ: cq}, {Type: EventDeviceFatal}} {
			if got, err := waitEvent(t, d); got != want || err != nil {
				t.Errorf("event is %+v, %v, want %+v", got, err, want)
			}
		}
		must(t, cq.Close(), d.Close())
		if _, err := waitEvent(t, d); !errors.Is(err, os.ErrClosed) || d.asyncWatch.registered() {
			t.Errorf("after Close: %v, watching: %v; want os.ErrClosed", err, d.asyncWatch.registered())
		}
	})
}

// TestWaitEventContext: the end of a context ends its own wait and no other.
func TestWaitEventContext(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if _, err := d.NextEvent(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("canceled: %v", err)
		}
		go k.raiseAsync(t, EventGIDChange, 1)
		if ev, err := waitEvent(t, d); err != nil || ev.Type != EventGIDChange {
			t.Fatalf("after a canceled wait: %+v, %v", ev, err)
		}
	}
	closed := make(chan error, 1)
	time.AfterFunc(5*time.Millisecond, func() { closed <- d.Close() })
	errorIs(t, second(waitEvent(t, d)), os.ErrClosed, "closed while waiting")
	must(t, <-closed)
}

func TestWaitEventHostile(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	if _, err := k.async.Write(make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	errorIs(t, second(waitEvent(t, d)), io.ErrUnexpectedEOF, "an event of 7 bytes")
	must(t, k.async.Close())
	errorIs(t, second(waitEvent(t, d)), io.EOF, "the end of the file")
}

func TestWaitEventDoesNotAllocate(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	desc := bytesOf(&abi.AsyncEventDesc{Element: 1, EventType: uint32(EventPortActive)})
	if n := testing.AllocsPerRun(100, func() {
		if _, err := k.async.Write(desc); err != nil {
			t.Fatal(err)
		}
		if _, err := d.NextEvent(ctx); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("NextEvent makes %v allocations, want 0", n)
	}
}

// TestNoEvents: a kernel that has no file of events for a context made by ioctl. All else
// works, and no descriptor is named.
func TestNoEvents(t *testing.T) {
	d, k, err := openFake(t, pathAuto, func(k *fakeKernel) { k.refuse["ASYNC_EVENT_ALLOC"] = syscall.EPROTONOSUPPORT })
	must(t, err)
	var f *FeatureError
	if _, err := waitEvent(t, d); !errors.As(err, &f) || f.Feature != "ASYNC_EVENT" || f.Since != (Version{5, 6}) {
		t.Errorf("NextEvent: %v", err)
	}
	cq := value(d.CreateCQ(CQOptions{Size: 1}))(t)
	c := k.last("CREATE_CQ")
	if a := c.attr(abi.UVERBS_ATTR_CREATE_CQ_EVENT_FD); a.ID != 0 {
		t.Errorf("descriptor %d is named", a.Data)
	}
	must(t, cq.Close(), d.Close())
	_, _, err = openFake(t, pathAuto, func(k *fakeKernel) { k.refuse["ASYNC_EVENT_ALLOC"] = syscall.EMFILE })
	if e, ok := errors.AsType[*Error](err); !ok || e.Op != "ASYNC_EVENT_ALLOC" || e.Errno != syscall.EMFILE {
		t.Errorf("too many files: %v", err)
	}
}

// TestEventFD: where events have an object of the ioctl interface, a CQ names it, but does
// not insist.
func TestEventFD(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		fd, ok := d.asyncFD, d.asyncFD >= 0
		if ok != (method == "ioctl") {
			t.Errorf("the events have the descriptor %d", fd)
		}
		cq := value(d.CreateCQ(CQOptions{Size: 1}))(t)
		if c := k.last("CREATE_CQ"); ok {
			want := &kernel.Attr{ID: abi.UVERBS_ATTR_CREATE_CQ_EVENT_FD, Data: uint64(fd)}
			if diff := cmp.Diff(want, c.attr(abi.UVERBS_ATTR_CREATE_CQ_EVENT_FD)); diff != "" {
				t.Errorf("attribute (-want +got):\n%s", diff)
			}
		}
		must(t, cq.Close())
	})
}

// TestTargetCreated: a goroutine that gets a queue pair from an event may use it, even if it does not know in another
// way that the queue pair has been created. Only the race detector can fail this test.
func TestTargetCreated(t *testing.T) {
	f := newFakeQP(t, QPOptions{})
	dir := filepath.Join(t.TempDir(), "created") // of which the race detector knows nothing
	var creating sync.WaitGroup
	defer creating.Wait()
	next := f.qp.cookie + 1
	creating.Go(func() {
		qp, err := f.pd.CreateQP(QPOptions{SendCQ: f.cq, RecvCQ: f.cq, MaxSendWR: 1, MaxRecvWR: 1})
		if err := errors.Join(err, os.Mkdir(dir, 0o700)); err != nil {
			t.Error(err)
		}
		awaitDir(dir, false)
		if err == nil {
			qp.Close()
		}
	})
	awaitDir(dir, true)
	if qp, ok := f.dev.targets.get(next).(*QP); !ok || qp.QPN() == 0 {
		t.Errorf("an event for object %d has a queue pair: %v, or one without a number", next, ok)
	}
	must(t, os.Remove(dir))
}

// awaitDir waits until a directory is there, or until it is gone.
func awaitDir(dir string, there bool) {
	for {
		if _, err := os.Stat(dir); (err == nil) == there {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
}
