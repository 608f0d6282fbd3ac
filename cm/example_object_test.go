package cm_test

import (
	"context"
	"log"
	"net/http"

	"github.com/goverbs/goverbs/cm"
)

// A web server accepts RDMA and TCP on one port.
func ExampleListenConfig_Listen() {
	var config cm.ListenConfig
	l := must(config.Listen(context.Background(), "tcp", ":8080"))
	if err := l.RDMAErr(); err != nil {
		log.Printf("TCP only: %v", err)
	}
	check(http.Serve(l, http.FileServer(http.Dir("."))))
}
