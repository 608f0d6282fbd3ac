package uverbs

import (
	"errors"
	"fmt"
)

// errCause is why a queue pair is in state Err, where no failed completion says so.
type errCause struct {
	err    error
	before *errCause // the asynchronous event that Modify has replaced, or nil
}

// The causes that are this program's doing.
var (
	errMovedToErr   = &errCause{err: errors.New("this program moved the QP to state ERR, by Modify")}
	errMovedToReset = &errCause{err: errors.New("this program moved the QP to state RESET, by Modify")}
	errQPClosed     = errors.New("this program closed the QP")
)

// eventCause is an asynchronous event that says that the device moved a queue pair to state Err.
type eventCause EventType

func (e eventCause) Error() string {
	return fmt.Sprintf("the device reported an asynchronous event of the QP, %q", EventType(e))
}

// SetErrCause records why the queue pair is in state [QPErr], or is about to be. It is for causes that
// show neither in a failed completion nor in [QP.Modify]: a connection manager calls it when the peer
// has disconnected, and before it calls Modify itself. [QP.Err] then names the cause of requests that
// are flushed, and its error matches cause too. The first cause counts until the QP leaves [QPReset]
// again; nil is ignored. An asynchronous event, which the library records when [Device.WaitEvent]
// returns it, counts only until SetErrCause or Modify gives another cause, because the program may
// read it after it has reset the QP and connected it again.
func (q *QP) SetErrCause(cause error) {
	if cause != nil {
		q.recordCause(&errCause{err: cause})
	}
}

// recordCause records a cause unless there is one already that is not an asynchronous event, and
// reports whether it did.
func (q *QP) recordCause(c *errCause) bool {
	for {
		old := q.cause.Load()
		if old != nil && !old.isEvent() {
			return false
		}
		if q.cause.CompareAndSwap(old, c) {
			return true
		}
	}
}

// isEvent reports whether the cause comes from an asynchronous event alone.
func (c *errCause) isEvent() bool {
	_, ok := c.err.(eventCause)
	return ok
}

// movedTo records that the program moves the QP to Err or Reset, and returns the cause. It returns nil
// if a request has been flushed before, because then the device has moved the QP.
func (q *QP) movedTo(state QPState) *errCause {
	cause := errMovedToErr
	if state == QPReset {
		cause = errMovedToReset
	}
	if state != QPErr && state != QPReset || q.flushSeen.Load() || q.first.Load() != nil {
		return nil
	}
	if event := q.cause.Load(); event != nil && event.isEvent() {
		cause = &errCause{fmt.Errorf("%w; before that %w", cause.err, event.err), event}
	}
	if !q.recordCause(cause) {
		return nil
	}
	return cause
}

// whyFlushed returns why the QP flushes requests, or nil if that is not known.
func (q *QP) whyFlushed() error {
	if c := q.cause.Load(); c != nil {
		return c.err
	}
	if q.closed.Load() && !q.flushSeen.Load() {
		return errQPClosed
	}
	return nil
}
