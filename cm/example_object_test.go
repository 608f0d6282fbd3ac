package cm_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/netip"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/uverbs"
)

// A Stream is a net.Conn, so any program that talks over one can talk over RDMA.
func ExampleStream() {
	stream := must(cm.DialStream(context.Background(), "10.1.0.1:7471", cm.DialOptions{}))
	defer stream.Close()
	fmt.Fprintln(stream, "hello")
	check(stream.CloseWrite())
	fmt.Printf("%s\n", must(io.ReadAll(stream)))
}

// A web client uses RDMA where the server and the network have it, and says where they do not.
func ExampleDialer() {
	dialer := cm.Dialer{Chosen: func(c cm.Choice) {
		if c.NoRDMA != nil {
			log.Printf("%s by TCP: %v", c.Address, c.NoRDMA)
		}
	}}
	client := http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
	resp := must(client.Get("http://10.1.0.1:8080/"))
	defer resp.Body.Close()
	fmt.Printf("%s\n", must(io.ReadAll(resp.Body)))
}

// A web server accepts RDMA and TCP on one port.
func ExampleListenConfig_Listen() {
	var config cm.ListenConfig
	l := must(config.Listen(context.Background(), "tcp", ":8080"))
	if err := l.NoRDMA(); err != nil {
		log.Printf("TCP only: %v", err)
	}
	check(http.Serve(l, http.FileServer(http.Dir("."))))
}

// One goroutine handles the events of all IDs of a channel.
func ExampleChannel() {
	channel := must(cm.OpenChannel())
	defer channel.Close()
	for {
		e := must(channel.Next(context.Background()))
		switch e.Type {
		case cm.EventConnectRequest:
			fmt.Printf("somebody says %q to %v\n", e.Param.PrivateData, e.Listen)
		case cm.EventDisconnected:
			check(e.ID.Close())
		default:
			fmt.Println(e.Type, e.Err())
		}
	}
}

// An ID joins a group, and its QP is attached to the GID that the kernel has chosen for the group.
func ExampleGroup() {
	var id *cm.ID
	var qp *uverbs.QP // of type UD
	group := must(id.Join(netip.MustParseAddr("239.1.2.3"), cm.JoinFullMember))
	defer group.Close()
	e := must(id.Wait(context.Background()))
	check(e.Err())
	check(qp.AttachMulticast(e.UD.AH.GRH.DGID, e.UD.AH.DLID))
}

// An event without an error is not always the expected one, so check its type too.
func ExampleEvent() {
	var id *cm.ID
	e := must(id.Wait(context.Background()))
	if err := e.Err(); err != nil {
		fmt.Println("the step failed:", err)
		return
	}
	fmt.Println(e.Type)
}
