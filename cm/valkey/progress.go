package valkey

import (
	"fmt"
	"runtime"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// A connection has a goroutine, run, that handles completions also while no method of the connection
// is called. A peer writes until the buffer that was announced to it is full, in as many messages as it
// likes, and each needs a receive; a server of Valkey breaks the connection off if too many of them wait
// for one. Goroutines in Read and Write poll, too, before they wait for run to wake them.
//
// Sends have a CQ of their own, so that run is not woken when something is acknowledged. That CQ is
// armed only while something waits for room to send.

// condition reports whether a wait is over. It is called with c.mu held.
type condition func(*Conn) bool

// run handles completions until the connection is released.
func (c *Conn) run() {
	for {
		c.mu.Lock()
		sends, err := c.arm()
		if err != nil {
			c.fail(err)
		}
		c.poll()
		more := c.more || c.wantsSends() && !sends // poll has sent commands
		c.mu.Unlock()
		if more {
			runtime.Gosched() // let other goroutines in
			continue
		}
		if _, err := c.events.Wait(c.ctx); err != nil {
			if c.ctx.Err() == nil {
				c.mu.Lock()
				c.fail(err)
				c.mu.Unlock()
			}
			return
		}
	}
}

// arm asks for an event at the next completion that somebody waits for. The caller holds c.mu.
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
	return !c.closed && (c.wantSends > 0 || c.controlsOut == maxControls)
}

// wait waits until a condition is met, the connection has failed or is closed, or the deadline of w is
// over. The caller holds c.mu, which is released meanwhile.
func (c *Conn) wait(w *waiter, met condition) error {
	done, err := c.look(w, met)
	if done {
		return err
	}
	w.busy = true
	if w.sends { // run arms this CQ from now on
		c.wantSends++
		if err := c.sendCQ.Notify(); err != nil {
			c.fail(err)
		}
		done, err = c.look(w, met)
	}
	for !done {
		c.mu.Unlock()
		<-w.wake
		c.mu.Lock()
		done, err = c.look(w, met)
	}
	w.busy = false
	if w.sends {
		c.wantSends--
	}
	return err
}

// look polls and reports whether a wait is over.
func (c *Conn) look(w *waiter, met condition) (done bool, err error) {
	if c.closed {
		return true, nil
	}
	c.poll()
	if met(c) || c.err != nil {
		return true, nil
	}
	err = w.check()
	return err != nil, err
}

// interrupt makes all goroutines that wait look again. The caller holds c.mu.
func (c *Conn) interrupt() {
	for _, w := range [...]*waiter{&c.reader, &c.writer, &c.closer} {
		if w.busy {
			w.next()
		}
	}
}

// poll handles completions, and sends the commands that they call for. The caller holds c.mu.
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
	c.sendCommands()
	if any {
		c.liveness.Used()
		c.interrupt()
	}
}

// pollAll handles all completions that are in the CQs now. The caller holds c.mu.
func (c *Conn) pollAll() {
	for left := c.o.RecvDepth; ; left -= len(c.wcs) {
		if c.poll(); !c.more || left <= 0 {
			return
		}
	}
}

// IDs of work requests. The lower bits are a length, or the index of a receive.
const (
	idData    uint64 = 1 << (40 + iota) // a WRITE with data
	idControl                           // a command
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
	case idControl:
		c.controlsOut--
	case idProbe:
		c.probing = false
	}
	c.liveness.Done++
	if wc.Status != uverbs.WCSuccess && c.suspect == nil {
		c.suspect = cause(wc.Status, c.qp.Err(wc))
	}
}

// completeRecv handles the completion of a receive.
func (c *Conn) completeRecv(wc *uverbs.WC) {
	if wc.Status != uverbs.WCSuccess {
		if c.suspect == nil {
			c.suspect = cause(wc.Status, c.qp.Err(wc))
		}
		return
	}
	i := int(wc.ID)
	if err := c.receive(wc, c.recvMemory(i)); err != nil {
		c.fail(err)
	} else if err := c.postRecv(i); err != nil {
		c.failed(&failure{err, true})
	}
}

// failure is why a work request has failed.
type failure struct {
	err         error
	consequence bool // it may be one of something that another completion or an event reports
}

// cause returns the failure of a work request that has completed with an error.
func cause(status uverbs.WCStatus, err error) *failure {
	switch status {
	case uverbs.WCRetryExcErr:
		return &failure{fmt.Errorf("%w: %w", syscall.ETIMEDOUT, err), false}
	case uverbs.WCRemAccessErr, uverbs.WCRemInvReqErr: // a peer that ends takes its buffer away before it disconnects
		return &failure{fmt.Errorf("the peer does not let this side write into the buffer that it has announced: %w: %w", syscall.EPROTO, err), true}
	case uverbs.WCWRFlushErr:
		return &failure{fmt.Errorf("%w: %w", syscall.ECONNRESET, err), true}
	}
	return &failure{err, false}
}

// failed ends the connection because of a failure, if the peer has not ended it. The caller holds c.mu.
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
			if !c.gone {
				c.fail(f.err)
			}
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

// lost ends the connection because the peer has disconnected. The caller holds c.mu.
func (c *Conn) lost() {
	c.gone = true
	c.interrupt()
}

// errGone is the error of a Write after the peer has disconnected.
var errGone = fmt.Errorf("the peer has closed the connection: %w", syscall.EPIPE)

// errUndelivered is the error of a Close after the peer has disconnected.
var errUndelivered = fmt.Errorf("the peer is gone, and has not received everything: %w", syscall.ECONNRESET)

// canSendCommand reports whether a command may be sent.
func (c *Conn) canSendCommand() bool {
	return c.controlsOut < maxControls && !c.gone && !c.closed && c.err == nil
}

// sendCommands sends the commands that this side owes. The caller holds c.mu.
func (c *Conn) sendCommands() {
	if c.owesBuffer() && c.canSendCommand() && c.started {
		offset := c.grant()
		c.sendCommand(command{op: registerXferMemory, buffer: segment{c.rbuf.MR.Addr() + uint64(offset), uint32(c.half()), c.rbuf.MR.RKey()}})
	}
	for c.asks > 0 && c.canSendCommand() {
		c.sendCommand(c.answer())
	}
}

// sendCommand sends a command. The caller has checked that it may.
func (c *Conn) sendCommand(cmd command) {
	at := c.o.SendBuffer + int(c.controls%maxControls)*commandSize // RC completes sends in order, so it is free
	c.controls++
	c.controlsOut++
	cmd.put(c.sbuf.MR.Bytes()[at:])
	b := c.qp.BeginSend()
	b.Send(idControl, uverbs.SendSignaled)
	b.SGE(c.sbuf.MR.SGE(at, commandSize))
	c.post(b)
}

// post posts work requests. The caller holds c.mu.
func (c *Conn) post(b *uverbs.SendBuilder) {
	c.liveness.Posted()
	if err := b.Post(); err != nil {
		c.failed(&failure{err, true})
	}
}
