package cm

import (
	"fmt"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/internal/liveness"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// peerCheck is a timer that checks whether the peer is still there: often while work requests are
// outstanding, and once per KeepAlive otherwise. A device that limits its retries reports a lost
// peer by itself. Others never do, so cm does not rely on the device.
type peerCheck struct {
	timer *time.Timer // nil before start and after stop
	busy  bool        // the timer is set for outstanding work requests

	watch     liveness.Watch
	completed uint64 // how many work requests were complete at the last check
	idle      bool   // nothing was sent or received since the last check
}

// start sets the timer for the first time. The caller holds c.mu.
func (w *peerCheck) start(c *Conn) {
	if c.listener == nil { // otherwise Conn.accepted sets it
		c.win.attendAt = time.Now().Add(attendDelay)
	}
	w.timer = time.AfterFunc(time.Hour, c.checkLiveness)
	w.schedule(c, c.mustRecvFirst)
}

// stop stops the timer for good. The caller holds c.mu.
func (w *peerCheck) stop() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// schedule sets the timer for the next check. While the connection is busy there are several checks
// per peerTimeout, so that a lost peer is noticed soon after it.
func (w *peerCheck) schedule(c *Conn, busy bool) {
	w.busy = busy
	after := c.o.KeepAlive
	if busy {
		after = c.peerTimeout() / liveness.Looks
	}
	if c.attendDue() {
		if soon := max(time.Until(c.win.attendAt), time.Millisecond); after <= 0 || after > soon {
			after = soon
		}
	}
	if after > 0 {
		w.watch.Next(time.Now(), after)
		w.timer.Reset(after)
	} else {
		w.timer.Stop()
	}
}

// unattended is called when the last goroutine has left the methods of the connection after a check
// has found one there. The caller holds c.mu.
func (w *peerCheck) unattended(c *Conn) {
	c.win.attended = false
	if w.timer != nil && c.err == nil {
		c.win.attendAt = time.Now().Add(laterDelays * attendDelay)
		w.schedule(c, w.busy)
	}
}

// sendPosted notes that a work request was posted. The caller holds c.mu.
func (w *peerCheck) sendPosted(c *Conn) {
	if !w.busy && w.timer != nil {
		w.schedule(c, true)
	}
}

// checkLiveness fails the connection if the peer's device has owed an answer for longer than
// peerTimeout. It sends a probe if the device owes no answer but there are work requests
// outstanding, or if the connection was idle for a KeepAlive.
func (c *Conn) checkLiveness() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing || c.destroying || c.err != nil {
		return
	}
	c.pollAll()
	w := &c.liveness
	completed := c.completed + c.opsDone
	waiting := c.outstanding() && completed == w.completed
	now := time.Now()
	c.startAttend(now)
	// A side that has to wait for the first message may not send a probe.
	if owed := w.watch.Look(now, c.mustRecvFirst || waiting && c.owed(), completed); owed > c.peerTimeout() {
		if c.mustRecvFirst {
			c.fail(fmt.Errorf("for %s nothing has arrived from the peer, which has to send first on iWARP; it is gone, or the network drops its packets: %w",
				owed.Round(time.Millisecond), syscall.ETIMEDOUT))
		} else {
			c.fail(liveness.Gone(owed))
		}
		return
	}
	if !c.mustRecvFirst && !c.owed() && (waiting || w.idle && !w.busy) {
		c.probe()
	}
	w.completed, w.idle = completed, true
	if c.err == nil {
		w.schedule(c, c.mustRecvFirst || c.outstanding())
	}
}

// peerTimeout returns how long the peer's device may owe an answer: a multiple of the time of all
// retries, because a lossy link is no reason to give up, plus the time that the outstanding bytes
// may take.
func (c *Conn) peerTimeout() time.Duration {
	const times = 3
	const perByte = time.Microsecond // no link is slower
	retries := time.Duration(c.o.RetryCount+1) * ib.AckTimeoutFor(c.o.AckTimeout).Duration()
	return times*retries + time.Duration(c.opBytes+c.o.SendDepth*c.o.MessageSize)*perByte
}
