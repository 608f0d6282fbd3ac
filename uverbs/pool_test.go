package uverbs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// newPool returns a pool, which is closed at the end.
func newPool(t *testing.T, size, slots int) (*BufferPool, *fakeKernel) {
	t.Helper()
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	p := value(NewBufferPool(pd, PoolOptions{SlotSize: size, Slots: slots, Access: AccessLocalWrite}))(t)
	t.Cleanup(func() { must(t, p.Close(), p.Close(), pd.Close()) })
	return p, k
}

func TestBufferPool(t *testing.T) {
	const size, slots = 100, 5
	p, k := newPool(t, size, slots)
	if n := k.last("REG_MR"); p.MR().Len() != slots*128 || p.MR().Access() != AccessLocalWrite {
		t.Errorf("region has %d bytes (%+v), want %d slots of 128", p.MR().Len(), n, slots)
	}
	var out []Slot
	seen := map[int]bool{}
	for i := range slots {
		s := value(p.Get())(t)
		b := s.Bytes()
		if len(b) != size || cap(b) != size || addrOf(b)%64 != 0 || seen[s.Index()] {
			t.Errorf("slot %d has %d bytes (%d) at %#x", s.Index(), len(b), cap(b), addrOf(b))
		}
		seen[s.Index()] = true
		for j := range b {
			b[j] = byte(i)
		}
		if got, want := s.SGE(size), (SGE{Addr: addrOf(b), Length: size, LKey: p.MR().LKey()}); got != want {
			t.Errorf("SGE is %+v, want %+v", got, want)
		}
		if p.Free() != slots-1-i {
			t.Errorf("%d slots are free after %d", p.Free(), i+1)
		}
		out = append(out, s)
	}
	for i, s := range out {
		if strings.Count(string(s.Bytes()), string(rune(i))) != size {
			t.Errorf("slot %d was overwritten", s.Index())
		}
	}
	if _, err := p.Get(); err != ErrPoolEmpty {
		t.Errorf("Get of an empty pool: %v", err)
	}
	if err := p.Close(); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "5 of 5 slots are in use") {
		t.Errorf("Close: %v", err)
	}
	for _, n := range []int{-1, size + 1, math.MaxInt} {
		if !out[0].SGE(n).outside {
			t.Errorf("an SGE of %d bytes is inside a slot of %d", n, size)
		}
	}
	for i, s := range out {
		must(t, p.Put(s))
		if err := p.Put(s); err != ErrSlotFree {
			t.Errorf("second Put: %v", err)
		}
		if err := p.Close(); i < slots-1 && (!errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), fmt.Sprintf("%d of 5", slots-1-i))) {
			t.Errorf("Close: %v", err)
		}
	}
	errorIs(t, second(p.Get()), os.ErrClosed, "Get after Close")
	errorIs(t, p.Put(out[0]), os.ErrClosed, "Put after Close")
}

// TestBufferPoolWhileClosing: Get and Put fail while the kernel deregisters the memory, and work again if it refuses.
func TestBufferPoolWhileClosing(t *testing.T) {
	p, k := newPool(t, 64, 1)
	k.seen = func(*kernel.Command, bool) {
		_, err := p.Get()
		errorIs(t, err, os.ErrClosed, "Get")
		errorIs(t, p.Put(Slot{}), os.ErrClosed, "Put")
	}
	k.refuse["DEREG_MR"] = syscall.EAGAIN
	errorIs(t, p.Close(), syscall.EAGAIN, "Close")
	delete(k.refuse, "DEREG_MR")
	must(t, p.Put(value(p.Get())(t)), p.Close())
	k.seen = nil
}

// TestBufferPoolStale: a slot that was put back is not put back again by an old copy of it
// once somebody else has it.
func TestBufferPoolStale(t *testing.T) {
	p, _ := newPool(t, 1, 1)
	other, _ := newPool(t, 1, 1)
	old := value(p.Get())(t)
	must(t, p.Put(old))
	s := value(p.Get())(t)
	if s.Index() != old.Index() {
		t.Fatalf("slots %d and %d of one", s.Index(), old.Index())
	}
	for name, wrong := range map[string]Slot{"old": old, "zero": {}} {
		if err := p.Put(wrong); err != ErrSlotFree {
			t.Errorf("Put of the %s slot: %v", name, err)
		}
	}
	must(t, other.Put(value(other.Get())(t)))
	theirs := value(other.Get())(t) // the same slot there, out as often
	if err := other.Put(s); err != ErrSlotFree {
		t.Errorf("Put into another pool: %v", err)
	}
	must(t, p.Put(s), other.Put(theirs))
	var zero Slot
	if zero.Bytes() != nil || !zero.SGE(0).outside {
		t.Error("the zero slot has memory")
	}
}

func TestBufferPoolConcurrent(t *testing.T) {
	const workers = 8
	p, _ := newPool(t, 64, workers/2)
	var wg sync.WaitGroup
	for w := range byte(workers) {
		wg.Go(func() {
			for done := 0; done < 200; {
				s, err := p.Get()
				if err == ErrPoolEmpty {
					continue
				}
				b := s.Bytes()
				for i := range b {
					b[i] = w
				}
				for i := range b {
					if b[i] != w {
						t.Errorf("slot %d has two owners", s.Index())
						break
					}
				}
				if err := p.Put(s); err != nil {
					t.Error(err)
				}
				done++
			}
		})
	}
	wg.Wait()
	if p.Free() != workers/2 {
		t.Errorf("%d slots are free, want %d", p.Free(), workers/2)
	}
}

func TestBufferPoolAllocs(t *testing.T) {
	p, _ := newPool(t, 64, 2)
	if n := testing.AllocsPerRun(100, func() {
		a, err := p.Get()
		b, err2 := p.Get()
		_, empty := p.Get()
		if err != nil || err2 != nil || empty == nil || a.SGE(64).outside || len(b.Bytes()) != 64 || p.Put(b) != nil || p.Put(a) != nil || p.Put(a) == nil {
			t.Error("the pool does not work")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkBufferPool(b *testing.B) {
	d, _ := fakeDevice(b, pathAuto)
	pd := value(d.AllocPD())(b)
	p := value(NewBufferPool(pd, PoolOptions{SlotSize: 64, Slots: 100}))(b)
	b.ReportAllocs()
	for b.Loop() {
		s, err := p.Get()
		if err != nil || p.Put(s) != nil {
			b.Fatal(err)
		}
	}
	must(b, p.Close(), pd.Close())
}

func TestBufferPoolRefused(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	k.took()
	for _, c := range []struct {
		field string
		o     PoolOptions
	}{
		{"SlotSize", PoolOptions{Slots: 1}},
		{"SlotSize", PoolOptions{Slots: 1, SlotSize: -1}},
		{"SlotSize", PoolOptions{Slots: 1, SlotSize: math.MaxUint32}},
		{"Slots", PoolOptions{SlotSize: 1}},
		{"Slots", PoolOptions{SlotSize: 1, Slots: -1}},
		{"Slots", PoolOptions{SlotSize: 1<<31 + 1, Slots: math.MaxUint32}},
		{"Slots", PoolOptions{SlotSize: 1, Slots: math.MaxUint32 + 1}},
		{"access", PoolOptions{SlotSize: 1, Slots: 1, Access: AccessRemoteWrite}},
	} {
		var arg *ArgError
		if _, err := NewBufferPool(pd, c.o); !errors.As(err, &arg) || arg.Field != c.field {
			t.Errorf("%+v: %v, want an ArgError about %s", c.o, err, c.field)
		}
	}
	k.sent()
	k.refuse["REG_MR"] = syscall.ENOMEM
	errorIs(t, second(NewBufferPool(pd, PoolOptions{SlotSize: 1, Slots: 1})), syscall.ENOMEM, "ENOMEM")
	must(t, pd.Close())
}
