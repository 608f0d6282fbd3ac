package frame

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"testing"
	"time"
)

// deadEnd fails every write.
type deadEnd struct{}

func (deadEnd) Write([]byte) (int, error) { return 0, errors.New("nobody there") }
func (deadEnd) Close() error              { return nil }

// collector is a destination that can be held up.
type collector struct {
	mu     sync.Mutex
	buf    bytes.Buffer
	closed chan struct{}
	gate   chan struct{} // each write takes one element; nil does not wait
}

func (c *collector) Write(p []byte) (int, error) {
	if c.gate != nil {
		<-c.gate
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.Write(p)
}

func (c *collector) Close() error { close(c.closed); return nil }

// pair joins the two ends of a stream, and gives a function that waits until
// both directions are at rest.
func pair(t *testing.T) (*Outgoing, *Incoming) {
	t.Helper()
	toIn, fromOut := io.Pipe()
	toOut, fromIn := io.Pipe()
	out := NewOutgoing(NewWriter(fromOut), Stdout)
	in := NewIncoming(NewWriter(fromIn), Stdout)
	t.Cleanup(func() { in.Stop(); fromOut.Close(); fromIn.Close() })
	go func() {
		for {
			m, err := Read(toIn)
			if err != nil {
				return
			}
			if err := in.Put(m.Payload); err != nil {
				t.Errorf("put: %v", err)
				return
			}
		}
	}()
	go func() {
		for {
			m, err := Read(toOut)
			if err != nil {
				return
			}
			if m.Kind == Closed {
				out.Stop()
			} else if _, n, err := ParseCredit(m.Payload); err == nil {
				out.Grant(n)
			}
		}
	}()
	return out, in
}

func TestStreamArrivesWhole(t *testing.T) {
	out, in := pair(t)
	c := &collector{closed: make(chan struct{})}
	in.SetDst(c)
	sent := make([]byte, 3*Window+17)
	for i := range sent {
		sent[i] = byte(i * 7)
	}
	if n, err := out.Write(sent); n != len(sent) || err != nil {
		t.Fatal(n, err)
	}
	if err := out.EOF(); err != nil {
		t.Fatal(err)
	}
	<-c.closed
	if !bytes.Equal(c.buf.Bytes(), sent) {
		t.Errorf("%d bytes came, other than the %d sent", c.buf.Len(), len(sent))
	}
}

// A receiver that does not take its bytes stops the sender after one window, and
// only the sender.
func TestStreamBackpressure(t *testing.T) {
	out, in := pair(t)
	c := &collector{closed: make(chan struct{}), gate: make(chan struct{})}
	in.SetDst(c)
	wrote := make(chan int)
	go func() {
		n, err := out.Write(make([]byte, Window+1))
		if err != nil {
			t.Error(err)
		}
		wrote <- n
	}()
	for queued := 0; queued < Window; {
		in.mu.Lock()
		queued = in.size
		in.mu.Unlock()
	}
	select {
	case n := <-wrote:
		t.Fatalf("%d bytes went out on a window of %d", n, Window)
	case <-time.After(20 * time.Millisecond):
	}
	close(c.gate)
	if n := <-wrote; n != Window+1 {
		t.Errorf("%d bytes went out", n)
	}
	for left := 1; left > 0; {
		in.Flush()
		c.mu.Lock()
		left = Window + 1 - c.buf.Len()
		c.mu.Unlock()
	}
}

func TestPutWithoutCredit(t *testing.T) {
	in := NewIncoming(NewWriter(io.Discard), Stdout)
	defer in.Stop()
	if err := in.Put(make([]byte, Window)); err != nil {
		t.Fatal(err)
	}
	if err := in.Put([]byte{1}); !errors.Is(err, ErrFormat) {
		t.Errorf("one byte more than the window: %v", err)
	}
}

// A destination that is gone is reported to the sender, whose writes then fail
// instead of waiting for ever.
func TestStreamClosed(t *testing.T) {
	out, in := pair(t)
	in.SetDst(deadEnd{})
	var err error
	for err == nil {
		_, err = out.Write(make([]byte, MaxPayload))
	}
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("writing to a closed stream: %v", err)
	}
	// The next program's output is thrown away, not refused.
	out.Reset()
	if _, err := out.Write([]byte("more")); err != nil {
		t.Errorf("after Reset: %v", err)
	}
}

func TestStopWakesWriter(t *testing.T) {
	out := NewOutgoing(NewWriter(io.Discard), Stdin)
	done := make(chan error)
	go func() {
		_, err := out.Write(make([]byte, Window+1))
		done <- err
	}()
	out.Stop()
	if err := <-done; !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}
