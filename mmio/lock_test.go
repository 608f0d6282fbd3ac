package mmio

import (
	"runtime"
	"sync"
	"testing"
)

// TestLock: one goroutine at a time has the lock, and what it wrote is seen by the next.
func TestLock(t *testing.T) {
	const workers, rounds = 4, 5000
	var l Lock
	var n, inside int
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range rounds {
				l.Lock()
				if inside++; inside != 1 {
					t.Errorf("%d have the lock", inside)
				}
				if i%64 == 0 {
					runtime.Gosched() // while it is held
				}
				n++
				inside--
				l.Unlock()
			}
		})
	}
	wg.Wait()
	if n != workers*rounds {
		t.Errorf("counted %d, want %d", n, workers*rounds)
	}
	if !l.TryLock() || l.TryLock() {
		t.Error("TryLock does not take a free lock, or takes one that is held")
	}
}

// TestLockLetsOthersIn: a goroutine that has the lock nearly always, and the only processor,
// does not keep another one out.
func TestLockLetsOthersIn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var l Lock
	var got, done bool // got is guarded by l
	l.Lock()
	var wg sync.WaitGroup
	wg.Go(func() {
		l.Lock()
		got = true
		l.Unlock()
	})
	for l.waiting.Load() == 0 {
		runtime.Gosched()
	}
	l.Unlock()
	for i := 0; i < 100 && !done; i++ { // much less than the time that a goroutine may run at once
		l.Lock()
		done = got
		l.Unlock()
	}
	if !done {
		t.Error("the goroutine that waited was passed over")
	}
	wg.Wait()
}

func TestWord(t *testing.T) {
	var w Word
	for _, v := range []uint64{1, 1<<64 - 1, 0} {
		w.Store(v)
		if got := w.Load(); got != v {
			t.Errorf("Load = %#x, want %#x", got, v)
		}
	}
}

func BenchmarkLock(b *testing.B) {
	var l Lock
	n := 0
	for b.Loop() {
		l.Lock()
		n++
		l.Unlock()
	}
}
