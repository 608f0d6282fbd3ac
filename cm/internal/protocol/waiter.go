package protocol

import (
	"context"
	"os"
	"sync"
	"time"
)

// Waiter is what the calls of one kind (Read, Write, Close) wait with. There is one such call at a
// time.
type Waiter struct {
	turn  *turn
	sends bool          // the calls wait for room to send
	busy  bool          // guarded by Stream.Mu: a call waits
	wake  chan struct{} // has room for one; makes the call look again if it waits for the turn

	mu       sync.Mutex
	deadline time.Time   // guarded by mu; zero is none
	timer    *time.Timer // guarded by mu: interrupts at the deadline; nil before the first deadline
}

// init prepares a waiter.
func (w *Waiter) init(t *turn, sends bool) {
	w.turn, w.sends, w.wake = t, sends, make(chan struct{}, 1)
}

// Busy reports whether a call waits. The caller holds Mu.
func (w *Waiter) Busy() bool { return w.busy }

// next makes the call look again if it waits for the turn.
func (w *Waiter) next() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// interrupt makes the call look again, also if it has the turn.
func (w *Waiter) interrupt() {
	w.next()
	w.turn.interrupt(w)
}

// check returns [os.ErrDeadlineExceeded] if the deadline is over.
func (w *Waiter) check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over() {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// over reports whether the deadline is over. The caller holds w.mu.
func (w *Waiter) over() bool { return !w.deadline.IsZero() && time.Until(w.deadline) <= 0 }

// set sets the deadline; the zero time is none.
func (w *Waiter) set(t time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadline = t
	switch left := time.Until(t); {
	case t.IsZero():
		if w.timer != nil {
			w.timer.Stop()
		}
	case left <= 0:
		w.interrupt()
	case w.timer == nil:
		w.timer = time.AfterFunc(left, w.expire)
	default:
		w.timer.Reset(left)
	}
}

// expire interrupts the call if the deadline is over. A timer may also fire for a deadline that was
// moved.
func (w *Waiter) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.over():
		w.interrupt()
	case !w.deadline.IsZero():
		w.timer.Reset(time.Until(w.deadline))
	}
}

// turn is the right to wait for completions of a connection.
type turn struct {
	taken chan struct{} // has one element while a goroutine has the turn, and after Close

	mu     sync.Mutex
	by     *Waiter            // guarded by mu: the call that has the turn
	ctx    context.Context    // guarded by mu: of the wait; nil if there must be a new one
	cancel context.CancelFunc // guarded by mu: ends it
}

// take takes the turn for a waiter, if it is free.
func (t *turn) take(w *Waiter) bool {
	select {
	case t.taken <- struct{}{}:
	default:
		return false
	}
	t.mu.Lock()
	t.by = w
	t.mu.Unlock()
	return true
}

// giveUp gives the turn up.
func (t *turn) giveUp() {
	t.mu.Lock()
	t.by = nil
	t.mu.Unlock()
	<-t.taken
}

// context returns the context for the next wait. An interrupt from now on ends it.
func (t *turn) context() context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx == nil {
		t.ctx, t.cancel = context.WithCancel(context.Background())
	}
	return t.ctx
}

// interrupt makes a waiter look again if it has the turn.
func (t *turn) interrupt(w *Waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by == w && t.ctx != nil {
		t.cancel()
		t.ctx = nil
	}
}

// close takes the turn for good, after those who wait were interrupted, and releases what it holds.
func (t *turn) close() {
	t.taken <- struct{}{}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx != nil {
		t.cancel()
	}
}
