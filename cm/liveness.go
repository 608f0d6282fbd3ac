package cm

import (
	"fmt"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// liveness looks now and then whether the peer is still there: more often while something is on
// its way, and every KeepAlive while nothing is. A device says so itself if its retries have an
// end; it is not relied upon, as one that takes them to be without end says nothing.
type liveness struct {
	timer *time.Timer // nil before start and after stop
	busy  bool        // the timer is set for what is on its way

	completed uint64    // c.retired at the last look
	owedSince time.Time // when the peer's device was first seen to owe an answer, and has given none since; zero if it does not
	idle      bool      // nothing has come or gone since the last look
}

// start begins to watch. The caller holds c.mu.
func (w *liveness) start(c *Conn) {
	if c.listener == nil { // else when the program has accepted
		c.win.growAt = time.Now().Add(growDelay)
	}
	w.timer = time.AfterFunc(time.Hour, c.checkLiveness)
	w.schedule(c, c.mustRecvFirst)
}

// stop ends it for good. The caller holds c.mu.
func (w *liveness) stop() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// schedule sets the timer. A peer that is gone is found out not much later than patience has it.
func (w *liveness) schedule(c *Conn, busy bool) {
	const looks = 8
	w.busy = busy
	after := c.o.KeepAlive
	if busy {
		after = c.peerTimeout() / looks
	}
	if c.win.startsSmall && !c.win.grown && !c.win.growAt.IsZero() {
		soon := time.Until(c.win.growAt)
		if soon <= 0 { // there was no memory for it: it tries again as often
			soon = max(growDelay, time.Millisecond)
		}
		if after <= 0 || after > soon {
			after = soon
		}
	}
	if after > 0 {
		w.timer.Reset(after)
	} else {
		w.timer.Stop()
	}
}

// sendPosted has something that was posted watched. The caller holds c.mu.
func (w *liveness) sendPosted(c *Conn) {
	if !w.busy && w.timer != nil {
		w.schedule(c, true)
	}
}

// checkLiveness fails the connection if the peer's device has owed an answer for too long. If it owes
// none to what was sent, or nothing has come or gone for a KeepAlive, it is asked for one.
func (c *Conn) checkLiveness() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing || c.destroying || c.err != nil {
		return
	}
	c.poll()
	if !c.win.growAt.IsZero() && time.Until(c.win.growAt) <= 0 {
		c.grow() // if there is no memory for it yet, later
		c.returnCredits()
	}
	w := &c.liveness
	waiting := c.posted != c.completed && c.completed == w.completed
	now := time.Now()
	switch {
	case c.mustRecvFirst && w.owedSince.IsZero():
		w.owedSince = now
	case c.mustRecvFirst && now.Sub(w.owedSince) > c.peerTimeout():
		c.fail(fmt.Errorf("for %s nothing has come from the peer, which has connected and sends first on iWARP; it is gone, or does not get through: %w",
			now.Sub(w.owedSince).Round(time.Millisecond), syscall.ETIMEDOUT))
		return
	case c.mustRecvFirst: // and this side may not ask
	case !waiting || c.signaledEnd <= c.completed:
		w.owedSince = time.Time{}
	case w.owedSince.IsZero():
		w.owedSince = now
	case now.Sub(w.owedSince) > c.peerTimeout():
		c.fail(fmt.Errorf("for %s the device has said nothing of what was sent, which the peer does not acknowledge; it is gone, or does not get through: %w",
			now.Sub(w.owedSince).Round(time.Millisecond), syscall.ETIMEDOUT))
		return
	}
	if !c.mustRecvFirst && c.signaledEnd <= c.completed && (waiting || w.idle && !w.busy) {
		c.probe().abandoned = true
	}
	w.completed, w.idle = c.completed, true
	if c.err == nil {
		w.schedule(c, c.mustRecvFirst || c.posted != c.completed)
	}
}

// peerTimeout is how long the peer's device may owe an answer: some times that of all retries, as a
// link that loses packets is no reason to give up, and that of what is moved.
func (c *Conn) peerTimeout() time.Duration {
	const times = 3
	const perByte = time.Microsecond // no link is slower
	retries := time.Duration(c.o.RetryCount+1) * uverbs.AckTimeoutFor(c.o.AckTimeout).Duration()
	return times*retries + time.Duration(c.opBytes+c.o.SendDepth*c.o.MessageSize)*perByte
}
