package rsocket

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// opError returns err as a [net.OpError], as the connections of package net do.
func (c *Conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if errors.Is(err, syscall.ETIMEDOUT) {
		err = &timeoutError{err}
	}
	return &net.OpError{Op: op, Net: Network, Source: c.addrs.Local, Addr: c.addrs.Remote, Err: err}
}

// timeoutError is an error that [net.OpError] recognizes as a timeout.
type timeoutError struct{ error }

// Timeout implements [net.Error].
func (*timeoutError) Timeout() bool { return true }

// Unwrap returns the error.
func (e *timeoutError) Unwrap() error { return e.error }

// Read returns data that has arrived, or waits for some. It returns io.EOF after the peer has
// closed its side.
func (c *Conn) Read(p []byte) (n int, err error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	c.mu.Lock()
	n, err = c.readLocked(p)
	c.mu.Unlock()
	return n, c.opError("read", err)
}

// readLocked is Read for a caller that holds c.mu.
func (c *Conn) readLocked(p []byte) (n int, err error) {
	switch err := c.reader.check(); {
	case c.closed:
		return 0, net.ErrClosed
	case err != nil:
		return 0, err
	case len(p) == 0:
		return 0, nil
	}
	err = c.wait(&c.reader, (*Conn).canRead)
	switch {
	case err != nil:
		return 0, err
	case c.closed:
		return 0, net.ErrClosed
	case c.waiting > 0:
	case c.eof:
		return 0, io.EOF
	default:
		return 0, c.err
	}
	n = c.read(p)
	c.giveCredits()
	return n, nil
}

// canRead reports whether Read has something to return.
func (c *Conn) canRead() bool { return c.waiting > 0 || c.eof }

// Write writes p. It returns as soon as all of p is copied and posted; [Conn.Close] waits until it has
// arrived.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	c.mu.Lock()
	n, err = c.writeLocked(p)
	c.mu.Unlock()
	return n, c.opError("write", err)
}

// writeLocked is Write for a caller that holds c.mu.
func (c *Conn) writeLocked(p []byte) (n int, err error) {
	for {
		if err := c.writer.check(); err != nil && !c.closed {
			return n, err
		}
		if len(p) > 0 {
			err = c.wait(&c.writer, (*Conn).canWrite)
		}
		if err == nil {
			err = c.writable()
		}
		if err != nil || n == len(p) {
			return n, err
		}
		if n += c.writeSome(p[n:]); n == len(p) {
			return n, nil
		}
	}
}

// canWrite reports whether data can be written, or never again.
func (c *Conn) canWrite() bool {
	if err := c.takeBuffer(); err != nil { // on iWARP an entry may have arrived since
		c.fail(err)
		return true
	}
	return c.mayWrite() && c.slots >= c.perMessage() && c.room >= leastRoom || c.neverWrites()
}

// neverWrites reports whether nothing can be written any more, or a call of CloseWrite waits until calls of Write
// have returned.
func (c *Conn) neverWrites() bool { return c.gone || c.writeClosed || c.endingWrites > 0 || c.closing }

// writeSome sends the beginning of p. The caller has checked that it can be sent.
func (c *Conn) writeSome(p []byte) int {
	from, n := c.stage(p, c.remote.length)
	c.slots -= c.perMessage()
	b := c.qp.BeginSend()
	c.write(b, idData|uint64(n), idMessage, from, c.advance(n), message(opData, uint32(n)))
	c.post(b)
	return n
}

// stage copies the beginning of p, up to most bytes, into the buffer for sending.
func (c *Conn) stage(p []byte, most uint32) (from uverbs.SGE, n int) {
	buf := c.sbuf.MR.Bytes()[:c.o.SendBuffer]
	n = min(len(p), maxTransfer, c.room, len(buf)-c.writeAt, int(min(most, maxTransfer)))
	copy(buf[c.writeAt:], p[:n])
	from = c.sbuf.MR.SGE(c.writeAt, n)
	c.writeAt = (c.writeAt + n) % len(buf)
	c.room -= n
	return from, n
}

// CloseWrite ends the writing direction: the peer reads io.EOF after the last byte. A Write that waits for room
// returns with an error that matches EPIPE.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	c.endingWrites++
	c.interrupt()
	c.mu.Unlock()
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endingWrites--
	if c.writeClosed && !c.closed {
		return nil
	}
	err := c.wait(&c.writer, (*Conn).canEnd)
	switch {
	case err != nil:
	case c.closing:
		err = net.ErrClosed
	case c.err != nil:
		err = c.err
	default:
		c.writeClosed = true
		if c.gone {
			break
		}
		what := uint32(controlShutdown)
		if c.eof {
			what = controlDisconnect
			c.gone = true
		}
		c.sendControl(message(opControl, what))
	}
	return c.opError("close", err)
}

// canEnd reports whether the last control message can be sent, or there is no need for it.
func (c *Conn) canEnd() bool { return c.canSendControl() || c.gone }

// Close closes the connection. The peer reads everything that was written before, and then io.EOF.
// Close waits until the peer's device has acknowledged everything. If that takes longer than
// [Options].Linger, or the peer is gone, Close returns an error; the connection is closed in any case.
// Pending and later calls fail with an error that matches [net.ErrClosed]. A second Close returns nil.
func (c *Conn) Close() error {
	c.closeMu.Lock()
	defer c.closeMu.Unlock()
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closing = true
	c.interrupt()
	err := c.end()
	c.closed = true
	c.interrupt()
	c.mu.Unlock()
	c.turn.close()    // no other goroutine uses the queues any more
	c.id.Disconnect() // on iWARP, closing the ID breaks off what is being sent
	return c.opError("close", errors.Join(err, c.release()))
}

// end tells the peer that this side closes, and waits until everything has arrived. The caller holds
// c.mu.
func (c *Conn) end() error {
	c.closer.set(time.Now().Add(c.o.Linger))
	if err := c.wait(&c.closer, (*Conn).canEnd); err != nil {
		return err
	}
	if c.err == nil && !c.gone {
		c.ending = true
		c.sendControl(message(opControl, controlDisconnect))
	}
	met := (*Conn).allSent
	if !c.gone { // what the peer has not got when it goes does not get there any more
		met = (*Conn).allSentOrGone
	}
	if err := c.wait(&c.closer, met); err != nil {
		return err
	}
	switch {
	case c.peerClosed:
		return nil
	case c.err != nil:
		return c.err
	case c.undelivered || c.room < c.o.SendBuffer: // the device may flush what was sent later
		return fmt.Errorf("the peer is gone, and has not received everything: %w", syscall.ECONNRESET)
	}
	return nil
}

// allSent reports whether the peer's device has acknowledged everything.
func (c *Conn) allSent() bool {
	return c.room == c.o.SendBuffer && c.slots == c.o.SendDepth && c.controlsOut == 0
}

// allSentOrGone is allSent, or the peer has gone.
func (c *Conn) allSentOrGone() bool { return c.allSent() || c.gone }

// SetDeadline sets the deadlines of Read and Write. After its deadline a call returns an error that
// matches [os.ErrDeadlineExceeded]. The zero time means no deadline.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline sets the deadline of Read.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.reader.set(t)
	return nil
}

// SetWriteDeadline sets the deadline of Write and CloseWrite.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.writer.set(t)
	return nil
}
