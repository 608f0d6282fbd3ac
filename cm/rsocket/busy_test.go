package rsocket

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
)

// TestBusyPeer: a peer whose program does nothing for long has no receive left. Messages wait for it, and the
// connection goes on, because the peer's device answers.
func TestBusyPeer(t *testing.T) {
	testenv.NeedsIB(t, "retries of the device") // on iWARP a message that finds no receive ends the connection
	defer func(old time.Duration) { protocol.AnswerTimeout = old }(protocol.AnswerTimeout)
	protocol.AnswerTimeout = 50 * time.Millisecond
	client, server, err := connect(newListener(t, Options{Credits: 16}), Options{})
	must(t, err)
	c, peer := client.(*Conn), server.(*Conn)
	peer.mu.Lock() // it does not look after its receives either
	c.closer.set(time.Now().Add(timeout))
	c.mu.Lock()
	for range peer.o.recvs() + 1 { // the last one finds no receive
		must(t, c.wait(&c.closer, (*Conn).canSendControl), c.err)
		c.sendControl(c.credit())
	}
	c.mu.Unlock()
	time.Sleep(20 * protocol.AnswerTimeout)
	c.mu.Lock()
	c.pollAll()
	if c.err != nil || c.controlsOut == 0 {
		t.Errorf("%v, and %d messages wait", c.err, c.controlsOut)
	}
	c.mu.Unlock()
	peer.mu.Unlock()
	_, err = client.Write([]byte("all the same"))
	must(t, err)
	closed := make(chan error, 1)
	go func() { closed <- client.Close() }()
	must(t, server.SetDeadline(time.Now().Add(timeout)))
	got, err := io.ReadAll(server)
	must(t, err, <-closed, server.Close())
	if string(got) != "all the same" {
		t.Errorf("%q arrives", got)
	}
}

// TestRetries: how long the device waits for a peer that is gone, and for one that has no receive, does not depend on
// what the peer asks for.
func TestRetries(t *testing.T) {
	testenv.NeedsIB(t, "retries of the device")
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	l := newListener(t, Options{})
	ch, err := protocol.OpenChannel(netip.Addr{}, netip.MustParseAddr(testenv.TheRig().Addrs[0]))
	must(t, err)
	p, err := dialRaw(ctx, ch, l.Addr().String())
	must(t, err)
	data := connData{credits: 384, table: segment{1 << 40, 7, 2}, buffer: segment{1 << 41, 8, 65536}}.encode()
	_, err = p.id.ConnectWait(ctx, rdmacm.ConnParam{PrivateData: data, RetryCount: 1, RNRRetryCount: 1})
	must(t, err)
	server, err := l.Accept()
	must(t, err)
	a, err := server.(*Conn).qp.Query()
	must(t, err)
	if took := a.Timeout.Duration() * time.Duration(a.RetryCount+1); a.RetryCount != protocol.RetryCount || a.RNRRetry != protocol.RNRRetryCount || took < 3500*time.Millisecond || took > 4*time.Second || a.MinRNRTimer.Duration() > time.Millisecond {
		t.Errorf("%d retries that take %v, %d without a receive, and the peer has to wait %v before one", a.RetryCount, took, a.RNRRetry, a.MinRNRTimer.Duration())
	}
	must(t, p.close())
	server.Close()
	must(t, ch.Release())
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
