package cm_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/uverbs"
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

// One goroutine has several operations in flight, which a Batch starts with one doorbell, and waits for the last.
func ExampleConn_Batch() {
	ctx := context.Background()
	dev := must(soft.New(soft.Options{}))
	defer dev.Close()
	l := must(cm.Listen(ctx, netip.AddrPortFrom(dev.Addr(), 0).String(), cm.ListenOptions{}))
	defer l.Close()
	accepted := make(chan *cm.Conn)
	go func() { accepted <- must(l.Accept(ctx)) }()
	conn := must(cm.Dial(ctx, l.Addr().String(), cm.DialOptions{}))
	peer := <-accepted
	defer peer.Close()
	defer conn.Close()

	buf := must(uverbs.AllocBuffer(4096, uverbs.BufferOptions{}))
	defer buf.Close()
	const access = uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead
	local, table := must(conn.PD().RegMR(buf, uverbs.MROptions{Access: access})), must(peer.PD().RegMR(buf, uverbs.MROptions{Access: access}))
	defer local.Close()
	defer table.Close()
	remote := cm.RemoteOf(table) // a peer on another host sends it in a message
	copy(buf.Bytes(), "one two")

	batch := conn.Batch()
	batch.Write(local.SGE(4, 3), remote.At(2048)) // a READ after a WRITE sees what it has written
	batch.Read(local.SGE(1024, 3), remote.At(2048))
	batch.Read(local.SGE(1028, 3), remote.At(0))
	op := must(batch.Start(ctx))
	check(op.Wait(ctx)) // the last one; those before it are complete, too

	check(conn.SendSGE(ctx, local.SGE(1024, 3), local.SGE(1028, 3))) // without a copy
	msg := make([]byte, peer.MaxMessage())
	n := must(peer.RecvInto(ctx, msg))
	fmt.Printf("%s\n", msg[:n])
	// Output: twoone
}
