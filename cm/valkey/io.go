package valkey

import (
	"errors"
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
// closed the connection.
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
	case c.unread() > 0:
	case c.err != nil:
		return 0, c.err
	default:
		return 0, io.EOF
	}
	n = c.read(p)
	c.sendCommands()
	return n, nil
}

// canRead reports whether Read has something to return.
func (c *Conn) canRead() bool { return c.unread() > 0 || c.gone }

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

// writable returns why nothing can be sent, or nil.
func (c *Conn) writable() error {
	switch {
	case c.closing:
		return net.ErrClosed
	case c.err != nil:
		return c.err
	case c.gone:
		return errGone
	}
	return nil
}

// canWrite reports whether data can be written, or never again.
func (c *Conn) canWrite() bool {
	return c.remote.length > 0 && c.slots > 0 && c.room >= leastRoom || c.gone || c.closing
}

// writeSome sends the beginning of p, of which there must be some, by one WRITE.
func (c *Conn) writeSome(p []byte) int {
	buf := c.sbuf.MR.Bytes()[:c.o.SendBuffer]
	n := min(len(p), maxTransfer, c.room, len(buf)-c.writeAt, int(min(c.remote.length, maxTransfer)))
	copy(buf[c.writeAt:], p[:n])
	from := c.sbuf.MR.SGE(c.writeAt, n)
	c.writeAt = (c.writeAt + n) % len(buf)
	c.room -= n
	c.slots--
	to := c.advance(n)
	b := c.qp.BeginSend()
	b.WriteImm(idData|uint64(n), uverbs.SendSignaled, to.addr, to.key, to.length)
	b.SGE(from)
	c.post(b)
	return n
}

// Close closes the connection. The peer can read everything that was written before. Close waits until
// the peer's device has acknowledged everything. If that takes longer than [Options].Linger, or the peer
// is gone, Close returns an error; the connection is closed in any case. Pending and later calls fail
// with an error that matches [net.ErrClosed]. A second Close returns nil.
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
	c.id.Disconnect()
	return c.opError("close", errors.Join(err, c.release()))
}

// end waits until everything has arrived. The caller holds c.mu.
func (c *Conn) end() error {
	c.closer.set(time.Now().Add(c.o.Linger))
	if err := c.wait(&c.closer, (*Conn).allSentOrGone); err != nil {
		return err
	}
	switch {
	case c.allSent() && !c.undelivered:
		return nil
	case c.err != nil:
		return c.err
	}
	return errUndelivered
}

// allSent reports whether the peer's device has acknowledged everything, or never will.
func (c *Conn) allSent() bool {
	return c.room == c.o.SendBuffer && c.controlsOut == 0
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

// SetWriteDeadline sets the deadline of Write.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.writer.set(t)
	return nil
}
