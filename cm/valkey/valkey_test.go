package valkey

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/soft"
)

func TestMain(m *testing.M) {
	if rig := testenv.TheRig(); rig.Soft {
		for i, name := range rig.Devices {
			if _, err := soft.New(soft.Options{Name: name, Addr: netip.MustParseAddr(rig.Addrs[i])}); err != nil {
				fmt.Fprintln(os.Stderr, "software devices:", err)
				os.Exit(2)
			}
		}
	}
	os.Exit(testenv.MainFor(m, map[string]string{"rxe": "", "mlx5": "", "soft": ""}))
}

// timeout bounds each step.
const timeout = 20 * time.Second

// must fails the test on an error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// newListener makes a listener on the first device, which is closed at the end of the test.
func newListener(t testing.TB, o Options) *Listener {
	t.Helper()
	testenv.Guest(t)
	l, err := Listen(t.Context(), testenv.TheRig().Addrs[0]+":0", ListenOptions{Options: o})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

// connect makes a connection.
func connect(l *Listener, o Options) (client, server net.Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if client, err = Dial(ctx, l.Addr().String(), o); err != nil {
		return nil, nil, err
	}
	if server, err = l.Accept(); err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return client, server, nil
}

// TestConn: a connection is as package net's tests want it, with large and small buffers.
func TestConn(t *testing.T) {
	for name, o := range map[string]Options{"default": {}, "small": {RecvBuffer: 8193, SendBuffer: 4096, RecvDepth: 16, SendDepth: 16}} {
		t.Run(name, func(t *testing.T) {
			l := newListener(t, o)
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				c1, c2, err = connect(l, Options{})
				return c1, c2, func() { c1.Close(); c2.Close() }, err
			})
		})
	}
}

// left returns how many goroutines and open files there are.
func left(t *testing.T) (goroutines, files int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return runtime.NumGoroutine(), len(all)
}

// connsEnv says how many connections TestLeaks makes, if not as many as take some seconds.
const connsEnv = "GOVERBS_CONNS"

// TestLeaks: many connections, closed by either side first, leave nothing. The device closes after the last
// one only if no object is left.
func TestLeaks(t *testing.T) {
	l := newListener(t, Options{})
	n := 200
	if s := os.Getenv(connsEnv); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		must(t, err)
	}
	var goroutines, files int
	for i := range n {
		if i == 10 { // what is made once is there
			goroutines, files = left(t)
		}
		client, server, err := connect(l, Options{})
		must(t, err)
		if i%2 == 0 {
			client, server = server, client
		}
		_, err = client.Write([]byte("bye"))
		must(t, err, client.Close())
		got, err := io.ReadAll(server)
		must(t, err, server.Close())
		if string(got) != "bye" {
			t.Fatalf("%q arrives", got)
		}
	}
	must(t, l.Close())
	if n := protocol.OpenDevices(); n > 0 {
		t.Errorf("%d devices are open", n)
	}
	var g, f int
	for end := time.Now().Add(timeout); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if g, f = left(t); g <= goroutines && f <= files {
			return
		}
	}
	t.Errorf("there were %d goroutines and %d files, and are %d and %d", goroutines, files, g, f)
}

// TestCopy: megabytes each way at once, in pieces of many sizes.
func TestCopy(t *testing.T) {
	for _, o := range []Options{{}, {RecvBuffer: 8198, SendBuffer: 5000, RecvDepth: 17, SendDepth: 19}, {RecvBuffer: 4 << 20, SendBuffer: 1 << 20}} {
		t.Run(fmt.Sprint(o.RecvBuffer), func(t *testing.T) {
			l := newListener(t, o)
			client, server, err := connect(l, o)
			must(t, err)
			data := make([]byte, 3<<20)
			r := rand.New(rand.NewPCG(3, 4))
			for i := range data {
				data[i] = byte(r.Uint32())
			}
			echoed := make(chan error, 1)
			go func() {
				_, err := io.CopyN(server, struct{ io.Reader }{server}, int64(len(data)))
				echoed <- errors.Join(err, server.Close())
			}()
			written := make(chan error, 1)
			go func() {
				for at := 0; at < len(data); {
					n, err := client.Write(data[at:min(len(data), at+1+r.IntN(100_000))])
					if err != nil {
						written <- err
						return
					}
					at += n
				}
				written <- nil
			}()
			must(t, client.SetReadDeadline(time.Now().Add(3*timeout)))
			got, err := io.ReadAll(client)
			must(t, err, <-written, <-echoed)
			if !bytes.Equal(got, data) {
				t.Errorf("%d bytes come back, or others than were sent", len(got))
			}
			must(t, client.Close())
		})
	}
}

// TestAllocs: reads and writes of any size, which wait for each other, do not allocate.
func TestAllocs(t *testing.T) {
	l := newListener(t, Options{})
	for _, size := range []int{1, 64, 5000, 300_000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			client, server, err := connect(l, Options{})
			must(t, err)
			end := time.Now().Add(3 * timeout)
			must(t, client.SetDeadline(end), server.SetDeadline(end))
			echoed := make(chan error, 1)
			go func() {
				b := make([]byte, size)
				for {
					if _, err := io.ReadFull(server, b); err != nil {
						echoed <- err
						return
					}
					if _, err := server.Write(b); err != nil {
						echoed <- err
						return
					}
				}
			}()
			b := make([]byte, size)
			round := func() {
				if _, err = client.Write(b); err == nil {
					_, err = io.ReadFull(client, b)
				}
			}
			for range 20 {
				round()
			}
			must(t, err)
			if n := testing.AllocsPerRun(200, round); n != 0 {
				t.Errorf("a round trip of %d bytes makes %v allocations, want 0", size, n)
			}
			must(t, err, client.Close())
			if err := <-echoed; err != io.EOF {
				t.Errorf("the peer ends with %v", err)
			}
			must(t, server.Close())
		})
	}
}
