package cm_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"

	"github.com/goverbs/goverbs/cm"
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
		if c.RDMAErr != nil {
			log.Printf("%s by TCP: %v", c.Address, c.RDMAErr)
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
	if err := l.RDMAErr(); err != nil {
		log.Printf("TCP only: %v", err)
	}
	check(http.Serve(l, http.FileServer(http.Dir("."))))
}
