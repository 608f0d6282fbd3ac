package websocket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/test/softrig"
	"github.com/goverbs/goverbs/test/testenv"
)

func TestMain(m *testing.M) {
	if testenv.TheRig().Soft {
		if _, err := softrig.Make(); err != nil {
			fmt.Fprintln(os.Stderr, "software devices:", err)
			os.Exit(2)
		}
	}
	os.Exit(testenv.MainFor(m, map[string]string{"rxe": "", "mlx5": "", "soft": ""}))
}

// limit bounds the test, and mostBytes a message.
const (
	limit     = time.Minute
	mostBytes = 2 << 20
)

// echo is a WebSocket server that sends each message back.
func echo(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return // the client has got the error
	}
	defer c.CloseNow()
	c.SetReadLimit(mostBytes)
	for {
		kind, msg, err := c.Read(r.Context())
		if err != nil {
			return
		}
		if err := c.Write(r.Context(), kind, msg); err != nil {
			return
		}
	}
}

// serve starts the server on an RDMA device and on TCP, and returns its URL.
func serve(t *testing.T) string {
	t.Helper()
	testenv.Guest(t)
	config := cm.ListenConfig{RequireRDMA: true}
	l, err := config.Listen(t.Context(), "tcp", testenv.TheRig().Addrs[0]+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(echo)}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return "ws://" + l.Addr().String()
}

// dial connects to the server by RDMA.
func dial(t *testing.T, ctx context.Context, url string) *websocket.Conn {
	t.Helper()
	d := cm.Dialer{FallbackDelay: limit, Chosen: func(c cm.Choice) {
		if _, ok := c.Conn.(*cm.Stream); !ok {
			t.Errorf("the connection is a %T: %v", c.Conn, c.RDMAErr)
		}
	}}
	c, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.CloseNow() })
	c.SetReadLimit(mostBytes)
	return c
}

// TestMessages: messages of both kinds and many sizes come back, on several connections at once.
// Pings are answered, and the end is in order.
func TestMessages(t *testing.T) {
	url := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var clients sync.WaitGroup
	for i := range 4 {
		c := dial(t, ctx, url)
		clients.Go(func() {
			for n, size := range []int{0, 1, 125, 126, 5000, 65535, 65536, 1 << 20} {
				kind, msg := websocket.MessageBinary, bytes.Repeat([]byte{'a' + byte(i)}, size)
				if n%2 == 0 {
					kind = websocket.MessageText
				}
				if err := c.Write(ctx, kind, msg); err != nil {
					t.Error(err)
					return
				}
				gotKind, got, err := c.Read(ctx)
				if err != nil || gotKind != kind || !bytes.Equal(got, msg) {
					t.Errorf("a %v of %d bytes comes back as %v of %d bytes, or others: %v", kind, size, gotKind, len(got), err)
					return
				}
			}
			reading := c.CloseRead(ctx) // pongs are read
			if err := c.Ping(ctx); err != nil {
				t.Error(err)
			}
			if err := c.Close(websocket.StatusNormalClosure, "done"); err != nil {
				t.Error(err)
			}
			<-reading.Done()
		})
	}
	clients.Wait()
}

// TestNetConn: a WebSocket as a net.Conn over RDMA, whose deadline passes while nothing arrives.
func TestNetConn(t *testing.T) {
	url := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := websocket.NetConn(ctx, dial(t, ctx, url), websocket.MessageBinary)
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 10)
	if n, err := c.Read(got); err != nil || string(got[:n]) != "hello" {
		t.Errorf("%q comes back: %v", got[:n], err)
	}
	if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var e net.Error
	if n, err := c.Read(got); err == nil || errors.As(err, &e) && !e.Timeout() {
		t.Errorf("after the deadline: %d bytes, %v", n, err)
	}
}
