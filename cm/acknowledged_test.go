package cm

import (
	"io"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
)

// waitOver waits until a connection has noticed that the peer is gone, and nothing is outstanding.
func waitOver(t *testing.T, c *Conn) {
	t.Helper()
	for end := time.Now().Add(timeout); time.Now().Before(end); time.Sleep(time.Millisecond) {
		c.mu.Lock()
		c.pollAll()
		over := c.err != nil && !c.outstanding()
		c.mu.Unlock()
		if over {
			return
		}
	}
	t.Fatal("the connection goes on, or has something outstanding")
}

// TestCloseAcknowledged: Close returns nil after the peer has gone if its device has acknowledged all messages before.
func TestCloseAcknowledged(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsIB(t, "acknowledgements")
	ctx := within(t)
	l := newListener(t, ListenOptions{})
	client, server := connect(t, l, DialOptions{})
	must(t, client.Send(ctx, []byte("x")), client.Flush(ctx))
	value(server.Recv(ctx))(t)
	must(t, server.id.Disconnect())
	waitOver(t, client)
	if err := client.Close(); err != nil {
		t.Errorf("after a message that has arrived: %v", err)
	}
	server.Close()

	client, server = connect(t, l, DialOptions{})
	must(t, server.Send(ctx, []byte("x")), server.CloseWrite(ctx))
	value(client.Recv(ctx))(t)
	if _, err := client.Recv(ctx); err != io.EOF {
		t.Error(err)
	}
	must(t, server.id.Disconnect())
	waitOver(t, client)
	if err := client.Close(); err != nil {
		t.Errorf("after the peer's end, without a message of this side: %v", err)
	}
	server.Close()
}

// TestEventLoopHungDevice: an ID whose QP a goroutine is destroying, or creating, on a device that hangs does not stop
// the events of other IDs.
func TestEventLoopHungDevice(t *testing.T) {
	testenv.Guest(t)
	l := newListener(t, ListenOptions{})
	c1, s1 := connect(t, l, DialOptions{})
	c2, s2 := connect(t, l, DialOptions{})
	c1.id.queues.mu.Lock()
	locked := true
	unlock := func() {
		if locked {
			c1.id.queues.mu.Unlock()
			locked = false
		}
	}
	defer unlock()
	must(t, s1.id.Disconnect())
	time.Sleep(20 * time.Millisecond) // in which the loop comes to this event first
	must(t, s2.id.Disconnect())
	waitOver(t, c2)
	unlock()
	for _, c := range []*Conn{c1, c2, s1, s2} {
		c.Close()
	}
}
