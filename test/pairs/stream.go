package pairs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Stream is a [World] with a listener and a connection whose peer sends everything back. The bytes
// that it sends at random are counted: none may be lost or arrive twice.
type Stream struct {
	Conn   net.Conn // Conn is the connection.
	Others []any    // Others are more objects.
	// Dial makes one more connection.
	Dial func(context.Context) (net.Conn, error)

	Sent, Received atomic.Int64 // Sent and Received count the bytes of random calls.

	t      *testing.T
	l      net.Listener
	echoed chan error
	closed atomic.Bool // a method that closes was called

	mu   sync.Mutex
	errs []error // guarded by mu: of methods
}

// Filler is each byte that is sent at random.
const Filler = 0xaa

// slice is how long a method may wait.
const slice = 2 * time.Millisecond

// NewStream makes a world of a listener, and also returns the peer's side of the connection, which sends everything back.
func NewStream(t *testing.T, l net.Listener, dial func(context.Context) (net.Conn, error)) (w *Stream, peer net.Conn) {
	t.Helper()
	w = &Stream{Dial: dial, t: t, l: l, echoed: make(chan error, 1)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var err error
	if w.Conn, err = dial(ctx); err == nil {
		peer, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	w.setDeadline(slice)
	go func() {
		_, err := io.Copy(struct{ io.Writer }{peer}, struct{ io.Reader }{peer})
		w.echoed <- errors.Join(err, peer.Close())
	}()
	return w, peer
}

func (w *Stream) setDeadline(d time.Duration) { _ = w.Conn.SetDeadline(time.Now().Add(d)) } // fails after Close

// Objects implements [World].
func (w *Stream) Objects() []any { return append([]any{w.l, w.Conn}, w.Others...) }

// Argument bounds the time of methods with a context.
func (w *Stream) Argument(r *rand.Rand, typ reflect.Type) (v reflect.Value, ok bool) {
	switch typ {
	case reflect.TypeFor[context.Context]():
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.Int64N(int64(slice))))
		context.AfterFunc(ctx, cancel)
		return reflect.ValueOf(ctx), true
	case reflect.TypeFor[int](): // a size
		return reflect.ValueOf(1 + r.IntN(8)), true
	case reflect.TypeFor[time.Time](): // never none
		return reflect.ValueOf(time.Now().Add(time.Duration(r.Int64N(int64(2*slice))) - slice/2)), true
	}
	return v, false
}

// Check implements checker.
func (w *Stream) Check(method string, err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errs = append(w.errs, fmt.Errorf("%s: %w", method, err))
}

// expected reports whether the documentation has an error. The others may only follow a Close.
func (w *Stream) expected(err error) bool {
	kinds := []error{os.ErrDeadlineExceeded, context.DeadlineExceeded, context.Canceled, syscall.ENOSPC}
	if w.closed.Load() {
		kinds = append(kinds, net.ErrClosed, os.ErrClosed, io.EOF, syscall.EPIPE, syscall.ECONNRESET)
	}
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// fill returns a random number of bytes.
func fill(r *rand.Rand) []byte { return bytes.Repeat([]byte{Filler}, 1+r.IntN(1<<r.IntN(15))) }

// Override implements [World].
func (w *Stream) Override(object any, name string) (call func(*rand.Rand), skip bool) {
	if strings.HasPrefix(name, "Close") {
		method := byReflection(w, name, reflect.ValueOf(object).MethodByName(name))
		return func(r *rand.Rand) {
			w.closed.Store(true)
			method(r)
		}, false
	}
	if object == any(w.l) && name == "Accept" {
		return func(*rand.Rand) { w.accept() }, false
	}
	if object != any(w.Conn) {
		return nil, false
	}
	switch name {
	case "Read":
		return func(r *rand.Rand) {
			w.Check(name, w.Conn.SetReadDeadline(time.Now().Add(slice)))
			b := make([]byte, 1+r.IntN(1<<r.IntN(15)))
			n, err := w.Conn.Read(b)
			_, wrong := w.Write(b[:n])
			w.Check(name, errors.Join(err, wrong))
		}, false
	case "WriteTo":
		return func(*rand.Rand) {
			w.Check(name, w.Conn.SetReadDeadline(time.Now().Add(slice)))
			_, err := w.Conn.(io.WriterTo).WriteTo(w)
			w.Check(name, err)
		}, false
	case "Write", "ReadFrom":
		return func(r *rand.Rand) {
			w.Check(name, w.Conn.SetWriteDeadline(time.Now().Add(slice)))
			b := fill(r)
			if name == "ReadFrom" {
				n, err := w.Conn.(io.ReaderFrom).ReadFrom(bytes.NewReader(b))
				w.Sent.Add(n)
				w.Check(name, err)
				return
			}
			n, err := w.Conn.Write(b)
			w.Sent.Add(int64(n))
			w.Check(name, err)
		}, false
	}
	return nil, false
}

// Write counts what has arrived. It fails if that was not sent.
func (w *Stream) Write(b []byte) (int, error) {
	if n := bytes.Count(b, []byte{Filler}); n != len(b) {
		return 0, fmt.Errorf("%d of %d bytes that arrive were not sent", len(b)-n, len(b))
	}
	w.Received.Add(int64(len(b)))
	return len(b), nil
}

// accept makes a connection and accepts one, which may be that of another goroutine.
func (w *Stream) accept() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := w.Dial(ctx)
	if err != nil {
		if !w.closed.Load() { // else there is no listener
			w.Check("Dial", err)
		}
		return
	}
	s, err := w.l.Accept()
	w.Check("Accept", err)
	w.Check("Close of a new connection", c.Close())
	if err == nil {
		w.Check("Close of an accepted connection", s.Close())
	}
}

// Agree implements [World]: errors are as documented, and the connection works if nothing was
// closed.
func (w *Stream) Agree() error {
	w.mu.Lock()
	errs := w.errs
	w.errs = nil
	w.mu.Unlock()
	for _, err := range errs {
		if !w.expected(err) {
			return err
		}
	}
	if w.closed.Load() {
		return nil
	}
	w.setDeadline(time.Minute)
	defer w.setDeadline(slice)
	marker := []byte(fmt.Sprintf("%016x", rand.Uint64()))
	written := make(chan error, 1)
	go func() {
		_, err := w.Conn.Write(marker)
		written <- err
	}()
	var end []byte
	for b := make([]byte, 1<<15); len(end) < len(marker); {
		n, err := w.Conn.Read(b)
		if err != nil {
			return fmt.Errorf("%d of %d bytes have come back: %w", w.Received.Load(), w.Sent.Load(), err)
		}
		sent := n
		if i := bytes.IndexFunc(b[:n], func(r rune) bool { return r < 0x80 }); i >= 0 || len(end) > 0 {
			if len(end) > 0 {
				i = 0
			}
			end, sent = append(end, b[i:n]...), i
		}
		if _, err := w.Write(b[:sent]); err != nil {
			return err
		}
	}
	if !bytes.Equal(end, marker) {
		return fmt.Errorf("%q comes back, want %q", end, marker)
	}
	if s, r := w.Sent.Load(), w.Received.Load(); s != r {
		return fmt.Errorf("%d bytes were sent, and %d have come back", s, r)
	}
	return <-written
}

// Exchange implements [World]. Agree has exchanged bytes.
func (w *Stream) Exchange() (done bool, err error) { return w.closed.Load(), nil }

// End implements [World].
func (w *Stream) End() {
	w.closed.Store(true)
	w.Check("Close", w.Conn.Close())
	select {
	case err := <-w.echoed:
		w.Check("the peer", err)
	case <-time.After(time.Minute):
		w.t.Error("the peer does not learn of the end")
	}
	w.Check("Close of the listener", w.l.Close())
	if err := w.Agree(); err != nil {
		w.t.Error(err)
	}
}
