package valkey

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/internal/streamtest"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
)

// TestUnread: a peer sends more messages than there are receives, while the program calls nothing. All of them
// arrive.
func TestUnread(t *testing.T) {
	l := newListener(t, Options{RecvDepth: 16, KeepAlive: -1})
	client, server, err := connect(l, Options{})
	must(t, err)
	c := client.(*Conn).c
	must(t, c.SetWriteDeadline(time.Now().Add(timeout)))
	c.Mu.Lock()
	for range 200 {
		must(t, c.Wait(&c.Writer, c.canSendCommand))
		c.sendCommand(command{op: keepalive})
	}
	must(t, c.Wait(&c.Writer, c.AllSent), c.Err)
	c.Mu.Unlock()
	must(t, client.Close(), server.Close())
}

// TestNoReceives: a server that asks for no retries, as valkey-server does, has no receive posted for a while. The
// client's messages wait, longer than the device of a peer may owe an answer.
func TestNoReceives(t *testing.T) {
	testenv.Guest(t)
	defer func(old time.Duration) { protocol.AnswerTimeout = old }(protocol.AnswerTimeout)
	protocol.AnswerTimeout = 50 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	addr := netip.MustParseAddr(testenv.TheRig().Addrs[0])
	ch, err := protocol.OpenChannel(addr, netip.Addr{})
	must(t, err)
	id, err := ch.NewID(rdmacm.TCP)
	must(t, err, id.Bind(rdmacm.AddrOf(netip.AddrPortFrom(addr, 0))), id.Listen(10))
	all, err := id.Addrs()
	must(t, err)
	dialed := make(chan *Conn, 1)
	go func() {
		c, err := Dial(ctx, all.Local.String(), Options{})
		if err != nil {
			t.Error(err)
		}
		dialed <- c
	}()
	e, err := id.NextRequest(ctx)
	must(t, err)
	if p := e.Param; p.RNRRetryCount != protocol.RNRRetryCount || p.RetryCount != protocol.RetryCount {
		t.Errorf("the client asks for %d retries, and for %d without a receive", p.RetryCount, p.RNRRetryCount)
	}
	p, err := streamtest.NewRawPeer(e.ID)
	must(t, err, e.ID.AcceptWait(ctx, rdmacm.ConnParam{InitiatorDepth: 1, ResponderResources: 1}))
	client := <-dialed // it has announced its buffer
	c := client.c
	time.Sleep(10 * protocol.AnswerTimeout)
	c.Mu.Lock()
	c.Poll()
	err, out := c.Err, c.ControlsOut
	c.Mu.Unlock()
	if err != nil || out != 1 {
		t.Errorf("%v, and %d commands wait, want 1", err, out)
	}
	must(t, p.Close(), id.Close(), ch.Release())
	client.Close()
}
