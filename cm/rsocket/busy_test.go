package rsocket

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/internal/streamtest"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
)

// TestBusyPeer: a peer whose program does nothing for long has no receive left. Messages wait for it, and the
// connection goes on, because the peer's device answers. A call that waits until they are acknowledged is woken,
// although another one waits for completions already.
func TestBusyPeer(t *testing.T) {
	testenv.NeedsIB(t, "retries of the device") // on iWARP a message that finds no receive ends the connection
	defer func(old time.Duration) { protocol.AnswerTimeout = old }(protocol.AnswerTimeout)
	protocol.AnswerTimeout = 50 * time.Millisecond
	client, server, err := connect(newListener(t, Options{Credits: 16}), Options{})
	must(t, err)
	c, peer := client.(*Conn).c, server.(*Conn).c
	busy := func(w *protocol.Waiter) {
		for busy := false; !busy; time.Sleep(time.Millisecond) {
			c.Mu.Lock()
			busy = w.Busy()
			c.Mu.Unlock()
		}
	}
	read, sent := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := client.Read(make([]byte, 1))
		read <- err
	}()
	busy(&c.Reader) // it waits for messages only
	peer.Mu.Lock()  // it does not look after its receives either
	must(t, c.SetWriteDeadline(time.Now().Add(timeout)))
	c.Mu.Lock()
	for range peer.Receives + 1 { // the last one finds no receive
		must(t, c.Wait(&c.Writer, c.CanSendControl), c.Err)
		c.sendControl(c.credit())
	}
	c.Mu.Unlock()
	time.Sleep(20 * protocol.AnswerTimeout)
	c.Mu.Lock()
	protocol.AnswerTimeout = time.Hour // from its next check on, which is due, the timer of the connection does not poll
	c.Mu.Unlock()
	time.Sleep(50 * time.Millisecond)
	go func() {
		c.Mu.Lock()
		defer c.Mu.Unlock()
		if sent <- c.Wait(&c.Writer, c.AllSent); c.Err != nil {
			t.Error(c.Err)
		}
	}()
	busy(&c.Writer)
	c.Mu.Lock()
	if c.Err != nil || c.ControlsOut == 0 {
		t.Errorf("%v, and %d messages wait", c.Err, c.ControlsOut)
	}
	c.Mu.Unlock()
	peer.Mu.Unlock()
	go func() {
		peer.Mu.Lock()
		defer peer.Mu.Unlock()
		peer.Poll() // it posts its receives again
	}()
	must(t, <-sent)
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
	if err := <-read; !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		t.Errorf("the Read beside it: %v", err)
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
	p, err := streamtest.DialRaw(ctx, ch, l.Addr().String())
	must(t, err)
	_, err = p.ID.ConnectWait(ctx, rdmacm.ConnParam{PrivateData: goodData, RetryCount: 1, RNRRetryCount: 1})
	must(t, err)
	server, err := l.Accept()
	must(t, err)
	a, err := server.(*Conn).c.QP.Query()
	must(t, err)
	if took := a.Timeout.Duration() * time.Duration(a.RetryCount+1); a.RetryCount != protocol.RetryCount || a.RNRRetry != protocol.RNRRetryCount || took < 3500*time.Millisecond || took > 4*time.Second || a.MinRNRTimer.Duration() > time.Millisecond {
		t.Errorf("%d retries that take %v, %d without a receive, and the peer has to wait %v before one", a.RetryCount, took, a.RNRRetry, a.MinRNRTimer.Duration())
	}
	must(t, p.Close())
	server.Close()
	must(t, ch.Release())
}

// TestCloseWriteDeadline: a CloseWrite that fails at its deadline has ended nothing. A Write that waits behind it fails
// at the deadline too, a later one arrives, and so does the end that a second CloseWrite sends.
func TestCloseWriteDeadline(t *testing.T) {
	client, server, err := connect(newListener(t, Options{}), Options{})
	must(t, err, server.SetDeadline(time.Now().Add(timeout)))
	c := client.(*Conn).c
	c.Mu.Lock()
	c.ControlsOut += maxControls // no control message may be sent
	c.Mu.Unlock()
	ended, wrote := make(chan error, 1), make(chan error, 1)
	go func() { ended <- client.(*Conn).CloseWrite() }()
	for waits := false; !waits; time.Sleep(time.Millisecond) {
		c.Mu.Lock()
		waits = c.Writer.Busy()
		c.Mu.Unlock()
	}
	go func() {
		_, err := client.Write([]byte("behind "))
		wrote <- err
	}()
	must(t, client.SetWriteDeadline(time.Now().Add(-time.Second)))
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("CloseWrite: %v", err)
	}
	if err := <-wrote; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the Write that waits behind it, with the same deadline: %v", err)
	}
	must(t, client.SetWriteDeadline(time.Time{}))
	c.Mu.Lock()
	c.ControlsOut -= maxControls
	c.Mu.Unlock()
	_, err = client.Write([]byte("later"))
	must(t, err, client.(*Conn).CloseWrite())
	got, err := io.ReadAll(server)
	must(t, err)
	if string(got) != "later" {
		t.Errorf("%q arrives", got)
	}
	must(t, server.Close(), client.Close())
}
