package uverbs

import (
	"errors"
	"fmt"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

// errCause is why a queue pair is in state QPErr, if no failed completion says so.
type errCause struct {
	err    error
	before *errCause // the asynchronous event that Modify has replaced, or nil
}

// Causes in this program.
var (
	errMovedToErr   = &errCause{err: errors.New("this program moved the QP to state ERR, by Modify")}
	errMovedToReset = &errCause{err: errors.New("this program moved the QP to state RESET, by Modify")}
	errQPClosed     = errors.New("this program closed the QP")
)

// eventCause is the name of an asynchronous event of a QP that the device moved to QPErr.
type eventCause string

func (e eventCause) Error() string {
	return fmt.Sprintf("the device reported an asynchronous event of the QP, %q", string(e))
}

// SetErrCause records why the queue pair is in state [ib.QPErr], or is about to be. It is for causes
// that the library cannot know: a connection manager calls it when the peer has disconnected, and
// before it calls [QP.Modify] itself. For a request that is flushed, [QP.Err] then returns an error
// that names cause and matches it.
//
// The first cause is kept until the QP leaves [ib.QPReset] again. A nil cause is ignored. The library
// itself records an asynchronous event that [Device.NextEvent] returns. Because the event may be
// about an earlier connection, SetErrCause and Modify replace it.
func (q *QP) SetErrCause(cause error) {
	if cause != nil {
		q.recordCause(&errCause{err: cause})
	}
}

// recordCause records a cause unless there is one already that is not an event. It reports whether
// it did.
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

// isEvent reports whether the cause is an asynchronous event.
func (c *errCause) isEvent() bool {
	_, ok := c.err.(eventCause)
	return ok
}

// movedTo records and returns the cause that the program moves the QP to QPErr or QPReset. It
// returns nil if a request was flushed before, because then the device has moved the QP.
func (q *QP) movedTo(state ib.QPState) *errCause {
	cause := errMovedToErr
	if state == ib.QPReset {
		cause = errMovedToReset
	}
	if state != ib.QPErr && state != ib.QPReset || q.flushSeen.Load() || q.first.Load() != nil {
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

// queueOf returns the queue that a failed completion belongs to. The opcode determines it, or else
// the CQ, if the QP has one for each queue (see [CQ.failed]), or else the driver.
func (q *QP) queueOf(wc *WC) diag.Queue {
	switch {
	case wc.Opcode == WCRecv || wc.Opcode == WCRecvRDMAWrite:
		return diag.RecvQueue
	case q.sendCQ != q.recvCQ:
		return diag.SendQueue
	}
	return q.dev.driver.queueOf(q, *wc)
}

// setRecvOpcode sets the opcode of a failed receive to WCRecv, if the driver has not done so.
func (c *CQ) setRecvOpcode(q *QP, wc *WC) {
	switch {
	case wc.Opcode == WCRecv || wc.Opcode == WCRecvRDMAWrite:
	case q.sendCQ != q.recvCQ && c == q.recvCQ, q.queueOf(wc) == diag.RecvQueue:
		wc.Opcode = WCRecv
	}
}
