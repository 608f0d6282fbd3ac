package cm

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// between is somebody between the two ends of a connection of iWARP: what he hears on one he says
// on the other, unless he is told otherwise.
type between struct {
	t        *testing.T
	listener net.Listener
	server   string
	wantCRC  bool // he has the ends protect what they say by CRCs, which neither asks for
	misses   int  // after the request, so many reads of the client's words are passed on only with the next one

	hurt atomic.Pointer[func(b []byte, to *net.TCPConn) (stop bool)] // what to do to the client's next words, once
	all  sync.WaitGroup
	mu   sync.Mutex
	open []*net.TCPConn // guarded by mu
}

// newBetween has somebody listen on the second device's address, who speaks with a server.
func newBetween(t *testing.T, server string) *between {
	b := &between{t: t, server: server}
	b.listener = value(net.Listen("tcp", net.JoinHostPort(second.String(), "0")))(t)
	b.all.Go(b.serve)
	return b
}

// serve takes one connection after the other.
func (b *between) serve() {
	for {
		client, err := b.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", b.server)
		if err != nil {
			b.t.Error(err)
			client.Close()
			continue
		}
		c, s := client.(*net.TCPConn), server.(*net.TCPConn)
		b.mu.Lock()
		b.open = append(b.open, c, s)
		b.mu.Unlock()
		b.all.Go(func() { b.pass(c, s, true) })
		b.all.Go(func() { b.pass(s, c, false) })
	}
}

// pass says what it hears.
func (b *between) pass(from, to *net.TCPConn, client bool) {
	defer to.CloseWrite()
	buf := make([]byte, 64<<10)
	var missed []byte
	for i := 0; ; i++ {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if client && i >= 1 && i <= b.misses {
			missed = append(missed, buf[:n]...)
			continue
		}
		if _, err := to.Write(missed); err != nil {
			return
		}
		missed = nil
		if client && i == 0 && b.wantCRC {
			// MPA's request has a text of 16 bytes, and then a byte of flags (RFC 5044, 7.1).
			const flags, crc = 16, 0x40
			buf[flags] |= crc
		}
		if hurt := b.hurt.Swap(nil); client && hurt != nil {
			if (*hurt)(buf[:n], to) {
				return
			}
		} else if hurt != nil {
			b.hurt.Store(hurt)
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// reset ends all connections as a host does that has restarted.
func (b *between) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.open {
		c.SetLinger(0)
		c.Close()
	}
	b.open = nil
}

// close ends it.
func (b *between) close() {
	b.listener.Close()
	b.reset()
	b.all.Wait()
}

// TestIWARPDamage: bits that change on the way where there are CRCs, a reset in the middle of a
// message, and silence. Both ends are told in time, and nothing is left.
func TestIWARPDamage(t *testing.T) {
	testenv.Guest(t)
	testenv.Needs(t, "iWARP", "siw")
	before := quiet(t)
	o := ConnOptions{Tuning: Tuning{AckTimeout: time.Millisecond, RetryCount: 1}}
	l := value(Listen(within(t), net.JoinHostPort(first.String(), "0"), ListenOptions{ConnOptions: o}))(t)
	for _, c := range []struct {
		name string
		crc  bool
		hurt func(b *between, words []byte, to *net.TCPConn) (stop bool)
		is   error // what both ends are told
	}{
		{"a bit with CRC", true, func(_ *between, words []byte, _ *net.TCPConn) bool {
			words[len(words)/2] ^= 4
			return false
		}, syscall.ECONNRESET},
		{"a CRC", true, func(_ *between, words []byte, _ *net.TCPConn) bool {
			words[len(words)-1] ^= 0x80
			return false
		}, syscall.ECONNRESET},
		{"a header without CRC", false, func(_ *between, words []byte, _ *net.TCPConn) bool {
			words[3] ^= 0x03 // DDP's version (RFC 5041, 4.2)
			return false
		}, syscall.ECONNRESET},
		{"reset in a message", false, func(b *between, words []byte, to *net.TCPConn) bool {
			to.Write(words[:len(words)/2])
			b.reset()
			return true
		}, syscall.ECONNRESET},
		{"silence in a message", false, func(_ *between, words []byte, to *net.TCPConn) bool {
			to.Write(words[:len(words)/2])
			time.Sleep(4 * timeout / 5)
			return true
		}, syscall.ETIMEDOUT},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := within(t)
			b := newBetween(t, l.Addr().String())
			b.wantCRC = c.crc
			defer b.close()
			client := value(Dial(ctx, b.listener.Addr().String(), DialOptions{ConnOptions: o}))(t)
			server := value(l.Accept(ctx))(t)
			for range 3 {
				must(t, client.Send(ctx, make([]byte, 1000)))
				if m := value(server.Recv(ctx))(t); len(m) != 1000 {
					t.Fatalf("%d bytes came", len(m))
				}
			}
			hurt := func(words []byte, to *net.TCPConn) bool { return c.hurt(b, words, to) }
			b.hurt.Store(&hurt)
			err := client.Send(ctx, make([]byte, 1000)) // TCP has it, whatever comes of it
			if err == nil {
				_, err = client.Recv(ctx)
			}
			check := func(end string, err error) {
				t.Helper()
				if !errors.Is(err, c.is) && !(c.is == syscall.ETIMEDOUT && errors.Is(err, syscall.ECONNRESET)) || ctx.Err() != nil {
					t.Errorf("%s: %v", end, err)
				}
			}
			check("the client", err)
			m, err := server.Recv(ctx)
			if err == nil {
				t.Errorf("%d bytes came, which were not sent so", len(m))
			}
			check("the server", err)
			t.Logf("the server: %v", err)
			client.Close() // what it had on its way has not arrived, which it says
			server.Close()
		})
	}
	must(t, l.Close())
	nothingLeft(t, before)
}

// TestIWARPFirstMissed: the peer's kernel takes no notice of what arrives first until more arrives. A
// connection comes about however few operations may be outstanding.
func TestIWARPFirstMissed(t *testing.T) {
	iwarpLeaves(t)
	l := value(Listen(within(t), net.JoinHostPort(first.String(), "0"), ListenOptions{}))(t)
	for _, transfers := range []int{1, 16} {
		ctx := within(t)
		b := newBetween(t, l.Addr().String())
		b.misses = 5
		client := value(Dial(ctx, b.listener.Addr().String(), DialOptions{ConnOptions: ConnOptions{Tuning: Tuning{Transfers: transfers, SendDepth: 1}}}))(t)
		server := value(l.Accept(ctx))(t)
		must(t, client.Send(ctx, []byte("after all")))
		if m := value(server.Recv(ctx))(t); string(m) != "after all" {
			t.Errorf("with %d transfers %q came", transfers, m)
		}
		must(t, client.Close(), server.Close())
		b.close()
	}
	must(t, l.Close())
}

// TestIWARPDialEnds: a Dial whose context ends while its first message is not answered returns the context's
// error, and leaves nothing.
func TestIWARPDialEnds(t *testing.T) {
	iwarpLeaves(t)
	l := value(Listen(within(t), net.JoinHostPort(first.String(), "0"), ListenOptions{}))(t)
	b := newBetween(t, l.Addr().String())
	b.misses = 1 << 20 // all
	for name, c := range map[string]struct {
		end  func(context.Context) (context.Context, context.CancelFunc)
		want error
	}{
		"deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 300*time.Millisecond)
		}, context.DeadlineExceeded},
		"cancel": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(300*time.Millisecond, cancel)
			return ctx, cancel
		}, context.Canceled},
	} {
		all := within(t)
		ctx, cancel := c.end(all)
		conn, err := Dial(ctx, b.listener.Addr().String(), DialOptions{})
		if conn != nil || !errors.Is(err, c.want) || all.Err() != nil || !strings.Contains(err.Error(), b.listener.Addr().String()) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		cancel()
	}
	// On a slow machine the listener may have a connection, whose peer has given up.
	if err := l.Close(); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
	b.close()
}

// TestIWARPOrder: an RDMA operation whose answer is on its way ends with the answer, not with a message that was
// sent later and that TCP already has.
func TestIWARPOrder(t *testing.T) {
	iwarpLeaves(t)
	ctx := within(t)
	l := value(Listen(ctx, net.JoinHostPort(first.String(), "0"), ListenOptions{}))(t)
	b := newBetween(t, l.Addr().String())
	client := value(Dial(ctx, b.listener.Addr().String(), DialOptions{ConnOptions: ConnOptions{Tuning: Tuning{SendDepth: 1}}}))(t) // each message asks for a completion
	server := value(l.Accept(ctx))(t)
	region := func(c *Conn, text string) *uverbs.MR {
		buf := value(uverbs.AllocBuffer(64, uverbs.BufferOptions{}))(t)
		mr := value(c.PD().RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead}))(t)
		copy(mr.Bytes(), text)
		return mr
	}
	near, far := region(client, "near"), region(server, "far")
	for _, op := range []struct {
		name string
		post func(ctx context.Context, local uverbs.SGE, remote Remote) error
		at   *uverbs.MR
		want string // what is there afterwards
	}{{"RDMARead", client.RDMARead, near, "far"}, {"RDMAWrite", client.RDMAWrite, far, "new"}} {
		release := make(chan struct{})
		hurt := func([]byte, *net.TCPConn) bool { <-release; return false }
		b.hurt.Store(&hurt)
		ended := make(chan error, 1)
		go func() { ended <- op.post(ctx, near.SGE(0, 3), RemoteOf(far)) }()
		client.until(t, "the operation is posted", func() bool { return client.opsPosted != client.opsDone })
		must(t, client.Send(ctx, []byte("later")))
		ops := false
		client.until(t, "TCP has the message", func() bool {
			client.poll()
			ops = client.opsPosted != client.opsDone
			return client.completed == client.posted
		})
		if !ops {
			t.Errorf("%s has ended before the peer has anything of it", op.name)
		}
		close(release)
		if err := <-ended; err != nil || string(op.at.Bytes()[:3]) != op.want {
			t.Errorf("%s: %v, and there is %q", op.name, err, op.at.Bytes()[:3])
		}
		if m := value(server.Recv(ctx))(t); string(m) != "later" {
			t.Errorf("received %q", m)
		}
		copy(near.Bytes(), "new")
		copy(far.Bytes(), "old")
	}
	must(t, near.Close(), far.Close(), client.Close(), server.Close(), l.Close())
	b.close()
}

// until waits for a condition, with c.mu held whenever it asks.
func (c *Conn) until(t *testing.T, what string, met func() bool) {
	t.Helper()
	for end := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		done := met()
		c.mu.Unlock()
		if done {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: it is not so", what)
		}
	}
}

// TestIWARPNoDevice: an address that this host has, on an interface without a device of iWARP.
func TestIWARPNoDevice(t *testing.T) {
	iwarpLeaves(t)
	lo := value(netlink.LinkByName("lo"))(t)
	addr := value(netlink.ParseAddr("10.9.9.9/32"))(t)
	must(t, netlink.AddrAdd(lo, addr))
	defer netlink.AddrDel(lo, addr)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if l, err := Listen(ctx, "10.9.9.9:0", ListenOptions{}); err == nil {
		l.Close()
		t.Error("Listen has found a device")
	} else if !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), "10.9.9.9") {
		t.Errorf("Listen: %v", err)
	}
	for _, to := range []string{"10.9.9.9:7", "192.0.2.1:7"} {
		c, err := Dial(ctx, to, DialOptions{})
		if err == nil {
			c.Close()
			t.Errorf("Dial %s has found a device", to)
		} else if !strings.Contains(err.Error(), to) || ctx.Err() != nil {
			t.Errorf("Dial: %v", err)
		}
		t.Logf("Dial: %v", err)
	}
	c, err := Dial(ctx, net.JoinHostPort(first.String(), "9"), DialOptions{LocalAddr: netip.MustParseAddrPort("10.9.9.9:0")})
	if err == nil {
		c.Close()
		t.Error("Dial has left from an address without a device")
	}
	t.Logf("Dial: %v", err)
}

// TestIWARPPortTaken: where TCP has the port that the connection manager has chosen, Dial and Listen
// take another.
func TestIWARPPortTaken(t *testing.T) {
	iwarp(t)
	const ports = "/proc/sys/net/ipv4/ip_local_port_range"
	before := value(os.ReadFile(ports))(t)
	t.Cleanup(func() { must(t, os.WriteFile(ports, before, 0)) })
	must(t, os.WriteFile(ports, []byte("47000 47001"), 0)) // the connection manager never takes one twice in a row
	tcp := value(net.Listen("tcp", net.JoinHostPort(first.String(), "47000")))(t)
	defer tcp.Close()
	for i := range 4 {
		ctx := within(t)
		l := value(Listen(ctx, net.JoinHostPort(first.String(), strconv.Itoa(47100+i)), ListenOptions{}))(t)
		o := DialOptions{LocalAddr: netip.AddrPortFrom(first, 0)}
		client, server := connect(t, l, o)
		if port := client.LocalAddr().(rdmacm.Addr).Port; port != 47001 {
			t.Errorf("the connection is from port %d", port)
		}
		must(t, client.Close(), server.Close(), l.Close())
	}
	for range 4 {
		l := value(Listen(within(t), net.JoinHostPort(first.String(), "0"), ListenOptions{}))(t)
		if port := l.Addr().(rdmacm.Addr).Port; port != 47001 {
			t.Errorf("the listener is on port %d", port)
		}
		must(t, l.Close())
	}
	if l, err := Listen(within(t), tcp.Addr().String(), ListenOptions{}); err == nil {
		l.Close()
		t.Error("Listen has listened on a port that is taken")
	} else if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "on iWARP one that uses TCP") {
		t.Errorf("Listen: %v", err)
	}
	own := DialOptions{LocalAddr: netip.AddrPortFrom(first, 47000)}
	l := value(Listen(within(t), net.JoinHostPort(first.String(), "47200"), ListenOptions{}))(t)
	defer l.Close()
	if c, err := Dial(within(t), l.Addr().String(), own); err == nil {
		c.Close()
		t.Error("Dial has connected from a port that is taken")
	} else if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "taken by TCP") {
		t.Errorf("Dial: %v", err)
	}
}
