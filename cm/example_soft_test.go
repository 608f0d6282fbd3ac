package cm_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// A program connects to itself through a software device, which needs no RDMA.
func ExampleDial_softwareDevice() {
	ctx := context.Background()
	dev := must(soft.New(soft.Options{}))
	defer dev.Close()
	l := must(cm.Listen(ctx, netip.AddrPortFrom(dev.Addr(), 0).String(), cm.ListenOptions{}))
	defer l.Close()
	go func() {
		conn := must(l.Accept(ctx))
		defer conn.Close()
		check(conn.Send(ctx, append([]byte("echo: "), must(conn.Recv(ctx))...)))
	}()
	conn := must(cm.Dial(ctx, l.Addr().String(), cm.DialOptions{}))
	defer conn.Close()
	check(conn.Send(ctx, []byte("hello")))
	fmt.Printf("%s\n", must(conn.Recv(ctx)))
	// Output: echo: hello
}
