package perftest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
)

// tcpLink sends messages on a TCP connection.
type tcpLink struct {
	c   net.Conn
	gid bool // gid says that records have a GID in them

	ahead []byte // data that came before it was read
}

// bound has the connection's operations end with the context. What it returns undoes that.
func (l *tcpLink) bound(ctx context.Context) func() {
	if d, ok := ctx.Deadline(); ok {
		l.c.SetDeadline(d)
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		l.c.SetDeadline(time.Unix(1, 0))
		close(ended)
	})
	return func() {
		if !stop() {
			<-ended
		}
		l.c.SetDeadline(time.Time{})
	}
}

// write sends a message, in one piece: perftest takes what one read returns.
func (l *tcpLink) write(ctx context.Context, b []byte) error {
	defer l.bound(ctx)()
	_, err := l.c.Write(b)
	return endOf(ctx, err)
}

// read returns the next n bytes.
func (l *tcpLink) read(ctx context.Context, n int) ([]byte, error) {
	b := make([]byte, n)
	return b, l.fill(ctx, b, 0)
}

// fill reads into b what is behind the bytes that it has.
func (l *tcpLink) fill(ctx context.Context, b []byte, have int) error {
	defer l.bound(ctx)()
	early := copy(b[have:], l.ahead)
	l.ahead = l.ahead[early:]
	have += early
	n, err := io.ReadFull(l.c, b[have:])
	if err == nil {
		return nil
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errGone
	}
	if n += have; n > 0 {
		return fmt.Errorf("got %d of %d bytes, %s: %w", n, len(b), peertext.Quote(b[:n]), endOf(ctx, err))
	}
	return endOf(ctx, err)
}

// aheadLen limits the data that a peer may send before it is read, in bytes: more than all messages
// that a peer sends before it waits for one of this side.
const aheadLen = 4096

// watch calls gone if the peer hangs up before the function that it returns is called. It takes what
// the peer says meanwhile, as one that has ended its run does. No other goroutine may read.
func (l *tcpLink) watch(gone func()) (stop func()) {
	over := make(chan struct{})
	go func() {
		defer close(over)
		for b := make([]byte, aheadLen); len(l.ahead) < aheadLen; {
			n, err := l.c.Read(b)
			l.ahead = append(l.ahead, b[:n]...)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			if err != nil {
				gone()
				return
			}
		}
	}()
	return func() {
		l.c.SetReadDeadline(time.Unix(1, 0))
		<-over
		l.c.SetReadDeadline(time.Time{})
	}
}

// errGone says that the peer has closed the connection.
var errGone = errors.New("the peer has closed the connection")

// endOf returns why a context has ended, if that is the cause of an error.
func endOf(ctx context.Context, err error) error {
	var timeout net.Error
	if err != nil && (ctx.Err() != nil || errors.As(err, &timeout) && timeout.Timeout()) {
		<-ctx.Done() // the socket has the deadline of the context
		return context.Cause(ctx)
	}
	return err
}

// writeRecord sends a record.
func (l *tcpLink) writeRecord(ctx context.Context, r Record) error {
	return l.write(ctx, r.text(l.gid))
}

// readRecord returns the next record. The answer must have a GID if and only if the record has one;
// perftest does not agree on it otherwise.
func (l *tcpLink) readRecord(ctx context.Context) (Record, error) {
	b, err := l.read(ctx, textLen)
	if err != nil {
		return Record{}, err
	}
	n, err := textForm(b)
	if err != nil {
		return Record{}, err
	}
	if n > textLen {
		b = append(b, make([]byte, n-textLen)...)
		if err := l.fill(ctx, b, textLen); err != nil {
			return Record{}, err
		}
	}
	l.gid = n == textGIDLen
	return parseText(b)
}

// finish says that all is done, and waits for the peer to say so too: who closes with something
// unread resets the connection, which would be an error at the peer.
func (l *tcpLink) finish(ctx context.Context) error {
	const timeout = time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := l.write(ctx, []byte(done)); err != nil {
		return nil // perftest does not wait
	}
	defer l.bound(ctx)()
	io.Copy(io.Discard, io.LimitReader(l.c, int64(len(done))))
	return nil
}

// close closes the connection.
func (l *tcpLink) close() error { return l.c.Close() }
