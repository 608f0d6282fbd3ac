package cm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// listenBoth makes a listener for RDMA and TCP on the first device, which is closed at the end.
func listenBoth(t *testing.T, lc ListenConfig) *DualListener {
	t.Helper()
	testenv.Guest(t)
	testenv.NeedsIB(t, "ports beside those of TCP")
	lc.RequireRDMA = true
	l := value(lc.Listen(within(t), "tcp", firstAny))(t)
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

// listenTCP makes a listener for TCP alone.
func listenTCP(t *testing.T, address string) net.Listener {
	t.Helper()
	l := value(net.Listen("tcp", address))(t)
	t.Cleanup(func() { l.Close() })
	return l
}

// echo sends back what each connection of a listener sends.
func echo(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			io.Copy(c, struct{ io.Reader }{c}) // TCP to TCP would use pipes, which Go's runtime keeps
		}()
	}
}

// checkEcho sends something over a connection to echo, and closes the connection.
func checkEcho(t *testing.T, c net.Conn) {
	t.Helper()
	must(t, c.SetDeadline(time.Now().Add(4*timeout)))
	fmt.Fprintf(c, "hello")
	must(t, c.(interface{ CloseWrite() error }).CloseWrite())
	if got := value(io.ReadAll(c))(t); string(got) != "hello" {
		t.Errorf("%q comes back", got)
	}
	must(t, c.Close())
}

// TestDialerConn: connections by RDMA are as package net's tests want them.
func TestDialerConn(t *testing.T) {
	l := listenBoth(t, ListenConfig{})
	d := Dialer{FallbackDelay: time.Minute}
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		ctx, cancel := context.WithTimeout(context.Background(), 4*timeout)
		defer cancel()
		client, err := d.DialContext(ctx, "tcp", l.Addr().String())
		if err != nil {
			return nil, nil, nil, err
		}
		server, err := l.Accept()
		if err != nil {
			client.Close()
			return nil, nil, nil, err
		}
		return client, server, func() { client.Close(); server.Close() }, nil
	})
}

// dialChoice dials and returns what was chosen.
func dialChoice(ctx context.Context, d Dialer, network, address string) (c Choice, err error) {
	called := 0
	d.Chosen = func(choice Choice) { c, called = choice, called+1 }
	conn, err := d.DialContext(ctx, network, address)
	switch {
	case err != nil && called > 0:
		return c, fmt.Errorf("Chosen was called: %w", err)
	case err == nil && (called != 1 || c.Conn != conn || c.Network != network || c.Address != address):
		return c, fmt.Errorf("Chosen was called %d times, at last with %+v, for %v", called, c, conn)
	}
	return c, err
}

// TestDialerPolicies: what each policy chooses, for each kind of listener.
func TestDialerPolicies(t *testing.T) {
	both := listenBoth(t, ListenConfig{})
	rdma := newListener(t, ListenOptions{})
	tcp := listenTCP(t, firstAny)
	loopback := listenTCP(t, "127.0.0.1:0")
	refusing := listenBoth(t, ListenConfig{RDMA: ListenOptions{Check: func(*Request) ([]byte, error) { return nil, errors.New("not you") }}})
	for _, l := range []net.Listener{both, rdma.Streams(), tcp, loopback, refusing} {
		go echo(l)
	}
	dead := listenTCP(t, firstAny)
	must(t, dead.Close())
	const nobody = "nobody listens on this port"
	without, reason := syscall.ENODEV, "a network interface without an RDMA device"
	if testenv.TheRig().InfiniBand() { // which reaches loopback addresses
		without, reason = syscall.ECONNREFUSED, nobody
	}
	for _, c := range []struct {
		name    string
		policy  Policy
		to      net.Addr
		network string // that of the connection, "" for an error
		is      error  // the error, or why it is not RDMA
		say     string
	}{
		{"both", PreferRDMA, both.Addr(), "rdma+tcp", nil, ""},
		{"both, RDMA alone", RDMAOnly, both.Addr(), "rdma+tcp", nil, ""},
		{"RDMA", PreferRDMA, rdma.Addr(), "rdma+tcp", nil, ""},
		{"RDMA, the first", FirstWins, rdma.Addr(), "rdma+tcp", nil, ""},
		{"TCP", PreferRDMA, tcp.Addr(), "tcp", syscall.ECONNREFUSED, nobody},
		{"TCP, RDMA alone", RDMAOnly, tcp.Addr(), "", syscall.ECONNREFUSED, "RDMAOnly does not allow TCP"},
		{"TCP without a device", PreferRDMA, loopback.Addr(), "tcp", without, reason},
		{"TCP without a device, the first", FirstWins, loopback.Addr(), "tcp", nil, ""},
		{"TCP without a device, RDMA alone", RDMAOnly, loopback.Addr(), "", without, reason},
		{"a rejection", PreferRDMA, refusing.Addr(), "", syscall.ECONNREFUSED, `refuses: "not you"`},
		{"nobody", PreferRDMA, dead.Addr(), "", syscall.ECONNREFUSED, "by RDMA: cm: dial"},
		{"nobody, the first", FirstWins, dead.Addr(), "", syscall.ECONNREFUSED, "by RDMA: cm: dial"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.to == loopback.Addr() {
				testenv.NeedsKernel(t, "routes without a device")
			}
			choice, err := dialChoice(within(t), Dialer{Policy: c.policy, FallbackDelay: time.Minute}, "tcp", c.to.String())
			reason := choice.RDMAErr
			if c.network == "" {
				reason = err
				var e net.Error
				if !errors.As(err, &e) || e.Timeout() {
					t.Errorf("it is no net.Error without a timeout: %v", err)
				}
			} else {
				must(t, err)
				defer checkEcho(t, choice.Conn)
				if got := choice.Conn.RemoteAddr().Network(); got != c.network {
					t.Errorf("the connection is by %s, want %s, because %v", got, c.network, choice.RDMAErr)
				}
			}
			switch {
			case c.policy == FirstWins && c.network == "tcp": // TCP or a failure of RDMA may be first
				if reason == nil {
					t.Error("no reason why it is not RDMA")
				}
			case (c.is == nil) != (reason == nil), c.is != nil && !errors.Is(reason, c.is), reason != nil && !strings.Contains(reason.Error(), c.say):
				t.Errorf("the reason is %v, want %v: %s", reason, c.is, c.say)
			}
		})
	}
}

// TestDialerFirstWins: either may be first, and the connection that is not used ends.
func TestDialerFirstWins(t *testing.T) {
	before := quiet(t)
	l := listenBoth(t, ListenConfig{})
	done := make(chan struct{})
	go func() { echo(l); close(done) }()
	for range 20 {
		c, err := dialChoice(within(t), Dialer{Policy: FirstWins}, "tcp", l.Addr().String())
		must(t, err)
		if _, byTCP := c.Conn.(*net.TCPConn); byTCP != (c.RDMAErr != nil) {
			t.Errorf("%T, and not RDMA because %v", c.Conn, c.RDMAErr)
		}
		checkEcho(t, c.Conn)
	}
	must(t, l.Close())
	<-done
	nothingLeft(t, before)
}

// TestDialerNoAnswer: a peer that does not answer by RDMA.
func TestDialerNoAnswer(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsIB(t, "ports beside those of TCP")
	channel := value(rdmacm.OpenChannel(rdmacm.ChannelOptions{}))(t)
	silent, to := listenNow(t, channel, netip.AddrPortFrom(first, 0))
	defer func() { must(t, silent.Close(), channel.Close()) }()
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := dialChoice(short, Dialer{FallbackDelay: time.Millisecond}, "tcp", to.String())
	var e net.Error
	if !errors.As(err, &e) || !e.Timeout() || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the time is over, and TCP is refused: %v", err)
	}
	go echo(listenTCP(t, to.String()))
	c, err := dialChoice(within(t), Dialer{FallbackDelay: time.Millisecond}, "tcp", to.String())
	must(t, err)
	if c.RDMAErr == nil || c.RDMAErr.Error() != "no answer by RDMA within 1ms: TCP has connected first" {
		t.Errorf("not RDMA because %v", c.RDMAErr)
	}
	checkEcho(t, c.Conn)
	_, err = dialChoice(within(t), Dialer{Policy: RDMAOnly, RDMA: DialOptions{ConnOptions: ConnOptions{Depth: -1}}}, "tcp", to.String())
	if argErr := new(rdmacm.ArgError); !errors.As(err, &argErr) || argErr.Field != "Depth" {
		t.Errorf("a wrong option: %v", err)
	}
}

// TestDialerFull: a listener at its limits speaks RDMA, so it is not asked by TCP while Dial waits for a place.
func TestDialerFull(t *testing.T) {
	l := listenBoth(t, ListenConfig{RDMA: ListenOptions{MaxConns: 1, AddrShare: -1}})
	first := value((&Dialer{Policy: RDMAOnly}).DialContext(within(t), "tcp", l.Addr().String()))(t)
	defer first.Close()
	delay := 3 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), delay+time.Second)
	defer cancel()
	c, err := (&Dialer{FallbackDelay: delay}).DialContext(ctx, "tcp", l.Addr().String())
	var refused *RefusedError
	var e net.Error
	if !errors.As(err, &refused) || !errors.As(err, &e) || !e.Timeout() {
		t.Errorf("Dial of a full listener: %v, %v", c, err)
	}
}

// TestDialerPrepareFails: an error of the program's Prepare is not taken for a lack of RDMA, also if it looks
// like one.
func TestDialerPrepareFails(t *testing.T) {
	l := listenBoth(t, ListenConfig{})
	d := Dialer{RDMA: DialOptions{Prepare: func(*uverbs.PD) ([]byte, error) { return nil, fs.ErrNotExist }}}
	if c, err := dialChoice(within(t), d, "tcp", l.Addr().String()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, %v, want the error of Prepare", c.Conn, err)
	}
}

// TestDialerHangs: the end of the context ends DialContext, also if an attempt goes on, as it does on a device that
// hangs.
func TestDialerHangs(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hang := make(chan struct{})
	d := Dialer{Policy: FirstWins}
	d.TCP.ControlContext = func(context.Context, string, string, syscall.RawConn) error {
		cancel()
		<-hang
		return errors.New("this goes on")
	}
	_, err := dialChoice(ctx, d, "tcp", "127.0.0.1:1")
	close(hang)
	if !errors.Is(err, context.Canceled) || !strings.HasSuffix(err.Error(), "; an attempt did not stop within 1s, perhaps because its device hangs") {
		t.Errorf("DialContext ends with %v", err)
	}
}

// TestDialerLateRejection: a peer that rejects by RDMA is not asked by TCP, also if TCP is tried already because the
// rejection was late.
func TestDialerLateRejection(t *testing.T) {
	tcpStarted := make(chan struct{})
	l := listenBoth(t, ListenConfig{RDMA: ListenOptions{Check: func(*Request) ([]byte, error) {
		<-tcpStarted
		return nil, errors.New("not you")
	}}})
	d := Dialer{FallbackDelay: time.Millisecond}
	d.TCP.ControlContext = func(ctx context.Context, _, _ string, _ syscall.RawConn) error {
		close(tcpStarted)
		<-ctx.Done()
		return ctx.Err()
	}
	c, err := dialChoice(within(t), d, "tcp", l.Addr().String())
	if refused := new(RefusedError); !errors.As(err, &refused) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, %v, want the rejection alone", c.Conn, err)
	}
}

// TestIWARPDialer: on iWARP, RDMA and TCP have the same ports, and a program that expects TCP gets an
// iWARP request first.
func TestIWARPDialer(t *testing.T) {
	iwarp(t)
	rdma := newListener(t, ListenOptions{})
	tcp := listenTCP(t, firstAny)
	dead := listenTCP(t, firstAny)
	must(t, dead.Close())
	go echo(rdma.Streams())
	go echo(tcp)
	d := Dialer{FallbackDelay: time.Minute}
	c, err := dialChoice(within(t), d, "tcp", rdma.Addr().String())
	must(t, err, c.RDMAErr)
	checkEcho(t, c.Conn)
	c, err = dialChoice(within(t), d, "tcp", tcp.Addr().String())
	must(t, err)
	if _, ok := c.Conn.(*net.TCPConn); !ok || !errors.Is(c.RDMAErr, syscall.EINVAL) || !strings.Contains(c.RDMAErr.Error(), "CONNECT_ERROR") {
		t.Errorf("%T, and not RDMA because %v", c.Conn, c.RDMAErr)
	}
	checkEcho(t, c.Conn)
	if c, err = dialChoice(within(t), d, "tcp", dead.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: %v, %v", c.Conn, err)
	}
}

// TestDialerArguments: wrong arguments.
func TestDialerArguments(t *testing.T) {
	for _, c := range []struct {
		d                     Dialer
		network, address, say string
	}{
		{Dialer{}, "udp", "10.1.0.1:9", "unknown network udp"},
		{Dialer{}, "tcp5", "10.1.0.1:9", "unknown network tcp5"},
		{Dialer{Policy: 9}, "tcp", "10.1.0.1:9", "Policy is policy 9"},
		{Dialer{FallbackDelay: -1}, "tcp", "10.1.0.1:9", "FallbackDelay is -1ns"},
		{Dialer{}, "tcp6", "10.1.0.1:9", "no suitable address"},
		{Dialer{}, "tcp", "10.1.0.1", "missing port"},
		{Dialer{}, "tcp", "10.1.0.1:none", "unknown port"},
	} {
		if conn, err := c.d.Dial(c.network, c.address); err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%+v, %s, %s: %v, %v, want %q", c.d, c.network, c.address, conn, err, c.say)
		}
	}
}

// TestDialerErrorOnce: an error that TCP has returned names the operation and the address once.
func TestDialerErrorOnce(t *testing.T) {
	used, dead := listenTCP(t, "127.0.0.1:0"), listenTCP(t, "127.0.0.1:0")
	must(t, dead.Close())
	d := Dialer{RDMA: DialOptions{Timeout: time.Millisecond}}
	_, refused := d.Dial("tcp", dead.Addr().String())
	_, inUse := new(ListenConfig).Listen(within(t), "tcp", used.Addr().String())
	for begin, err := range map[string]error{
		"dial tcp " + dead.Addr().String() + ": connect: connection refused; by RDMA: cm: dial ": refused,
		"listen tcp " + used.Addr().String() + ": bind: address already in use":                  inUse,
	} {
		var e *net.OpError
		if !errors.As(err, &e) || !strings.HasPrefix(e.Error(), begin) || e.Addr == nil {
			t.Errorf("the error is %q, want %q and so on, with an address", err, begin)
		}
	}
	d.TCP.Timeout = time.Nanosecond
	_, err := d.Dial("tcp", used.Addr().String())
	var e *net.OpError
	if !errors.As(err, &e) || strings.Count(err.Error(), "dial tcp") != 1 || !e.Timeout() {
		t.Errorf("the error is %q, want a timeout that names the operation once", err)
	}
}

// nameServer returns a resolver for which every name has an IPv4 address.
func nameServer(ip netip.Addr) *net.Resolver {
	const header, typeA = 12, 1
	answer := func(query []byte) []byte {
		end := header
		for query[end] != 0 { // the labels of the name
			end += 1 + int(query[end])
		}
		kind := binary.BigEndian.Uint16(query[end+1:])
		reply := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, query[header:end+5]...)
		if a := ip.As4(); kind == typeA {
			reply[7] = 1
			reply = append(append(reply, 0xc0, header, 0, typeA, 0, 1, 0, 0, 0, 60, 0, 4), a[:]...)
		}
		return reply
	}
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			defer server.Close()
			var size [2]byte
			for {
				if _, err := io.ReadFull(server, size[:]); err != nil {
					return
				}
				query := make([]byte, binary.BigEndian.Uint16(size[:]))
				if _, err := io.ReadFull(server, query); err != nil {
					return
				}
				reply := answer(query)
				server.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
			}
		}()
		return client, nil
	}}
}

// TestDialerName: host names, for RDMA and for TCP.
func TestDialerName(t *testing.T) {
	l := listenBoth(t, ListenConfig{})
	tcp := listenTCP(t, firstAny)
	go echo(l)
	go echo(tcp)
	d, name := Dialer{FallbackDelay: time.Minute}, "ve0" // in the file hosts of guests
	if testenv.TheRig().Soft {
		d.TCP.Resolver, name = nameServer(first), "rdma.example."
	}
	for network, to := range map[string]net.Addr{"rdma+tcp": l.Addr(), "tcp": tcp.Addr()} {
		_, port, _ := net.SplitHostPort(to.String())
		c, err := dialChoice(within(t), d, "tcp4", net.JoinHostPort(name, port))
		must(t, err)
		if got := c.Conn.RemoteAddr(); got.Network() != network || got.String() != to.String() {
			t.Errorf("connected with %s by %s, want %s by %s, because %v", got, got.Network(), to, network, c.RDMAErr)
		}
		checkEcho(t, c.Conn)
	}
}

// TestListenBoth: what a listener for both does if one of the two is not possible, and its end.
func TestListenBoth(t *testing.T) {
	testenv.Guest(t)
	ctx := within(t)
	if testenv.TheRig().IWARP() {
		if l, err := new(ListenConfig).Listen(ctx, "tcp", firstAny); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("on iWARP: %v, %v", l, err)
		}
		return
	}
	before := quiet(t)
	lc := ListenConfig{RDMA: ListenOptions{ConnOptions: small}}
	for _, c := range []struct {
		network, address string
		say              string
	}{
		{"udp", firstAny, "unknown network udp"},
		{"tcp", first.String(), "missing port"},
		{"tcp", noHost.String() + ":0", ""},
	} {
		if l, err := lc.Listen(ctx, c.network, c.address); c.say != "" && (err == nil || !strings.Contains(err.Error(), c.say)) {
			t.Errorf("%s, %s: %v, %v", c.network, c.address, l, err)
		} else if err == nil {
			must(t, l.Close())
		}
	}
	// A port that only one of the two can have.
	tcp := listenTCP(t, firstAny)
	rdma := value(Listen(ctx, firstAny, ListenOptions{}))(t)
	for _, taken := range []net.Addr{tcp.Addr(), rdma.Addr()} {
		if l, err := lc.Listen(ctx, "tcp", taken.String()); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("port of %s: %v, %v", taken.Network(), l, err)
		}
	}
	must(t, tcp.Close(), rdma.Close())
	// An address without a device.
	lc.RequireRDMA = true
	if l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0"); err == nil || !isNoRDMA(err) {
		t.Errorf("RDMA is required: %v, %v", l, err)
	}
	lc.RequireRDMA = false
	l := value(lc.Listen(ctx, "tcp", "127.0.0.1:0"))(t)
	if l.RDMAErr() == nil || !isNoRDMA(l.RDMAErr()) {
		t.Errorf("not RDMA because %v", l.RDMAErr())
	}
	must(t, l.Close(), l.Close())

	// Connections that Accept has not returned, and calls of Accept.
	l = value(lc.Listen(ctx, "tcp", firstAny))(t)
	must(t, l.RDMAErr())
	byRDMA := value((&Dialer{Policy: RDMAOnly, RDMA: DialOptions{ConnOptions: small}}).DialContext(ctx, "tcp", l.Addr().String()))(t)
	byTCP := value(net.Dial("tcp", l.Addr().String()))(t)
	must(t, l.Close())
	for _, c := range []net.Conn{byRDMA, byTCP} {
		must(t, c.SetDeadline(time.Now().Add(4*timeout)))
		if n, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%T that Accept has not returned, after Close: %d bytes, %v", c, n, err)
		}
		must(t, c.Close())
	}
	l = value(lc.Listen(ctx, "tcp", firstAny))(t)
	ended := make(chan error)
	go func() {
		_, err := l.Accept()
		ended <- err
	}()
	must(t, l.Close())
	_, err := l.Accept()
	for _, err := range []error{<-ended, err} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept and Close: %v", err)
		}
	}
	nothingLeft(t, before)
}
