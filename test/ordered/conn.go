package ordered

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// wire carries frames to one peer and back, reliably and in any order. Its memory has slots for
// what is received and for what is sent.
type wire interface {
	received(slot int) []byte                  // memory of a receive
	toSend(slot int) []byte                    // memory of a send
	post(slot int) error                       // has the next frame go to this slot
	send(slot, n int) error                    // sends the first n bytes of a slot
	wait(ctx context.Context) ([]event, error) // waits for completions
	close() error
}

// event is the completion of a receive or a send.
type event struct {
	send    bool
	slot, n int
	err     error
}

// ErrGone says that the peer has ended without closing the connection.
var ErrGone = errors.New("ordered: the peer has gone")

// bye is what each side says over TCP when it has sent and received all.
const bye = 'b'

// Conn is a connection. One goroutine may send while another one receives.
type Conn struct {
	wire  wire
	tcp   net.Conn // tells whether the peer is there
	size  int      // longest message
	stop  context.CancelFunc
	tasks sync.WaitGroup

	released func() // called by Close; may be nil

	mu      sync.Mutex
	changed chan struct{} // closed, and replaced, when anything below has changed
	window  *window
	lengths []int // of the frames in the slots of receives
	free    []int // slots of sends of messages
	control int   // slot of the send of a credit, or none while it is in flight
	ended   bool  // the end has been sent
	bye     bool  // the peer has said so
	closed  bool  // the memory is not the connection's any more
	err     error // why the connection has failed
}

// newConn begins a connection. The wire has all receives posted: those of the window, and controls.
func newConn(w wire, tcp net.Conn, size, own, peers int) *Conn {
	ctx, stop := context.WithCancel(context.Background())
	c := &Conn{
		wire: w, tcp: tcp, size: size, stop: stop, changed: make(chan struct{}), window: newWindow(own, peers),
		lengths: make([]int, own+controls), control: own,
	}
	for slot := range own {
		c.free = append(c.free, slot)
	}
	c.tasks.Go(func() { c.complete(ctx) })
	c.tasks.Go(c.watch)
	return c
}

// MaxSize returns the length of the longest message, in bytes.
func (c *Conn) MaxSize() int { return c.size }

// locked calls f, which may change the connection, and has those that wait look again.
func (c *Conn) locked(f func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := f()
	if err != nil && c.err == nil {
		c.err = err
	}
	close(c.changed)
	c.changed = make(chan struct{})
	return err
}

// until waits until ready returns true, which it calls with mu locked. It unlocks mu only if it
// returns an error.
func (c *Conn) until(ctx context.Context, ready func() bool) error {
	c.mu.Lock()
	for c.closed || !ready() {
		err, changed := c.err, c.changed
		c.mu.Unlock()
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
		c.mu.Lock()
	}
	return nil
}

// complete handles completions until the connection fails or is closed.
func (c *Conn) complete(ctx context.Context) {
	for {
		events, err := c.wire.wait(ctx)
		err = c.locked(func() error {
			for _, e := range events {
				err = errors.Join(err, e.err)
				if err == nil {
					err = c.completed(e)
				}
			}
			return err
		})
		if err != nil {
			return
		}
	}
}

// completed handles one completion.
func (c *Conn) completed(e event) error {
	switch {
	case e.send && e.slot == len(c.window.slots):
		c.control = e.slot
		return c.tell()
	case e.send:
		c.free = append(c.free, e.slot)
		return nil
	}
	if n := e.n - headerSize; n > c.size {
		return fmt.Errorf("%w: a message has %d bytes, want up to %d", errPeer, n, c.size)
	}
	held, err := c.window.arrived(e.slot, c.wire.received(e.slot)[:e.n])
	c.lengths[e.slot] = e.n
	if err == nil && !held {
		err = c.wire.post(e.slot)
	}
	return err
}

// tell sends a credit if it is time for one and the last has arrived.
func (c *Conn) tell() error {
	if c.control == none || !c.window.due() {
		return nil
	}
	slot := c.control
	c.window.header(kindCredit).put(c.wire.toSend(slot))
	c.control = none
	return c.wire.send(slot, headerSize)
}

// watch notices that the peer says goodbye, and that it has gone. After both have said goodbye, that
// is no error of Close.
func (c *Conn) watch() {
	var b [1]byte
	for here := true; here; {
		n, _ := c.tcp.Read(b[:])
		here = c.locked(func() error {
			if n == 0 || b[0] != bye || c.bye {
				return ErrGone
			}
			c.bye = true
			return nil
		}) == nil
	}
}

// Send sends a message. It waits until the peer has room for it, but not until the peer has
// received it.
func (c *Conn) Send(ctx context.Context, message []byte) error {
	if len(message) > c.size {
		return fmt.Errorf("ordered: a message has %d bytes, allowed: up to %d", len(message), c.size)
	}
	return c.sendFrame(ctx, kindData, message)
}

// sendFrame sends a frame that takes a receive of the window.
func (c *Conn) sendFrame(ctx context.Context, kind byte, message []byte) error {
	err := c.until(ctx, func() bool { return c.ended || c.err == nil && c.window.credit() && len(c.free) > 0 })
	if err != nil {
		return err
	}
	defer c.mu.Unlock()
	if c.ended {
		return net.ErrClosed
	}
	slot := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	b := c.wire.toSend(slot)
	c.window.header(kind).put(b)
	n := headerSize + copy(b[headerSize:], message)
	c.ended = kind == kindEnd
	if err := c.wire.send(slot, n); err != nil {
		c.err = err
	}
	return c.err
}

// Recv waits for the next message and copies it to b. It returns io.EOF after the last one, and
// io.ErrShortBuffer if b is too short; then the message stays.
func (c *Conn) Recv(ctx context.Context, b []byte) (n int, err error) {
	var slot int
	var end bool
	err = c.until(ctx, func() bool {
		slot, end = c.window.first()
		return slot != none
	})
	if err != nil {
		return 0, err
	}
	defer c.mu.Unlock()
	message := c.wire.received(slot)[headerSize:c.lengths[slot]]
	switch {
	case end:
		return 0, io.EOF
	case len(b) < len(message):
		return 0, io.ErrShortBuffer
	}
	n = copy(b, message)
	c.window.take()
	if err = c.wire.post(slot); err == nil {
		err = c.tell()
	}
	if err != nil && c.err == nil {
		c.err = err
	}
	return n, nil
}

// CloseSend tells the peer that no more messages come: its Recv returns io.EOF after the last one.
func (c *Conn) CloseSend(ctx context.Context) error { return c.sendFrame(ctx, kindEnd, nil) }

// Close ends the connection. It waits until the peer has received all messages and has closed its
// side or called CloseSend; messages that the program has not received are dropped. The error says
// whether that has failed: if the peer has gone, or the context has ended. All is closed in any
// case.
func (c *Conn) Close(ctx context.Context) error {
	err := c.CloseSend(ctx)
	if errors.Is(err, net.ErrClosed) { // already sent
		err = nil
	}
	for b := make([]byte, c.size); err == nil; {
		_, err = c.Recv(ctx, b)
	}
	if errors.Is(err, io.EOF) {
		err = c.until(ctx, func() bool { return c.err == nil && len(c.free) == len(c.window.slots) && c.control != none })
		if err == nil {
			c.mu.Unlock()
			_, err = c.tcp.Write([]byte{bye})
		}
		if err == nil {
			if err = c.until(ctx, func() bool { return c.bye }); err == nil {
				c.mu.Unlock()
			}
		}
	}
	var again bool
	c.locked(func() error {
		again, c.closed = c.closed, true
		return net.ErrClosed
	})
	if again {
		return nil
	}
	c.stop()
	err = errors.Join(err, c.tcp.Close())
	c.tasks.Wait()
	if c.released != nil {
		defer c.released()
	}
	return errors.Join(err, c.wire.close())
}
