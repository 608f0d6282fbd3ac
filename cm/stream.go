package cm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Stream is a [net.Conn] over a [Conn]: a stream of bytes with deadlines and half-close. Write
// copies the data into registered memory, and Read copies it out; there are no other copies. It is
// safe for concurrent use.
type Stream struct {
	conn *Conn

	readMu sync.Mutex
	unread []byte // guarded by readMu: the rest of the last message

	writeMu    sync.Mutex
	readFromMu sync.Mutex // held by ReadFrom; locked before writeMu

	readDeadline, writeDeadline deadline
}

// Stream returns a stream over the connection. Use it instead of the methods for messages.
func (c *Conn) Stream() *Stream {
	return &Stream{conn: c}
}

// DialStream connects to a listener and returns a stream; see [Dial]. The listener uses
// [Listener.Streams].
func DialStream(ctx context.Context, address string, o DialOptions) (*Stream, error) {
	c, err := Dial(ctx, address, o)
	if err != nil {
		return nil, err
	}
	return c.Stream(), nil
}

// Streams returns a [net.Listener] whose connections are of type [*Stream], for
// [net/http.Server.Serve] and similar functions. Closing it closes l; [net/http.Server.Shutdown]
// closes it too.
func (l *Listener) Streams() net.Listener { return streamListener{l} }

// streamListener returns streams from Accept.
type streamListener struct{ *Listener }

// Accept implements [net.Listener].
func (l streamListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept(context.Background())
	if err != nil {
		return nil, err
	}
	return c.Stream(), nil
}

// deadline is the deadline of one direction. The zero value is none.
type deadline struct {
	mu     sync.Mutex
	ctx    context.Context    // guarded by mu: ends at the deadline, and when the deadline changes
	cancel context.CancelFunc // guarded by mu
}

// set sets the deadline; the zero time is none.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cancel != nil {
		d.cancel()
	}
	if t.IsZero() {
		d.ctx, d.cancel = context.WithCancel(context.Background())
	} else {
		d.ctx, d.cancel = context.WithDeadline(context.Background(), t)
	}
}

// context returns the current context.
func (d *deadline) context() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == nil {
		d.ctx, d.cancel = context.WithCancel(context.Background())
	}
	return d.ctx
}

// run calls do with a context that ends at the deadline. If the deadline changes before that, it
// calls do again.
func (d *deadline) run(do func(ctx context.Context) error) error {
	for {
		ctx := d.context()
		err := ctx.Err()
		if err == nil {
			err = do(ctx)
		}
		switch {
		case err == nil || ctx.Err() == nil:
			return err
		case errors.Is(err, context.DeadlineExceeded):
			return os.ErrDeadlineExceeded
		case !errors.Is(err, context.Canceled):
			return err
		}
	}
}

// opError returns err as a [net.OpError]. It asks for the addresses only if there is one, because they allocate.
func (s *Stream) opError(op string, err error) error {
	if err == nil {
		return nil
	}
	return netError(op, s.LocalAddr(), s.RemoteAddr(), err)
}

// netError returns err as a [net.OpError], as the connections of package net do.
func netError(op string, local, remote net.Addr, err error) error {
	if err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: local.Network(), Source: local, Addr: remote, Err: timeoutOf(err)}
}

// timeoutError is an error with a timeout among its causes. [net.OpError] looks for the method Timeout
// in the outermost error only.
type timeoutError struct{ error }

// Timeout implements [net.Error].
func (*timeoutError) Timeout() bool { return true }

// Temporary implements [net.Error].
func (*timeoutError) Temporary() bool { return true }

// Unwrap returns the error.
func (e *timeoutError) Unwrap() error { return e.error }

// timeoutOf returns err, as a timeoutError if a timeout is among its causes.
func timeoutOf(err error) error {
	var t interface{ Timeout() bool }
	if errors.As(err, &t) && t.Timeout() || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT) {
		return &timeoutError{err}
	}
	return err
}

// fill waits until there is something to read, unless the program wants 0 bytes.
func (s *Stream) fill(want int) error {
	if err := s.conn.checkOpen("read"); err != nil {
		return err
	}
	return s.readDeadline.run(func(ctx context.Context) (err error) {
		for err == nil && len(s.unread) == 0 && want > 0 {
			s.unread, err = s.conn.Recv(ctx)
		}
		return err
	})
}

// Read returns data that has arrived, or waits for some. It returns io.EOF after the peer has
// called CloseWrite or Close.
func (s *Stream) Read(p []byte) (n int, err error) {
	s.readMu.Lock()
	defer s.readMu.Unlock()
	if err := s.fill(len(p)); err != nil {
		return 0, s.opError("read", err)
	}
	for n < len(p) {
		k := copy(p[n:], s.unread)
		n += k
		if s.unread = s.unread[k:]; len(s.unread) == 0 && n < len(p) {
			if s.unread = s.conn.tryRecv(); len(s.unread) == 0 {
				break
			}
		}
	}
	return n, nil
}

// WriteTo writes received data to w, without a copy, until io.EOF. It implements [io.WriterTo].
func (s *Stream) WriteTo(w io.Writer) (n int64, err error) {
	s.readMu.Lock()
	defer s.readMu.Unlock()
	for {
		switch err := s.fill(1); {
		case err == io.EOF:
			return n, nil
		case err != nil:
			return n, s.opError("read", err)
		}
		k, err := w.Write(s.unread)
		n += int64(k)
		if s.unread = s.unread[k:]; err != nil {
			return n, err
		}
	}
}

// Write writes p. It returns as soon as all of p is copied and posted.
func (s *Stream) Write(p []byte) (n int, err error) {
	err = s.write(func(ctx context.Context) error {
		for {
			k, err := s.conn.sendSome(ctx, p[n:])
			if n += k; err != nil || n == len(p) {
				return err
			}
		}
	})
	return n, err
}

// ReadFrom sends what it reads from r until io.EOF. It reads into registered memory, so there is no
// other copy. It implements [io.ReaderFrom].
func (s *Stream) ReadFrom(r io.Reader) (n int64, err error) {
	s.readFromMu.Lock()
	defer s.readFromMu.Unlock()
	defer s.conn.returnLent()
	for {
		var b []byte
		err := s.write(func(ctx context.Context) (err error) {
			b, err = s.conn.lendSlot(ctx)
			return err
		})
		if err != nil {
			return n, err
		}
		k, readErr := r.Read(b) // without writeMu, so that Write does not wait for r
		if k < 0 || k > len(b) {
			return n, fmt.Errorf("cm: stream: %T has read %d bytes into %d: %w", r, k, len(b), syscall.EINVAL)
		}
		if err := s.write(func(ctx context.Context) error { return s.conn.sendLent(ctx, k) }); err != nil {
			return n, err
		}
		switch n += int64(k); {
		case readErr == io.EOF:
			return n, nil
		case readErr != nil:
			return n, readErr
		}
	}
}

// write calls do, which sends something, with a context that ends at the deadline.
func (s *Stream) write(do func(ctx context.Context) error) error {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	return s.opError("write", s.writeDeadline.run(do))
}

// CloseWrite ends the writing direction: the peer reads io.EOF after the last byte.
func (s *Stream) CloseWrite() error {
	return s.opError("close", s.writeDeadline.run(s.conn.CloseWrite))
}

// Close closes the connection; see [Conn.Close].
func (s *Stream) Close() error {
	err := s.conn.Close()
	s.SetDeadline(time.Time{}) // stops the timers
	return s.opError("close", err)
}

// LocalAddr returns this side's address.
func (s *Stream) LocalAddr() net.Addr { return s.conn.LocalAddr() }

// RemoteAddr returns the peer's address.
func (s *Stream) RemoteAddr() net.Addr { return s.conn.RemoteAddr() }

// SetDeadline sets the deadlines of Read and Write. After its deadline a call returns an error that
// matches [os.ErrDeadlineExceeded]. The zero time means no deadline.
func (s *Stream) SetDeadline(t time.Time) error {
	s.readDeadline.set(t)
	s.writeDeadline.set(t)
	return nil
}

// SetReadDeadline sets the deadline of Read.
func (s *Stream) SetReadDeadline(t time.Time) error {
	s.readDeadline.set(t)
	return nil
}

// SetWriteDeadline sets the deadline of Write.
func (s *Stream) SetWriteDeadline(t time.Time) error {
	s.writeDeadline.set(t)
	return nil
}
