package cm

import (
	"fmt"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// watch looks now and then whether the peer is still there: more often while something is on
// its way, and every KeepAlive while nothing is. A device says so itself if its retries have an
// end; it is not relied upon, as one that takes them to be without end says nothing.
type watch struct {
	timer *time.Timer // nil before start and after stop
	busy  bool        // the timer is set for what is on its way

	retired uint64    // c.retired at the last look
	since   time.Time // when the peer's device was first seen to owe an answer, and has given none since; zero if it does not
	idle    bool      // nothing has come or gone since the last look
}

// start begins to watch. The caller holds c.mu.
func (w *watch) start(c *Conn) {
	if c.from == nil { // else when the program has accepted
		c.win.due = time.Now().Add(growSoon)
	}
	w.timer = time.AfterFunc(time.Hour, c.look)
	w.set(c, c.mute)
}

// stop ends it for good. The caller holds c.mu.
func (w *watch) stop() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// set sets the timer. A peer that is gone is found out not much later than patience has it.
func (w *watch) set(c *Conn, busy bool) {
	const looks = 8
	w.busy = busy
	after := c.o.KeepAlive
	if busy {
		after = c.patience() / looks
	}
	if c.win.lazy && !c.win.grown && !c.win.due.IsZero() {
		soon := time.Until(c.win.due)
		if soon <= 0 { // there was no memory for it: it tries again as often
			soon = max(growSoon, time.Millisecond)
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

// posted has something that was posted watched. The caller holds c.mu.
func (w *watch) posted(c *Conn) {
	if !w.busy && w.timer != nil {
		w.set(c, true)
	}
}

// look fails the connection if the peer's device has owed an answer for too long. If it owes
// none to what was sent, or nothing has come or gone for a KeepAlive, it is asked for one.
func (c *Conn) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing || c.freed || c.err != nil {
		return
	}
	c.poll()
	if !c.win.due.IsZero() && time.Until(c.win.due) <= 0 {
		c.grow() // if there is no memory for it yet, later
		c.giveCredits()
	}
	w := &c.watch
	waiting := c.posted != c.retired && c.retired == w.retired
	now := time.Now()
	switch {
	case c.mute && w.since.IsZero():
		w.since = now
	case c.mute && now.Sub(w.since) > c.patience():
		c.fail(fmt.Errorf("for %s nothing has come from the peer, which has connected and sends first on iWARP; it is gone, or does not get through: %w",
			now.Sub(w.since).Round(time.Millisecond), syscall.ETIMEDOUT))
		return
	case c.mute: // and this side may not ask
	case !waiting || c.asked <= c.retired:
		w.since = time.Time{}
	case w.since.IsZero():
		w.since = now
	case now.Sub(w.since) > c.patience():
		c.fail(fmt.Errorf("for %s the device has said nothing of what was sent, which the peer does not acknowledge; it is gone, or does not get through: %w",
			now.Sub(w.since).Round(time.Millisecond), syscall.ETIMEDOUT))
		return
	}
	if !c.mute && c.asked <= c.retired && (waiting || w.idle && !w.busy) {
		c.probe().left = true
	}
	w.retired, w.idle = c.retired, true
	if c.err == nil {
		w.set(c, c.mute || c.posted != c.retired)
	}
}

// patience is how long the peer's device may owe an answer: some times that of all retries, as a
// link that loses packets is no reason to give up, and that of what is moved.
func (c *Conn) patience() time.Duration {
	const times = 3
	const perByte = time.Microsecond // no link is slower
	retries := time.Duration(c.o.RetryCount+1) * uverbs.AckTimeoutFor(c.o.AckTimeout).Duration()
	return times*retries + time.Duration(c.moving+c.o.SendDepth*c.o.MessageSize)*perByte
}
