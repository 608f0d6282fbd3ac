// Broker hands out registered memory to other processes, which need no permission for the device.
// They use it with queue pairs of their own, and a crash of one does not affect the others. Run a
// broker, and workers as any user that may use its socket:
//
//	broker -socket /run/broker.sock
//	broker -socket /run/broker.sock -work "written by RDMA"
//
// The device must be one of the kernel, since a software device of a process has no file, and its queue pairs must be
// of a kind that connects without the connection manager, so not iWARP.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
)

// page is the memory that a worker gets, in bytes, and pages is the maximum number of workers.
const (
	page  = 4096
	pages = 16
)

// loan is what the broker tells a worker, with the descriptors of the device and of the memory.
type loan struct {
	PD, MR uint32 // handles
	Offset int    // of the worker's page in the memory
}

func main() {
	socket := flag.String("socket", "", "`path` of the broker's Unix socket")
	device := flag.String("device", "", "`name` of the broker's device (default: the first)")
	text := flag.String("work", "", "be a worker, and write this `text`, of up to 4096 bytes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *socket, *device, *text, flag.NArg()); err != nil {
		fmt.Fprintln(os.Stderr, "broker:", err)
		os.Exit(1)
	}
}

// run is the broker, or a worker if there is a text.
func run(ctx context.Context, socket, device, text string, args int) error {
	switch {
	case args > 0:
		return fmt.Errorf("there are %d arguments, allowed: none besides the flags", args)
	case socket == "":
		return errors.New("-socket is empty, allowed: the path of a Unix socket")
	case len(text) > page:
		return fmt.Errorf("-work has %d bytes, allowed: up to %d", len(text), page)
	}
	addr := &net.UnixAddr{Name: socket, Net: "unix"}
	if text == "" {
		return serve(ctx, addr, device)
	}
	conn, err := net.DialUnix("unix", nil, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	return work(ctx, conn, []byte(text))
}
