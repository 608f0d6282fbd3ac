package peer

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
)

// TestFirstClient: many connections that say nothing leave a place for the client when one of them goes, and are
// closed when it is there.
func TestFirstClient(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	log := make(lineChan, maxUnknown)
	type client struct {
		conn net.Conn
		said byte
		err  error
	}
	ended := make(chan client, 1)
	go func() {
		c, said, err := FirstClient(t.Context(), l, log, func(_ context.Context, c net.Conn) (byte, error) {
			var b [1]byte
			_, err := io.ReadFull(c, b[:])
			return b[0], err
		})
		ended <- client{c, said, err}
	}()
	var silent []net.Conn
	for range maxUnknown / 2 { // the share of one address
		silent = append(silent, dial())
	}
	dial()
	if line := <-log; !strings.Contains(line, "is not heard, as 32 from its address are being served") {
		t.Errorf("one too many: %q", line)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
	if c, err := d.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	} else {
		c.Close() // is heard, beside so many silent ones at another address
	}
	if line := <-log; !strings.HasPrefix(line, "127.0.0.9:") || !strings.Contains(line, "is not the client: EOF") {
		t.Errorf("one at another address: %q", line)
	}
	silent[0].Close()
	if line := <-log; !strings.HasPrefix(line, silent[0].LocalAddr().String()+" is not the client: EOF") {
		t.Errorf("one that is gone: %q", line)
	}
	for said := false; !said; { // its place may not be free yet
		c := dial()
		io.WriteString(c, "x")
		select {
		case <-log:
		case e := <-ended:
			if e.err != nil || e.said != 'x' || e.conn.RemoteAddr().String() != c.LocalAddr().String() {
				t.Fatalf("%+v", e)
			}
			e.conn.Close()
			said = true
		}
	}
	for _, c := range silent[1:] {
		if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("%d bytes came", n)
		}
	}
	if len(log) > 0 {
		t.Errorf("with the client there: %q", <-log)
	}
}

// lineChan passes what is written to it on.
type lineChan chan string

func (c lineChan) Write(b []byte) (int, error) { c <- string(b); return len(b), nil }
