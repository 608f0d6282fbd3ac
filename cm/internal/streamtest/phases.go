package streamtest

import (
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

// RawPeer is a peer that has a QP and says what it likes.
type RawPeer struct {
	ID      *rdmacm.ID // ID is the connection's.
	closers []io.Closer
}

// NewRawPeer makes a QP for an ID whose device is known.
func NewRawPeer(id *rdmacm.ID) (*RawPeer, error) {
	p := &RawPeer{ID: id}
	_, index, err := id.AddrsByIndex()
	if err != nil {
		return p, err
	}
	d, err := protocol.UseDevice(index)
	if err != nil {
		return p, err
	}
	p.closers = append(p.closers, closerFunc(d.Release))
	cq, err := d.Dev.CreateCQ(uverbs.CQOptions{Size: 16})
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

// Close closes the peer.
func (p *RawPeer) Close() error {
	errs := []error{p.ID.Close()}
	for i := len(p.closers) - 1; i >= 0; i-- {
		errs = append(errs, p.closers[i].Close())
	}
	return errors.Join(errs...)
}

// DialRaw begins a connection to a listener: the peer has a route and a QP.
func DialRaw(ctx context.Context, ch *protocol.Channel, to string) (*RawPeer, error) {
	id, err := ch.NewID(rdmacm.TCP)
	if err != nil {
		return nil, err
	}
	if err := id.ResolveWait(ctx, rdmacm.Addr{}, rdmacm.AddrOf(netip.MustParseAddrPort(to))); err != nil {
		return nil, errors.Join(err, id.Close())
	}
	p, err := NewRawPeer(id)
	if err != nil {
		err = errors.Join(err, p.Close())
	}
	return p, err
}

// WrongRequest: a request with private data that is not valid is rejected, and no connection comes of
// it.
func (p *Protocol) WrongRequest(t *testing.T) {
	l := p.Listener(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 3*Timeout)
	defer cancel()
	ch, err := protocol.OpenChannel(netip.Addr{}, netip.MustParseAddr(testenv.TheRig().Addrs[0]))
	Must(t, err)
	defer func() { Must(t, ch.Release()) }()
	for name, w := range p.Wrong {
		raw, err := DialRaw(ctx, ch, l.Addr().String())
		Must(t, err)
		_, err = raw.ID.ConnectWait(ctx, rdmacm.ConnParam{PrivateData: w.Data, RetryCount: 7, RNRRetryCount: 7, InitiatorDepth: 1})
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", name, err)
		}
		Must(t, raw.Close())
	}
	p.CheckNext(t, l)
}

// WrongAnswer: an answer with private data that is not valid ends Dial with an error that says what is
// wrong.
func (p *Protocol) WrongAnswer(t *testing.T) {
	testenv.Guest(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*Timeout)
	defer cancel()
	addr := netip.MustParseAddr(testenv.TheRig().Addrs[0])
	ch, err := protocol.OpenChannel(addr, netip.Addr{})
	Must(t, err)
	id, err := ch.NewID(rdmacm.TCP)
	Must(t, err, id.Bind(rdmacm.AddrOf(netip.AddrPortFrom(addr, 0))), id.Listen(10))
	all, err := id.Addrs()
	Must(t, err)
	for name, w := range p.Wrong {
		dialed := make(chan error, 1)
		go func() {
			_, err := p.Dial(ctx, all.Local.String(), Options{})
			dialed <- err
		}()
		e, err := id.NextRequest(ctx)
		Must(t, err)
		raw, err := NewRawPeer(e.ID)
		Must(t, err)
		accepted := e.ID.Accept(rdmacm.ConnParam{PrivateData: w.Data, RetryCount: 7, RNRRetryCount: 7, InitiatorDepth: 1, ResponderResources: 1})
		if err := <-dialed; accepted != nil || !errors.Is(err, syscall.EPROTO) || !strings.Contains(err.Error(), w.Say) {
			t.Errorf("%s: %v, %v, want %q", name, err, accepted, w.Say)
		}
		Must(t, raw.Close())
	}
	Must(t, id.Close(), ch.Release())
}

// Cut: peers that give up somewhere on the way to a connection, and after it, leave a listener that
// works and nothing else.
func (p *Protocol) Cut(t *testing.T) {
	l := p.Listener(t, Options{Linger: time.Second})
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				c.SetDeadline(time.Now().Add(Timeout))
				io.Copy(c, struct{ io.Reader }{c})
				c.Close()
			})
		}
	})
	defer served.Wait()
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*Timeout)
	defer cancel()
	ch, err := protocol.OpenChannel(netip.Addr{}, netip.MustParseAddr(testenv.TheRig().Addrs[0]))
	Must(t, err)
	param := rdmacm.ConnParam{PrivateData: p.Data, RetryCount: 1, RNRRetryCount: 7, InitiatorDepth: 1}
	for i := range 24 {
		raw, err := DialRaw(ctx, ch, l.Addr().String())
		Must(t, err)
		switch i % 4 {
		case 0: // gone with the request
			Must(t, raw.ID.Connect(param))
		case 1: // gone while the listener answers
			Must(t, raw.ID.Connect(param))
			time.Sleep(time.Duration(i) * 200 * time.Microsecond)
		case 2: // gone once it is established; it has announced no memory that exists
			_, err := raw.ID.ConnectWait(ctx, param)
			Must(t, err)
		case 3: // ends politely
			_, err := raw.ID.ConnectWait(ctx, param)
			Must(t, err)
			raw.ID.Disconnect()
		}
		Must(t, raw.Close())
		short, end := context.WithTimeout(ctx, time.Duration(i)*300*time.Microsecond)
		if c, err := p.Dial(short, l.Addr().String(), Options{}); err == nil {
			Must(t, c.Close())
		}
		end()
	}
	Must(t, ch.Release())
	c, err := p.Dial(ctx, l.Addr().String(), Options{})
	Must(t, err, c.SetDeadline(time.Now().Add(Timeout)))
	_, err = c.Write([]byte("still here"))
	Must(t, err)
	got := make([]byte, 10)
	_, err = io.ReadFull(c, got)
	Must(t, err, c.Close())
	if string(got) != "still here" {
		t.Errorf("%q comes back", got)
	}
	if _, err := c.Read(got); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read from a closed connection: %v", err)
	}
}
