package uverbs

import (
	"errors"
	"fmt"
)

// errCause is why a queue pair is in state Err, if no completion tells.
type errCause struct {
	err    error
	before *errCause // the asynchronous event that was noted before, if Modify replaced it
}

// Why a queue pair flushes, as far as this side moved it.
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

// SetErrCause tells the library why the queue pair is in state [Err], or is about to be, if
// neither a failed completion nor [QP.Modify] tells. A connection manager calls it when the peer
// has disconnected, and before it calls Modify itself. [QP.Err] then says so of the requests that are
// flushed, and its error matches cause too. The first cause counts, until the QP leaves [Reset]
// again; nil is ignored. An asynchronous event, which the library notes when [Device.WaitEvent]
// returns it, counts only until SetErrCause or Modify gives another cause: the program may read it
// after it has reset the QP and connected it again.
func (q *QP) SetErrCause(cause error) {
	if cause != nil {
		q.noteCause(&errCause{err: cause})
	}
}

// noteCause notes a cause unless there is one already that is not an asynchronous event, and
// reports whether it did.
func (q *QP) noteCause(note *errCause) bool {
	for {
		old := q.cause.Load()
		if old != nil && !old.isEvent() {
			return false
		}
		if q.cause.CompareAndSwap(old, note) {
			return true
		}
	}
}

// isEvent reports whether the cause comes from an asynchronous event alone.
func (c *errCause) isEvent() bool {
	_, ok := c.err.(eventCause)
	return ok
}

// movedTo notes that the program moves the QP to Err or Reset, and returns the note. It notes
// nothing if something has been flushed before, as the device has moved the QP then.
func (q *QP) movedTo(state QPState) *errCause {
	note := errMovedToErr
	if state == Reset {
		note = errMovedToReset
	}
	if state != Err && state != Reset || q.flushSeen.Load() || q.first.Load() != nil {
		return nil
	}
	if event := q.cause.Load(); event != nil && event.isEvent() {
		note = &errCause{fmt.Errorf("%w; before that %w", note.err, event.err), event}
	}
	if !q.noteCause(note) {
		return nil
	}
	return note
}

// whyFlushed returns why the QP flushes requests, or nil if that is not known.
func (q *QP) whyFlushed() error {
	if c := q.cause.Load(); c != nil {
		return c.err
	}
	if q.gone.Load() && !q.flushSeen.Load() {
		return errQPClosed
	}
	return nil
}
