package hosts

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// timeout bounds how long it may take until a call returns whose peer is gone.
const timeout = 20 * time.Second

// gone fails the test unless an error says that the peer is, and its address.
func gone(t *testing.T, what string, err error, peer string) {
	t.Helper()
	if !errors.Is(err, syscall.ETIMEDOUT) && !errors.Is(err, syscall.ECONNRESET) || !strings.Contains(err.Error(), peer) {
		t.Errorf("%s: %v", what, err)
	}
}

// victim starts one on host 1, and returns its name and its address.
func victim(t *testing.T, ctx context.Context, role string) (name, addr string) {
	t.Helper()
	name, port := next(), next()
	addr = net.JoinHostPort(address[1], port)
	space := "TCP:"
	if role == "packets" {
		space = "UDP:"
	}
	on(t, ctx, 1, startWord, name, space+port, "role", role, addr)
	return name, addr
}

// repeat does something again and again until it fails, and tells how often it was done.
func repeat(do func() error) (n int, err error) {
	for {
		if err := do(); err != nil {
			return n, err
		}
		n++
	}
}

// phase is what this side is in when the victim is killed. It returns what ended it.
type phase struct {
	name string
	role string // the victim's
	run  func(ctx context.Context, c *cm.Conn) error
}

// phases are the phases of a connection.
func phases(t *testing.T) []phase {
	again := func(name, role string, do func(ctx context.Context, c *cm.Conn) error) phase {
		return phase{name, role, func(ctx context.Context, c *cm.Conn) error {
			n, err := repeat(func() error { return do(ctx, c) })
			if n == 0 {
				t.Errorf("%s was not done once", name)
			}
			return err
		}}
	}
	msg := make([]byte, 1000)
	all := []phase{
		{"Recv", "holds", func(ctx context.Context, c *cm.Conn) error { _, err := c.Recv(ctx); return err }},
		again("Send without room", "holds", func(ctx context.Context, c *cm.Conn) error { return c.Send(ctx, msg) }),
		again("Send", "takes", func(ctx context.Context, c *cm.Conn) error { return c.Send(ctx, msg) }),
		again("Flush", "takes", func(ctx context.Context, c *cm.Conn) error {
			if err := c.Send(ctx, msg); err != nil {
				return err
			}
			return c.Flush(ctx)
		}),
		again("Stream.Write", "takes", func(ctx context.Context, c *cm.Conn) error {
			_, err := c.Stream().Write(make([]byte, 100_000))
			return err
		}),
		{"Stream.Read", "holds", func(_ context.Context, c *cm.Conn) error {
			_, err := c.Stream().Read(make([]byte, 10))
			return err
		}},
	}
	for name, do := range map[string]func(ctx context.Context, c *cm.Conn, at uverbs.SGE, far cm.Remote) error{
		"Write": func(ctx context.Context, c *cm.Conn, at uverbs.SGE, far cm.Remote) error {
			return c.RDMAWrite(ctx, at, far)
		},
		"Read": func(ctx context.Context, c *cm.Conn, at uverbs.SGE, far cm.Remote) error {
			return c.RDMARead(ctx, at, far)
		},
		"FetchAdd": func(ctx context.Context, c *cm.Conn, at uverbs.SGE, far cm.Remote) error {
			at.Length = 8
			return c.FetchAdd(ctx, at, far, 1)
		},
		"CompareSwap": func(ctx context.Context, c *cm.Conn, at uverbs.SGE, far cm.Remote) error {
			at.Length = 8
			return c.CompareSwap(ctx, at, far, 1, 2)
		},
	} {
		all = append(all, phase{name, "lends", func(ctx context.Context, c *cm.Conn) error { return transfers(t, ctx, c, do) }})
	}
	return all
}

// transfers does an RDMA operation on the memory that the victim lends, until it fails.
func transfers(t *testing.T, ctx context.Context, c *cm.Conn, do func(context.Context, *cm.Conn, uverbs.SGE, cm.Remote) error) error {
	buf, err := uverbs.AllocBuffer(lent, uverbs.BufferOptions{})
	if err != nil {
		return err
	}
	defer buf.Close()
	mr, err := c.PD().RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	if err != nil {
		return err
	}
	defer mr.Close()
	msg, err := c.Recv(ctx)
	if err != nil {
		return err
	}
	var far cm.Remote
	if err := far.UnmarshalBinary(msg); err != nil {
		return err
	}
	n, err := repeat(func() error { return do(ctx, c, mr.SGE(0, lent), far) })
	if n == 0 {
		t.Error("it was not done once")
	}
	return err
}

// TestPeerKilled: the peer is killed in each phase of the set-up and of traffic. Calls on this side
// return, and their errors say that the peer is gone.
func TestPeerKilled(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	_, ctx := client(t)
	t.Run("Dial", func(t *testing.T) { // the request is there, and has no answer
		name, addr := victim(t, ctx, "asked")
		ended := make(chan error, 1)
		go func() {
			c, err := cm.Dial(ctx, addr, cm.DialOptions{})
			if err == nil {
				c.Close()
			}
			ended <- err
		}()
		time.Sleep(200 * time.Millisecond)
		said := on(t, ctx, 1, killWord, name)
		if err := within(t, "Dial", ended); err == nil || !strings.Contains(said, "asked") || !strings.Contains(err.Error(), addr) {
			t.Errorf("Dial: %v; the server has said %q", err, said)
		}
	})
	for _, p := range phases(t) {
		t.Run(p.name, func(t *testing.T) {
			name, addr := victim(t, ctx, p.role)
			c, err := cm.Dial(ctx, addr, cm.DialOptions{ConnOptions: cm.ConnOptions{Depth: 4}})
			must(t, err)
			ended := make(chan error, 1)
			go func() { ended <- p.run(ctx, c) }()
			time.Sleep(200 * time.Millisecond)
			on(t, ctx, 1, killWord, name)
			err = within(t, p.name, ended)
			if p.role != "lends" || !errors.Is(err, uverbs.WCRemAccessErr) || !strings.Contains(err.Error(), addr) { // its memory may go before its QP
				gone(t, p.name, err, addr)
			}
			closeGone(t, c)
		})
	}
	t.Run("Close", func(t *testing.T) {
		name, addr := victim(t, ctx, "holds")
		c, err := cm.Dial(ctx, addr, cm.DialOptions{})
		must(t, err)
		if _, err := c.Stream().Write(make([]byte, 200_000)); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- c.Close() }()
		on(t, ctx, 1, killWord, name)
		if err := within(t, "Close", ended); err != nil {
			gone(t, "Close", err, addr)
		}
	})
	t.Run("datagrams", func(t *testing.T) { killedPacketPeer(t, ctx) })
	t.Run("a client", func(t *testing.T) { killedClients(t, ctx) })
}

// within waits for the end of a call.
func within(t *testing.T, what string, ended <-chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(timeout):
		t.Fatalf("%s has not returned after %s", what, timeout)
		return nil
	}
}

// closeGone closes a connection whose peer is gone, or about to: that returns, with or without an
// error.
func closeGone(t *testing.T, c *cm.Conn) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- c.Close() }()
	if err := within(t, "Close", ended); err != nil {
		gone(t, "Close", err, c.RemoteAddr().String())
	}
	if _, err := c.Recv(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv after Close: %v", err)
	}
}

// killedPacketPeer: a sender of datagrams does not learn that its peer is gone. Calls that wait end
// with their context, and dialing is refused.
func killedPacketPeer(t *testing.T, ctx context.Context) {
	name, addr := victim(t, ctx, "packets")
	p, err := cm.DialPacket(ctx, addr, cm.PacketOptions{})
	must(t, err)
	defer p.Close()
	to, _ := p.DialedPeer()
	echo := func(lasts time.Duration) error {
		short, cancel := context.WithTimeout(ctx, lasts)
		defer cancel()
		if err := p.Send(short, []byte("hello"), to); err != nil {
			return err
		}
		_, _, err := p.Recv(short)
		return err
	}
	must(t, echo(limit))
	on(t, ctx, 1, killWord, name)
	for range 3 {
		if err := echo(100 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a peer: %v", err)
		}
	}
	if q, err := cm.DialPacket(ctx, addr, cm.PacketOptions{}); err == nil || !strings.Contains(err.Error(), addr) {
		t.Errorf("DialPacket: %v", err)
		if err == nil {
			q.Close()
		}
	}
}

// killedClients: a listener is well when clients are killed that have resolved it, and that are
// connected.
func killedClients(t *testing.T, ctx context.Context) {
	l, err := cm.Listen(ctx, net.JoinHostPort(address[2], next()), cm.ListenOptions{})
	must(t, err)
	defer l.Close()
	name := next()
	on(t, ctx, 1, startWord, name, "at-once", "role", "resolves", l.Addr().String())
	if _, err := try(t, ctx, 1, waitWord, name); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the client has ended with %v", err)
	}
	name = next()
	on(t, ctx, 1, startWord, name, "says:dialled", "role", "stays", l.Addr().String())
	c, err := l.Accept(ctx)
	must(t, err)
	if msg, err := c.Recv(ctx); string(msg) != "here I am" {
		t.Fatalf("%q: %v", msg, err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := c.Recv(ctx)
		ended <- err
	}()
	on(t, ctx, 1, killWord, name)
	from := netip.MustParseAddrPort(c.RemoteAddr().String()).Addr().String()
	if err := within(t, "Recv", ended); err == io.EOF {
		t.Error("Recv says that the peer has closed the connection")
	} else {
		gone(t, "Recv", err, from)
	}
	closeGone(t, c)
	name = next()
	on(t, ctx, 1, startWord, name, "says:dialled", "role", "stays", l.Addr().String())
	if c, err = l.Accept(ctx); err != nil {
		t.Fatal(err)
	}
	if msg, err := c.Recv(ctx); string(msg) != "here I am" {
		t.Errorf("of a client after that: %q: %v", msg, err)
	}
	on(t, ctx, 1, killWord, name)
	closeGone(t, c)
}
