package cm

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// connMistakes are calls about connections that fail, with the words of their errors, in order; " ... " is
// anything between them. Each is made by both sides of a connection, a and b; mem is memory of both, of 4096
// bytes, which the peer may read and write.
var connMistakes = []struct {
	name string
	call func(ctx context.Context, l *Listener, a, b *Conn, local uverbs.SGE, remote Remote) error
	want string
}{
	{"port taken", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		return errOf(Listen(ctx, l.Addr().String(), ListenOptions{}))
	}, "address already in use: the port is taken; "},
	{"address of another host", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		return errOf(Listen(ctx, "192.0.2.77:0", ListenOptions{}))
	}, "192.0.2.77:0: bind: cannot assign requested address: no network interface has it"},
	{"no listener", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		return errOf(Dial(ctx, firstBad, DialOptions{}))
	}, "nobody listens"},
	{"address without a port", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		return errOf(Dial(ctx, "192.0.2.77", DialOptions{}))
	}, "192.0.2.77: missing port in address"},
	{"port out of range", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		return errOf(Dial(ctx, "192.0.2.77:65536", DialOptions{}))
	}, "65536"},
	{"private data too long", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		return errOf(Dial(ctx, l.Addr().String(), DialOptions{PrivateData: make([]byte, 1000)}))
	}, "PrivateData is 1000 bytes long, allowed: up to "},
	{"message size", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		return errOf(Dial(ctx, l.Addr().String(), DialOptions{ConnOptions: ConnOptions{MessageSize: 1 << 30}}))
	}, "MessageSize is 1073741824, allowed: "},
	{"depth", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		return errOf(Listen(ctx, firstAny, ListenOptions{ConnOptions: ConnOptions{Depth: -1}}))
	}, "Depth is -1, allowed: "},
	{"backlog", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		return errOf(Listen(ctx, firstAny, ListenOptions{Backlog: -1}))
	}, "Backlog is -1, allowed: "},
	{"listener that has no room", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		var told refusals
		full, err := Listen(ctx, firstAny, ListenOptions{Backlog: 1, HalfOpen: 1, ConnOptions: small, Refused: told.add})
		if err != nil {
			return err
		}
		defer full.Close()
		c, err := Dial(ctx, full.Addr().String(), DialOptions{ConnOptions: small})
		if err != nil {
			return err
		}
		defer c.Close()
		return told.dial(ctx, full, DialOptions{ConnOptions: small})
	}, " refuses: \"too many connections are waiting to be accepted"},
	{"listener that nobody serves", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		c, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{})
		if err != nil {
			return err
		}
		defer c.Close()
		id, err := c.NewID(rdmacm.TCP)
		if err != nil {
			return err
		}
		defer id.Close()
		if err := errors.Join(id.Bind(rdmacm.Addr{IP: first}), id.Listen(1)); err != nil {
			return err
		}
		addrs, err := id.Addrs()
		if err != nil {
			return err
		}
		return errOf(Dial(context.WithoutCancel(ctx), netip.AddrPortFrom(addrs.Local.IP, addrs.Local.Port).String(), DialOptions{Timeout: 200 * time.Millisecond}))
	}, "no answer for 200ms: connection timed out"},
	{"families that differ", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		return errOf(Dial(ctx, l.Addr().String(), DialOptions{LocalAddr: netip.MustParseAddrPort("[::1]:0")}))
	}, "LocalAddr is [::1]:0, allowed: an address of the family of "},
	{"message longer than the peer takes", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		return a.Send(ctx, make([]byte, a.MaxMessage()+1))
	}, "bytes long, allowed: up to "},
	{"READ of too much", func(ctx context.Context, l *Listener, a, b *Conn, local uverbs.SGE, remote Remote) error {
		local.Length = 4095
		remote.Length = 100
		return a.RDMARead(ctx, local, remote)
	}, "allowed: "},
	{"atomic at an odd address", func(ctx context.Context, l *Listener, a, b *Conn, local uverbs.SGE, remote Remote) error {
		local.Length, remote.Addr = 8, remote.Addr+1
		return a.CompareSwap(ctx, local, remote, 0, 1)
	}, "remote.Addr is 0x ... allowed: a multiple of 8"},
	{"context that has ended", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		done, cancel := context.WithCancel(ctx)
		cancel()
		return errOf(a.Recv(done))
	}, "context canceled"},
	{"peer that does not receive", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		for {
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			err := a.Send(short, []byte{1})
			cancel()
			a.mu.Lock()
			full := a.credits == 0
			a.mu.Unlock()
			if err != nil && full {
				return err
			}
		}
	}, "the peer has no room; its program must receive some of ... messages: context deadline exceeded"},
	{"send after Close", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		if err := a.Close(); err != nil {
			return err
		}
		return a.Send(ctx, []byte{1})
	}, "it is closed"},
	{"receive after the peer's Close", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		if err := b.Close(); err != nil {
			return err
		}
		return errOf(a.Recv(ctx))
	}, "EOF"},
	{"send after the peer's Close", func(ctx context.Context, l *Listener, a, b *Conn, _ uverbs.SGE, _ Remote) error {
		if err := b.Close(); err != nil {
			return err
		}
		for {
			if err := a.Send(ctx, []byte{1}); err != nil {
				return err
			}
		}
	}, "the peer has closed it"},
}

// errOf returns the error of a call that returns something else, too.
func errOf[T any](_ T, err error) error { return err }

// TestConnMistakes makes each mistake with each side of a connection. The first sentence of an error is short.
func TestConnMistakes(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	testenv.Guest(t)
	before := quiet(t)
	ctx := within(t)
	l := value(Listen(ctx, firstAny, ListenOptions{ConnOptions: small}))(t)
	for _, m := range connMistakes {
		for _, dialer := range []bool{true, false} {
			a, b := connect(t, l, DialOptions{ConnOptions: small})
			if !dialer {
				a, b = b, a
			}
			buf := value(uverbs.AllocBuffer(4096, uverbs.BufferOptions{}))(t)
			const all = uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead
			mine, theirs := value(a.PD().RegMR(buf, uverbs.MROptions{Access: all}))(t), value(b.PD().RegMR(buf, uverbs.MROptions{Access: all}))(t)
			err := m.call(ctx, l, a, b, mine.SGE(0, 64), RemoteOf(theirs))
			if err == nil || m.want == "" {
				t.Fatalf("%s: no error, or no words", m.name)
			}
			if first, _, _ := strings.Cut(err.Error(), "; "); len(first) >= 120 {
				t.Errorf("%s: the first sentence has %d characters, want less than 120: %v", m.name, len(first), err)
			}
			rest := err.Error()
			for _, w := range strings.Split(m.want, " ... ") {
				_, after, ok := strings.Cut(rest, w)
				if !ok {
					t.Errorf("%s: the error does not say %q (there): %v", m.name, w, err)
				}
				rest = after
			}
			must(t, mine.Close(), theirs.Close(), a.Close(), b.Close(), buf.Close())
		}
	}
	must(t, l.Close())
	nothingLeft(t, before)
}
