package valkey_test

import (
	"bufio"
	"context"
	"fmt"
	"log"

	"github.com/goverbs/goverbs/cm/valkey"
)

// A client without a library. Libraries take [valkey.DialContext] as an option:
//
//	redis.NewClient(&redis.Options{Addr: "10.1.0.1:6379", Dialer: valkey.DialContext})
//
//	valkeygo.NewClient(valkeygo.ClientOption{ // rueidis has the same option
//		InitAddress: []string{"10.1.0.1:6379"},
//		DialCtxFn: func(ctx context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
//			return valkey.DialContext(ctx, "tcp", address)
//		},
//	})
func ExampleDial() {
	conn, err := valkey.Dial(context.Background(), "10.1.0.1:6379", valkey.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprint(conn, "PING\r\n"); err != nil {
		log.Fatal(err)
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(answer) // +PONG
}

// A server for clients such as "valkey-cli --rdma", which says PONG to everything.
func ExampleListen() {
	l, err := valkey.Listen(context.Background(), ":6379", valkey.ListenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			defer conn.Close()
			var buf [4096]byte
			for {
				if _, err := conn.Read(buf[:]); err != nil {
					return
				}
				if _, err := conn.Write([]byte("+PONG\r\n")); err != nil {
					return
				}
			}
		}()
	}
}
