package protocol

import (
	"errors"
	"time"

	"github.com/goverbs/goverbs/cm/internal/liveness"
	"github.com/goverbs/goverbs/cm/rdmacm"
)

// How a device repeats what its peer does not acknowledge.
const (
	// RetryCount is how often a device sends a packet again before it gives up on a peer that does not answer.
	// With 7, which is the most, rxe never gives up.
	RetryCount = 6

	// RNRRetryCount is the number of retries, without a limit, of a message that finds no receive. The device of
	// the peer answers each of them, so that the peer is alive.
	RNRRetryCount = 7

	// ackTimeout is how long a device waits before it sends a packet again. Cards may wait up to four times as
	// long.
	ackTimeout = 500 * time.Millisecond
)

// SetRetries sets how the device repeats what it sends on the QP of an ID, whatever the peer asks for: a peer that
// is busy must not end the connection, and one that is gone must.
func SetRetries(id *rdmacm.ID) error {
	return errors.Join(id.SetAckTimeout(ackTimeout), id.SetRetryCount(RetryCount), id.SetRNRRetryCount(RNRRetryCount))
}

// AnswerTimeout is how long the device of a peer may owe an answer to a probe. It is what a slow device needs for
// all retries. Tests change it.
var AnswerTimeout = 15 * time.Second

// Liveness checks whether the peer of a connection is still there: often while work requests are
// outstanding, and once per KeepAlive otherwise. The lock of the connection guards it.
type Liveness struct {
	KeepAlive time.Duration // KeepAlive is how often an idle connection is checked; not if it is not positive.
	Done      uint64        // Done counts the completed work requests that are not receives.

	timer *time.Timer // nil before Start
	watch liveness.Watch
	busy  bool // the timer is set for outstanding work requests
	used  bool // something was sent or received since the last check
}

// Start sets the timer, which calls check from now on. check calls Check.
func (l *Liveness) Start(check func()) {
	l.timer = time.AfterFunc(time.Hour, check)
	l.schedule(false)
}

// Stop stops the timer. A check that is running may go on.
func (l *Liveness) Stop() {
	if l.timer != nil {
		l.timer.Stop()
	}
}

// schedule sets the timer for the next check.
func (l *Liveness) schedule(busy bool) {
	after := l.KeepAlive
	if l.busy = busy; busy {
		after = AnswerTimeout / liveness.Looks
	}
	if after <= 0 {
		l.timer.Stop()
		return
	}
	l.watch.Next(time.Now(), after)
	l.timer.Reset(after)
}

// Used notes that something was received.
func (l *Liveness) Used() { l.used = true }

// Posted notes that a work request was posted.
func (l *Liveness) Posted() {
	l.used = true
	if !l.busy && l.timer != nil {
		l.schedule(true)
	}
}

// Check reports whether the caller should send something to an idle peer, or returns an error if the peer
// has owed an answer for too long. Work requests may be outstanding although no answer is owed: if they
// need something of the peer's program, or complete without an answer.
func (l *Liveness) Check(outstanding, owed bool) (probe bool, err error) {
	if since := l.watch.Look(time.Now(), owed, l.Done); since > AnswerTimeout {
		return false, liveness.Gone(since)
	}
	probe = !outstanding && !l.busy && !l.used
	l.used = false
	l.schedule(outstanding)
	return probe, nil
}
