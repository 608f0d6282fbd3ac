package mmio

import (
	"runtime"
	"sync/atomic"
)

// A Lock is a lock for sections of some nanoseconds that goroutines hardly ever enter at the same
// time: the use of a ring, which Close ends. It is taken with one atomic instruction and released
// with an ordinary store; a sync.Mutex takes two atomic instructions. A waiting goroutine lets
// others run. The zero Lock is free.
type Lock struct {
	held    uint32
	waiting atomic.Int32 // how many wait
}

// TryLock takes the lock if it is free, and reports whether it did.
func (l *Lock) TryLock() bool { return atomic.CompareAndSwapUint32(&l.held, 0, 1) }

// Lock takes the lock.
func (l *Lock) Lock() {
	if l.waiting.Load() != 0 || !l.TryLock() {
		l.wait()
	}
}

// lockSpins is how often a Lock is looked at before another goroutine may run.
const lockSpins = 30

// wait takes the lock when it is free. Others who want it meanwhile come here as well, and all
// let one another run: so a goroutine that takes it again and again keeps nobody out, even
// on a single processor.
func (l *Lock) wait() {
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	runtime.Gosched()
	for !l.TryLock() {
		for range lockSpins {
			if atomic.LoadUint32(&l.held) == 0 {
				break
			}
		}
		runtime.Gosched()
	}
}

// Unlock releases the lock.
func (l *Lock) Unlock() { storeRelease(&l.held, 0) }
