package cm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// releaseAll releases everything except the ID and its QP. The argument is the error of closing
// those. releaseAll returns that error joined with its own errors.
func (c *Conn) releaseAll(closed error) error {
	errs := []error{closed}
	if c.cq != nil && closed == nil {
		if c.chShutdown {
			errs = append(errs, c.completions.close())
		} else {
			errs = append(errs, c.dev.cqs.put(c.completions, c.entries()))
		}
	}
	c.mu.Lock()
	if closed == nil { // otherwise the device may still use the memory
		if c.heldSlot >= 0 {
			m, i := c.slotMemory(c.heldSlot)
			c.lease = leaseSlot(c, m, i)
		}
		c.win.smallMem.release()
		c.mem.release()
		c.out.release()
		c.ctl.release()
		c.lent.release()
	}
	c.mu.Unlock()
	if c.domain != nil {
		c.domain.release()
	}
	if c.dev != nil {
		c.dev.release()
	}
	if c.listener != nil {
		c.listener.connClosed(c.key)
	}
	return errors.Join(errs...)
}

// closedError is the error after Close. It matches both [net.ErrClosed] and [os.ErrClosed].
type closedError struct{}

var errClosed closedError

func (closedError) Error() string { return "it is closed" }

// Is reports whether target is [net.ErrClosed] or [os.ErrClosed].
func (closedError) Is(target error) bool { return target == net.ErrClosed || target == os.ErrClosed }

// CloseWrite tells the peer that this side sends no more messages. The peer's Recv returns io.EOF
// after the last one. This side can still receive. Calls after the first do nothing.
func (c *Conn) CloseWrite(ctx context.Context) error {
	const what = "close for writing"
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(what); err != nil {
		return err
	}
	defer c.end()
	err := c.sendEnd(ctx, what, false)
	if err != nil && c.err != nil {
		err = c.sendErr(what)
	}
	return err
}

// sendEnd sends an end message, which follows all other messages, unless one was sent already. If
// closesRead is set, the message says that this side no longer receives, and it is sent again. The
// caller holds c.mu.
func (c *Conn) sendEnd(ctx context.Context, what string, closesRead bool) error {
	if err := c.await(ctx, canSendControl, 0); err != nil {
		return c.waitErr(what, err)
	}
	if c.err != nil || c.endSent && !closesRead {
		return c.err
	}
	c.endSent = true
	c.sendControl(header{kind: msgEnd, closesRead: closesRead})
	return c.err
}

// Close closes the connection. The peer receives everything that was sent before, and then io.EOF.
// Close waits for up to [ConnOptions].Linger until the peer's device has acknowledged everything,
// and for another second if the local device does not flush its queues. Pending and later method
// calls fail with an error that matches [net.ErrClosed] and [os.ErrClosed]. Close returns an error
// if it cannot tell that all messages have arrived, unless the peer has closed the connection, or another
// call has returned the error of the connection.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		return nil
	}
	c.closing = true
	c.notify()
	err := c.linger()
	c.mu.Unlock()
	c.id.Disconnect()
	return errors.Join(err, c.destroy())
}

// linger sends the end and waits until the peer's device has acknowledged everything. The caller
// holds c.mu.
func (c *Conn) linger() error {
	c.liveness.stop()
	if c.err == nil {
		c.pollAll()
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.o.Linger)
	defer cancel()
	err := c.sendEnd(ctx, "close", true)
	if err == nil && onIWARP(c.dev.dev) { // where a send completes before the peer has the message
		if err = c.await(ctx, canProbe, 0); err == nil && c.err == nil {
			c.probe()
		}
	}
	if err == nil {
		if err = c.await(ctx, allSent, 0); err != nil {
			err = c.opError("close", err)
		} else if c.outstanding() {
			err = c.err
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = c.opError("close", fmt.Errorf("the Linger of %v is over, and not everything has arrived: %w", c.o.Linger, os.ErrDeadlineExceeded))
	}
	if onIWARP(c.dev.dev) { // the peer may have closed during the probe, or earlier, when posting began to fail
		c.pollAll()
	}
	// A peer that has closed waits only for this end, which confirms that its own end has
	// arrived. The acknowledgement of this end may be lost when the peer destroys its QP, so
	// that an error does not matter then. Nor does the error of a connection on which the peer's device
	// has acknowledged all messages. On iWARP no device says that.
	if c.peerClosedRead || c.err != nil && (c.reported || !c.outstanding() && !onIWARP(c.dev.dev)) {
		return nil
	}
	return err
}

// flushGrace is how long a device may take to flush the queues of a connection that has failed or
// is being closed. After that, the goroutine that waits for a completion is woken without one. Soft
// iWARP does not flush receives that were posted after the QP has failed.
var flushGrace = time.Second

// destroy releases everything that the connection has, once no goroutine is inside a method. It
// takes up to flushGrace longer if the device does not flush its queues.
func (c *Conn) destroy() error {
	c.mu.Lock()
	if c.destroying {
		c.mu.Unlock()
		return nil
	}
	c.fail(errClosed) // does nothing if the connection has failed; the queues are flushed in both cases
	c.destroying = true
	c.liveness.stop()
	c.notify()
	for c.users > 0 {
		w := c.awaitChange()
		c.mu.Unlock()
		<-w
		wakers.Put(w)
		c.mu.Lock()
	}
	if c.flushTimer != nil {
		c.flushTimer.Stop() // it would keep the connection in memory
	}
	c.memoryGone, c.inHead = true, c.inTail
	c.mu.Unlock()
	c.loop.unregister(c.id)
	defer c.loop.releaseLater()
	return c.releaseAll(c.loop.closeID(c.id))
}

// shutdownChannel ends the wait of the goroutine that waits on the completion channel, if the
// device sends no completion.
func (c *Conn) shutdownChannel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.memoryGone && c.ch != nil && len(c.parkTurn) > 0 {
		c.chShutdown = true
		c.ch.Shutdown()
	}
}
