package rsocket

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
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
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
	os.Exit(testenv.MainFor(m, map[string]string{"rxe": "", "mlx5": "", "siw": "all TestHalfOpen*: half-open requests\nall TestBusyPeer: retries of the device\nall TestRetries: retries of the device", "soft": ""}))
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
	for name, o := range map[string]Options{"default": {}, "small": {RecvBuffer: 5001, SendBuffer: 4096, Credits: 16, SendDepth: 16}} {
		t.Run(name, func(t *testing.T) {
			l := newListener(t, o)
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				c1, c2, err = connect(l, Options{})
				return c1, c2, func() { c1.Close(); c2.Close() }, err
			})
		})
	}
}

// A usage is what the process has, and the objects on the devices.
type usage struct {
	goroutines, files int
	heap              uint64                       // bytes in use after a garbage collection
	objects           []netlinkrdma.ResourceCounts // of each device; none of software devices
}

// use counts it.
func use(t *testing.T) (u usage) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	u.goroutines, u.files = runtime.NumGoroutine(), len(files)
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.heap = m.HeapAlloc
	if testenv.TheRig().Soft {
		return u
	}
	devices, err := netlinkrdma.Devices()
	must(t, err)
	for _, dev := range devices {
		n, err := netlinkrdma.Resources(dev, netlinkrdma.ListOptions{})
		must(t, err)
		u.objects = append(u.objects, n)
	}
	return u
}

// connsEnv says how many connections TestLeaks makes, if not as many as take some seconds.
const connsEnv = "GOVERBS_CONNS"

// TestLeaks: many connections, closed by either side first, leave nothing: no goroutine, open file or object of the
// device, and no more memory than 1 MiB or 100 bytes per connection. A software device keeps 8 bytes for each number
// of a QP or a memory region, 72 bytes per connection, until it uses the numbers again. The device closes after the
// last connection only if no object is left.
func TestLeaks(t *testing.T) {
	testenv.Guest(t)
	n := 200
	if s := os.Getenv(connsEnv); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		must(t, err)
	}
	objects := use(t).objects
	l := newListener(t, Options{})
	var before usage
	begin := time.Now()
	for i := range n {
		if i == 10 { // what is made once is there
			before = use(t)
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
	took := time.Since(begin)
	must(t, l.Close())
	if n := protocol.OpenDevices(); n > 0 {
		t.Errorf("%d devices are open", n)
	}
	before.objects = objects
	heap := before.heap + max(1<<20, uint64(100*n))
	var after usage
	for end := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		after = use(t)
		if after.goroutines <= before.goroutines && after.files <= before.files && after.heap <= heap && slices.Equal(after.objects, objects) {
			break
		}
		if time.Now().After(end) {
			t.Error("something is left")
			break
		}
	}
	t.Logf("%d connections were made and closed in %s", n, took.Round(time.Millisecond))
	t.Logf("before: %+v", before)
	t.Logf("after:  %+v", after)
}

// TestCopy: megabytes each way at once, with half close, in pieces of many sizes.
func TestCopy(t *testing.T) {
	for _, o := range []Options{{}, {RecvBuffer: 4098, SendBuffer: 5000, Credits: 17, SendDepth: 19}, {RecvBuffer: 1 << 20, SendBuffer: 1 << 20}} {
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
				_, err := io.Copy(server, struct{ io.Reader }{server})
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
				written <- client.(*Conn).CloseWrite()
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

// TestMapped: each side writes into memory of the other that is mapped at an offset, among data.
func TestMapped(t *testing.T) {
	l := newListener(t, Options{Mappings: 2})
	client, server, err := connect(l, Options{Mappings: 1})
	must(t, err)
	end := time.Now().Add(timeout)
	must(t, client.SetDeadline(end), server.SetDeadline(end))
	a, b := client.(*Conn), server.(*Conn)
	tell := func(from, to *Conn) { // what from has done before is done
		t.Helper()
		_, err := from.Write([]byte("done"))
		must(t, err)
		got := make([]byte, 4)
		_, err = io.ReadFull(to, got)
		must(t, err)
	}
	const size, at = 300_000, 1000
	first, err := a.Map(size, at)
	must(t, err)
	second, err := a.Map(8, at+size)
	must(t, err)
	if _, err := a.Map(8, 0); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a third mapping, where there is room for two: %v", err)
	}
	back, err := b.Map(100, 0)
	must(t, err)
	tell(a, b)
	tell(b, a)

	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i * i >> 5)
	}
	n, err := b.WriteAt(data, at+8) // over both mappings
	must(t, err)
	m, err := a.WriteAt(data[:100], 0)
	must(t, err)
	if n != size || m != 100 {
		t.Errorf("%d and %d bytes are written", n, m)
	}
	tell(b, a)
	tell(a, b)
	if !bytes.Equal(first.Bytes()[8:], data[:size-8]) || !bytes.Equal(second.Bytes(), data[size-8:]) || !bytes.Equal(back.Bytes(), data[:100]) {
		t.Error("other bytes arrive than were written")
	}
	for _, offset := range []int64{at - 1, at + size + 8} {
		if n, err := b.WriteAt(data[:2], offset); n != 0 || !errors.Is(err, syscall.ENXIO) {
			t.Errorf("%d bytes are written at %d, where nothing is mapped: %v", n, offset, err)
		}
	}
	if n, err := b.WriteAt(data[:10], at+size+6); n != 2 || !errors.Is(err, syscall.ENXIO) {
		t.Errorf("%d bytes are written at the end of a mapping: %v", n, err)
	}
	var arg *uverbs.ArgError
	if _, err := b.WriteAt(data, -1); !errors.As(err, &arg) || arg.Field != "offset" {
		t.Errorf("a negative offset: %v", err)
	}
	if _, err := b.Map(0, 0); !errors.As(err, &arg) || arg.Field != "size" {
		t.Errorf("a mapping of 0 bytes: %v", err)
	}
	tell(b, a)
	must(t, second.Close(), second.Close())
	second, err = a.Map(16, 0) // there is room again
	must(t, err)
	tell(a, b)
	_, err = b.WriteAt(data[:16], 0)
	must(t, err)
	tell(b, a)
	if !bytes.Equal(second.Bytes(), data[:16]) {
		t.Error("other bytes arrive in the mapping that replaces another one")
	}
	for made := 4; ; made++ { // until half of the credits are used up
		must(t, second.Close())
		if second, err = a.Map(16, 0); err != nil {
			if made != 384/2+1 || !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("mapping %d: %v", made, err)
			}
			break
		}
	}
	tell(a, b)
	must(t, client.Close(), server.Close(), first.Close())
}
