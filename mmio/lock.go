package mmio

import (
	"runtime"
	"sync/atomic"
)

// A Lock is for what is held for some nanoseconds and hardly ever by two at once: the use of a
// ring, which Close ends. Taking it is one atomic instruction and giving it back an ordinary
// store, where a sync.Mutex has two atomic ones. Whoever has to wait lets other goroutines run.
// The zero Lock is free.
type Lock struct {
	held    uint32
	waiting atomic.Int32 // how many wait
}

// TryLock takes the lock, if it is free, and reports whether it was.
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

// Unlock gives the lock back.
func (l *Lock) Unlock() { storeRelease(&l.held, 0) }
