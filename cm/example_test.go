package cm_test

import (
	"context"
	"fmt"
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
