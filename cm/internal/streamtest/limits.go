package streamtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/limits"
	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/internal/redial"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// leaveHalfOpen makes a request that its peer does not complete, and waits for the answer. The peer
// has no QP, but its kernel wants a number, and each only once.
func (p *Protocol) leaveHalfOpen(t *testing.T, ctx context.Context, ch *protocol.Channel, l net.Listener, qpn uint32) *rdmacm.ID {
	t.Helper()
	id, answer := p.leaveHalfOpenFrom(t, ctx, ch, l, rdmacm.Addr{}, qpn)
	if answer != rdmacm.EventConnectResponse {
		t.Fatalf("the request is answered with %v", answer)
	}
	return id
}

// leaveHalfOpenFrom makes such a request from an address, and returns the answer.
func (p *Protocol) leaveHalfOpenFrom(t *testing.T, ctx context.Context, ch *protocol.Channel, l net.Listener, from rdmacm.Addr, qpn uint32) (*rdmacm.ID, rdmacm.EventType) {
	t.Helper()
	id, err := ch.NewID(rdmacm.TCP)
	Must(t, err, id.ResolveWait(ctx, from, l.Addr().(rdmacm.Addr)))
	Must(t, id.Connect(rdmacm.ConnParam{PrivateData: p.Data, QPN: 1<<23 + qpn}))
	e, err := id.Next(ctx)
	Must(t, err)
	return id, e.Type
}

// HalfOpen: peers that complete nothing take the place of others that complete nothing, once these have had
// enough time.
func (p *Protocol) HalfOpen(t *testing.T) {
	testenv.Guest(t)
	testenv.Needs(t, "half-open requests", "rxe", "mlx5") // on iWARP the kernel answers for the peer
	old := limits.Patience
	defer func() { limits.Patience = old }()
	for name, c := range map[string]struct {
		o      Options
		after  time.Duration
		number int // of half-open requests
	}{
		"in time":  {Options{HalfOpen: 2}, time.Hour, 2},
		"HalfOpen": {Options{HalfOpen: 4}, 0, 12}, "Backlog": {Options{Backlog: 4, HalfOpen: 100}, 0, 12}, "MaxConns": {Options{MaxConns: 4}, 0, 12},
	} {
		t.Run(name, func(t *testing.T) {
			limits.Patience = c.after
			ctx, cancel := context.WithTimeout(t.Context(), 3*Timeout)
			defer cancel()
			refused := p.countRefusals(&c.o)
			l := p.Listener(t, c.o)
			ch, err := protocol.OpenChannel(netip.Addr{}, netip.MustParseAddr(testenv.TheRig().Addrs[0]))
			Must(t, err)
			var ids []*rdmacm.ID
			for i := range c.number {
				ids = append(ids, p.leaveHalfOpen(t, ctx, ch, l, uint32(i)))
			}
			if c.after == 0 {
				p.CheckNext(t, l)
			} else {
				refused.dial(t, ctx, l)
			}
			conns, waiting, halfOpen, most := p.Places(l).Counts()
			if conns > most.Conns || waiting > most.Backlog || halfOpen > most.HalfOpen {
				t.Errorf("%d connections, %d waiting, %d half open; limits %+v", conns, waiting, halfOpen, most)
			}
			for _, id := range ids {
				Must(t, id.Close())
			}
			Must(t, l.Close(), ch.Release())
			if conns, waiting, halfOpen, _ := p.Places(l).Counts(); conns != 0 || waiting != 0 || halfOpen != 0 {
				t.Errorf("a closed listener has %d connections, %d waiting, %d half open", conns, waiting, halfOpen)
			}
		})
	}
}

// MaxConns: a listener has as many connections as its options allow, in number or in bytes, and takes
// others when some are closed.
func (p *Protocol) MaxConns(t *testing.T) {
	testenv.Guest(t)
	one, err := p.Memory(Options{})
	Must(t, err)
	for name, o := range map[string]Options{"MaxConns": {MaxConns: 3}, "MaxMemory": {MaxMemory: 4*one - 1}} {
		t.Run(name, func(t *testing.T) {
			refused := p.countRefusals(&o)
			l := p.Listener(t, o)
			var all [][2]net.Conn
			for range 3 {
				client, server, err := p.Connect(l, Options{})
				Must(t, err)
				all = append(all, [2]net.Conn{client, server})
			}
			refused.dial(t, t.Context(), l)
			Must(t, all[0][0].Close())
			_, err := io.ReadAll(all[0][1])
			Must(t, err, all[0][1].Close())
			p.CheckNext(t, l)
			for _, c := range all[1:] {
				Must(t, c[0].Close(), c[1].Close())
			}
		})
	}
}

// refusalCount counts the refusals of a listener that has no place.
type refusalCount struct {
	p    *Protocol
	told chan struct{}
}

// countRefusals has the listener with the options tell the result of its refusals.
func (p *Protocol) countRefusals(o *Options) *refusalCount {
	r := &refusalCount{p, make(chan struct{}, 100)}
	o.Refused = func(rdmacm.Addr, error) { r.told <- struct{}{} }
	return r
}

// dial dials until the listener has refused three times: Dial has got at least one refusal then, and returns it.
func (r *refusalCount) dial(t *testing.T, ctx context.Context, l net.Listener) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 3*Timeout)
	defer cancel()
	for len(r.told) > 0 {
		<-r.told
	}
	go func() {
		for range 3 {
			select {
			case <-r.told:
			case <-ctx.Done():
			}
		}
		cancel()
	}()
	if _, err := r.p.Dial(ctx, l.Addr().String(), Options{}); !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), redial.Many) {
		t.Errorf("Dial of a listener that has no place: %v", err)
	}
}

// MemoryPerConn: the result is what a connection registers.
func (p *Protocol) MemoryPerConn(t *testing.T) {
	for _, o := range []Options{{}, {RecvBuffer: p.Odd, SendBuffer: 4096, Depth: 16}} {
		client, server, err := p.Connect(p.Listener(t, o), Options{})
		Must(t, err)
		want, err := p.Memory(o)
		Must(t, err)
		if got := p.Stream(server).Registered(); got > want || got < want-3*4096 {
			t.Errorf("%+v: a connection has %d bytes, want %d", o, got, want)
		}
		Must(t, client.Close(), server.Close())
	}
	if _, err := p.Memory(Options{Depth: -1}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("options that are not valid: %v", err)
	}
}

// Arguments: options that are not valid.
func (p *Protocol) Arguments(t *testing.T) {
	for field, o := range map[string]Options{
		"RecvBuffer": {RecvBuffer: 100}, "SendBuffer": {SendBuffer: 2 << 30}, p.Depth: {Depth: 70000}, "Isolation": {Isolation: 2}, "SendDepth": {SendDepth: -1}, "Linger": {Linger: -1},
	} {
		_, err := p.Dial(t.Context(), "10.1.0.1:9", o)
		p.checkArg(t, err, "Dial", field)
	}
	for field, o := range map[string]Options{
		"Backlog": {Backlog: -1}, "HalfOpen": {HalfOpen: 1<<20 + 1}, "AddrShare": {AddrShare: 101}, "MaxMemory": {MaxMemory: 1000}, p.Depth: {Depth: -1},
	} {
		_, err := p.Listen(t.Context(), "10.1.0.1:9", o)
		p.checkArg(t, err, "Listen", field)
	}
}

// checkArg checks the error of an argument that is not valid.
func (p *Protocol) checkArg(t *testing.T, err error, op, field string) {
	t.Helper()
	var arg *uverbs.ArgError
	if !errors.As(err, &arg) || arg.Field != field || arg.Op != op || arg.Package != p.Network {
		t.Errorf("%s: %v", field, err)
	}
}

// AddrShare: one address cannot take all places of a listener.
func (p *Protocol) AddrShare(t *testing.T) {
	testenv.Guest(t)
	testenv.Needs(t, "half-open requests", "rxe", "mlx5")
	old := limits.Patience
	defer func() { limits.Patience = old }()
	limits.Patience = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), Timeout)
	defer cancel()
	l := p.Listener(t, Options{HalfOpen: 4})
	ch, err := protocol.OpenChannel(netip.Addr{}, netip.MustParseAddr(testenv.TheRig().Addrs[0]))
	Must(t, err)
	defer func() { Must(t, ch.Release()) }()
	second, first := testenv.TheRig().Addrs[1], testenv.TheRig().Addrs[0]
	for i, c := range []struct {
		from string
		want rdmacm.EventType
	}{
		{second, rdmacm.EventConnectResponse}, {second, rdmacm.EventConnectResponse}, {second, rdmacm.EventConnectResponse},
		{second, rdmacm.EventRejected},
		{first, rdmacm.EventConnectResponse},
	} {
		id, answer := p.leaveHalfOpenFrom(t, ctx, ch, l, rdmacm.Addr{IP: netip.MustParseAddr(c.from)}, uint32(i))
		if answer != c.want {
			t.Errorf("request %d, from %s, is answered with %v, want %v", i, c.from, answer, c.want)
		}
		defer func() { Must(t, id.Close()) }()
	}
}

// HalfOpenTimeout: the place of a request that its peer does not complete is free again after a time.
func (p *Protocol) HalfOpenTimeout(t *testing.T) {
	testenv.Guest(t)
	testenv.Needs(t, "half-open requests", "rxe", "mlx5")
	old := protocol.HalfOpenTimeout
	defer func() { protocol.HalfOpenTimeout = old }()
	protocol.HalfOpenTimeout = time.Second
	ctx, cancel := context.WithTimeout(t.Context(), Timeout) // the connection manager of software devices waits for 30 s
	defer cancel()
	refused := make(chan error, 1)
	l := p.Listener(t, Options{Refused: func(_ rdmacm.Addr, err error) { refused <- err }})
	ch, err := protocol.OpenChannel(netip.Addr{}, netip.MustParseAddr(testenv.TheRig().Addrs[0]))
	Must(t, err)
	id := p.leaveHalfOpen(t, ctx, ch, l, 0)
	select {
	case err := <-refused:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the request has failed with %v", err)
		}
	case <-ctx.Done():
		t.Error("the request is still half open")
	}
	for {
		conns, waiting, halfOpen, _ := p.Places(l).Counts()
		if conns == 0 && waiting == 0 && halfOpen == 0 {
			break
		}
		if time.Sleep(time.Millisecond); ctx.Err() != nil {
			t.Fatalf("a request that is given up leaves %d connections, %d waiting, %d half open", conns, waiting, halfOpen)
		}
	}
	Must(t, id.Close(), ch.Release())
}

// HalfOpenMemory: a request that its peer does not complete costs little memory.
func (p *Protocol) HalfOpenMemory(t *testing.T) {
	testenv.Tags(t, testenv.Memory) // the race detector takes some itself
	testenv.Guest(t)
	testenv.Needs(t, "half-open requests", "rxe", "mlx5")
	const number, most = 400, 256 << 10
	ctx, cancel := context.WithTimeout(t.Context(), 3*Timeout)
	defer cancel()
	old := protocol.HalfOpenTimeout
	defer func() { protocol.HalfOpenTimeout = old }()
	protocol.HalfOpenTimeout = 2 * Timeout
	l := p.Listener(t, Options{HalfOpen: 1000})
	ch, err := protocol.OpenChannel(netip.Addr{}, netip.MustParseAddr(testenv.TheRig().Addrs[0]))
	Must(t, err)
	var ids []*rdmacm.ID
	leave := func(n int) {
		for range n {
			ids = append(ids, p.leaveHalfOpen(t, ctx, ch, l, uint32(len(ids))))
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
		Must(t, id.Close())
	}
	Must(t, ch.Release())
}

// resident returns the resident memory of the process, in bytes.
func resident(t *testing.T) int {
	t.Helper()
	runtime.GC()
	b, err := os.ReadFile("/proc/self/statm")
	Must(t, err)
	var size, pages int
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
