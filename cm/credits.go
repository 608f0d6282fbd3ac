package cm

import "github.com/goverbs/goverbs/uverbs"

// returnCredits sends the peer its credits back when they are at least half of Depth. Other
// messages carry them too. The credits of the first small receives, and of the request for large
// ones, are returned together with the announcement of the large ones. If the request comes later,
// its credit is returned at once: nothing else brings it back if the program on this side receives
// nothing.
func (c *Conn) returnCredits() {
	if c.needsLarge() {
		c.growOrFail()
	}
	if h, due := c.dueControl(); due {
		c.sendControl(h)
	}
}

// needsLarge reports whether the peer has used so many small receives that large ones are due: half of them
// for messages that were taken, or all.
func (c *Conn) needsLarge() bool {
	unread := c.inTail - c.inHead
	return c.win.startsSmall && !c.win.grown && (c.consumed >= (firstDepth+1)/2 || c.consumed+unread >= firstDepth)
}

// dueControl returns the control message that returns credits, if it is due.
func (c *Conn) dueControl() (h header, due bool) {
	w := &c.win
	switch {
	case c.err != nil || c.eof || c.closing || c.mustRecvFirst || !canSendControl(c, 0):
	case w.grown && !w.announced:
		w.announced = true
		return header{kind: msgGrown, recvs: w.smallPosted}, true
	case (!w.startsSmall || w.grown) && c.consumed >= (c.o.Depth+1)/2, w.wantedLate && c.consumed > 0:
		w.wantedLate = false
		return header{kind: msgCredits}, true
	}
	return header{}, false
}

// sendControl sends a control message. The caller has checked that there is room for it.
func (c *Conn) sendControl(h header) {
	id, i := c.stageControl(h)
	b := c.qp.BeginSend()
	b.Send(id, uverbs.SendSignaled)
	b.SGE(c.ctl.sge(i, headerSize))
	c.post(b)
}

// stageControl writes a control message into a slot. It returns the ID of the SEND, and the slot.
func (c *Conn) stageControl(h header) (id uint64, i int) {
	i = int(c.ctlPosted % ctlSlots)
	h.credits, c.consumed = c.consumed, 0
	h.put(c.ctl.bytes(i))
	c.ctlPosted++
	c.peer.sent++
	return c.recordSignaled(ctlSend), i
}
