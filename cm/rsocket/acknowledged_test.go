package rsocket

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/protocol"
)

// TestCloseUnacknowledged: Close returns an error if the peer goes while data is not acknowledged, although the
// completion comes later. If nothing but the end is missing, Close returns nil.
func TestCloseUnacknowledged(t *testing.T) {
	for outstanding, want := range map[int]error{1: syscall.ECONNRESET, 0: nil} {
		client, server, err := connect(newListener(t, Options{}), Options{Linger: timeout})
		must(t, err)
		c := client.(*Conn).c
		c.Mu.Lock()
		c.Room -= outstanding
		c.Mu.Unlock()
		closed := make(chan error, 1)
		go func() { closed <- client.Close() }()
		for ending := false; !ending; time.Sleep(time.Millisecond) {
			c.Mu.Lock()
			ending = c.ending
			c.Mu.Unlock()
		}
		c.Mu.Lock()
		c.Lost(nil) // as after EventDisconnected
		c.Interrupt()
		c.Failed(&protocol.Failure{Err: syscall.EIO}) // as the end may complete
		c.Mu.Unlock()
		if err := <-closed; !errors.Is(err, want) {
			t.Errorf("%d bytes outstanding: %v, want %v", outstanding, err, want)
		}
		server.Close()
	}
}
