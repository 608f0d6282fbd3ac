// Stream sends a stream of bytes to another process over TCP or a software device, for test/bench/soft.
//
//	stream receive tcp|soft
//	stream send tcp|soft ADDRESS BYTES TIME
//
// The receiver prints its address. At the end both print how many nanoseconds of processor time they have used
// since they were connected, and the sender how many bytes it has sent and how many nanoseconds that took.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/uverbs/soft"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "stream: %v\n", err)
		os.Exit(1)
	}
}

// chunk is how many bytes the receiver reads at a time.
const chunk = 64 << 10

func run(args []string) error {
	var local netip.Addr
	switch {
	case len(args) == 2 && args[0] == "receive", len(args) == 5 && args[0] == "send":
	default:
		return errors.New("the arguments are: receive tcp|soft, or send tcp|soft ADDRESS BYTES TIME")
	}
	if args[1] == "soft" {
		dev, err := soft.New(soft.Options{Auto: true})
		if err != nil {
			return err
		}
		defer dev.Close()
		local = dev.Addr()
	}
	if args[0] == "receive" {
		return receive(local)
	}
	size, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	each, err := time.ParseDuration(args[4])
	if err != nil {
		return err
	}
	return send(local, args[2], size, each)
}

// receive reads all that arrives over one connection.
func receive(local netip.Addr) error {
	var l net.Listener
	if local.IsValid() {
		devices, err := cm.Listen(context.Background(), netip.AddrPortFrom(local, 0).String(), cm.ListenOptions{})
		if err != nil {
			return err
		}
		l = devices.Streams()
	} else {
		var err error
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	defer l.Close()
	fmt.Println(l.Addr())
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	begin := processorTime()
	for buf := make([]byte, chunk); err == nil; {
		_, err = c.Read(buf)
	}
	if err != io.EOF {
		return err
	}
	fmt.Println(int64(processorTime() - begin))
	return c.Close()
}

// send sends for a time, and waits until the receiver has read all of it.
func send(local netip.Addr, address string, size int, each time.Duration) error {
	var c interface {
		net.Conn
		CloseWrite() error
	}
	if local.IsValid() {
		s, err := cm.DialStream(context.Background(), address, cm.DialOptions{})
		if err != nil {
			return err
		}
		c = s
	} else {
		s, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		c = s.(*net.TCPConn)
	}
	defer c.Close()
	buf := make([]byte, size)
	sent, used, begin := 0, processorTime(), time.Now()
	for time.Since(begin) < each {
		n, err := c.Write(buf)
		if sent += n; err != nil {
			return err
		}
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	if _, err := c.Read(buf); err != io.EOF {
		return fmt.Errorf("the receiver has not read to the end: %w", err)
	}
	fmt.Println(int64(processorTime()-used), sent, int64(time.Since(begin)))
	return nil
}

// processorTime is how long this process has run, in the kernel too.
func processorTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		panic(os.NewSyscallError("getrusage", err)) // the arguments are valid
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
