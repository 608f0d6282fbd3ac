package cm_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/uverbs"
)

// must returns v, or ends the program.
func must[T any](v T, err error) T {
	check(err)
	return v
}

// check ends the program on an error.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A client sends a message and reads the answer.
func ExampleDial() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn := must(cm.Dial(ctx, "10.1.0.1:7471", cm.Options{PrivateData: []byte("who I am")}))
	defer conn.Close()
	check(conn.Send(ctx, []byte("ping")))
	fmt.Printf("%s says %q\n", conn.RemoteAddr(), must(conn.Recv(ctx)))
}

// A server sends back what it receives.
func ExampleListen() {
	ctx := context.Background()
	l := must(cm.Listen(ctx, ":7471", cm.Options{}))
	defer l.Close()
	for {
		conn := must(l.Accept(ctx))
		go func() {
			defer conn.Close()
			for {
				msg, err := conn.Recv(ctx)
				if err == io.EOF {
					return
				}
				check(err)
				check(conn.Send(ctx, msg))
			}
		}()
	}
}

// Memory of the peer's that it has told of in a message is written to.
func ExampleConn_Write() {
	ctx := context.Background()
	conn := must(cm.Dial(ctx, "10.1.0.1:7471", cm.Options{}))
	defer conn.Close()
	var remote cm.Remote // what RemoteOf(mr).MarshalBinary() has made there
	check(remote.UnmarshalBinary(must(conn.Recv(ctx))))
	buf := must(uverbs.AllocBuffer(1 << 20))
	defer buf.Close()
	mr := must(conn.PD().RegMR(buf, uverbs.AccessLocalWrite))
	defer mr.Close()
	check(conn.Write(ctx, mr.SGE(0, buf.Len()), remote))
}

// Each side tells the other of its memory in its private data: the client before it connects, the
// server while it decides on the request.
func ExampleRemote() {
	ctx := context.Background()
	share := func(pd *uverbs.PD) ([]byte, error) {
		buf := must(uverbs.AllocBuffer(1 << 20))
		mr := must(pd.RegMR(buf, uverbs.AccessLocalWrite|uverbs.AccessRemoteWrite))
		return cm.RemoteOf(mr).MarshalBinary()
	}
	l := must(cm.Listen(ctx, ":7471", cm.Options{Check: func(r *cm.Request) ([]byte, error) { return share(must(r.PD())) }}))
	defer l.Close()

	conn := must(cm.Dial(ctx, "10.1.0.1:7471", cm.Options{Prepare: share}))
	defer conn.Close()
	var remote cm.Remote // the server's
	check(remote.UnmarshalBinary(conn.PrivateData()))
	fmt.Printf("%d bytes to write to\n", remote.Length)
}

// Members of a multicast group say hello to each other.
func ExamplePacketConn_Join() {
	ctx := context.Background()
	p := must(cm.ListenPacket(ctx, "10.1.0.1:0", cm.PacketOptions{}))
	defer p.Close()
	all := must(p.Join(ctx, netip.MustParseAddr("239.1.2.3"), cm.FullMember))
	check(p.Send(ctx, []byte("hello"), all))
	for {
		msg, from, err := p.Recv(ctx)
		check(err)
		fmt.Printf("%s says %q\n", from, msg)
	}
}

// The steps of a client. The QP is made between the route and the connection, on the device
// that the address was found on.
func ExampleID_Connect() {
	ctx := context.Background()
	channel := must(cm.OpenChannel())
	defer channel.Close()
	id := must(channel.NewID(cm.TCP))
	defer id.Close()
	next := func(want cm.EventType) *cm.Event {
		e := must(channel.Next(ctx))
		check(e.Err())
		if e.Type != want {
			log.Fatal(e.Type)
		}
		return e
	}
	check(id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("10.1.0.1:7471"), time.Second))
	next(cm.AddrResolved)
	check(id.ResolveRoute(time.Second))
	next(cm.RouteResolved)

	var qp *uverbs.QP // of the device must(id.Addrs()).Device
	to := func(state uverbs.QPState) {
		attr, mask, err := id.QPAttr(state)
		check(err)
		check(qp.Modify(attr, mask))
	}
	to(uverbs.Init)
	check(id.Connect(cm.ConnParam{PrivateData: []byte("hello"), RetryCount: 7, RNRRetryCount: 7, QPN: qp.QPN()}, cm.ECE{}))
	answer := next(cm.ConnectResponse)
	to(uverbs.RTR)
	to(uverbs.RTS)
	check(id.Establish())
	fmt.Printf("connected, the peer says %q\n", answer.Param.PrivateData)
}

// A listener gets a new ID with each request.
func ExampleID_Listen() {
	channel := must(cm.OpenChannel())
	defer channel.Close()
	listener := must(channel.NewID(cm.TCP))
	defer listener.Close()
	check(listener.Bind(netip.MustParseAddrPort("0.0.0.0:7471")))
	check(listener.Listen(0))
	for {
		e := must(channel.Next(context.Background()))
		switch e.Type {
		case cm.ConnectRequest:
			fmt.Printf("somebody says %q\n", e.Param.PrivateData)
			check(e.ID.Reject([]byte("not today"), cm.ReasonConsumer))
			check(e.ID.Close())
		default:
			log.Print(e.Type)
		}
	}
}
