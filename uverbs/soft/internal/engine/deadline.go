package engine

import "time"

// deadline is what a QP waits for.
type deadline uint8

const (
	retryDeadline deadline = iota // when to repeat the unacknowledged packets
	rnrDeadline                   // when the wait after an RNR NAK is over
	slowDeadline                  // when to look at the requests that wait in the responder
	flushDeadline                 // when to flush receives that were posted while the QP moved to state ERR
	numDeadlines
)

// deadlines are the times at which a QP has something to do, since the device was made. Its methods alone
// change them, so that each one has an entry of the device's timers.
type deadlines struct {
	at    [numDeadlines]time.Duration // 0: never
	entry time.Duration               // time of the QP's entry in the device's timers; 0: there is none
}

// set sets a deadline, and makes an entry of the device's timers if there is none that is early enough. The
// caller holds q.mu.
func (d *deadlines) set(q *QP, what deadline, at time.Duration) {
	d.at[what] = at
	if d.entry == 0 || at < d.entry {
		d.entry = at
		q.dev.timers.set(at, q)
	}
}

// after sets a deadline to a time from now.
func (d *deadlines) after(q *QP, what deadline, wait time.Duration) {
	d.set(q, what, q.dev.now()+wait)
}

// clear removes a deadline. The entry stays, and is replaced when its time has come.
func (d *deadlines) clear(what deadline) { d.at[what] = 0 }

// isSet reports whether there is a deadline.
func (d *deadlines) isSet(what deadline) bool { return d.at[what] != 0 }

// stopSends removes the deadlines of requests that were sent.
func (d *deadlines) stopSends() {
	d.clear(retryDeadline)
	d.clear(rnrDeadline)
}

// begin takes note that the entry of a time has been taken out. It reports false if another one has
// replaced it.
func (d *deadlines) begin(at time.Duration) bool {
	if d.entry != at {
		return false
	}
	d.entry = 0
	return true
}

// due reports whether the time of a deadline has come, and removes it if so.
func (d *deadlines) due(what deadline, now time.Duration) bool {
	if d.at[what] == 0 || d.at[what] > now {
		return false
	}
	d.at[what] = 0
	return true
}

// end makes an entry for the next deadline, if there is one.
func (d *deadlines) end(q *QP) {
	for what, at := range d.at {
		if at != 0 {
			d.set(q, deadline(what), at)
		}
	}
}
