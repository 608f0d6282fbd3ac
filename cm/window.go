package cm

import (
	"context"
	"time"
)

// A connection begins with memory for a few small messages, which is made at once, and has that
// for Depth messages of MessageSize, whose registration takes longer than all else of a
// connection, when there is a use for it: when the peer has a larger message, or more of them
// than this side takes, and in any case a moment after the beginning, so that what the peer may
// send does not depend on what this side's program does. A connection that is over before that,
// or that does not send much, has had none.
//
// Receives are used in the order in which they were posted, so the first ones that the peer's
// messages meet are the small ones. How many these were it is told once there are large ones: what
// is left of them it uses up with small messages, or with such as are to be dropped, before it
// sends a large one.

const (
	firstDepth = 4                      // messages that the peer may send at first
	firstRecvs = firstDepth + spareRecv // receives that are small
	firstSize  = 448                    // bytes of one: together less than a page
	firstData  = firstSize - headerSize // bytes of data in one
)

// growDelay is when the memory comes that nobody has asked for.
var growDelay = 100 * time.Millisecond

// window is how much a side receives.
type window struct {
	smallMem    memory // slots of the small receives, none if there are none (any more)
	startsSmall bool   // the first receives were small
	grown       bool   // there are large ones
	smallInUse  int    // small slots in use
	smallPosted uint32 // receives that were posted before the first large one
	announced   bool   // the peer knows that these are there

	growAt time.Time // when they come though nobody has asked; zero before Accept has returned the connection

	wantedEarly bool // the peer has asked for them before that
}

// peerWindow is what this side knows of the peer's window.
type peerWindow struct {
	mayBeSmall   bool   // its next receive may be a small one
	grown        bool   // it has large ones
	smallTotal   uint32 // how many it has posted before the first of these
	firstCredits uint32 // how many messages it took at first
	sent         uint32 // how many of its receives were used, while that matters
	wantSent     bool   // it was asked for large ones
}

// recordGrown takes note of the peer's large receives, and of how many small ones it has posted before
// them. Those are the ones of the beginning, and one for each message that it has had.
func (p *peerWindow) recordGrown(recvs uint32) error {
	if !p.mayBeSmall || p.grown {
		return protoErr("it takes large messages for the second time")
	}
	left := int32(recvs - p.sent)
	if left > int32(p.firstCredits+spareRecv) {
		return protoErr("it has posted %d small receives; with %d messages to it there are %d at most", recvs, p.sent, p.sent+p.firstCredits+spareRecv)
	}
	p.grown, p.smallTotal = true, p.sent+uint32(max(left, 0))
	return nil
}

// startsSmall reports whether a connection with these options begins with small receives.
func (o *Options) startsSmall() bool {
	const least = 64 << 10 // bytes that are worth it
	return o.Depth >= 3*firstDepth && o.Depth*o.MessageSize >= least
}

// makeWindow makes the first memory for receiving, and posts the receives.
func (c *Conn) makeWindow(recvs int) (err error) {
	n := recvs
	if c.o.startsSmall() {
		c.win.startsSmall, n = true, firstRecvs
		if c.win.smallMem, err = c.domain.first.alloc(n, firstSize); err != nil {
			return err
		}
		c.win.smallInUse = n
	} else if c.mem, err = c.domain.pool.alloc(n, headerSize+c.o.MessageSize); err != nil {
		return err
	}
	return nil
}

// recvs returns how many receives can be posted.
func (c *Conn) recvs() int {
	if c.win.startsSmall {
		return len(c.inbox) + firstRecvs
	}
	return len(c.inbox)
}

// entries returns how many completions there can be.
func (c *Conn) entries() int { return c.recvs() + len(c.sendRing) }

// postAll posts the receives that a connection begins with. The small slots are those behind the
// large ones.
func (c *Conn) postAll() error {
	from, n := 0, len(c.inbox)
	if c.win.startsSmall {
		from, n = n, firstRecvs
	}
	for slot := from; slot < from+n; slot++ {
		if err := c.postRecv(slot); err != nil {
			return err
		}
	}
	return nil
}

// slotMemory returns where a slot is.
func (c *Conn) slotMemory(slot int) (m *memory, i int) {
	if i := slot - len(c.inbox); i >= 0 {
		return &c.win.smallMem, i
	}
	return &c.mem, slot
}

// postRecv posts the receive of a slot, unless it is of no more use.
func (c *Conn) postRecv(slot int) error {
	if !c.countRepost(slot) {
		return nil
	}
	m, i := c.slotMemory(slot)
	return c.qp.PostRecv(recvBit|uint64(slot), m.sge(i, m.size))
}

// countRepost reports whether the receive of a slot is to be posted. Once there are large ones, a small one
// is not, and with the last of them their memory goes.
func (c *Conn) countRepost(slot int) bool {
	w := &c.win
	if slot >= len(c.inbox) && w.grown {
		if w.smallInUse--; w.smallInUse == 0 {
			w.smallMem.release()
		}
		return false
	}
	if !w.grown {
		w.smallPosted++
	}
	return true
}

// grow makes the memory for receiving that the connection does not have from the beginning, and
// posts its receives. The peer is told soon: with what is left of the small ones it may use up
// all of those without harm, as there are as many large ones as it can ever need.
func (c *Conn) grow() error {
	w := &c.win
	if !w.startsSmall || w.grown || c.closing || c.eof || c.err != nil {
		return nil
	}
	if w.growAt.IsZero() { // a peer takes no memory before the program has accepted it
		w.wantedEarly = true
		return nil
	}
	mem, err := c.domain.pool.alloc(len(c.inbox), headerSize+c.o.MessageSize)
	if err != nil {
		return err
	}
	c.grown(mem)
	for slot := range c.inbox {
		if err := c.postRecv(slot); err != nil {
			return err
		}
	}
	return nil
}

// grown takes note of the memory for receiving.
func (c *Conn) grown(mem memory) {
	c.mem, c.win.grown = mem, true
	c.consumed += c.o.Depth - firstDepth
}

// accepted is called when the program has the connection: from now on it gets memory without being
// asked, as all have a moment after their beginning.
func (c *Conn) accepted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.destroying || c.err != nil || c.liveness.timer == nil {
		return
	}
	c.win.growAt = time.Now().Add(growDelay)
	if c.win.wantedEarly {
		c.growOrFail()
		c.returnCredits()
	}
	if c.err == nil {
		c.liveness.schedule(c, c.liveness.busy)
	}
}

// growOrFail is grow for who cannot do without.
func (c *Conn) growOrFail() {
	if err := c.grow(); err != nil {
		c.fail(err)
	}
}

// peerTakes reports whether the peer takes a message of so many bytes next, as far as its size goes.
func (c *Conn) peerTakes(size int) bool {
	p := &c.peer
	if p.mayBeSmall && p.grown && int32(p.sent-p.smallTotal) >= 0 {
		p.mayBeSmall = false
	}
	return !p.mayBeSmall || size <= firstData
}

// hasGrown: the peer has said that it takes large messages.
func hasGrown(c *Conn, _ *op) bool {
	return c.peer.grown || c.endSent || c.peerClosedRead || c.err != nil || c.closing
}

// prepareLarge does one thing that brings a large message nearer to being taken: it asks the peer for
// memory, waits for that, or uses up a small receive.
func (c *Conn) prepareLarge(ctx context.Context) error {
	p := &c.peer
	switch {
	case p.wantSent && !p.grown:
		return c.await(ctx, hasGrown, nil)
	case !canSendControl(c, nil):
		return c.await(ctx, canSendControl, nil)
	case p.grown:
		c.sendControl(header{kind: msgPad})
	default:
		c.sendWant()
	}
	return nil
}

// sendWant asks the peer for memory, in the place of a message. There is room for that, and for a
// control message.
func (c *Conn) sendWant() {
	c.peer.wantSent = true
	c.credits--
	c.sendControl(header{kind: msgWant})
}
