package rsocket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// limited makes a listener with limits on the first device, which is closed at the end of the test.
func limited(t *testing.T, o ListenOptions) *Listener {
	t.Helper()
	l, err := Listen(t.Context(), testenv.TheRig().Addrs[0]+":0", o)
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

// leaveHalfOpen makes a request that its peer does not complete, and waits for the answer. The peer
// has no QP, but its kernel wants a number, and each only once.
func leaveHalfOpen(t *testing.T, ctx context.Context, ch *protocol.Channel, l *Listener, qpn uint32) *rdmacm.ID {
	t.Helper()
	id, answer := leaveHalfOpenFrom(t, ctx, ch, l, rdmacm.Addr{}, qpn)
	if answer != rdmacm.EventConnectResponse {
		t.Fatalf("the request is answered with %v", answer)
	}
	return id
}

// leaveHalfOpenFrom makes such a request from an address, and returns the answer.
func leaveHalfOpenFrom(t *testing.T, ctx context.Context, ch *protocol.Channel, l *Listener, from rdmacm.Addr, qpn uint32) (*rdmacm.ID, rdmacm.EventType) {
	t.Helper()
	id, err := ch.NewID(rdmacm.TCP)
	must(t, err, id.ResolveWait(ctx, from, l.addr))
	good := connData{credits: 384, table: segment{1 << 40, 7, 2}, buffer: segment{1 << 41, 8, 65536}}.encode()
	must(t, id.Connect(rdmacm.ConnParam{PrivateData: good, QPN: 1<<23 + qpn}))
	e, err := id.Wait(ctx)
	must(t, err)
	return id, e.Type
}

// TestHalfOpen: peers that complete nothing take the place of others that complete nothing, once these have had
// enough time.
func TestHalfOpen(t *testing.T) {
	testenv.Guest(t)
	testenv.Needs(t, "half-open requests", "rxe", "mlx5") // on iWARP the kernel answers for the peer
	old := protocol.EvictAfter
	defer func() { protocol.EvictAfter = old }()
	for name, c := range map[string]struct {
		o      ListenOptions
		after  time.Duration
		number int // of half-open requests
	}{
		"in time":  {ListenOptions{HalfOpen: 2}, time.Hour, 2},
		"HalfOpen": {ListenOptions{HalfOpen: 4}, 0, 12}, "Backlog": {ListenOptions{Backlog: 4, HalfOpen: 100}, 0, 12}, "MaxConns": {ListenOptions{MaxConns: 4}, 0, 12},
	} {
		t.Run(name, func(t *testing.T) {
			protocol.EvictAfter = c.after
			ctx, cancel := context.WithTimeout(t.Context(), 3*timeout)
			defer cancel()
			l := limited(t, c.o)
			ch, err := protocol.OpenChannel(netip.Addr{}, netip.MustParseAddr(testenv.TheRig().Addrs[0]))
			must(t, err)
			var ids []*rdmacm.ID
			for i := range c.number {
				ids = append(ids, leaveHalfOpen(t, ctx, ch, l, uint32(i)))
			}
			if c.after == 0 {
				checkNext(t, l)
			} else if client, err := Dial(ctx, l.Addr().String(), Options{}); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("a request while others complete theirs: %v, %v", client, err)
			}
			conns, waiting, halfOpen := l.places.Counts()
			if most := l.o.limits.Conns; conns > most || waiting > l.o.limits.Backlog || halfOpen > l.o.limits.HalfOpen {
				t.Errorf("%d connections, %d waiting, %d half open; limits %d, %d, %d", conns, waiting, halfOpen, most, l.o.limits.Backlog, l.o.limits.HalfOpen)
			}
			for _, id := range ids {
				must(t, id.Close())
			}
			must(t, l.Close(), ch.Release())
			if conns, waiting, halfOpen := l.places.Counts(); conns != 0 || waiting != 0 || halfOpen != 0 {
				t.Errorf("a closed listener has %d connections, %d waiting, %d half open", conns, waiting, halfOpen)
			}
		})
	}
}

// TestMaxConns: a listener has as many connections as its options allow, in number or in bytes, and takes
// others when some are closed.
func TestMaxConns(t *testing.T) {
	testenv.Guest(t)
	one, err := Options{}.MemoryPerConn()
	must(t, err)
	for name, o := range map[string]ListenOptions{"MaxConns": {MaxConns: 3}, "MaxMemory": {MaxMemory: 4*one - 1}} {
		t.Run(name, func(t *testing.T) {
			l := limited(t, o)
			var all [][2]net.Conn
			for range 3 {
				client, server, err := connect(l, Options{})
				must(t, err)
				all = append(all, [2]net.Conn{client, server})
			}
			if _, err := Dial(t.Context(), l.Addr().String(), Options{}); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("a fourth connection: %v", err)
			}
			must(t, all[0][0].Close())
			_, err := io.ReadAll(all[0][1])
			must(t, err, all[0][1].Close())
			checkNext(t, l)
			for _, c := range all[1:] {
				must(t, c[0].Close(), c[1].Close())
			}
		})
	}
}

// TestMemoryPerConn: the result is what a connection registers.
func TestMemoryPerConn(t *testing.T) {
	for _, o := range []Options{{}, {RecvBuffer: 5001, SendBuffer: 4096, Credits: 16, Mappings: 128}} {
		l := newListener(t, o)
		client, server, err := connect(l, Options{})
		must(t, err)
		c := server.(*Conn)
		want, err := o.MemoryPerConn()
		must(t, err)
		if got := int64(c.sbuf.Buf.Len() + c.rbuf.Buf.Len() + c.table.Buf.Len()); got > want || got < want-3*4096 {
			t.Errorf("%+v: a connection has %d bytes, want %d", o, got, want)
		}
		must(t, client.Close(), server.Close())
	}
	if _, err := (Options{Credits: -1}).MemoryPerConn(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("options that are not valid: %v", err)
	}
}

// TestListenArguments: limits that are not valid.
func TestListenArguments(t *testing.T) {
	for field, o := range map[string]ListenOptions{
		"Backlog": {Backlog: -1}, "HalfOpen": {HalfOpen: 1<<20 + 1}, "AddrShare": {AddrShare: 101}, "MaxMemory": {MaxMemory: 1000}, "Credits": {Options: Options{Credits: -1}},
	} {
		_, err := Listen(t.Context(), "10.1.0.1:9", o)
		var arg *uverbs.ArgError
		if !errors.As(err, &arg) || arg.Field != field || arg.Op != "Listen" {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestAddrShare: one address cannot take all places of a listener.
func TestAddrShare(t *testing.T) {
	testenv.Guest(t)
	testenv.Needs(t, "half-open requests", "rxe", "mlx5")
	old := protocol.EvictAfter
	defer func() { protocol.EvictAfter = old }()
	protocol.EvictAfter = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	l := limited(t, ListenOptions{HalfOpen: 4})
	ch, err := protocol.OpenChannel(netip.Addr{}, netip.MustParseAddr(testenv.TheRig().Addrs[0]))
	must(t, err)
	defer func() { must(t, ch.Release()) }()
	second, first := testenv.TheRig().Addrs[1], testenv.TheRig().Addrs[0]
	for i, c := range []struct {
		from string
		want rdmacm.EventType
	}{
		{second, rdmacm.EventConnectResponse}, {second, rdmacm.EventConnectResponse}, {second, rdmacm.EventConnectResponse},
		{second, rdmacm.EventRejected},
		{first, rdmacm.EventConnectResponse},
	} {
		id, answer := leaveHalfOpenFrom(t, ctx, ch, l, rdmacm.Addr{IP: netip.MustParseAddr(c.from)}, uint32(i))
		if answer != c.want {
			t.Errorf("request %d, from %s, is answered with %v, want %v", i, c.from, answer, c.want)
		}
		defer func() { must(t, id.Close()) }()
	}
}

// TestHalfOpenTimeout: the place of a request that its peer does not complete is free again after a time.
func TestHalfOpenTimeout(t *testing.T) {
	testenv.Guest(t)
	testenv.Needs(t, "half-open requests", "rxe", "mlx5")
	old := protocol.HalfOpenTimeout
	defer func() { protocol.HalfOpenTimeout = old }()
	protocol.HalfOpenTimeout = time.Second
	ctx, cancel := context.WithTimeout(t.Context(), timeout) // the connection manager of software devices waits for 30 s
	defer cancel()
	refused := make(chan error, 1)
	l := limited(t, ListenOptions{Refused: func(_ rdmacm.Addr, err error) { refused <- err }})
	ch, err := protocol.OpenChannel(netip.Addr{}, netip.MustParseAddr(testenv.TheRig().Addrs[0]))
	must(t, err)
	id := leaveHalfOpen(t, ctx, ch, l, 0)
	select {
	case err := <-refused:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the request has failed with %v", err)
		}
	case <-ctx.Done():
		t.Error("the request is still half open")
	}
	for {
		conns, waiting, halfOpen := l.places.Counts()
		if conns == 0 && waiting == 0 && halfOpen == 0 {
			break
		}
		if time.Sleep(time.Millisecond); ctx.Err() != nil {
			t.Fatalf("a request that is given up leaves %d connections, %d waiting, %d half open", conns, waiting, halfOpen)
		}
	}
	must(t, id.Close(), ch.Release())
}

// TestHalfOpenMemory: a request that its peer does not complete costs little memory.
func TestHalfOpenMemory(t *testing.T) {
	testenv.Tags(t, testenv.Memory) // the race detector takes some itself
	testenv.Guest(t)
	testenv.Needs(t, "half-open requests", "rxe", "mlx5")
	const number, most = 400, 256 << 10
	ctx, cancel := context.WithTimeout(t.Context(), 3*timeout)
	defer cancel()
	old := protocol.HalfOpenTimeout
	defer func() { protocol.HalfOpenTimeout = old }()
	protocol.HalfOpenTimeout = 2 * timeout
	l := limited(t, ListenOptions{HalfOpen: 1000})
	ch, err := protocol.OpenChannel(netip.Addr{}, netip.MustParseAddr(testenv.TheRig().Addrs[0]))
	must(t, err)
	var ids []*rdmacm.ID
	leave := func(n int) {
		for range n {
			ids = append(ids, leaveHalfOpen(t, ctx, ch, l, uint32(len(ids))))
		}
	}
	leave(10)
	before := resident(t)
	leave(number)
	if each := (resident(t) - before) / number; each > most {
		t.Errorf("a request takes %d bytes, want at most %d", each, most)
	} else {
		t.Logf("a request takes %d bytes", each)
	}
	for _, id := range ids {
		must(t, id.Close())
	}
	must(t, ch.Release())
}

// resident returns the resident memory of the process, in bytes.
func resident(t *testing.T) int {
	t.Helper()
	runtime.GC()
	b, err := os.ReadFile("/proc/self/statm")
	must(t, err)
	var size, pages int
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
