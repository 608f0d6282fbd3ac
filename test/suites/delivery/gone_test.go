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
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/cm/rsocket"
	"github.com/goverbs/goverbs/cm/valkey"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// Options with which a dead peer is noticed soon.
var (
	quickConn    = cm.ConnOptions{KeepAlive: 200 * time.Millisecond, Linger: time.Second, Tuning: cm.Tuning{AckTimeout: 30 * time.Millisecond}}
	quickRsocket = rsocket.Options{KeepAlive: 200 * time.Millisecond, Linger: time.Second}
	quickValkey  = valkey.Options{KeepAlive: 200 * time.Millisecond, Linger: time.Second}
)

// wait is a row of the table "How long a method waits" of package cm: a call that waits for a peer.
type wait struct {
	name string
	// living says that the call waits for a peer that lives and does nothing, so that the peer can die meanwhile.
	living bool
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
			l, err := cm.Listen(ctx, address, cm.ListenOptions{Check: lend})
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

// lendSize is the size of the memory that a server lends to a peer, in bytes.
const lendSize = 1 << 16

// lend answers a request with the Remote of memory that the peer may read and write. It stays there.
func lend(r *cm.Request) ([]byte, error) {
	pd, err := r.PD()
	if err != nil {
		return nil, err
	}
	buf, err := uverbs.AllocBuffer(lendSize, uverbs.BufferOptions{})
	if err != nil {
		return nil, err
	}
	mr, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteRead | uverbs.AccessRemoteWrite | uverbs.AccessRemoteAtomic})
	if err != nil {
		return nil, err
	}
	return cm.RemoteOf(mr).MarshalBinary()
}

// waits returns the waits of a kind.
func waits(kind string) []wait {
	bg := context.Background()
	dial := kinds[kind].dial
	all := []wait{
		{"Read", true, stream(dial, func(c net.Conn) error { _, err := c.Read(make([]byte, 1)); return err })},
		{"Write", true, stream(dial, func(c net.Conn) error {
			for {
				if _, err := c.Write(make([]byte, 1<<20)); err != nil {
					return err
				}
			}
		})},
		{"Close", false, stream(dial, func(c net.Conn) error { c.Write([]byte("not acknowledged")); return c.Close() })},
	}
	if kind == "cm" {
		all = append(all, wait{"Recv", true, conn(func(c *cm.Conn) error { _, err := c.Recv(bg); return err })},
			wait{"Send", true, conn(func(c *cm.Conn) error {
				for {
					if err := c.Send(bg, make([]byte, 100)); err != nil {
						return err
					}
				}
			})},
			wait{"Flush", false, conn(func(c *cm.Conn) error { return c.Flush(bg) })},
			wait{"CloseWrite and Recv", true, conn(func(c *cm.Conn) error {
				if err := c.CloseWrite(bg); err != nil {
					return err
				}
				_, err := c.Recv(bg)
				return err
			})})
		for name, op := range map[string]func(c *cm.Conn, local uverbs.SGE, remote cm.Remote) error{
			"RDMAWrite": func(c *cm.Conn, local uverbs.SGE, remote cm.Remote) error { return c.RDMAWrite(bg, local, remote) },
			"RDMARead":  func(c *cm.Conn, local uverbs.SGE, remote cm.Remote) error { return c.RDMARead(bg, local, remote) },
			"FetchAdd": func(c *cm.Conn, local uverbs.SGE, remote cm.Remote) error {
				local.Length = 8
				return c.FetchAdd(bg, local, remote, 1)
			},
			"CompareSwap": func(c *cm.Conn, local uverbs.SGE, remote cm.Remote) error {
				local.Length = 8
				return c.CompareSwap(bg, local, remote, 0, 1)
			},
		} {
			all = append(all, wait{name, true, conn(func(c *cm.Conn) error { return transfers(c, op) })})
		}
	}
	if kind == "rsocket" {
		all = append(all, wait{"CloseWrite and Read", true, stream(dial, func(c net.Conn) error {
			if err := c.(*rsocket.Conn).CloseWrite(); err != nil {
				return err
			}
			_, err := c.Read(make([]byte, 1))
			return err
		})})
	}
	return all
}

// transfers repeats an operation on the memory that the peer has lent until it fails, so that the peer dies during
// one of them.
func transfers(c *cm.Conn, op func(c *cm.Conn, local uverbs.SGE, remote cm.Remote) error) error {
	var remote cm.Remote
	if err := remote.UnmarshalBinary(c.PrivateData()); err != nil {
		return err
	}
	buf, err := uverbs.AllocBuffer(lendSize, uverbs.BufferOptions{})
	if err != nil {
		return err
	}
	mr, err := c.PD().RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	if err != nil {
		return err
	}
	for err == nil {
		err = op(c, mr.SGE(0, lendSize), remote)
	}
	c.Close()
	return errors.Join(err, mr.Close(), buf.Close())
}

// moments are when the peer dies.
var moments = []struct {
	name   string
	during bool // while the call waits, not before it
}{{"before", false}, {"during", true}}

// ends checks that a wait ends by itself with an error that says that the peer is gone.
func ends(t *testing.T, w wait, peer string, during bool, die func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	done := make(chan error, 1)
	now := die
	if during {
		now = func() { time.AfterFunc(300*time.Millisecond, die) }
	}
	go func() {
		done <- w.call(ctx, peer, now)
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

// TestCloseTellsLoss: Close returns an error if the link has broken and what was written is lost, though no other call
// has failed, and though the peer has ended its own direction.
func TestCloseTellsLoss(t *testing.T) {
	for kind, k := range kinds {
		for _, after := range []time.Duration{0, 5 * time.Second} { // before and after the connection has failed
			there := device(t, soft.Options{})
			t.Run(fmt.Sprintf("%s after %v", kind, after), func(t *testing.T) {
				t.Parallel()
				l, err := k.listen(t.Context(), there.Addr().String()+":0")
				must(t, err)
				defer l.Close()
				c, err := k.dial(t.Context(), l.Addr().String())
				must(t, err)
				server, err := l.Accept()
				must(t, err)
				if half, ok := server.(closeWriter); ok {
					must(t, half.CloseWrite(), c.SetReadDeadline(time.Now().Add(timeout)))
					if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
						t.Errorf("after the peer's half-close: %d bytes, %v", n, err)
					}
				}
				_, err = c.Write([]byte("a byte that arrives"))
				must(t, err)
				_, err = server.Read(make([]byte, 1))
				must(t, err)
				there.Partition(netip.Addr{})
				_, err = c.Write([]byte("lost"))
				must(t, err)
				time.Sleep(after)
				if err := c.Close(); err == nil {
					t.Error("Close returns no error")
				}
				server.Close()
			})
		}
	}
}

// TestCloseUnacknowledged: Close of rsocket returns an error if its device cannot tell whether the last data, or only
// the end, has arrived before the peer disconnects: the peer may have failed, so that it does not read the end.
func TestCloseUnacknowledged(t *testing.T) {
	for _, last := range []string{"", "last"} {
		dev := device(t, soft.Options{})
		t.Run(last, func(t *testing.T) {
			t.Parallel()
			c, server := pair(t, "rsocket", dev.Addr(), timeout/3)
			must(t, dev.SetFaults(soft.Faults{Rules: []soft.Rule{{Class: soft.ClassMAD}, {Loss: soft.Always}}}))
			_, err := server.Write([]byte("the device gives up"))
			must(t, err)
			time.Sleep(time.Second) // c gives up later
			_, err = c.Write([]byte(last))
			must(t, err)
			closed := make(chan error, 1)
			go func() { closed <- c.Close() }()
			if _, err := server.Read(make([]byte, 1)); !errors.Is(err, syscall.ETIMEDOUT) {
				t.Errorf("the peer reads %v", err)
			}
			if err := <-closed; err == nil {
				t.Error("Close returns no error")
			}
			server.Close()
		})
	}
}

// TestAcknowledgmentLost: Close of rsocket returns no error if only the acknowledgment of the end is lost, though the peer
// closes as soon as it has read the end.
func TestAcknowledgmentLost(t *testing.T) {
	dev := device(t, soft.Options{})
	c, server := pair(t, "rsocket", dev.Addr(), timeout/3)
	must(t, dev.SetFaults(soft.Faults{Rules: []soft.Rule{{Class: soft.ClassAck, Loss: soft.Always}}}))
	closed := make(chan error, 2)
	go func() { closed <- c.Close() }()
	_, err := io.ReadAll(server)
	must(t, err)
	go func() { closed <- server.Close() }()
	time.Sleep(time.Second)
	must(t, dev.SetFaults(soft.Faults{}), <-closed, <-closed)
}

// TestDisconnectLost: if the disconnect of the connection manager is lost, Close waits until it is repeated, or returns
// an error, where the peer needs it to learn of the end. Otherwise Close does not wait for it.
func TestDisconnectLost(t *testing.T) {
	noMADs := soft.Faults{Rules: []soft.Rule{{Class: soft.ClassMAD, Loss: soft.Always}}}
	for kind := range kinds {
		for _, repeated := range []bool{true, false} {
			dev := device(t, soft.Options{})
			t.Run(fmt.Sprintf("%s, repeated %t", kind, repeated), func(t *testing.T) {
				t.Parallel()
				linger := timeout / 3
				if !repeated && kind == "valkey" { // which waits for it
					linger = time.Second
				}
				c, server := pair(t, kind, dev.Addr(), linger)
				must(t, dev.SetFaults(noMADs))
				_, err := c.Write([]byte("last"))
				must(t, err)
				closed := make(chan error, 1)
				go func() { closed <- c.Close() }()
				if repeated {
					time.Sleep(time.Second) // it is lost, and repeated after 4 s
					must(t, dev.SetFaults(soft.Faults{}))
				}
				needed := kind == "valkey"
				if got, err := io.ReadAll(server); string(got) != "last" || (err != nil) != (needed && !repeated) {
					t.Errorf("the peer reads %q, %v", got, err)
				}
				switch err := <-closed; {
				case needed && !repeated && !errors.Is(err, os.ErrDeadlineExceeded), !(needed && !repeated) && err != nil:
					t.Errorf("Close returns %v", err)
				}
				server.Close()
			})
		}
	}
}

// pair makes a connection, over which a byte was sent, whose ends check an idle peer often.
func pair(t *testing.T, kind string, at netip.Addr, linger time.Duration) (client, server net.Conn) {
	t.Helper()
	const idle = 200 * time.Millisecond
	ctx := t.Context()
	var l net.Listener
	var dial func(address string) (net.Conn, error)
	var err error
	switch address := at.String() + ":0"; kind {
	case "cm":
		o := cm.ConnOptions{KeepAlive: idle, Linger: linger}
		var all *cm.Listener
		if all, err = cm.Listen(ctx, address, cm.ListenOptions{ConnOptions: o}); err == nil {
			l = all.Streams()
		}
		dial = func(address string) (net.Conn, error) {
			return cm.DialStream(ctx, address, cm.DialOptions{ConnOptions: o})
		}
	case "rsocket":
		o := rsocket.Options{KeepAlive: idle, Linger: linger}
		l, err = rsocket.Listen(ctx, address, rsocket.ListenOptions{Options: o})
		dial = func(address string) (net.Conn, error) { return rsocket.Dial(ctx, address, o) }
	case "valkey":
		o := valkey.Options{KeepAlive: idle, Linger: linger}
		l, err = valkey.Listen(ctx, address, valkey.ListenOptions{Options: o})
		dial = func(address string) (net.Conn, error) { return valkey.Dial(ctx, address, o) }
	}
	must(t, err)
	defer l.Close()
	client, err = dial(l.Addr().String())
	must(t, err)
	server, err = l.Accept()
	must(t, err)
	_, err = client.Write(make([]byte, 1))
	must(t, err)
	_, err = io.ReadFull(server, make([]byte, 1))
	must(t, err, server.SetReadDeadline(time.Now().Add(timeout)))
	return client, server
}

// TestDeviceAgain: when a device is removed while it has connections, the first connection on a new device with the
// same name works, though the old ones are not closed.
func TestDeviceAgain(t *testing.T) {
	for kind, k := range kinds {
		t.Run(kind, func(t *testing.T) {
			pair := func(address string) (ends [2]net.Conn) {
				l, err := k.listen(t.Context(), address)
				must(t, err)
				defer l.Close()
				ends[0], err = k.dial(t.Context(), l.Addr().String())
				must(t, err)
				ends[1], err = l.Accept()
				must(t, err)
				return ends
			}
			const name = "softagain"
			d := device(t, soft.Options{Name: name})
			address := d.Addr().String() + ":0"
			old := pair(address)
			must(t, d.Close())
			for _, c := range old {
				must(t, c.SetReadDeadline(time.Now().Add(timeout)))
				if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ENODEV) {
					t.Errorf("Read, when the device is removed: %v", err)
				}
			}
			next, err := soft.New(soft.Options{Name: name, Addr: d.Addr()})
			must(t, err)
			ends := pair(address)
			_, err = ends[0].Write([]byte("again"))
			must(t, err, ends[0].Close())
			got, err := io.ReadAll(ends[1])
			must(t, err, ends[1].Close())
			if string(got) != "again" {
				t.Errorf("%q arrives", got)
			}
			old[0].Close()
			old[1].Close()
			must(t, next.Close())
		})
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
			for _, m := range moments {
				if m.during && !w.living {
					continue
				}
				there := device(t, soft.Options{}) // a connection within the process has it on both sides
				t.Run(kind+"/"+w.name+"/"+m.name, func(t *testing.T) {
					t.Parallel()
					l, err := k.listen(t.Context(), there.Addr().String()+":0")
					must(t, err)
					go serve(l)
					ends(t, w, l.Addr().String(), m.during, func() { there.Partition(netip.Addr{}) })
				})
			}
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

// Variables that make the test program the peer of another one.
const (
	peerEnv = "GOVERBS_DELIVERY_PEER" // the kind that it serves or dials
	dialEnv = "GOVERBS_DELIVERY_DIAL" // the address that it dials; it serves if there is none
)

// TestMain runs the tests, or serves or dials until it is killed.
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
	if peer := os.Getenv(dialEnv); peer != "" {
		fmt.Println(addr)
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // longer than the listener waits
		defer cancel()
		kinds[kind].dial(ctx, peer)
		select {} // until it is killed
	}
	l, err := kinds[kind].listen(context.Background(), addr.String()+":0")
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	serve(l)
}

// deaths are what can happen to the process of a peer.
var deaths = map[string]func(p *os.Process) error{"killed": (*os.Process).Kill}

// TestPeerKilled: each wait ends when the peer's process is killed, and when it is stopped, since its software device
// stops with it.
func TestPeerKilled(t *testing.T) {
	device(t, soft.Options{ViaSocket: true})
	for kind := range kinds {
		for _, w := range waits(kind) {
			for _, m := range moments {
				if m.during && !w.living {
					continue
				}
				for name, die := range deaths {
					t.Run(kind+"/"+w.name+"/"+m.name+"/"+name, func(t *testing.T) {
						t.Parallel()
						peer, process, kill := startPeer(t, kind, "")
						defer kill()
						ends(t, w, peer, m.during, func() {
							if err := die(process); err != nil {
								t.Error(err)
							}
						})
					})
				}
			}
		}
	}
}

// startPeer starts a process that serves a kind of connections, or dials an address. It returns the address of
// the process, the process, and a function that kills it.
func startPeer(t *testing.T, kind, dial string) (peer string, process *os.Process, kill func()) {
	t.Helper()
	for range addrTries {
		addr := netip.AddrFrom4([4]byte{127, 1, byte(rand.N(256)), byte(1 + rand.N(250))})
		cmd := exec.CommandContext(t.Context(), os.Args[0], addr.String())
		cmd.Env = append(os.Environ(), peerEnv+"="+kind, dialEnv+"="+dial)
		out, err := cmd.StdoutPipe()
		must(t, err, cmd.Start())
		kill = sync.OnceFunc(func() { cmd.Process.Kill(); cmd.Wait() })
		if _, err = fmt.Fscanln(out, &peer); err == nil && peer != "error:" {
			return peer, cmd.Process, kill
		}
		kill()
	}
	t.Fatalf("the peer does not start: %q", peer)
	return "", nil, nil
}

// TestHalfOpen: a listener gives up a connection that its peer does not complete, after 30 s.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	const documented = 30 * time.Second
	for kind, listen := range map[string]func(ctx context.Context, address string, refused func(rdmacm.Addr, error)) (net.Listener, error){
		"cm": func(ctx context.Context, address string, refused func(rdmacm.Addr, error)) (net.Listener, error) {
			l, err := cm.Listen(ctx, address, cm.ListenOptions{Refused: refused})
			if err != nil {
				return nil, err
			}
			return l.Streams(), nil
		},
		"rsocket": func(ctx context.Context, address string, refused func(rdmacm.Addr, error)) (net.Listener, error) {
			return rsocket.Listen(ctx, address, rsocket.ListenOptions{Refused: refused})
		},
		"valkey": func(ctx context.Context, address string, refused func(rdmacm.Addr, error)) (net.Listener, error) {
			return valkey.Listen(ctx, address, valkey.ListenOptions{Refused: refused})
		},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			there := device(t, soft.Options{ViaSocket: true, Faults: soft.Faults{Rules: []soft.Rule{{Direction: soft.Sent, Class: soft.ClassMAD, Loss: soft.Always}}}}) // it hears, and is not heard
			gaveUp := make(chan error, 1)
			l, err := listen(t.Context(), there.Addr().String()+":0", func(_ rdmacm.Addr, err error) {
				select {
				case gaveUp <- err:
				default:
				}
			})
			must(t, err)
			defer l.Close()
			begin := time.Now()
			_, _, kill := startPeer(t, kind, l.Addr().String())
			defer kill()
			select {
			case err := <-gaveUp:
				if took := time.Since(begin); took < documented || !(errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT)) { // the last, if the connection manager was faster
					t.Errorf("the listener gives up after %v: %v", took, err)
				}
			case <-time.After(documented + timeout/2): // less than the time after which the connection manager gives up
				t.Errorf("the listener waits for more than %v", documented+timeout/2)
			}
		})
	}
}

// TestPacketPeerGone: no method of a PacketConn waits for a peer that is dead.
func TestPacketPeerGone(t *testing.T) {
	there, here := device(t, soft.Options{}), device(t, soft.Options{})
	l, err := cm.ListenPacket(t.Context(), there.Addr().String()+":0", cm.PacketOptions{})
	must(t, err)
	defer l.Close()
	p, err := cm.DialPacket(t.Context(), l.LocalAddr().String(), cm.PacketOptions{LocalAddr: netip.AddrPortFrom(here.Addr(), 0)})
	must(t, err)
	peer, _ := p.DialedPeer()
	there.Partition(netip.Addr{})
	group, bg := netip.MustParseAddr("239.1.2.3"), context.Background()
	for _, w := range []struct {
		name string
		call func() error
	}{
		{"Send", func() error {
			for range 100 {
				if err := p.Send(bg, []byte("lost"), peer); err != nil {
					return err
				}
			}
			return nil
		}},
		{"Join", func() error { _, err := p.Join(bg, group, rdmacm.JoinFullMember); return err }},
		{"Leave", func() error { return p.Leave(group) }},
		{"Close", p.Close},
	} {
		done := make(chan error, 1)
		go func() { done <- w.call() }()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("%s: %v", w.name, err)
			}
		case <-time.After(timeout):
			t.Fatalf("%s waits for more than %v", w.name, timeout)
		}
	}
}
