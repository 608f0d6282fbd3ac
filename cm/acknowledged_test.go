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
