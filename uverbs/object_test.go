package uverbs

import (
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// bareDevice is a device that has a driver and a tree of objects and nothing else.
func bareDevice(name string) *Device {
	d := &Device{info: DeviceInfo{Name: name}, driver: rxeDriver{}}
	d.object.dev, d.object.kind, d.object.destroy = d, "Device", "CLOSE_DEVICE"
	return d
}

// newObject makes an object of a kind.
func newObject(t *testing.T, d *Device, kind string, parents ...*object) *object {
	t.Helper()
	o := &object{}
	if err := o.addParents(d, kind, "DESTROY_"+kind, parents...); err != nil {
		t.Fatalf("create %s: %v", kind, err)
	}
	return o
}

// ends counts how often an object was ended.
type ends struct{ n atomic.Int32 }

func (e *ends) end() error { e.n.Add(1); return nil }

// expect compares the count and starts it again.
func (e *ends) expect(t *testing.T, want int32) {
	t.Helper()
	if got := e.n.Swap(0); got != want {
		t.Errorf("objects were ended %d times, want %d", got, want)
	}
}

// TestTreeOrder: an object that is used says by what, is not ended, and works on.
func TestTreeOrder(t *testing.T) {
	d := bareDevice("rxe0")
	pd := newObject(t, d, "PD", &d.object)
	cq := newObject(t, d, "CQ", &d.object)
	mrs := []*object{newObject(t, d, "MR", pd), newObject(t, d, "MR", pd)}
	qp := newObject(t, d, "QP", pd, cq)
	var e ends
	busy := func(o *object, verb, users string) {
		t.Helper()
		err := o.close(e.end, nil)
		if busy, ok := errors.AsType[*Error](err); !ok || busy.Errno != syscall.EBUSY || busy.Op != verb || busy.Device != "rxe0" {
			t.Errorf("close %s: %v, want an Error of %s with EBUSY", o.kind, err, verb)
		} else if !strings.Contains(err.Error(), "still used by "+users+";") {
			t.Errorf("close %s: %v, want %q in it", o.kind, err, users)
		}
		if o.closed.Load() {
			t.Errorf("%s is gone", o.kind)
		}
		e.expect(t, 0)
	}
	busy(&d.object, "CLOSE_DEVICE", "1 CQ, 1 PD")
	busy(pd, "DESTROY_PD", "1 QP, 2 MR")
	busy(cq, "DESTROY_CQ", "1 QP")
	mrs = append(mrs, newObject(t, d, "MR", pd))
	busy(pd, "DESTROY_PD", "1 QP, 3 MR")
	for _, o := range append([]*object{qp, cq}, mrs...) {
		if err := o.close(e.end, nil); err != nil || !o.closed.Load() {
			t.Errorf("close %s: %v", o.kind, err)
		}
		e.expect(t, 1)
	}
	busy(&d.object, "CLOSE_DEVICE", "1 PD")
	if err := errors.Join(pd.close(e.end, nil), d.object.close(e.end, nil)); err != nil {
		t.Error(err)
	}
	e.expect(t, 2)
}

// TestTreeCloseTwice: an object is ended once, whoever closes it and when, and nobody's
// close returns before it is.
func TestTreeCloseTwice(t *testing.T) {
	d := bareDevice("rxe0")
	o := newObject(t, d, "PD", &d.object)
	var e ends
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			<-start
			if err := o.close(e.end, nil); err != nil || e.n.Load() != 1 {
				t.Errorf("close: %v, ended %d times", err, e.n.Load())
			}
		})
	}
	close(start)
	wg.Wait()
	if err := o.close(e.end, nil); err != nil {
		t.Errorf("close again: %v", err)
	}
	e.expect(t, 1)
	if err := d.object.close(e.end, nil); err != nil {
		t.Errorf("the parent: %v", err)
	}
}

// TestTreeEndFails: an object that could not be ended stays open, still counts with its
// parents, can be used and can be closed later.
func TestTreeEndFails(t *testing.T) {
	d := bareDevice("rxe0")
	pd := newObject(t, d, "PD", &d.object)
	want := errors.New("not now")
	for range 2 {
		if err := pd.close(func() error { return want }, nil); err != want || pd.closed.Load() {
			t.Errorf("close: %v, gone: %v; want the kernel's error", err, pd.closed.Load())
		}
	}
	var e ends
	errorIs(t, d.object.close(e.end, nil), syscall.EBUSY, "the parent")
	mr := newObject(t, d, "MR", pd)
	for _, o := range []*object{mr, pd, &d.object} {
		if err := o.close(e.end, nil); err != nil {
			t.Errorf("close %s later: %v", o.kind, err)
		}
	}
	e.expect(t, 3)
}

// TestTreeJoin: nothing is made of a parent that is closed, that is being closed or that
// belongs to another device, and the other parents count nothing.
func TestTreeJoin(t *testing.T) {
	d, other := bareDevice("rxe0"), bareDevice("rxe1")
	cq := newObject(t, d, "CQ", &d.object)
	closed := newObject(t, d, "PD", &d.object)
	var e ends
	must(t, closed.close(e.end, nil))
	if err := new(object).addParents(d, "QP", "DESTROY_QP", cq, closed); !errors.Is(err, os.ErrClosed) || !strings.Contains(err.Error(), "PD") {
		t.Errorf("of a closed PD: %v, want os.ErrClosed and which", err)
	}
	foreign := newObject(t, other, "PD", &other.object)
	err := new(object).addParents(d, "QP", "DESTROY_QP", cq, foreign)
	if arg, ok := errors.AsType[*ArgError](err); !ok || arg.Op != "create QP" || arg.Field != "PD" ||
		!strings.Contains(arg.Given, "rxe1") || !strings.Contains(arg.Allowed, "rxe0") {
		t.Errorf("of another device's PD: %v, want an ArgError that names both", err)
	}
	if err := errors.Join(foreign.close(e.end, nil), other.object.close(e.end, nil)); err != nil {
		t.Errorf("the other device: %v", err)
	}
	if err := cq.close(func() error {
		errorIs(t, new(object).addParents(d, "QP", "DESTROY_QP", cq), os.ErrClosed, "of a CQ that is being closed")
		return nil
	}, nil); err != nil {
		t.Errorf("the CQ that nothing was made of: %v", err)
	}
	pd := newObject(t, d, "PD", &d.object)
	newObject(t, d, "MR", pd).removeParents()
	if err := errors.Join(pd.close(e.end, nil), d.object.close(e.end, nil)); err != nil {
		t.Errorf("after an object was not created: %v", err)
	}
}

// TestTreeRace: of creating an object and closing its parent at the same time one
// succeeds, and only one.
func TestTreeRace(t *testing.T) {
	d := bareDevice("rxe0")
	var e ends
	for range 500 {
		pd, mr := newObject(t, d, "PD", &d.object), &object{}
		var joinErr, closeErr error
		var wg sync.WaitGroup
		wg.Go(func() { joinErr = mr.addParents(d, "MR", "DEREG_MR", pd) })
		wg.Go(func() { closeErr = pd.close(e.end, nil) })
		wg.Wait()
		switch {
		case errors.Is(joinErr, os.ErrClosed) && closeErr == nil:
		case joinErr == nil && errors.Is(closeErr, syscall.EBUSY):
			must(t, mr.close(e.end, nil))
			must(t, pd.close(e.end, nil))
		default:
			t.Fatalf("create: %v, close: %v", joinErr, closeErr)
		}
	}
	if err := d.object.close(e.end, nil); err != nil {
		t.Errorf("the device: %v", err)
	}
}

// TestBufferHold: a buffer stays as it is while MRs cover it, and says how many do.
func TestBufferHold(t *testing.T) {
	const size = 5000
	b, err := AllocBuffer(size, BufferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mem := b.Bytes()
	mem[size-1] = 7
	for range 2 {
		if held, err := b.acquire(); err != nil || len(held) != size || addrOf(held) != addrOf(mem) {
			t.Fatalf("hold: %d bytes, %v", len(held), err)
		}
	}
	for _, users := range []string{"2 MR", "1 MR"} {
		if err := b.Close(); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), users) {
			t.Errorf("Close: %v, want EBUSY and %q", err, users)
		}
		if got := b.Bytes(); len(got) != size || got[size-1] != 7 {
			t.Error("the memory has changed")
		}
		b.release()
	}
	for range 2 {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	errorIs(t, second(b.acquire()), os.ErrClosed, "hold after Close")
	if b.Bytes() != nil || b.Len() != size {
		t.Errorf("after Close there are %d bytes, Len is %d", len(b.Bytes()), b.Len())
	}
}

// TestCloseFreeFails: an object whose memory cannot be given back is gone all the same: its
// handle may soon be another's.
func TestCloseFreeFails(t *testing.T) {
	d := bareDevice("rxe0")
	e := &ends{}
	pd := newObject(t, d, "PD", &d.object)
	failed := errors.New("failed")
	err := pd.close(e.end, func() error {
		if !pd.closed.Load() {
			t.Error("memory is given back that others may still take for theirs")
		}
		errorIs(t, d.object.close(e.end, nil), syscall.EBUSY, "the device, while memory is given back")
		return failed
	})
	if !errors.Is(err, failed) || !strings.Contains(err.Error(), "PD") {
		t.Errorf("error is %v", err)
	}
	if err := pd.close(e.end, nil); err != nil || e.n.Load() != 1 {
		t.Errorf("closed again: %v, ended %d times", err, e.n.Load())
	}
	if err := d.object.close(e.end, nil); err != nil {
		t.Errorf("the device: %v", err)
	}
}
