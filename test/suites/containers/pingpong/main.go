// Pingpong plays ping-pong with a second one, and is all that a container image has to hold:
//
//	pingpong -listen ADDRESS      # waits for the other one
//	pingpong ADDRESS              # begins
//
// It connects through the connection manager. With -verbs it needs /dev/infiniband/uverbsN only: the two
// tell each other where their queue pairs are by UDP, which, unlike TCP in Go, does without write(2).
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm"
)

// options are the flags.
type options struct {
	listen, verbs bool
	device        string
	size, count   int
}

func main() {
	var o options
	flag.BoolVar(&o.listen, "listen", false, "wait for the other one at ADDRESS")
	flag.BoolVar(&o.verbs, "verbs", false, "do not use the connection manager; ADDRESS is for UDP")
	flag.StringVar(&o.device, "device", "", "with -verbs, the RDMA device; the first usable one by default")
	flag.IntVar(&o.size, "size", 64, "size of a message in bytes")
	flag.IntVar(&o.count, "n", 100, "number of exchanges")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	play := o.messages
	if o.verbs {
		play = o.sends
	}
	begin := time.Now()
	if err := play(ctx, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "pingpong:", err)
		os.Exit(1)
	}
	fmt.Printf("user %d: %d exchanges of %d bytes in %v\n", os.Getuid(), o.count, o.size, time.Since(begin).Round(time.Millisecond))
}

// messages exchanges the messages of a connection.
func (o *options) messages(ctx context.Context, address string) error {
	conn, err := o.connect(ctx, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	msg := make([]byte, o.size)
	for i := range o.count {
		if i > 0 || !o.listen {
			if err := conn.Send(ctx, msg); err != nil {
				return err
			}
		}
		if msg, err = conn.Recv(ctx); err != nil {
			return err
		}
		if len(msg) != o.size {
			return fmt.Errorf("message %d has %d bytes, want %d", i, len(msg), o.size)
		}
	}
	if o.listen {
		err = conn.Send(ctx, msg)
	}
	return err
}

// connect makes the connection.
func (o *options) connect(ctx context.Context, address string) (*cm.Conn, error) {
	conn := cm.ConnOptions{MessageSize: o.size}
	if !o.listen {
		return cm.Dial(ctx, address, cm.DialOptions{ConnOptions: conn})
	}
	l, err := cm.Listen(ctx, address, cm.ListenOptions{ConnOptions: conn})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.Accept(ctx)
}
