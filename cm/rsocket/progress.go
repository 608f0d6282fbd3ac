package rsocket

import (
	"fmt"
	"runtime"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// A connection has no goroutine for completions. The goroutines that wait in its methods poll the
// CQs, each on behalf of all. If there is no completion, one of them has the turn: it arms the CQs and
// waits on the completion channel. The others wait until it wakes them.
//
// Sends have a CQ of their own, so that a goroutine in Read is not woken when what it has written
// before is acknowledged. That CQ is armed only while something waits for room to send.

// condition reports whether a wait is over. It is called with c.mu held.
type condition func(*Conn) bool

// wait makes progress on the connection until a condition is met, the connection has failed or is
// closed, or the deadline of w is over. The caller holds c.mu, which is released meanwhile.
func (c *Conn) wait(w *waiter, met condition) error {
	done, err := c.look(w, met)
	if done {
		return err
	}
	w.busy = true
	if w.sends {
		c.wantSends++
	}
	for !done {
		if c.turn.take(w) {
			done, err = c.waitWithTurn(w, met)
			c.turn.giveUp()
		} else {
			done, err = c.waitForTurn(w, met)
		}
	}
	w.busy = false
	if w.sends {
		c.wantSends--
	}
	return err
}

// waitForTurn waits until the goroutine that has the turn wakes this one or gives up its turn.
func (c *Conn) waitForTurn(w *waiter, met condition) (done bool, err error) {
	if w.sends { // the one that has the turn may not have armed this CQ
		if err := c.sendCQ.Notify(); err != nil {
			c.fail(err)
		}
		if done, err = c.look(w, met); done {
			return true, err
		}
	}
	c.mu.Unlock()
	select {
	case c.turn.taken <- struct{}{}:
		<-c.turn.taken // wait takes it again, with c.mu
	case <-w.wake:
	}
	c.mu.Lock()
	return c.look(w, met)
}

// waitWithTurn waits for completions until the wait is over. The caller holds c.mu and has the turn.
func (c *Conn) waitWithTurn(w *waiter, met condition) (done bool, err error) {
	for {
		ctx := c.turn.context()
		sends, armErr := c.arm()
		if armErr != nil {
			c.fail(armErr)
		}
		if done, err = c.look(w, met); done {
			return true, err
		}
		more := c.more || c.wantsSends() && !sends // look has given credits
		c.mu.Unlock()
		if more {
			runtime.Gosched() // let other goroutines in
		} else {
			_, err = c.events.Wait(ctx)
		}
		c.mu.Lock()
		if err != nil && ctx.Err() == nil {
			c.fail(err)
		}
		if done, err = c.look(w, met); done {
			return true, err
		}
	}
}

// arm asks for an event at the next completion that somebody waits for.
// It reports whether these include completions of sends.
func (c *Conn) arm() (sends bool, err error) {
	if c.closed {
		return true, nil
	}
	if sends = c.wantsSends(); sends {
		if err := c.sendCQ.Notify(); err != nil {
			return true, err
		}
	}
	return sends, c.recvCQ.Notify()
}

// wantsSends reports whether something waits until sends are complete.
func (c *Conn) wantsSends() bool {
	return !c.closed && (c.wantSends > 0 || c.controlsOut+c.perMessage() > maxControls)
}

// look polls and reports whether a wait is over.
func (c *Conn) look(w *waiter, met condition) (done bool, err error) {
	if c.closed {
		return true, nil
	}
	c.poll()
	c.giveCredits()
	if met(c) || c.err != nil {
		return true, nil
	}
	err = w.check()
	return err != nil, err
}

// notify wakes the goroutines that wait for the turn. The caller holds c.mu.
func (c *Conn) notify() {
	for _, w := range [...]*waiter{&c.reader, &c.writer, &c.closer} {
		if w.busy {
			w.next()
		}
	}
}

// interrupt makes all goroutines that wait look again, also the one that has the turn. It is for
// changes that no completion reports. The caller holds c.mu.
func (c *Conn) interrupt() {
	c.reader.interrupt()
	c.writer.interrupt()
	c.closer.interrupt()
}

// poll handles completions. The caller holds c.mu.
func (c *Conn) poll() {
	const maxPolls = 64 // a peer that sends without a pause must not keep others out of the connection
	c.more = false
	if c.closed {
		return
	}
	any := false
	for polls := 1; ; polls++ {
		// Sends come first: what the peer has sent before one failed is handled before the failure.
		sent, err := c.sendCQ.Poll(c.wcs[:])
		for i := range c.wcs[:sent] {
			c.completeSend(&c.wcs[i])
		}
		received := 0
		if err == nil {
			received, err = c.recvCQ.Poll(c.wcs[:])
		}
		for i := range c.wcs[:received] {
			c.completeRecv(&c.wcs[i])
		}
		if err != nil {
			c.more = false
			c.fail(err)
			return
		}
		any = any || received+sent > 0
		if c.more = max(received, sent) == len(c.wcs); !c.more || polls == maxPolls {
			break
		}
	}
	if c.suspect != nil && !c.more {
		c.failed(c.suspect)
		c.suspect = nil
	}
	if any {
		c.liveness.Used()
		c.notify()
	}
}

// pollAll handles all completions that are in the CQs now. The caller holds c.mu.
func (c *Conn) pollAll() {
	for left := c.o.recvs(); ; left -= len(c.wcs) {
		if c.poll(); !c.more || left <= 0 {
			return
		}
	}
}

// IDs of work requests. The lower bits are a length, or the index of a receive.
const (
	idData    uint64 = 1 << (40 + iota) // a WRITE with data
	idMessage                           // on iWARP: the SEND after a WRITE with data
	idControl                           // a control message
	idProbe                             // a WRITE of nothing
	idLow     uint64 = 1<<32 - 1
)

// completeSend handles the completion of a work request that is not a receive.
func (c *Conn) completeSend(wc *uverbs.WC) {
	switch wc.ID &^ idLow {
	case idData:
		c.room += int(wc.ID & idLow)
		c.slots++
		c.undelivered = c.undelivered || wc.Status != uverbs.WCSuccess
	case idMessage:
		c.slots++
	case idControl:
		c.controlsOut--
	case idProbe:
		c.probing = false
	}
	c.liveness.Done++
	if wc.Status != uverbs.WCSuccess && c.suspect == nil {
		c.suspect = c.cause(wc.Status, c.qp.Err(wc))
	}
}

// completeRecv handles the completion of a receive.
func (c *Conn) completeRecv(wc *uverbs.WC) {
	if wc.Status != uverbs.WCSuccess {
		if c.suspect == nil {
			c.suspect = c.cause(wc.Status, c.qp.Err(wc))
		}
		return
	}
	i := int(wc.ID)
	if err := c.receive(wc, c.number(i)); err != nil {
		c.fail(err)
	} else if err := c.postRecv(i); err != nil {
		c.failed(&failure{err, true})
	}
}

// failure is why a work request has failed.
type failure struct {
	err         error
	consequence bool // of something that another completion or an event reports
}

// cause returns the failure of a work request that has completed with an error.
func (c *Conn) cause(status uverbs.WCStatus, err error) *failure {
	switch {
	case status == uverbs.WCRetryExcErr:
		return &failure{fmt.Errorf("%w: %w", syscall.ETIMEDOUT, err), false}
	case c.iwarp && (status == uverbs.WCGeneralErr || status == uverbs.WCLocQPOpErr): // the TCP connection is gone
		return &failure{fmt.Errorf("%w: %w", syscall.ECONNRESET, err), true}
	}
	return &failure{err, status == uverbs.WCWRFlushErr}
}

// failed ends the connection because of a failure, if it has not ended. The caller holds c.mu.
func (c *Conn) failed(f *failure) {
	switch {
	case c.gone || c.err != nil:
	case !f.consequence:
		c.fail(f.err)
	case !c.flushed: // give the reason time to come
		c.flushed = true
		time.AfterFunc(flushGrace, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.poll()
			c.lost(f.err)
		})
	}
}

// fail ends the connection with an error, unless it has ended. The caller holds c.mu.
func (c *Conn) fail(err error) {
	if c.err != nil || c.closed {
		return
	}
	c.err = c.dev.Removed(err)
	c.id.Disconnect() // moves the QP to ERR
	c.interrupt()
}

// lost handles the end of a connection that the peer has not announced. After this side's own end it is
// what the peer does then. The caller holds c.mu.
func (c *Conn) lost(err error) {
	if c.ending {
		c.gone = true
		c.interrupt()
	} else if !c.gone {
		c.fail(err)
	}
}

// perMessage is how many work requests a WRITE with its message takes.
func (c *Conn) perMessage() int {
	if c.iwarp {
		return 2
	}
	return 1
}

// canSendControl reports whether a control message may be sent.
func (c *Conn) canSendControl() bool {
	return c.controlsOut+c.perMessage() <= maxControls && !c.mustReceive
}

// giveCredits tells the peer that it may send more, if it is time for that. The caller holds c.mu.
func (c *Conn) giveCredits() {
	due, buffer := c.owesCredits()
	if !due || !c.canSendControl() || c.ending || c.closed || c.err != nil {
		return
	}
	msg := c.credit()
	if !buffer {
		c.sendControl(msg)
		return
	}
	at := c.o.SendBuffer + c.announcements%maxControls*segmentSize
	c.announcements++
	offset, entry := c.grant()
	segment{c.rbuf.MR.Addr() + uint64(offset), c.rbuf.MR.RKey(), uint32(c.o.RecvBuffer / 2)}.put(c.sbuf.MR.Bytes()[at:], c.order)
	c.controlsOut += c.perMessage()
	b := c.qp.BeginSend()
	c.write(b, idControl, idControl, c.sbuf.MR.SGE(at, segmentSize), segment{addr: entry, key: c.remoteTable.key}, msg)
	c.post(b)
}

// sendControl sends a message without data. The caller has checked that it may.
func (c *Conn) sendControl(msg uint32) {
	c.controlsOut++
	b := c.qp.BeginSend()
	if c.iwarp {
		c.send(b, idControl, msg)
	} else {
		b.WriteImm(idControl, uverbs.SendSignaled, 0, 0, msg)
	}
	c.post(b)
}

// write adds a WRITE and its message to a builder.
func (c *Conn) write(b *uverbs.SendBuilder, id, messageID uint64, from uverbs.SGE, to segment, msg uint32) {
	if !c.iwarp {
		b.WriteImm(id, uverbs.SendSignaled, to.addr, to.key, msg)
		b.SGE(from)
		return
	}
	b.Write(id, uverbs.SendSignaled, to.addr, to.key)
	b.SGE(from)
	c.send(b, messageID, msg)
}

// send adds a message to a builder as iWARP carries it.
func (c *Conn) send(b *uverbs.SendBuilder, id uint64, msg uint32) {
	b.Send(id, uverbs.SendSignaled)
	c.order.PutUint32(c.outgoing[:], msg)
	b.Inline(c.outgoing[:])
}

// post posts work requests. The caller holds c.mu.
func (c *Conn) post(b *uverbs.SendBuilder) {
	c.liveness.Posted()
	if err := b.Post(); err != nil {
		c.failed(&failure{err, true})
	}
}
