package rsocket_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"

	"github.com/goverbs/goverbs/cm/rsocket"
)

// A client of a C program that listens with rsocket, or with librspreload.so.
func ExampleDial() {
	conn, err := rsocket.Dial(context.Background(), "10.1.0.1:7471", rsocket.Options{})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := io.WriteString(conn, "hello"); err != nil {
		log.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil { // the peer reads the end
		log.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", answer)
	if err := conn.Close(); err != nil {
		log.Fatal(err)
	}
}

// A web server for clients such as
//
//	LD_PRELOAD=/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so curl http://10.1.0.1:8080/
func ExampleListen() {
	l, err := rsocket.Listen(context.Background(), ":8080", rsocket.ListenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(l, http.FileServer(http.Dir("."))))
}

// Memory that the peer, which uses riowrite, can write at offsets from 0 on.
func ExampleConn_Map() {
	conn, err := rsocket.Dial(context.Background(), "10.1.0.1:7471", rsocket.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	m, err := conn.Map(1<<20, 0)
	if err != nil {
		log.Fatal(err)
	}
	var done [1]byte
	if _, err := io.ReadFull(conn, done[:]); err != nil { // the peer has written all
		log.Fatal(err)
	}
	fmt.Printf("%x\n", m.Bytes()[:16])
}
