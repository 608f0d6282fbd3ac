// Package liveness notices peers that are gone without a word. A device that limits its retries reports
// them by itself, but some retry without limit, or for as long as the peer has asked for.
package liveness

import (
	"fmt"
	"syscall"
	"time"
)

// Looks is how many times per timeout a connection should look while its peer owes an answer.
const Looks = 8

// Watch measures for how long the device of a peer has owed an answer. Its methods are called by a timer
// of the connection, and take the time from the caller.
type Watch struct {
	done  uint64    // completed work requests at the last look
	since time.Time // when a look first found an answer to be owed; zero if none is
	due   time.Time // when the next look should be
	every time.Duration
}

// Next notes that the next look is due after a time.
func (w *Watch) Next(now time.Time, after time.Duration) { w.due, w.every = now.Add(after), after }

// Look returns for how long the peer has owed an answer: how long ago a look first found work requests
// outstanding of which none has completed since. The time by which a look comes much later than it was due does
// not count, because the process was stopped and the answer may only have to be read.
func (w *Watch) Look(now time.Time, owes bool, done uint64) time.Duration {
	late := !w.due.IsZero() && now.Sub(w.due) > w.every
	switch {
	case !owes || done != w.done:
		w.since = time.Time{}
	case w.since.IsZero():
		w.since = now
	case late:
		w.since = w.since.Add(now.Sub(w.due))
	}
	w.done = done
	if w.since.IsZero() {
		return 0
	}
	return now.Sub(w.since)
}

// Gone returns the error of a connection whose peer has owed an answer for too long.
func Gone(owed time.Duration) error {
	return fmt.Errorf("for %s the peer has acknowledged nothing of what was sent; it is gone, or the network drops the packets: %w",
		owed.Round(time.Millisecond), syscall.ETIMEDOUT)
}
