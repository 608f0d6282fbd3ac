package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs"
)

// broker is a broker's memory.
type broker struct {
	dev          *uverbs.Device
	pd           *uverbs.PD
	mr           *uverbs.MR
	device, file *os.File // of the device, and of the memory, which workers map, too
	memory       []byte
	free         chan int // offsets of pages that nobody has
}

// serve lends pages to workers until the context ends.
func serve(ctx context.Context, addr *net.UnixAddr, device string) (err error) {
	var b broker
	if b.dev, err = open(device); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.dev.CloseAll()) }() // works even if a worker has crashed
	if b.device, err = b.dev.File(); err != nil {
		return err
	}
	defer b.device.Close()
	if err := b.register(); err != nil {
		return err
	}
	defer b.file.Close()
	l, err := net.ListenUnix("unix", addr)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	fmt.Printf("lending memory of %s to workers at %s\n", b.dev.Name(), addr)
	for {
		conn, err := l.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		go func() {
			defer conn.Close()
			if err := b.lend(conn); err != nil {
				fmt.Println("worker:", err)
			}
		}()
	}
}

// register makes and registers the memory.
func (b *broker) register() (err error) {
	if b.pd, err = b.dev.AllocPD(); err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("broker", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	b.file = os.NewFile(uintptr(fd), "memory")
	if err := b.file.Truncate(pages * page); err != nil {
		return err
	}
	if b.memory, err = unix.Mmap(fd, 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	b.free = make(chan int, pages)
	for i := range pages {
		b.free <- i * page
	}
	b.mr, err = b.pd.RegSlice(b.memory, uverbs.AccessLocalWrite|uverbs.AccessRemoteWrite)
	return err
}

// open opens a device, or the first.
func open(name string) (*uverbs.Device, error) {
	if name == "" {
		return uverbs.OpenFirst()
	}
	return uverbs.Open(name, uverbs.OpenOptions{})
}

// lend gives a page to a worker, and prints what is there when the worker is done. The queue pairs of a worker that
// ends before that exist in the kernel as long as the broker, so nobody else gets its page.
func (b *broker) lend(conn *net.UnixConn) error {
	var offset int
	select {
	case offset = <-b.free:
	default:
		return fmt.Errorf("it gets nothing, since all %d pages are lent", pages)
	}
	message, err := json.Marshal(loan{b.pd.Handle(), b.mr.Handle(), offset})
	if err == nil {
		_, _, err = conn.WriteMsgUnix(message, unix.UnixRights(int(b.device.Fd()), int(b.file.Fd())), nil)
	}
	if err != nil {
		b.free <- offset // nobody got it
		return err
	}
	mine := b.memory[offset:][:page]
	if n, err := conn.Read(make([]byte, 1)); n == 0 {
		return fmt.Errorf("it ended before it was done: %w", err)
	}
	fmt.Printf("a worker wrote %q\n", bytes.TrimRight(mine, "\x00"))
	clear(mine)
	b.free <- offset
	return nil
}
