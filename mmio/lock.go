package mmio

import (
	"runtime"
	"sync/atomic"
)

// A Lock is a spinlock for critical sections of some nanoseconds with almost no contention, such as
// the use of a ring that only Close competes with. Locking takes one atomic instruction and
// unlocking an ordinary store; a sync.Mutex takes two atomic instructions. A goroutine that waits
// lets others run. The zero Lock is unlocked.
type Lock struct {
	held    uint32
	waiting atomic.Int32 // number of goroutines in wait
}

// TryLock locks l if it is unlocked, and reports whether it did.
func (l *Lock) TryLock() bool { return atomic.CompareAndSwapUint32(&l.held, 0, 1) }

// Lock locks l.
func (l *Lock) Lock() {
	if l.waiting.Load() != 0 || !l.TryLock() {
		l.wait()
	}
}

// lockSpins is how often a waiting goroutine checks the lock before it lets other goroutines run.
const lockSpins = 30

// wait locks l when it is unlocked. While a goroutine waits, others that want the lock come here
// too and yield to one another. So a goroutine that locks again and again does not keep others out,
// even on a single processor.
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

// Unlock unlocks l.
func (l *Lock) Unlock() { storeRelease(&l.held, 0) }
