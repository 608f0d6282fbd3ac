package valkey

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
)

// TestUnread: a peer sends more messages than there are receives, while the program calls nothing. All of them
// arrive.
func TestUnread(t *testing.T) {
	l := newListener(t, Options{RecvDepth: 16, KeepAlive: -1})
	client, server, err := connect(l, Options{})
	must(t, err)
	c := client.(*Conn)
	c.closer.set(time.Now().Add(timeout))
	c.mu.Lock()
	for range 200 {
		must(t, c.wait(&c.closer, (*Conn).canSendCommand))
		c.sendCommand(command{op: keepalive})
	}
	must(t, c.wait(&c.closer, (*Conn).allSent), c.err)
	c.mu.Unlock()
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
	e, err := id.Request(ctx)
	must(t, err)
	if p := e.Param; p.RNRRetryCount != protocol.RNRRetryCount || p.RetryCount != protocol.RetryCount {
		t.Errorf("the client asks for %d retries, and for %d without a receive", p.RetryCount, p.RNRRetryCount)
	}
	p, err := newRawPeer(e.ID)
	must(t, err, e.ID.AcceptWait(ctx, rdmacm.ConnParam{InitiatorDepth: 1, ResponderResources: 1}))
	c := <-dialed // it has announced its buffer
	time.Sleep(10 * protocol.AnswerTimeout)
	c.mu.Lock()
	c.poll()
	err, out := c.err, c.controlsOut
	c.mu.Unlock()
	if err != nil || out != 1 {
		t.Errorf("%v, and %d commands wait, want 1", err, out)
	}
	must(t, p.close(), id.Close(), ch.Release())
	c.Close()
}

// TestCloseDelivers: what was written before Close arrives, whoever closes.
func TestCloseDelivers(t *testing.T) {
	l := newListener(t, Options{})
	for i := range 20 {
		client, server, err := connect(l, Options{})
		must(t, err)
		if i%2 == 0 {
			client, server = server, client
		}
		data := bytes.Repeat([]byte{byte(i), 1, 2}, 80_000)
		read := make(chan []byte, 1)
		go func() {
			got, err := io.ReadAll(server)
			if err != nil {
				t.Error(err)
			}
			read <- got
		}()
		_, err = client.Write(data)
		must(t, err, client.Close())
		if got := <-read; !bytes.Equal(got, data) {
			t.Errorf("%d bytes arrive, want %d", len(got), len(data))
		}
		must(t, server.Close())
	}
}

// TestLinger: Close waits for data that is not acknowledged, and says so when it gives up.
func TestLinger(t *testing.T) {
	const linger = 50 * time.Millisecond
	client, server, err := connect(newListener(t, Options{}), Options{Linger: linger})
	must(t, err)
	c := client.(*Conn)
	c.mu.Lock()
	c.room-- // a byte that is never acknowledged
	c.mu.Unlock()
	begin := time.Now()
	if err := client.Close(); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begin) < linger {
		t.Errorf("Close returns %v after %v", err, time.Since(begin))
	}
	must(t, server.Close())
}

// TestWriteWhileClosing: a Write that waits for room returns as soon as Close is called, and a later one too, though
// Close still waits for what was written before.
func TestWriteWhileClosing(t *testing.T) {
	client, server, err := connect(newListener(t, Options{}), Options{Linger: timeout})
	must(t, err)
	c := client.(*Conn)
	c.mu.Lock()
	c.room-- // a byte that is not acknowledged for now
	c.mu.Unlock()
	wrote, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := client.Write(make([]byte, 10<<20))
		wrote <- err
	}()
	for waits := false; !waits; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		waits = c.writer.busy
		c.mu.Unlock()
	}
	go func() { closed <- client.Close() }()
	if err := <-wrote; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the Write that waits: %v", err)
	}
	if n, err := client.Write([]byte("late")); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("the later Write: %d, %v", n, err)
	}
	c.mu.Lock()
	c.room++
	c.interrupt()
	c.mu.Unlock()
	must(t, <-closed, server.Close())
}
