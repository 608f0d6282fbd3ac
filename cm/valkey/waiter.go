package valkey

import (
	"os"
	"sync"
	"time"
)

// waiter is what the calls of one kind (Read, Write, Close) wait with. There is one such call at a
// time.
type waiter struct {
	sends bool          // the calls wait for room to send
	busy  bool          // guarded by Conn.mu: a call waits
	wake  chan struct{} // has room for one; makes the call look again

	mu       sync.Mutex
	deadline time.Time   // guarded by mu; zero is none
	timer    *time.Timer // guarded by mu: wakes the call at the deadline; nil before the first deadline
}

// init prepares a waiter.
func (w *waiter) init(sends bool) { w.sends, w.wake = sends, make(chan struct{}, 1) }

// next makes the call look again.
func (w *waiter) next() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// check returns [os.ErrDeadlineExceeded] if the deadline is over.
func (w *waiter) check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over() {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// over reports whether the deadline is over. The caller holds w.mu.
func (w *waiter) over() bool { return !w.deadline.IsZero() && time.Until(w.deadline) <= 0 }

// set sets the deadline; the zero time is none.
func (w *waiter) set(t time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadline = t
	switch left := time.Until(t); {
	case t.IsZero():
		if w.timer != nil {
			w.timer.Stop()
		}
	case left <= 0:
		w.next()
	case w.timer == nil:
		w.timer = time.AfterFunc(left, w.expire)
	default:
		w.timer.Reset(left)
	}
}

// expire wakes the call if the deadline is over. A timer may also fire for a deadline that was moved.
func (w *waiter) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.over():
		w.next()
	case !w.deadline.IsZero():
		w.timer.Reset(time.Until(w.deadline))
	}
}
