package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/fault"
)

// closeWait is how long a QP that is closed waits for a worker to send its packets. A worker takes
// that long only if the system does not take packets.
const closeWait = time.Second

// flushes count how often a worker has sent all its packets. QPs refer to them, but not to the worker,
// whose queues are large.
type flushes struct {
	n atomic.Uint64 // changed with mu only

	mu   sync.Mutex
	sent sync.Cond // n or vain has changed
	vain uint64    // 1 + the n for which a QP has waited in vain; 0: none has. guarded by mu
}

// newFlushes returns the count of a new worker.
func newFlushes() *flushes {
	f := new(flushes)
	f.sent.L = &f.mu
	return f
}

// done ends a flush.
func (f *flushes) done() {
	f.mu.Lock()
	f.n.Add(1)
	f.mu.Unlock()
	f.sent.Broadcast()
}

// giveUp ends the waiting for a flush.
func (f *flushes) giveUp(n uint64) {
	f.mu.Lock()
	f.vain = n + 1
	f.mu.Unlock()
	f.sent.Broadcast()
}

// An unsent names packets that a worker has not sent yet. The zero value names none.
type unsent struct {
	by *flushes
	n  uint64 // flushes before the one that sends them
}

// unsent names the packets that the worker has now.
func (w *worker) unsent() unsent { return unsent{w.flushes, w.flushes.n.Load()} }

// await waits until the packets are sent, but no longer than closeWait, and not at all if a QP has
// waited for them in vain. The worker may need the lock of any QP, so the caller holds none.
func (u unsent) await(clock fault.Clock) {
	f := u.by
	if f == nil || f.n.Load() != u.n {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.vain == u.n+1 {
		return
	}
	timer := clock.AfterFunc(closeWait, func() { f.giveUp(u.n) })
	defer timer.Stop()
	for f.n.Load() == u.n && f.vain != u.n+1 {
		f.sent.Wait()
	}
}
