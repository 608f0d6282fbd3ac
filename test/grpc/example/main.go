// Example is a gRPC server with the standard health service, and its client, that use RDMA where there
// is some, and otherwise TCP:
//
//	example serve :8080
//	example check 10.1.0.1:8080
//
// Without RDMA, set GOVERBS_SOFT=auto in the environment of both.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/goverbs/goverbs/cm"
)

func main() {
	run := map[string]func(string) error{"serve": serve, "check": check}
	if len(os.Args) != 3 || run[os.Args[1]] == nil {
		log.Fatal("usage: example serve ADDRESS, or example check ADDRESS")
	}
	if err := run[os.Args[1]](os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func serve(address string) error {
	l, err := new(cm.ListenConfig).Listen(context.Background(), "tcp", address)
	if err != nil {
		return err
	}
	fmt.Printf("listening on %s, RDMA: %t\n", l.Addr(), l.RDMAErr() == nil)
	s := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	return s.Serve(l)
}

func check(address string) error {
	dialer := cm.Dialer{Chosen: func(c cm.Choice) { fmt.Printf("connected by %s\n", c.Conn.RemoteAddr().Network()) }}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", address)
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	fmt.Println(answer.GetStatus())
	return err
}
