package cm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft"
)

// newSoft makes a software device on the next loopback address.
func newSoft(t *testing.T) *soft.Device {
	t.Helper()
	d := value(soft.New(soft.Options{}))(t)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

func TestSoftConn(t *testing.T) {
	a, b := newSoft(t), newSoft(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	l := value(Listen(ctx, netip.AddrPortFrom(b.Addr(), 0).String(), ListenOptions{PrivateData: []byte("welcome")}))(t)
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept(ctx)
		if err != nil {
			done <- err
			return
		}
		for {
			m, err := c.Recv(ctx)
			if err == io.EOF {
				done <- c.Close()
				return
			}
			if err == nil {
				err = c.Send(ctx, m)
			}
			if err != nil {
				done <- err
				return
			}
		}
	}()
	c := value(Dial(ctx, l.Addr().String(), DialOptions{LocalAddr: netip.AddrPortFrom(a.Addr(), 0)}))(t)
	for i := range 1000 {
		must(t, c.Send(ctx, fmt.Appendf(nil, "hello %d", i)))
		m := value(c.Recv(ctx))(t)
		if string(m) != fmt.Sprintf("hello %d", i) {
			t.Fatalf("%q", m)
		}
	}
	must(t, c.Close())
	must(t, <-done)
	_, err := Dial(ctx, netip.AddrPortFrom(b.Addr(), 1).String(), DialOptions{})
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
}
