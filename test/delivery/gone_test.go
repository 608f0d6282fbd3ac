package delivery

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/cm/rsocket"
	"github.com/goverbs/goverbs/cm/valkey"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// Options with which a dead peer is noticed soon.
var (
	quickConn    = cm.ConnOptions{KeepAlive: 200 * time.Millisecond, AckTimeout: 30 * time.Millisecond, Linger: time.Second}
	quickRsocket = rsocket.Options{KeepAlive: 200 * time.Millisecond, Linger: time.Second}
	quickValkey  = valkey.Options{KeepAlive: 200 * time.Millisecond, Linger: time.Second}
)

// wait is a row of the table "How long a method waits" of package cm: a call that waits for a peer.
type wait struct {
	name string
	// call connects to the peer, has it die, and returns the error of the wait.
	call func(ctx context.Context, peer string, dies func()) error
}

// conn is a wait of a cm.Conn.
func conn(call func(c *cm.Conn) error) func(ctx context.Context, peer string, dies func()) error {
	return func(ctx context.Context, peer string, dies func()) error {
		c, err := cm.Dial(ctx, peer, cm.DialOptions{ConnOptions: quickConn})
		if err != nil {
			return err
		}
		defer c.Close()
		dies()
		return call(c)
	}
}

// stream is a wait of a net.Conn.
func stream(dial func(ctx context.Context, peer string) (net.Conn, error), call func(c net.Conn) error) func(ctx context.Context, peer string, dies func()) error {
	return func(ctx context.Context, peer string, dies func()) error {
		c, err := dial(ctx, peer)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write(make([]byte, 1)); err != nil { // from now on it has the peer's buffer
			return err
		}
		dies()
		return call(c)
	}
}

// kinds are the servers of the tests, which accept and read nothing, with their clients.
var kinds = map[string]struct {
	listen func(ctx context.Context, address string) (net.Listener, error)
	dial   func(ctx context.Context, peer string) (net.Conn, error)
}{
	"cm": {
		func(ctx context.Context, address string) (net.Listener, error) {
			l, err := cm.Listen(ctx, address, cm.ListenOptions{})
			if err != nil {
				return nil, err
			}
			return l.Streams(), nil
		},
		func(ctx context.Context, peer string) (net.Conn, error) {
			return cm.DialStream(ctx, peer, cm.DialOptions{ConnOptions: quickConn})
		},
	},
	"rsocket": {
		func(ctx context.Context, address string) (net.Listener, error) {
			return rsocket.Listen(ctx, address, rsocket.ListenOptions{})
		},
		func(ctx context.Context, peer string) (net.Conn, error) { return rsocket.Dial(ctx, peer, quickRsocket) },
	},
	"valkey": {
		func(ctx context.Context, address string) (net.Listener, error) {
			return valkey.Listen(ctx, address, valkey.ListenOptions{})
		},
		func(ctx context.Context, peer string) (net.Conn, error) { return valkey.Dial(ctx, peer, quickValkey) },
	},
}

// waits returns the waits of a kind.
func waits(kind string) []wait {
	bg := context.Background()
	dial := kinds[kind].dial
	all := []wait{
		{"Read", stream(dial, func(c net.Conn) error { _, err := c.Read(make([]byte, 1)); return err })},
		{"Write", stream(dial, func(c net.Conn) error {
			for {
				if _, err := c.Write(make([]byte, 1<<20)); err != nil {
					return err
				}
			}
		})},
		{"Close", stream(dial, func(c net.Conn) error { c.Write([]byte("not acknowledged")); return c.Close() })},
	}
	if kind == "cm" {
		all = append(all, wait{"Recv", conn(func(c *cm.Conn) error { _, err := c.Recv(bg); return err })},
			wait{"Send", conn(func(c *cm.Conn) error {
				for {
					if err := c.Send(bg, make([]byte, 100)); err != nil {
						return err
					}
				}
			})},
			wait{"Flush", conn(func(c *cm.Conn) error { return c.Flush(bg) })},
			wait{"CloseWrite and Recv", conn(func(c *cm.Conn) error {
				if err := c.CloseWrite(bg); err != nil {
					return err
				}
				_, err := c.Recv(bg)
				return err
			})},
			wait{"RDMARead", conn(func(c *cm.Conn) error {
				buf, err := uverbs.AllocBuffer(4096)
				if err != nil {
					return err
				}
				mr, err := c.PD().RegMR(buf, uverbs.AccessLocalWrite)
				if err != nil {
					return err
				}
				err = c.RDMARead(bg, mr.SGE(0, 8), cm.Remote{Addr: 8, RKey: 1, Length: 8})
				c.Close()
				return errors.Join(err, mr.Close(), buf.Close())
			})})
	}
	if kind == "rsocket" {
		all = append(all, wait{"CloseWrite and Read", stream(dial, func(c net.Conn) error {
			if err := c.(*rsocket.Conn).CloseWrite(); err != nil {
				return err
			}
			_, err := c.Read(make([]byte, 1))
			return err
		})})
	}
	return all
}

// ends checks that a wait ends by itself with an error that says that the peer is gone.
func ends(t *testing.T, w wait, peer string, die func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- w.call(ctx, peer, die)
	}()
	select {
	case err := <-done:
		if !errors.Is(err, syscall.ETIMEDOUT) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, io.EOF) {
			t.Errorf("%s ends with %v", w.name, err)
		}
	case <-ctx.Done():
		t.Errorf("%s waits for more than %v", w.name, timeout)
	}
}

// serve accepts connections and reads nothing.
func serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_ = c // stays open
	}
}

// TestPeerUnreachable: each wait ends when the peer's host or the link to it dies.
func TestPeerUnreachable(t *testing.T) {
	for kind, k := range kinds {
		for _, w := range waits(kind) {
			there := device(t, soft.Options{}) // a connection within the process has it on both sides
			t.Run(kind+"/"+w.name, func(t *testing.T) {
				t.Parallel()
				l, err := k.listen(t.Context(), there.Addr().String()+":0")
				must(t, err)
				go serve(l)
				ends(t, w, l.Addr().String(), func() { there.Partition(netip.Addr{}) })
			})
		}
	}
}

// TestDialUnreachable: Dial and DialPacket to a host that is dead end with their context, and a listener with a
// request of one goes on.
func TestDialUnreachable(t *testing.T) {
	dead := device(t, soft.Options{ViaSocket: true})
	dead.Partition(netip.Addr{})
	device(t, soft.Options{})
	to := dead.Addr().String() + ":7471"
	for name, dial := range map[string]func(ctx context.Context) error{
		"cm":      func(ctx context.Context) error { _, err := cm.Dial(ctx, to, cm.DialOptions{}); return err },
		"rsocket": func(ctx context.Context) error { _, err := rsocket.Dial(ctx, to, rsocket.Options{}); return err },
		"valkey":  func(ctx context.Context) error { _, err := valkey.Dial(ctx, to, valkey.Options{}); return err },
		"packet":  func(ctx context.Context) error { _, err := cm.DialPacket(ctx, to, cm.PacketOptions{}); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- dial(ctx) }()
			select {
			case err := <-done:
				if err == nil {
					t.Error("a dead host has answered")
				}
			case <-time.After(timeout):
				t.Error("it waits beyond its context")
			}
		})
	}
}

// peerEnv makes the test program the peer of another one: the kind that it serves.
const peerEnv = "GOVERBS_DELIVERY_PEER"

// TestMain runs the tests, or serves until it is killed.
func TestMain(m *testing.M) {
	kind := os.Getenv(peerEnv)
	if kind == "" {
		flag.Parse()
		flag.Set("test.parallel", "16") // they mostly wait
		os.Exit(m.Run())
	}
	addr := netip.MustParseAddr(os.Args[len(os.Args)-1])
	if _, err := soft.New(soft.Options{Addr: addr, ViaSocket: true}); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	l, err := kinds[kind].listen(context.Background(), addr.String()+":0")
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	serve(l)
}

// TestPeerKilled: each wait ends when the peer's process is killed.
func TestPeerKilled(t *testing.T) {
	device(t, soft.Options{ViaSocket: true})
	for kind := range kinds {
		for _, w := range waits(kind) {
			t.Run(kind+"/"+w.name, func(t *testing.T) {
				t.Parallel()
				addr := netip.AddrFrom4([4]byte{127, 1, byte(rand.N(256)), byte(1 + rand.N(250))})
				cmd := exec.CommandContext(t.Context(), os.Args[0], addr.String())
				cmd.Env = append(os.Environ(), peerEnv+"="+kind)
				out, err := cmd.StdoutPipe()
				must(t, err, cmd.Start())
				kill := sync.OnceFunc(func() { cmd.Process.Kill(); cmd.Wait() })
				defer kill()
				var peer string
				if _, err := fmt.Fscanln(out, &peer); err != nil || peer == "error:" {
					t.Fatalf("the peer does not start: %q, %v", peer, err)
				}
				ends(t, w, peer, kill)
			})
		}
	}
}
