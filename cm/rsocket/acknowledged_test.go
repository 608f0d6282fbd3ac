package rsocket

import (
	"errors"
	"syscall"
	"testing"
	"time"
)

// TestCloseUnacknowledged: Close returns an error if the peer goes while data is not acknowledged, although the
// completion comes later. If nothing but the end is missing, Close returns nil.
func TestCloseUnacknowledged(t *testing.T) {
	for outstanding, want := range map[int]error{1: syscall.ECONNRESET, 0: nil} {
		client, server, err := connect(newListener(t, Options{}), Options{Linger: timeout})
		must(t, err)
		c := client.(*Conn)
		c.mu.Lock()
		c.room -= outstanding
		c.mu.Unlock()
		closed := make(chan error, 1)
		go func() { closed <- client.Close() }()
		for ending := false; !ending; time.Sleep(time.Millisecond) {
			c.mu.Lock()
			ending = c.ending
			c.mu.Unlock()
		}
		c.mu.Lock()
		c.lost(nil)                            // as after EventDisconnected
		c.failed(&failure{syscall.EIO, false}) // as the end may complete
		c.mu.Unlock()
		if err := <-closed; !errors.Is(err, want) {
			t.Errorf("%d bytes outstanding: %v, want %v", outstanding, err, want)
		}
		server.Close()
	}
}
