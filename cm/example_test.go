package cm_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// serve returns the first message of the first client to it.
func serve(ctx context.Context, address string) error {
	l, err := cm.Listen(ctx, address, cm.ListenOptions{})
	if err != nil {
		return err
	}
	defer l.Close()
	conn, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	msg, err := conn.Recv(ctx)
	if err != nil {
		return err
	}
	return conn.Send(ctx, msg)
}

// ask sends a message to the server and returns the answer.
func ask(ctx context.Context, address, msg string) (string, error) {
	conn, err := cm.Dial(ctx, address, cm.DialOptions{})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.Send(ctx, []byte(msg)); err != nil {
		return "", err
	}
	answer, err := conn.Recv(ctx)
	return string(answer), err
}

// TestExampleMessages runs the example's client and server.
func TestExampleMessages(t *testing.T) {
	testenv.Guest(t)
	address := "10.1.0.1:7479"
	if rig := testenv.TheRig(); rig.Soft {
		address = rig.Addrs[0] + ":7479"
	}
	served := make(chan error, 1)
	go func() { served <- serve(t.Context(), address) }()
	for {
		answer, err := ask(t.Context(), address, "hello")
		if errors.Is(err, syscall.ECONNREFUSED) {
			continue // the server does not listen yet
		}
		if err != nil || answer != "hello" {
			t.Errorf("the client got %q, %v", answer, err)
		}
		break
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// A client sends a message to a server and prints the answer.
func Example() {
	fmt.Println(ask(context.Background(), "10.1.0.1:7471", "hello"))
}

// must returns v. It ends the program on an error.
func must[T any](v T, err error) T {
	check(err)
	return v
}

// check ends the program on an error.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A client sends a message and reads the answer.
func ExampleDial() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn := must(cm.Dial(ctx, "10.1.0.1:7471", cm.DialOptions{PrivateData: []byte("who I am")}))
	defer conn.Close()
	check(conn.Send(ctx, []byte("ping")))
	fmt.Printf("%s says %q\n", conn.RemoteAddr(), must(conn.Recv(ctx)))
}

// A server sends every message back to its client.
func ExampleListen() {
	ctx := context.Background()
	l := must(cm.Listen(ctx, ":7471", cm.ListenOptions{}))
	defer l.Close()
	for {
		conn := must(l.Accept(ctx))
		go func() {
			defer conn.Close()
			for {
				msg, err := conn.Recv(ctx)
				if err == io.EOF {
					return
				}
				check(err)
				check(conn.Send(ctx, msg))
			}
		}()
	}
}

// The peer sends the address and key of its memory in a message, and this side writes to that memory.
func ExampleConn_RDMAWrite() {
	ctx := context.Background()
	conn := must(cm.Dial(ctx, "10.1.0.1:7471", cm.DialOptions{}))
	defer conn.Close()
	var remote cm.Remote // the peer has sent RemoteOf(mr).MarshalBinary()
	check(remote.UnmarshalBinary(must(conn.Recv(ctx))))
	buf := must(uverbs.AllocBuffer(1<<20, uverbs.BufferOptions{}))
	defer buf.Close()
	mr := must(conn.PD().RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite}))
	defer mr.Close()
	check(conn.RDMAWrite(ctx, mr.SGE(0, buf.Len()), remote))
}

// Each side sends the address and key of its memory in its private data: the client in its request,
// the server in its answer.
func ExampleRemote() {
	ctx := context.Background()
	dev := must(soft.New(soft.Options{}))
	defer dev.Close()
	share := func(pd *uverbs.PD) ([]byte, error) {
		mr := must(pd.RegSlice(make([]byte, 1<<20), uverbs.AccessLocalWrite|uverbs.AccessRemoteWrite))
		return cm.RemoteOf(mr).MarshalBinary()
	}
	l := must(cm.Listen(ctx, netip.AddrPortFrom(dev.Addr(), 0).String(), cm.ListenOptions{Prepare: share}))
	defer l.Close()

	conn := must(cm.Dial(ctx, l.Addr().String(), cm.DialOptions{Prepare: share}))
	defer conn.Close()
	var remote cm.Remote // the server's
	check(remote.UnmarshalBinary(conn.PrivateData()))
	fmt.Printf("%d bytes to write to\n", remote.Length)
	// Output: 1048576 bytes to write to
}
