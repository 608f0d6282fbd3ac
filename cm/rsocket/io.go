package rsocket

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// deadline is the deadline of one direction.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer   // guarded by mu
	end   chan struct{} // guarded by mu: closed at the deadline, and when another one is set
	past  bool          // guarded by mu: the deadline is over
}

// newDeadline returns no deadline.
func newDeadline() deadline { return deadline{end: make(chan struct{})} }

// set sets the deadline; the zero time is none.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if !d.past {
		close(d.end) // those who wait look again
	}
	d.past, d.end = false, make(chan struct{})
	if t.IsZero() {
		return
	}
	end := d.end
	over := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.end == end && !d.past {
			d.past = true
			close(end)
		}
	}
	if left := time.Until(t); left > 0 {
		d.timer = time.AfterFunc(left, over)
	} else {
		d.past = true
		close(end)
	}
}

// over returns a channel that is closed when the deadline is over or another one is set.
func (d *deadline) over() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.end
}

// err returns [os.ErrDeadlineExceeded] if the deadline is over, and otherwise nil.
func (d *deadline) err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.past {
		return os.ErrDeadlineExceeded
	}
	return nil
}

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
	n, err = c.read(p)
	return n, c.opError("read", err)
}

// read is Read without a prefix of its errors.
func (c *Conn) read(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.readDeadline.err(); err != nil && !c.closed {
		return 0, err
	}
	if len(p) == 0 && !c.closed {
		return 0, nil
	}
	if err := c.wait(&c.readDeadline, func() bool { return len(c.data) > 0 || c.eof }); err != nil {
		return 0, err
	}
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case len(c.data) > 0:
	case c.eof:
		return 0, io.EOF
	default:
		return 0, c.err
	}
	buf := c.rbuf.mr.Bytes()[:c.o.RecvBuffer]
	for n < len(p) && len(c.data) > 0 {
		k := copy(p[n:], buf[c.readAt:min(len(buf), c.readAt+int(c.data[0]))])
		n += k
		c.readAt = (c.readAt + k) % len(buf)
		c.free += k
		if c.data[0] -= uint32(k); c.data[0] == 0 {
			c.data = slices.Delete(c.data, 0, 1) // keeps the memory, and there are few
			c.received++
		}
	}
	c.giveCredits()
	return n, nil
}

// canSend reports whether data can be sent.
func (c *Conn) canSend() bool {
	need := 1
	if c.iwarp {
		need = 2
	}
	c.takeBuffer()
	return c.slots >= need && c.room >= leastSend && c.sent != c.sendUntil && c.remote.length > 0 && !c.mustReceive || c.gone || c.writeClosed
}

// Write writes p. It returns as soon as all of p is copied and posted.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	n, err = c.writeAll(p)
	return n, c.opError("write", err)
}

// writeAll is Write without a prefix of its errors.
func (c *Conn) writeAll(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for first := true; first || n < len(p); first = false {
		if err := c.writeDeadline.err(); err != nil && !c.closed {
			return n, err
		}
		if err := c.wait(&c.writeDeadline, func() bool { return len(p) == 0 || c.canSend() }); err != nil {
			return n, err
		}
		switch {
		case c.closed:
			return n, net.ErrClosed
		case c.writeClosed:
			return n, fmt.Errorf("this side was closed for writing: %w", syscall.EPIPE)
		case c.gone:
			return n, fmt.Errorf("the peer has closed the connection: %w", syscall.EPIPE)
		case c.err != nil:
			return n, c.err
		case len(p) == 0:
			return 0, nil
		}
		n += c.writeSome(p[n:])
	}
	return n, nil
}

// writeSome sends the beginning of p. The caller has checked that it can be sent.
func (c *Conn) writeSome(p []byte) int {
	buf := c.sbuf.mr.Bytes()[:c.o.SendBuffer]
	n := min(len(p), maxTransfer, c.room, len(buf)-c.writeAt, int(min(c.remote.length, maxTransfer)))
	copy(buf[c.writeAt:], p[:n])
	b := c.qp.BeginSend()
	c.write(b, idData|uint64(n), idMessage, c.sbuf.mr.SGE(c.writeAt, n), c.remote.addr, c.remote.key, message(opData, uint32(n)))
	c.writeAt = (c.writeAt + n) % len(buf)
	c.room -= n
	c.slots--
	if c.iwarp {
		c.slots--
	}
	c.sent++
	c.remote.addr += uint64(n)
	c.remote.length -= uint32(n)
	c.post(b)
	return n
}

// CloseWrite ends the writing direction: the peer reads io.EOF after the last byte.
func (c *Conn) CloseWrite() error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writeClosed && !c.closed {
		return nil
	}
	err := c.wait(&c.writeDeadline, c.canEnd)
	switch {
	case err != nil:
	case c.closed:
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
		c.notify()
	}
	return c.opError("close", err)
}

// canEnd reports whether the last control message can be sent.
func (c *Conn) canEnd() bool { return c.controlsOut < controls && !c.mustReceive || c.gone }

// Close closes the connection. The peer reads everything that was written before, and then io.EOF.
// Close waits for up to [Options].Linger until the peer's device has acknowledged everything.
// Pending and later calls fail with an error that matches [net.ErrClosed].
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	end := newDeadline()
	end.set(time.Now().Add(c.o.Linger))
	defer end.set(time.Time{})
	err := c.wait(&end, c.canEnd)
	if c.closed { // by another goroutine meanwhile
		c.mu.Unlock()
		return nil
	}
	ended := c.gone
	if err == nil && c.err == nil && !c.gone {
		c.ending = true
		c.sendControl(message(opControl, controlDisconnect))
	}
	if err == nil {
		err = c.wait(&end, func() bool {
			return c.room == c.o.SendBuffer && c.slots == c.o.SendDepth && c.controlsOut == 0 || c.gone && !ended
		})
	}
	switch {
	case err != nil || c.eof:
	case c.err != nil:
		err = c.err
	case c.undelivered:
		err = fmt.Errorf("the peer is gone, and has not received everything: %w", syscall.ECONNRESET)
	}
	c.closed = true
	c.notify()
	c.mu.Unlock()
	c.SetDeadline(time.Time{}) // stops the timers
	return c.opError("close", errors.Join(err, c.release()))
}

// SetDeadline sets the deadlines of Read and Write. After its deadline a call returns an error that
// matches [os.ErrDeadlineExceeded]. The zero time means no deadline.
func (c *Conn) SetDeadline(t time.Time) error {
	c.readDeadline.set(t)
	c.writeDeadline.set(t)
	return nil
}

// SetReadDeadline sets the deadline of Read.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.readDeadline.set(t)
	return nil
}

// SetWriteDeadline sets the deadline of Write.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.writeDeadline.set(t)
	return nil
}
