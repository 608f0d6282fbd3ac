package protocol

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// Sizes that no option sets.
const (
	maxTransfer = 64 << 10
	LeastRoom   = 2048 // LeastRoom is how many bytes of the send buffer must be free, so that writes do not become small.
)

// OpError returns err as a [net.OpError], as the connections of package net do.
func (s *Stream) OpError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if errors.Is(err, syscall.ETIMEDOUT) {
		err = &timeoutError{err}
	}
	return &net.OpError{Op: op, Net: s.Network, Source: s.addrs.Local, Addr: s.addrs.Remote, Err: err}
}

// timeoutError is an error that [net.OpError] recognizes as a timeout.
type timeoutError struct{ error }

// Timeout implements [net.Error].
func (*timeoutError) Timeout() bool { return true }

// Unwrap returns the error.
func (e *timeoutError) Unwrap() error { return e.error }

// Read waits until ready reports true, and then calls take, which returns data or why there is none.
func (s *Stream) Read(p []byte, ready func() bool, take func(p []byte) (int, error)) (n int, err error) {
	s.readMu.Lock()
	defer s.readMu.Unlock()
	s.Mu.Lock()
	n, err = s.readLocked(p, ready, take)
	s.Mu.Unlock()
	return n, s.OpError("read", err)
}

// readLocked is Read for a caller that holds s.Mu.
func (s *Stream) readLocked(p []byte, ready func() bool, take func(p []byte) (int, error)) (n int, err error) {
	switch err := s.Reader.check(); {
	case s.Closed:
		return 0, net.ErrClosed
	case err != nil:
		return 0, err
	case len(p) == 0:
		return 0, nil
	}
	err = s.Wait(&s.Reader, ready)
	switch {
	case err != nil:
		return 0, err
	case s.Closed:
		return 0, net.ErrClosed
	}
	return take(p)
}

// Write calls some, which sends the beginning of p or returns why it cannot, until all is sent. Before each part
// it waits until ready reports true. If p is empty, it does not wait.
func (s *Stream) Write(p []byte, ready func() bool, some func(p []byte) (int, error)) (n int, err error) {
	s.WriteMu.Lock()
	defer s.WriteMu.Unlock()
	s.Mu.Lock()
	n, err = s.writeLocked(p, ready, some)
	s.Mu.Unlock()
	return n, s.OpError("write", err)
}

// writeLocked is Write for a caller that holds s.Mu.
func (s *Stream) writeLocked(p []byte, ready func() bool, some func(p []byte) (int, error)) (n int, err error) {
	for {
		if err := s.Writer.check(); err != nil && !s.Closed {
			return n, err
		}
		if len(p) > 0 {
			if err := s.Wait(&s.Writer, ready); err != nil {
				return n, err
			}
		}
		k, err := some(p[n:])
		if n += k; err != nil || n == len(p) {
			return n, err
		}
	}
}

// Stage copies the beginning of p, up to most bytes, into the memory for sending.
func (s *Stream) Stage(p []byte, most uint32) (from uverbs.SGE, n int) {
	buf := s.SendMem.MR.Bytes()[:s.SendBuffer]
	n = min(len(p), maxTransfer, s.Room, len(buf)-s.SendAt, int(min(most, maxTransfer)))
	copy(buf[s.SendAt:], p[:n])
	from = s.SendMem.MR.SGE(s.SendAt, n)
	s.SendAt = (s.SendAt + n) % len(buf)
	s.Room -= n
	return from, n
}

// CanStage reports whether there is room for a message with data, and a work request for it.
func (s *Stream) CanStage() bool { return s.Slots >= s.PerMessage() && s.Room >= LeastRoom }

// Close ends and releases the connection; see [Wire]. A second Close returns nil.
func (s *Stream) Close() error {
	s.closeMu.Lock()
	defer s.closeMu.Unlock()
	s.Mu.Lock()
	if s.Closed {
		s.Mu.Unlock()
		return nil
	}
	s.Closing = true
	s.Interrupt()
	s.Closer.set(time.Now().Add(s.Linger))
	err := s.wire.End()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("the Linger of %v is over: %w", s.Linger, err)
	}
	s.Closed = true
	s.Interrupt()
	s.Mu.Unlock()
	s.turn.close()    // no other goroutine uses the queues any more
	s.ID.Disconnect() // on iWARP, closing the ID breaks off what is being sent
	return s.OpError("close", errors.Join(err, s.release()))
}

// Part asks the peer to disconnect and waits, with Closer, until it has done so: then its connection manager knows of
// the end. Meanwhile this side's device goes on to acknowledge what the peer sends, though nobody reads it. On
// iWARP, where it could not, Part does nothing.
func (s *Stream) Part() error {
	if s.parted || s.IWARP {
		return nil
	}
	if err := s.ID.RequestDisconnect(); err != nil {
		return err
	}
	err := s.Wait(&s.Closer, func() bool { return s.parted })
	switch {
	case err == nil && s.parted:
		return nil
	case err == nil:
		err = s.Err
	}
	return fmt.Errorf("everything has arrived, but the peer has not answered the disconnect: %w", err)
}

// ErrUndelivered is the error of a Close after the peer has disconnected.
var ErrUndelivered = fmt.Errorf("the peer is gone, and has not acknowledged everything: %w", syscall.ECONNRESET)

// Delivered reports whether the peer's device has acknowledged everything, without a failure of data or the end.
func (s *Stream) Delivered() bool { return s.AllSent() && !s.undelivered }

// AllSent reports whether the peer's device has acknowledged everything.
func (s *Stream) AllSent() bool {
	return s.Room == s.SendBuffer && s.Slots == s.SendDepth && s.ControlsOut == 0
}

// AllSentOrGone is AllSent, or the peer has gone.
func (s *Stream) AllSentOrGone() bool { return s.AllSent() || s.wire.Gone() }

// SetDeadline sets the deadlines of Read and Write.
func (s *Stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetReadDeadline sets the deadline of Read.
func (s *Stream) SetReadDeadline(t time.Time) error {
	s.Reader.set(t)
	return nil
}

// SetWriteDeadline sets the deadline of Write, and of other calls that wait with Writer.
func (s *Stream) SetWriteDeadline(t time.Time) error {
	s.Writer.set(t)
	return nil
}
