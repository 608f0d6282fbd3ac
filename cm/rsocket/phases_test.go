package rsocket

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// wrongData is private data that is not valid, and what the error says.
func wrongData() map[string]struct {
	data []byte
	say  string
} {
	change := func(at int, to ...byte) []byte {
		b := bytes.Clone(connData{credits: 384, table: segment{1 << 40, 7, 2}, buffer: segment{1 << 41, 8, 65536}}.encode())
		copy(b[at:], to)
		return b
	}
	return map[string]struct {
		data []byte
		say  string
	}{
		"version":    {change(0, 2), "its private data has version 2, want 1"},
		"zeros":      {make([]byte, connDataSize), "its private data has version 0, want 1"},
		"no credits": {change(2, 0, 0), "gives 0 credits"},
		"no table":   {change(20, 0, 0, 0, 0), "table of buffers has 0 entries"},
		"long table": {change(20, 1, 0, 0, 0), "table of buffers has 16777216 entries"},
		"no buffer":  {change(36, 0, 0, 0, 0), "buffer has 0 bytes"},
		"high table": {change(8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xf0), "goes beyond the largest address"},
	}
}

// rawPeer is a peer that has a QP and says what it likes.
type rawPeer struct {
	id      *rdmacm.ID
	closers []io.Closer
}

// newRawPeer makes a QP for an ID whose device is known.
func newRawPeer(id *rdmacm.ID) (*rawPeer, error) {
	p := &rawPeer{id: id}
	addrs, err := id.Addrs()
	if err != nil {
		return p, err
	}
	d, err := protocol.UseDevice(addrs.Device)
	if err != nil {
		return p, err
	}
	p.closers = append(p.closers, closerFunc(d.Release))
	cq, err := d.Dev.CreateCQ(uverbs.CQOptions{MaxCQE: 16})
	if err != nil {
		return p, err
	}
	p.closers = append(p.closers, cq)
	_, err = id.CreateQP(d.PD, uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, MaxRecvWR: 4})
	return p, err
}

// closerFunc is a function that closes something.
type closerFunc func() error

// Close implements [io.Closer].
func (f closerFunc) Close() error { return f() }

// close closes the peer.
func (p *rawPeer) close() error {
	errs := []error{p.id.Close()}
	for i := len(p.closers) - 1; i >= 0; i-- {
		errs = append(errs, p.closers[i].Close())
	}
	return errors.Join(errs...)
}

// dialRaw begins a connection to a listener: the peer has a route and a QP.
func dialRaw(ctx context.Context, ch *protocol.Channel, to string) (*rawPeer, error) {
	id, err := ch.NewID(rdmacm.TCP)
	if err != nil {
		return nil, err
	}
	if err := id.ResolveWait(ctx, rdmacm.Addr{}, rdmacm.AddrOf(netip.MustParseAddrPort(to))); err != nil {
		return nil, errors.Join(err, id.Close())
	}
	p, err := newRawPeer(id)
	if err != nil {
		err = errors.Join(err, p.close())
	}
	return p, err
}

// TestWrongRequest: a request with private data that is not valid is rejected, and no connection comes of
// it.
func TestWrongRequest(t *testing.T) {
	l := newListener(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 3*timeout)
	defer cancel()
	ch, err := protocol.OpenChannel(netip.Addr{}, netip.MustParseAddr(testenv.TheRig().Addrs[0]))
	must(t, err)
	defer func() { must(t, ch.Release()) }()
	for name, w := range wrongData() {
		p, err := dialRaw(ctx, ch, l.Addr().String())
		must(t, err)
		_, err = p.id.ConnectWait(ctx, rdmacm.ConnParam{PrivateData: w.data, RetryCount: 7, RNRRetryCount: 7, InitiatorDepth: 1})
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", name, err)
		}
		must(t, p.close())
	}
	checkNext(t, l)
}

// TestWrongAnswer: an answer with private data that is not valid ends Dial with an error that says what is
// wrong.
func TestWrongAnswer(t *testing.T) {
	testenv.Guest(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*timeout)
	defer cancel()
	addr := netip.MustParseAddr(testenv.TheRig().Addrs[0])
	ch, err := protocol.OpenChannel(addr, netip.Addr{})
	must(t, err)
	id, err := ch.NewID(rdmacm.TCP)
	must(t, err, id.Bind(rdmacm.AddrOf(netip.AddrPortFrom(addr, 0))), id.Listen(10))
	all, err := id.Addrs()
	must(t, err)
	for name, w := range wrongData() {
		dialed := make(chan error, 1)
		go func() {
			_, err := Dial(ctx, all.Local.String(), Options{})
			dialed <- err
		}()
		e, err := id.Request(ctx)
		must(t, err)
		p, err := newRawPeer(e.ID)
		must(t, err)
		accepted := e.ID.Accept(rdmacm.ConnParam{PrivateData: w.data, RetryCount: 7, RNRRetryCount: 7, InitiatorDepth: 1, ResponderResources: 1})
		if err := <-dialed; accepted != nil || !errors.Is(err, syscall.EPROTO) || !strings.Contains(err.Error(), w.say) {
			t.Errorf("%s: %v, %v, want %q", name, err, accepted, w.say)
		}
		must(t, p.close())
	}
	must(t, id.Close(), ch.Release())
}

// TestCut: peers that give up somewhere on the way to a connection, and after it, leave a listener that
// works and nothing else.
func TestCut(t *testing.T) {
	l := newListener(t, Options{Linger: time.Second})
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				c.SetDeadline(time.Now().Add(timeout))
				io.Copy(c, struct{ io.Reader }{c})
				c.Close()
			})
		}
	})
	defer served.Wait()
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*timeout)
	defer cancel()
	ch, err := protocol.OpenChannel(netip.Addr{}, netip.MustParseAddr(testenv.TheRig().Addrs[0]))
	must(t, err)
	data := connData{credits: 384, table: segment{1 << 40, 7, 2}, buffer: segment{1 << 41, 8, 65536}}.encode()
	param := rdmacm.ConnParam{PrivateData: data, RetryCount: 1, RNRRetryCount: 7, InitiatorDepth: 1}
	for i := range 24 {
		p, err := dialRaw(ctx, ch, l.Addr().String())
		must(t, err)
		switch i % 4 {
		case 0: // gone with the request
			must(t, p.id.Connect(param))
		case 1: // gone while the listener answers
			must(t, p.id.Connect(param))
			time.Sleep(time.Duration(i) * 200 * time.Microsecond)
		case 2: // gone once it is established; the memory that it has announced does not exist
			_, err := p.id.ConnectWait(ctx, param)
			must(t, err)
		case 3: // ends politely
			_, err := p.id.ConnectWait(ctx, param)
			must(t, err)
			p.id.Disconnect()
		}
		must(t, p.close())
		short, end := context.WithTimeout(ctx, time.Duration(i)*300*time.Microsecond)
		if c, err := Dial(short, l.Addr().String(), Options{}); err == nil {
			must(t, c.Close())
		}
		end()
	}
	must(t, ch.Release())
	c, err := Dial(ctx, l.Addr().String(), Options{})
	must(t, err, c.SetDeadline(time.Now().Add(timeout)))
	_, err = c.Write([]byte("still here"))
	must(t, err)
	got := make([]byte, 10)
	_, err = io.ReadFull(c, got)
	must(t, err, c.Close())
	if string(got) != "still here" {
		t.Errorf("%q comes back", got)
	}
	if _, err := c.Read(got); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read from a closed connection: %v", err)
	}
}
