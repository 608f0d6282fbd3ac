// Http is a web server and its client that use RDMA where there is some, and otherwise TCP:
//
//	http serve :8080 .
//	http get http://10.1.0.1:8080/README.md
//
// Without RDMA, set GOVERBS_SOFT=auto in the environment of both.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"

	"github.com/goverbs/goverbs/cm"
)

func main() {
	switch args := os.Args[1:]; {
	case len(args) == 3 && args[0] == "serve":
		log.Fatal(serve(args[1], args[2]))
	case len(args) == 2 && args[0] == "get":
		if err := get(args[1]); err != nil {
			log.Fatal(err)
		}
	default:
		log.Fatal("usage: http serve ADDRESS FOLDER, or http get URL")
	}
}

func serve(address, folder string) error {
	var config cm.ListenConfig
	l, err := config.Listen(context.Background(), "tcp", address)
	if err != nil {
		return err
	}
	fmt.Printf("listening on %s, RDMA: %t\n", l.Addr(), l.RDMAErr() == nil)
	return http.Serve(l, http.FileServer(http.Dir(folder)))
}

func get(url string) error {
	dialer := cm.Dialer{Chosen: func(c cm.Choice) {
		fmt.Fprintf(os.Stderr, "connected to %s by %s\n", c.Address, c.Conn.RemoteAddr().Network())
		if c.RDMAErr != nil {
			fmt.Fprintln(os.Stderr, "not by RDMA:", c.RDMAErr)
		}
	}}
	client := http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}
