package rdmacm_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// must returns v. It ends the program on an error.
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

// A client connects step by step. The QP is created after the route is resolved, on the device that the
// address belongs to.
func ExampleID_Connect() {
	ctx := context.Background()
	channel := must(rdmacm.OpenChannel(rdmacm.ChannelOptions{}))
	defer channel.Close()
	id := must(channel.NewID(rdmacm.TCP))
	defer id.Close()
	next := func(want rdmacm.EventType) *rdmacm.Event {
		e := must(channel.Next(ctx))
		check(e.Err())
		if e.Type != want {
			log.Fatal(e.Type)
		}
		return e
	}
	check(id.ResolveAddr(rdmacm.Addr{}, rdmacm.AddrOf(netip.MustParseAddrPort("10.1.0.1:7471")), time.Second))
	next(rdmacm.EventAddrResolved)
	check(id.ResolveRoute(time.Second))
	next(rdmacm.EventRouteResolved)

	var qp *uverbs.QP // of the device must(id.Addrs()).Device
	to := func(state ib.QPState) {
		attr, mask, err := id.QPAttr(state)
		check(err)
		check(qp.Modify(attr, mask))
	}
	to(ib.QPInit)
	check(id.Connect(rdmacm.ConnParam{PrivateData: []byte("hello"), RetryCount: 7, RNRRetryCount: 7, QPN: qp.QPN()}))
	answer := next(rdmacm.EventConnectResponse)
	to(ib.QPRTR)
	to(ib.QPRTS)
	check(id.Establish())
	fmt.Printf("connected, the peer says %q\n", answer.Param.PrivateData)
}

// Each request to a listener comes with a new ID.
func ExampleID_Listen() {
	channel := must(rdmacm.OpenChannel(rdmacm.ChannelOptions{}))
	defer channel.Close()
	listener := must(channel.NewID(rdmacm.TCP))
	defer listener.Close()
	check(listener.Bind(rdmacm.AddrOf(netip.MustParseAddrPort("0.0.0.0:7471"))))
	check(listener.Listen(0))
	for {
		e := must(channel.Next(context.Background()))
		switch e.Type {
		case rdmacm.EventConnectRequest:
			fmt.Printf("somebody says %q\n", e.Param.PrivateData)
			check(e.ID.Reject([]byte("not today"), rdmacm.ReasonConsumer))
			check(e.ID.Close())
		default:
			log.Print(e.Type)
		}
	}
}

// One goroutine handles the events of all IDs of a channel.
func ExampleChannel() {
	channel := must(rdmacm.OpenChannel(rdmacm.ChannelOptions{}))
	defer channel.Close()
	for {
		e := must(channel.Next(context.Background()))
		switch e.Type {
		case rdmacm.EventConnectRequest:
			fmt.Printf("somebody says %q to %v\n", e.Param.PrivateData, e.Listen)
		case rdmacm.EventDisconnected:
			check(e.ID.Close())
		default:
			fmt.Println(e.Type, e.Err())
		}
	}
}

// An ID joins a group, and its QP is attached to the GID that the kernel has chosen for the group.
func ExampleGroup() {
	var id *rdmacm.ID
	var qp *uverbs.QP // of type UD
	group := must(id.Join(netip.MustParseAddr("239.1.2.3"), rdmacm.JoinFullMember))
	defer group.Close()
	e := must(id.Next(context.Background()))
	check(e.Err())
	check(qp.AttachMulticast(e.UD.AH.GRH.DGID, e.UD.AH.DLID))
}

// An event without an error is not always the expected one, so check its type too.
func ExampleEvent() {
	var id *rdmacm.ID
	e := must(id.Next(context.Background()))
	if err := e.Err(); err != nil {
		fmt.Println("the step failed:", err)
		return
	}
	fmt.Println(e.Type)
}
