package cm

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// A connection has no goroutine of its own: those that wait in its methods poll the CQ, each
// for all. When nothing comes one of them parks on the completion channel, and the others wait
// for what it finds.

// condition is what a method waits for. It is called with c.mu held.
type condition func(c *Conn, o *op) bool

// hasMessage: Recv has something to return.
func hasMessage(c *Conn, _ *op) bool {
	return c.inHead != c.inTail || c.eof || c.err != nil || c.closing
}

// hasRoom: a message can be sent.
func hasRoom(c *Conn, _ *op) bool {
	return c.credits > 0 && c.msgPosted-c.msgDone < uint64(c.o.SendDepth) && !c.mute || c.ended || c.deaf || c.err != nil || c.closing
}

// hasControl: a control message can be sent.
func hasControl(c *Conn, _ *op) bool {
	return c.ctlPosted-c.ctlDone < ctlSlots && !c.mute || c.err != nil
}

// hasTransfer: an RDMA operation can be posted.
func hasTransfer(c *Conn, _ *op) bool {
	return c.opsPosted-c.opsDone < uint64(c.o.Transfers) && !c.mute || c.err != nil || c.closing
}

// canProbe: there is room for a probe in the send queue.
func canProbe(c *Conn, _ *op) bool {
	return c.opsPosted-c.opsDone < uint64(c.o.Transfers) || c.err != nil
}

// isDone: an operation has ended.
func isDone(c *Conn, o *op) bool { return o.done || c.err != nil }

// allSent: the peer's device has everything.
func allSent(c *Conn, _ *op) bool { return c.retired == c.posted || c.err != nil }

// await runs the connection until a condition is met, ctx ends, or the connection is given up. The
// caller holds c.mu, and is counted in c.users.
func (c *Conn) await(ctx context.Context, met condition, o *op) error {
	c.poll()
	if met(c, o) {
		return nil
	}
	if c.freed {
		return errClosed
	}
	begin := time.Now()
	if c.o.Wait == Spin || c.o.Wait == SpinThenPark && c.soon {
		if c.spin(ctx, begin, met, o) {
			return nil
		}
	}
	err := c.waitParked(ctx, met, o)
	c.soon = isSoon(begin, c.o.Spin)
	return err
}

// isSoon reports whether a wait was so short that it is worth it to look for a while at the next one.
// Who has parked has waited longer than who looks.
func isSoon(begin time.Time, spin time.Duration) bool {
	const parked = 2
	return time.Since(begin)/parked < spin
}

// waitParked is await without looking first.
func (c *Conn) waitParked(ctx context.Context, met condition, o *op) error {
	for !met(c, o) {
		if c.freed {
			return errClosed
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		changed := c.change()
		c.mu.Unlock()
		select {
		case c.reading <- struct{}{}:
			c.mu.Lock()
			err := c.park(ctx, met, o)
			<-c.reading // one of the others goes on
			if err != nil {
				return err
			}
			continue
		case <-changed:
		case <-ctx.Done():
		}
		c.mu.Lock()
	}
	return nil
}

// spin polls for a while, or until ctx ends. It reports whether the condition is met. The
// caller holds c.mu.
func (c *Conn) spin(ctx context.Context, begin time.Time, met condition, o *op) bool {
	const between = 8 // polls between looks at the clock
	until := begin.Add(c.o.Spin)
	for i := 1; ; i++ {
		c.mu.Unlock()
		if i%between == 0 {
			runtime.Gosched()
		}
		c.mu.Lock()
		c.poll()
		switch {
		case met(c, o):
			return true
		case i%between != 0:
		case c.freed, ctx.Err() != nil, c.o.Wait != Spin && time.Now().After(until):
			return false
		}
	}
}

// park waits for completions in the netpoller until the condition is met. The caller holds
// c.mu, and c.reading.
func (c *Conn) park(ctx context.Context, met condition, o *op) error {
	for !met(c, o) {
		if c.freed {
			return errClosed
		}
		if err := c.cq.Notify(); err != nil {
			c.fail(err)
			continue
		}
		more := c.poll()
		if met(c, o) {
			break
		}
		if more { // no event tells of what is there already
			if ctx.Err() != nil {
				return ctx.Err()
			}
			c.mu.Unlock() // others have a turn
			runtime.Gosched()
			c.mu.Lock()
			continue
		}
		c.mu.Unlock()
		_, err := c.ch.Wait(ctx)
		c.mu.Lock()
		if err == nil {
			c.poll()
			continue
		}
		if c.woken {
			if met(c, o) {
				return nil
			}
			return errClosed
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.fail(err)
	}
	return nil
}

// maxPolls is how many times poll looks for completions at once. A peer that sends without a pause
// would otherwise keep a goroutine in poll, and all others out of the connection, for as long as it likes.
const maxPolls = 64

// poll takes completions, and reports whether there may be more. The caller holds c.mu.
func (c *Conn) poll() (more bool) {
	if c.gone { // the CQ may be another connection's by now
		return false
	}
	any := false
	for polls := 1; ; polls++ {
		n, err := c.cq.Poll(c.wcs[:])
		if err != nil {
			c.fail(err)
			return false
		}
		for i := range n {
			c.complete(&c.wcs[i])
		}
		any = any || n > 0
		if more = n == len(c.wcs); !more || polls == maxPolls {
			break
		}
	}
	if any {
		c.watch.idle = false
		c.notify()
		c.giveCredits()
	}
	return more
}

// complete deals with a completion.
func (c *Conn) complete(wc *uverbs.WC) {
	if wc.Status != uverbs.WCSuccess {
		switch {
		case c.err != nil:
		case wc.Status == uverbs.WCRetryExcErr:
			c.fail(fmt.Errorf("%w: %w", syscall.ETIMEDOUT, c.qp.Err(wc)))
		case onIWARP(c.dev.dev) && (wc.Status == uverbs.WCWRFlushErr || wc.Status == uverbs.WCGeneralErr || wc.Status == uverbs.WCLocQPOpErr):
			c.fail(c.why(errReset)) // TCP's connection is gone; an event will say so too
		case wc.Status == uverbs.WCRemOpErr: // a QP that is being destroyed, or that failed, may answer so
			c.fail(c.why(fmt.Errorf("%w: %w", errReset, c.qp.Err(wc))))
		default:
			c.fail(c.why(c.qp.Err(wc)))
		}
		return
	}
	var err error
	if wc.ID&recvBit == 0 {
		err = c.retire(wc.ID)
	} else {
		err = c.received(wc)
	}
	if err != nil {
		c.fail(err)
	}
}

// received deals with a receive that has succeeded, which is a message of the peer's or an attack.
func (c *Conn) received(wc *uverbs.WC) error {
	h, slot, err := c.open(wc)
	if err != nil {
		return err
	}
	c.mute = false
	keep, err := c.arrived(h, slot)
	if err != nil || keep {
		return err
	}
	if h.kind == msgWant {
		if err := c.grow(); err != nil {
			return fmt.Errorf("memory for messages: %w", err)
		}
	}
	return c.postRecv(slot)
}

// open returns the header of a message, and the slot that it is in. The peer decides what completes a
// receive and with what length. Of a SEND without more to it as many bytes as the device says are in
// the slot. A WRITE with immediate data also takes a receive, but its bytes went elsewhere: in the slot
// is what an earlier connection has left there.
func (c *Conn) open(wc *uverbs.WC) (header, int, error) {
	slot := int(wc.ID &^ recvBit)
	m, i := c.place(slot)
	switch {
	case i >= len(m.slots):
		return header{}, 0, fmt.Errorf("the device has completed receive %d, which was not posted: %w", slot, syscall.EIO)
	case wc.Opcode != uverbs.WCRecv:
		return header{}, 0, protoErr("it has completed a receive by %s; messages are SENDs", wc.Opcode)
	case wc.Flags&uverbs.WCWithImm != 0:
		return header{}, 0, protoErr("a message with immediate data; messages are SENDs without")
	case wc.Flags&uverbs.WCWithInv != 0:
		return header{}, 0, protoErr("a message that invalidates a key; messages are SENDs that do not")
	case int64(wc.ByteLen) > int64(m.size):
		return header{}, 0, protoErr("a message of %d bytes, which a receive of %d bytes cannot have taken", wc.ByteLen, m.size)
	}
	h, err := parseHeader(m.bytes(i)[:wc.ByteLen])
	return h, slot, err
}

// arrived takes note of a message in a slot, and reports whether the slot stays in use: until the
// program has read the message.
func (c *Conn) arrived(h header, slot int) (keep bool, err error) {
	if c.credits += h.credits; c.credits > c.peerDepth {
		return false, protoErr("it has room for %d messages and now says %d", c.peerDepth, c.credits)
	}
	if c.deaf {
		return false, protoErr("a message of kind %d after the end of both directions", h.kind)
	}
	switch h.kind {
	case msgEnd:
		if c.eof && !h.deaf {
			return false, protoErr("a second end")
		}
		c.eof, c.deaf = true, h.deaf
	case msgGrown:
		return false, c.peer.grows(h.recvs)
	case msgWant:
		if c.consumed++; c.consumed > c.o.Depth {
			return false, protoErr("it asks for memory without a credit, %d times", c.consumed)
		}
	case msgData:
		if c.eof {
			return false, protoErr("a message after the end")
		}
		if n := c.inTail - c.inHead; n >= c.o.Depth || h.length > c.o.MessageSize {
			return false, protoErr("a message of %d bytes with %d before it, allowed are %d of %d bytes", h.length, n, c.o.Depth, c.o.MessageSize)
		}
		c.inbox[c.inTail%len(c.inbox)] = arrival{slot, h.length}
		c.inTail++
		return true, nil
	}
	return false, nil
}

// retire takes what the peer's device has out of the send queue, up to a number.
func (c *Conn) retire(last uint64) error {
	if last >= c.posted {
		return fmt.Errorf("the device has completed request %d, and %d were posted: %w", last, c.posted, syscall.EIO)
	}
	for ; c.retired <= last; c.retired++ {
		e := &c.ledger[c.retired%uint64(len(c.ledger))]
		switch e.kind {
		case entryMessage:
			c.msgDone++
		case entryControl:
			c.ctlDone++
		case entryOp:
			c.opsDone++
			c.moving -= e.op.size
			if e.op.done = true; e.op.left {
				c.recycle(e.op)
			}
			e.op = nil
		}
	}
	return nil
}

// enter writes a work request that is about to be posted into the ledger, and returns its
// number.
func (c *Conn) enter(kind entryKind, o *op) uint64 {
	id := c.posted
	c.ledger[id%uint64(len(c.ledger))] = entry{kind, o}
	c.posted++
	return id
}

// enterAsking is enter for a work request with a completion.
func (c *Conn) enterAsking(kind entryKind, o *op) uint64 {
	id := c.enter(kind, o)
	c.asked = c.posted
	return id
}

// control sends a control message. There is room for it.
func (c *Conn) control(h header) {
	i := int(c.ctlPosted % ctlSlots)
	h.credits, c.consumed = c.consumed, 0
	h.put(c.ctl.bytes(i))
	c.ctlPosted++
	c.peer.sent++
	b := c.qp.BeginSend()
	b.Send(c.enterAsking(entryControl, nil), uverbs.Signaled)
	b.SGE(c.ctl.sge(i, headerSize))
	c.post(b)
}

// post posts work requests. If that fails, so does the connection. It returns why nothing can
// be sent.
func (c *Conn) post(b *uverbs.SendBuilder) error {
	if err := b.Post(); errors.Is(err, syscall.ENOTCONN) { // on iWARP, before an event says so
		c.fail(c.why(fmt.Errorf("%w: %w", errReset, err)))
	} else if err != nil {
		c.fail(err)
	} else {
		c.watch.posted(c)
	}
	return c.err
}

// giveCredits tells the peer of room when there is as much as half of what it has at most. A
// message from this side tells it too. Room for the few messages of the beginning it is told of with
// that for all.
func (c *Conn) giveCredits() {
	w := &c.win
	if w.lazy && !w.grown && c.consumed >= (firstDepth+1)/2 {
		c.growOrFail()
	}
	switch {
	case c.err != nil || c.eof || c.closing || c.mute || !hasControl(c, nil):
	case w.grown && !w.told:
		w.told = true
		c.control(header{kind: msgGrown, recvs: w.posted})
	case (!w.lazy || w.grown) && c.consumed >= (c.o.Depth+1)/2:
		c.control(header{kind: msgCredits})
	}
}

// newOp returns an operation that is not done.
func (c *Conn) newOp() *op {
	o := c.free
	if o == nil {
		return &op{}
	}
	c.free = o.next
	*o = op{}
	return o
}

// recycle takes back one that nobody has any more.
func (c *Conn) recycle(o *op) {
	o.next = c.free
	c.free = o
}

// probe posts a WRITE of nothing, which tells when all before it is with the peer's device. On
// iWARP a WRITE is complete as soon as TCP has it, but a READ when the peer has answered. It is
// one of a byte, as soft iWARP may answer to a READ of nothing with what it had to send before.
func (c *Conn) probe() *op {
	o := c.newOp()
	c.opsPosted++
	b := c.qp.BeginSend()
	if id := c.enterAsking(entryOp, o); c.ask != nil {
		b.Read(id, uverbs.Signaled, c.far.Addr, c.far.RKey)
		b.SGE(c.answer()...)
	} else {
		b.Write(id, uverbs.Signaled, 0, 0)
	}
	c.post(b)
	return o
}

// answer is the place of a probe's answer: nowhere if the peer has told of no memory to read.
func (c *Conn) answer() []uverbs.SGE {
	if c.far.Length == 0 {
		return nil
	}
	return c.askSGE[:]
}
