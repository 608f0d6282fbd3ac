package cm

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// TestConnMTU: between ports of different MTUs a connection has the smaller one, whichever side dials.
func TestConnMTU(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsSoft(t, "this test makes devices with MTUs")
	ctx := within(t)
	small, large := value(soft.New(soft.Options{MTU: 1024}))(t), value(soft.New(soft.Options{MTU: 4096}))(t)
	t.Cleanup(func() { must(t, small.Close(), large.Close()) })
	for _, c := range []struct{ from, to *soft.Device }{{large, small}, {small, large}, {large, large}} {
		l := value(Listen(ctx, netip.AddrPortFrom(c.to.Addr(), 0).String(), ListenOptions{}))(t)
		client := value(Dial(ctx, l.Addr().String(), DialOptions{LocalAddr: netip.AddrPortFrom(c.from.Addr(), 0)}))(t)
		server := value(l.Accept(ctx))(t)
		want := ib.MTU1024
		if c.from == c.to {
			want = ib.MTU4096
		}
		for _, conn := range []*Conn{client, server} {
			if attr := value(conn.qp.Query())(t); attr.PathMTU != want {
				t.Errorf("from %s to %s: the path has MTU %d, want %d", c.from.Name(), c.to.Name(), attr.PathMTU.Bytes(), want.Bytes())
			}
		}
		for _, s := range [][2]*Conn{{client, server}, {server, client}} {
			message := bytes.Repeat([]byte("0123456789"), 1000)
			sent := make(chan error)
			go func() { sent <- s[0].Send(ctx, message) }()
			if got := value(s[1].Recv(ctx))(t); !bytes.Equal(got, message) {
				t.Errorf("%d bytes arrive, or other ones", len(got))
			}
			must(t, <-sent)
		}
		must(t, client.Close(), server.Close(), l.Close())
	}
}

// TestAnswerMTU: what a peer says in its answer lowers the path MTU only if it is one.
func TestAnswerMTU(t *testing.T) {
	answer := greeting{kind: greetingAnswer, depth: 1, size: 1, data: []byte("data")}.encode()
	for name, c := range map[string]struct {
		private []byte
		want    ib.MTU
	}{
		"an MTU":              {append(bytes.Clone(answer), 3, 0), ib.MTU1024},
		"none":                {append(bytes.Clone(answer), 0, 0), 0},
		"no more than an end": {answer, 0},
		"no greeting":         {[]byte("hello"), 0},
	} {
		if got := answerMTU(c.private); got != c.want {
			t.Errorf("%s: MTU %d, want %d", name, got, c.want)
		}
	}
}

// TestRefuseMTU: a program that does not tell its MTU cannot accept a request with a larger one.
func TestRefuseMTU(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsSoft(t, "this test makes devices with MTUs")
	ctx := within(t)
	small, large := value(soft.New(soft.Options{MTU: 1024}))(t), value(soft.New(soft.Options{MTU: 4096}))(t)
	t.Cleanup(func() { must(t, small.Close(), large.Close()) })
	c := value(rdmacm.OpenChannel(rdmacm.ChannelOptions{Local: large.Addr(), Remote: small.Addr()}))(t)
	l, to := listenNow(t, c, netip.AddrPortFrom(small.Addr(), 0))
	accepted := make(chan error)
	go func() {
		e, err := l.NextRequest(ctx)
		if err != nil {
			accepted <- err
			accepted <- nil
			return
		}
		defer func() { accepted <- e.ID.Close() }()
		addrs, err := e.ID.Addrs()
		if err == nil {
			var dev *uverbs.Device
			if dev, err = uverbs.Open(addrs.Device, uverbs.OpenOptions{}); err == nil {
				defer dev.CloseAll()
				err = createRC(e.ID, dev)
			}
		}
		if err == nil {
			err = e.ID.Accept(rdmacm.ConnParam{})
		}
		accepted <- err
	}()
	id := value(c.NewID(rdmacm.TCP))(t)
	must(t, id.ResolveWait(ctx, rdmacm.Addr{IP: large.Addr()}, rdmacm.AddrOf(to)))
	dev := value(uverbs.Open(large.Name(), uverbs.OpenOptions{}))(t)
	must(t, createRC(id, dev))
	connected := make(chan error)
	go func() {
		_, err := id.ConnectWait(ctx, rdmacm.ConnParam{})
		connected <- err
	}()
	if err := <-accepted; !errors.Is(err, syscall.EMSGSIZE) || !strings.Contains(err.Error(), "cm: accept: message too long: the peer asks for path MTU 4096, and port 1 of "+small.Name()+" has 1024") {
		t.Errorf("Accept: %v", err)
	}
	if err := <-connected; !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the peer: %v", err)
	}
	must(t, <-accepted, id.Close(), dev.CloseAll(), l.Close(), c.Close())
}

// createRC creates the QP of an ID.
func createRC(id *rdmacm.ID, dev *uverbs.Device) error {
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 8})
	if err != nil {
		return err
	}
	_, err = id.CreateQP(pd, uverbs.QPOptions{SendCQ: cq, RecvCQ: cq})
	return err
}
