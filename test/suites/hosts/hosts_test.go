// Package hosts has the tests of connections between two machines: host 1 serves, host 2 dials
// and tests.
package hosts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/test/testenv"
)

// must fails a test on an error.
var must = testenv.Must

// limit bounds what a test waits for.
const limit = 60 * time.Second

// client returns the peer's address on host 2, and a context for the test.
func client(t *testing.T) (peer string, ctx context.Context) {
	t.Helper()
	_, peer = testenv.Hosts(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return peer, ctx
}

// dial dials until the service is there.
func dial(ctx context.Context, addr string, o cm.DialOptions) (*cm.Conn, error) {
	for {
		c, err := cm.Dial(ctx, addr, o)
		if !errors.Is(err, syscall.ECONNREFUSED) || ctx.Err() != nil {
			return c, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// open is dial for a test.
func open(t *testing.T, ctx context.Context, host, port string) *cm.Conn {
	t.Helper()
	c, err := dial(ctx, net.JoinHostPort(host, port), cm.DialOptions{})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// ask has host 1 do something and returns the answer.
func ask(t *testing.T, ctx context.Context, peer, what string) string {
	t.Helper()
	c := open(t, ctx, peer, controlPort)
	defer c.Close()
	must(t, c.Send(ctx, []byte(what)))
	answer, err := c.Recv(ctx)
	must(t, err)
	return string(answer)
}

// vmlink changes this end of the link. Whatever comes, it is up after the test.
func vmlink(t *testing.T, args ...string) {
	t.Helper()
	if args[0] == "down" {
		t.Cleanup(func() { changeLink([]string{"up"}) })
	}
	must(t, changeLink(args))
}

// pingPong sends messages there and back.
func pingPong(t *testing.T, ctx context.Context, c *cm.Conn, n int) {
	t.Helper()
	for i := range n {
		want := bytes.Repeat([]byte{byte(i)}, 1+i*97%c.MaxMessage())
		must(t, c.Send(ctx, want))
		got, err := c.Recv(ctx)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("message %d of %d bytes comes back with %d, or others: %v", i, len(want), len(got), err)
		}
	}
}

// copyStream sends so many bytes there and back, and compares.
func copyStream(t *testing.T, ctx context.Context, peer string, n int, during func()) {
	t.Helper()
	s := open(t, ctx, peer, streamPort).Stream()
	deadline, _ := ctx.Deadline()
	s.SetDeadline(deadline)
	sent := sha256.New()
	written := make(chan error, 1)
	go func() {
		r := rand.NewChaCha8([32]byte{7})
		_, err := io.Copy(io.MultiWriter(s, sent), io.LimitReader(r, int64(n)))
		if err == nil {
			err = s.CloseWrite()
		}
		written <- err
	}()
	got := sha256.New()
	half, err := io.CopyN(got, s, int64(n/2))
	if err != nil {
		t.Fatalf("after %d bytes: %v", half, err)
	}
	during()
	rest, err := io.Copy(got, s)
	if err != nil || half+rest != int64(n) {
		t.Fatalf("%d bytes came back of %d: %v", half+rest, n, err)
	}
	must(t, <-written)
	if !bytes.Equal(got.Sum(nil), sent.Sum(nil)) {
		t.Error("other bytes came back than were sent")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestAddresses: IPv4, IPv6, and link-local with its zone.
func TestAddresses(t *testing.T) {
	peer, ctx := client(t)
	if mine := linkLocal(); net.ParseIP(mine) == nil {
		t.Fatalf("this host's link-local address: %s", mine)
	}
	for _, host := range []string{peer, "fd02::1", ask(t, ctx, peer, "linklocal") + "%eth0"} {
		c := open(t, ctx, host, echoPort)
		if got := c.RemoteAddr().String(); strings.Contains(host, ":") && !strings.HasPrefix(got, "["+strings.Split(host, "%")[0]) {
			t.Errorf("the address of %s is %s", host, got)
		}
		pingPong(t, ctx, c, 20)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestLoss: packets are lost, late and in disorder, each way, and nothing of it is seen.
func TestLoss(t *testing.T) {
	for _, link := range []string{"netem loss 1%", "netem loss 10%", "netem delay 2ms reorder 10%"} {
		t.Run(link, func(t *testing.T) {
			peer, ctx := client(t)
			if out := ask(t, ctx, peer, "vmlink "+link); out != "" {
				t.Fatal(out)
			}
			vmlink(t, strings.Fields(link)...)
			defer func() {
				vmlink(t, "netem", "off")
				ask(t, ctx, peer, "vmlink netem off")
			}()
			pingPong(t, ctx, open(t, ctx, peer, echoPort), 20)
			copyStream(t, ctx, peer, 200_000, func() {})
		})
	}
}

// TestCutShort: the link is cut in mid-traffic and restored before the device gives up.
func TestCutShort(t *testing.T) {
	peer, ctx := client(t)
	copyStream(t, ctx, peer, 300_000, func() {
		vmlink(t, "netem", "loss", "100%")
		time.Sleep(500 * time.Millisecond)
		vmlink(t, "netem", "off")
	})
}

// TestCut: what this host sends is lost from the middle of traffic on. All that waits ends, and
// says who does not answer; later there are new connections.
func TestCut(t *testing.T) {
	peer, ctx := client(t)
	// The peer, whose sends are not acknowledged any more, may be the first to give up, and its
	// farewell arrives. Or this host forgets who has the peer's address, and has no way to it.
	gone := func(what string, err error) {
		t.Helper()
		if !slices.ContainsFunc(down, func(s string) bool { return strings.Contains(err.Error(), s) }) || !strings.Contains(err.Error(), peer) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// One is idle, and has a keepalive; one sends.
	o := cm.DialOptions{ConnOptions: cm.ConnOptions{KeepAlive: 200 * time.Millisecond}}
	idle, err := dial(ctx, net.JoinHostPort(peer, echoPort), o)
	must(t, err)
	busy := open(t, ctx, peer, streamPort)
	pingPong(t, ctx, idle, 3)
	receive := func(c *cm.Conn) <-chan error {
		ended := make(chan error, 1)
		go func() {
			var err error
			for err == nil {
				_, err = c.Recv(ctx)
			}
			ended <- err
		}()
		return ended
	}
	idleEnd, busyEnd := receive(idle), receive(busy)
	sent := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			err = busy.Send(ctx, make([]byte, 4000))
		}
		sent <- err
	}()
	time.Sleep(200 * time.Millisecond)
	vmlink(t, "netem", "loss", "100%")
	gone("Send", <-sent)
	gone("Recv", <-busyEnd)
	gone("Recv of the idle one", <-idleEnd)
	short, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if _, err := cm.Dial(short, net.JoinHostPort(peer, echoPort), o); err == nil || !strings.Contains(err.Error(), peer) {
		t.Errorf("Dial over a link that is cut: %v", err)
	}
	idle.Close()
	busy.Close()
	vmlink(t, "netem", "off")
	c := open(t, ctx, peer, echoPort)
	pingPong(t, ctx, c, 3)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// TestDialUnreachable dials a port without a listener, and an address that no host has.
func TestDialUnreachable(t *testing.T) {
	peer, ctx := client(t)
	if _, err := cm.Dial(ctx, net.JoinHostPort(peer, "9"), cm.DialOptions{}); !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "nobody listens") {
		t.Errorf("Dial: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := cm.Dial(short, "10.2.0.99:9", cm.DialOptions{}); err == nil || !strings.Contains(err.Error(), "10.2.0.99") {
		t.Errorf("Dial: %v", err)
	}
}
