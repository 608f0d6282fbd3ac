package uverbs

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// waitRig is a CQ of a fake device with a channel of its own.
type waitRig struct {
	*CQ
	t *testing.T
	k *fakeKernel
	d *Device
}

func newWaitRig(t *testing.T) *waitRig {
	d, k := fakeDevice(t, pathAuto)
	ch := value(d.CreateCompChannel())(t)
	return &waitRig{t: t, k: k, d: d, CQ: value(d.CreateCQ(CQOptions{Size: 7, Channel: ch}))(t)}
}

// raise sends an event of the CQ.
func (r *waitRig) raise() {
	if _, err := r.k.events.Write(u64(r.cookie)); err != nil {
		r.t.Error(err)
	}
}

// arms returns how often the CQ was armed since the last call.
func (r *waitRig) arms() int {
	const size = 16 // of the command
	return len(r.k.rung()) / size
}

// later puts a completion into the ring once a goroutine is parked in Wait, and raises an event for it.
func (r *waitRig) later(id uint64) {
	go func() {
		for !parked() {
			time.Sleep(100 * time.Microsecond)
		}
		r.k.complete(r.CQ, id)
		r.raise()
	}()
}

// parked reports whether a goroutine is parked in CompChannel.Next.
func parked() bool {
	stacks := make([]byte, 1<<20)
	for one := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if strings.Contains(one, "[IO wait") && strings.Contains(one, "(*CompChannel).Next") {
			return true
		}
	}
	return false
}

// expect waits for the completions with these IDs, n at a time.
func (r *waitRig) expect(n int, ids ...uint64) {
	r.t.Helper()
	wcs := make([]WC, n)
	for len(ids) > 0 {
		got, err := r.Wait(r.t.Context(), wcs)
		if err != nil || got < 1 || got > len(ids) {
			r.t.Fatalf("Wait is %d, %v; want up to %d completions", got, err, len(ids))
		}
		for i := range got {
			if wcs[i].ID != ids[i] {
				r.t.Fatalf("completion %d, want %d", wcs[i].ID, ids[i])
			}
		}
		ids = ids[got:]
	}
}

// TestCQWait: completions that are there are returned at once; otherwise Wait arms the CQ, once for
// each event, and sleeps.
func TestCQWait(t *testing.T) {
	r := newWaitRig(t)
	arms := func(want int) {
		t.Helper()
		if n := r.arms(); n != want {
			t.Errorf("the CQ was armed %d times, want %d", n, want)
		}
	}
	r.k.complete(r.CQ, 1, 2, 3)
	r.expect(2, 1, 2, 3)
	arms(0)
	for id := range uint64(3) {
		r.later(id)
		r.expect(2, id)
		arms(1)
	}
	// The CQ was armed, and a poll took the completion: it is armed still.
	r.armed.Store(true)
	r.k.complete(r.CQ, 4)
	r.expect(1, 4)
	r.later(5)
	r.expect(1, 5)
	arms(0)
	// The CQ was armed, a poll took the completion, and its event is unread.
	r.armed.Store(true)
	r.raise()
	r.later(6)
	r.expect(1, 6)
	arms(1)
	// An event of an arm that was not Wait's.
	must(t, r.Notify())
	r.raise()
	r.later(7)
	r.expect(1, 7)
	arms(3)
	// The channel's own Wait takes the event.
	r.armed.Store(true)
	r.raise()
	if cq := value(r.ch.Next(t.Context()))(t); cq != r.CQ {
		t.Errorf("the channel's Wait returns another CQ")
	}
	r.later(8)
	r.expect(1, 8)
	arms(1)
}

// TestCQWaitEnds: each way in which Wait ends without a completion.
func TestCQWaitEnds(t *testing.T) {
	wcs := make([]WC, 2)
	ends := func(name string, want error, end func(r *waitRig, cancel func())) {
		t.Run(name, func(t *testing.T) {
			r := newWaitRig(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			time.AfterFunc(2*time.Millisecond, func() { end(r, cancel) })
			if n, err := r.Wait(ctx, wcs); n != 0 || !errors.Is(err, want) {
				t.Errorf("Wait is %d, %v; want %v", n, err, want)
			}
		})
	}
	ends("context", context.Canceled, func(_ *waitRig, cancel func()) { cancel() })
	ends("Shutdown", os.ErrClosed, func(r *waitRig, _ func()) { must(r.t, r.ch.Shutdown()) })
	ends("Close", os.ErrClosed, func(r *waitRig, _ func()) { must(r.t, r.Close(), r.ch.Close()) })

	r := newWaitRig(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	r.k.complete(r.CQ, 1)
	if n, err := r.Wait(gone, wcs); n != 1 || err != nil {
		t.Errorf("with a completion and a context that has ended Wait is %d, %v", n, err)
	}
	if n, err := r.Wait(gone, wcs); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended Wait is %d, %v", n, err)
	}
	r.later(2)
	r.expect(1, 2)
}

// TestCQEvents: a CQ with a channel of its own takes it along, and a Close that fails does not.
func TestCQEvents(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	cq := value(d.CreateCQ(CQOptions{Events: true}))(t)
	if cq.Size() < 2*defaultQueueSize {
		t.Errorf("a CQ of the default size holds %d completions, want room for both queues of a QP", cq.Size())
	}
	r := &waitRig{t: t, k: k, d: d, CQ: cq}
	r.later(3)
	r.expect(1, 3)
	k.refuse["DESTROY_CQ"] = syscall.EBUSY
	if err := cq.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Fatalf("Close: %v, want EBUSY", err)
	}
	r.later(4)
	r.expect(1, 4)
	delete(k.refuse, "DESTROY_CQ")
	ended := make(chan error)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() {
		_, err := cq.Wait(ctx, make([]WC, 1))
		ended <- err
	}()
	for !cq.armed.Load() {
		time.Sleep(time.Millisecond)
	}
	must(t, cq.Close(), cq.Close())
	errorIs(t, <-ended, os.ErrClosed, "Close ends Wait with")
	must(t, d.Close()) // no channel is left
}

// TestCQWaitRefused: arguments with which Wait could never return.
func TestCQWaitRefused(t *testing.T) {
	r := newWaitRig(t)
	wcs := make([]WC, 1)
	bare := value(r.d.CreateCQ(CQOptions{Size: 1}))(t)
	refused := func(name, field string, cq *CQ, wcs []WC) {
		t.Helper()
		if _, err := cq.Wait(t.Context(), wcs); err == nil {
			t.Errorf("%s: no error", name)
		} else if arg, ok := errors.AsType[*ArgError](err); !ok || arg.Field != field {
			t.Errorf("%s: %v, want an ArgError about %s", name, err, field)
		}
	}
	refused("no room", "wcs", r.CQ, nil)
	refused("no channel", "Channel of the CQ", bare, wcs)
	refused("no CQ", "object", new(CQ), wcs)
	value(r.d.CreateCQ(CQOptions{Size: 1, Channel: r.ch}))(t)
	refused("a shared channel", "Channel of the CQ", r.CQ, wcs)
	must(t, bare.Close())
	errorIs(t, second(bare.Wait(t.Context(), nil)), os.ErrClosed, "after Close")
}

// TestCQWaitTwice: a second goroutine that waits for the CQ gets an error without looking into the ring, and
// the first one its completion.
func TestCQWaitTwice(t *testing.T) {
	r := newWaitRig(t)
	got := make(chan error)
	go func() {
		_, err := r.Wait(t.Context(), make([]WC, 1))
		got <- err
	}()
	for !r.ch.waiting.Load() {
		time.Sleep(100 * time.Microsecond)
	}
	r.k.complete(r.CQ, 1)
	if n, err := r.Wait(t.Context(), make([]WC, 1)); n != 0 || !errors.Is(err, syscall.EBUSY) {
		t.Errorf("the second Wait is %d, %v; want EBUSY", n, err)
	}
	r.raise()
	must(t, <-got)
}

func TestCQWaitDoesNotAllocate(t *testing.T) {
	r := newWaitRig(t)
	wcs, event := make([]WC, 1), u64(r.cookie)
	ring := r.k.rings[r.handle][0]
	next := make(chan struct{})
	defer close(next)
	go func() {
		for range next {
			at := ring.producer.Acquire()
			ring.producer.Release((at + 1) & ring.mask)
			r.k.events.Write(event)
		}
	}()
	if n := testing.AllocsPerRun(100, func() {
		next <- struct{}{}
		if n, err := r.Wait(t.Context(), wcs); n != 1 || err != nil {
			t.Fatalf("Wait is %d, %v", n, err)
		}
	}); n != 0 {
		t.Errorf("Wait allocates %v times, want 0", n)
	}
	if n := testing.AllocsPerRun(100, func() {
		var onStack [16]WC
		if n, err := r.Poll(onStack[:]); n != 0 || err != nil {
			t.Fatalf("Poll is %d, %v", n, err)
		}
	}); n != 0 {
		t.Errorf("Poll has the completions on the heap: %v allocations, want 0", n)
	}
	if r.arms() == 0 {
		t.Error("Wait never had to arm the CQ")
	}
}

// TestWaitAfterOtherCQ: a CQ can wait again when the other CQ of its channel is closed, or was refused.
func TestWaitAfterOtherCQ(t *testing.T) {
	r := newWaitRig(t)
	other := value(r.d.CreateCQ(CQOptions{Size: 7, Channel: r.ch}))(t)
	wcs := make([]WC, 1)
	var a *ArgError
	if _, err := r.Wait(t.Context(), wcs); !errors.As(err, &a) || a.Field != "Channel of the CQ" {
		t.Errorf("with two CQs: %v", err)
	}
	must(t, other.Close())
	r.later(1)
	r.expect(1, 1)
	r.k.refuse["CREATE_CQ"] = syscall.ENOMEM
	errorIs(t, second(r.d.CreateCQ(CQOptions{Size: 7, Channel: r.ch})), syscall.ENOMEM, "refused")
	r.later(2)
	r.expect(1, 2)
}
