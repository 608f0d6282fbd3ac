// Srdcat sends its standard input to another host over SRD, the reliable datagrams of AWS EFA, in
// order.
//
//	srdcat -listen :7475 >file        # on one host
//	srdcat 10.1.0.1:7475 <file        # on the other, with the address of the first
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/goverbs/goverbs/test/ordered"
)

const usage = `Srdcat sends its standard input to another host over SRD (AWS EFA), in order.

usage:
  srdcat [flags] -listen :7475 >file   wait for one sender
  srdcat [flags] HOST:7475 <file       send to it

flags:
`

func main() {
	var o ordered.Options
	flag.StringVar(&o.Device, "device", "", "name of the RDMA device; by default the first one")
	flag.IntVar(&o.Window, "window", 64, "messages that this side has receives for: 1 to 4096")
	listen := flag.String("listen", "", "TCP address to wait at")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 1 || (*listen == "") == (flag.NArg() == 0) {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(context.Background(), *listen, flag.Arg(0), o); err != nil {
		fmt.Fprintln(os.Stderr, "srdcat:", err)
		os.Exit(1)
	}
}

// run connects and copies.
func run(ctx context.Context, listen, host string, o ordered.Options) error {
	var conn *ordered.Conn
	copies := send
	if listen != "" {
		l, err := ordered.Listen(ctx, listen, o)
		if err != nil {
			return err
		}
		defer l.Close()
		fmt.Fprintln(os.Stderr, "waiting at", l.Addr())
		if conn, err = l.Accept(ctx); err != nil {
			return err
		}
		copies = receive
	} else {
		var err error
		if conn, err = ordered.Dial(ctx, host, o); err != nil {
			return err
		}
	}
	start := time.Now()
	bytes, messages, err := copies(ctx, conn)
	if err == nil {
		err = conn.Close(ctx)
	}
	if err != nil {
		return err // the kernel closes all, and the peer notices
	}
	fmt.Fprintf(os.Stderr, "%d bytes in %d messages, %s\n", bytes, messages, time.Since(start).Round(time.Millisecond))
	return nil
}

// send sends standard input.
func send(ctx context.Context, conn *ordered.Conn) (bytes, messages int, err error) {
	for b := make([]byte, conn.MaxSize()); ; {
		n, err := io.ReadFull(os.Stdin, b)
		if n > 0 {
			if err := conn.Send(ctx, b[:n]); err != nil {
				return bytes, messages, err
			}
			bytes, messages = bytes+n, messages+1
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return bytes, messages, nil
		}
		if err != nil {
			return bytes, messages, err
		}
	}
}

// receive writes to standard output.
func receive(ctx context.Context, conn *ordered.Conn) (bytes, messages int, err error) {
	for b := make([]byte, conn.MaxSize()); ; {
		n, err := conn.Recv(ctx, b)
		if err == io.EOF {
			return bytes, messages, nil
		}
		if err == nil {
			_, err = os.Stdout.Write(b[:n])
		}
		if err != nil {
			return bytes, messages, err
		}
		bytes, messages = bytes+n, messages+1
	}
}
