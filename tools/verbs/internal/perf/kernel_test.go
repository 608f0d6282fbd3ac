package perf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

func TestMain(m *testing.M) {
	lacking := "<6.12 TestDMABuf: dma-buf heaps"
	if runtime.GOARCH == "arm64" { // Debian's kernels differ
		lacking = "<6.13 TestDMABuf: dma-buf heaps"
	}
	os.Exit(testenv.MainFor(m, map[string]string{
		"rxe":  lacking + "\nall TestDMABufTraffic: REG_DMABUF_MR",
		"mlx5": strings.ReplaceAll(lacking, "TestDMABuf:", "TestDMABufTraffic:"),
	}))
}

// serverAddr is the address of the guest's first device.
const serverAddr = "10.1.0.1"

// serveHere serves on the guest's first device.
func serveHere(t *testing.T, s *Server) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(serverAddr, "0"))
	if err != nil {
		t.Fatal(err)
	}
	s.Local.GID, s.Local.CPU = Auto, Auto
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().(*net.TCPAddr).Port
}

// measure runs a client.
func measure(t *testing.T, cl *Client) (*Report, error) {
	t.Helper()
	cl.Local.GID, cl.Local.CPU, cl.Host = Auto, Auto, serverAddr
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return cl.Run(ctx)
}

// TestArmed: before a wait for one queue's event that queue is armed, whichever was armed before and
// was found to have a completion by polling.
func TestArmed(t *testing.T) {
	testenv.Guest(t)
	dev, port, err := OpenDevice(Local{}, netip.MustParseAddr(serverAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	config := Default(Send, Lat)
	config.Events = true
	e, err := NewEnd(dev, port, config, Local{GID: Auto, CPU: Auto}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	e.ctx, e.waiting = ctx, ctx
	for _, cqs := range [][2]*uverbs.CQ{{e.RecvCQ}, {e.SendCQ}, {e.SendCQ, e.RecvCQ}, {e.RecvCQ, e.SendCQ}, {e.RecvCQ}} {
		if err := e.sleep(cqs[0], cqs[1]); err != nil { // no event ever comes
			t.Fatalf("it waits for a queue that is not armed: %v", err)
		}
	}
	if err := e.sleep(e.RecvCQ, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it does not wait for a queue that is armed: %v", err)
	}
}

// TestMemoryLimit: a server gives all clients together no more memory than it shall, and what one has had
// to the next.
func TestMemoryLimit(t *testing.T) {
	testenv.Guest(t)
	config := Default(Write, BW)
	config.Iterations = 10
	_, err := measure(t, &Client{Config: config, Port: serveHere(t, &Server{MaxMemory: 100_000})})
	if err == nil || !strings.Contains(err.Error(), "bytes of memory, allowed by this server (--max-memory): 100000") {
		t.Errorf("error is %v", err)
	}
	room := footprint(&config, Limits{})
	s := &Server{MaxMemory: room * 3 / 2} // enough for one
	port := serveHere(t, s)
	for range 3 {
		var second error
		first := &Client{Config: config, Port: port, Running: func(int, func() int64) func() {
			_, second = measure(t, &Client{Config: config, Port: port})
			return func() {}
		}}
		if _, err := measure(t, first); err != nil {
			t.Fatal(err)
		}
		if second == nil || !strings.Contains(second.Error(), fmt.Sprintf("of which other clients have %d", room)) {
			t.Errorf("a second client at once: %v", second)
		}
		for taken := 1; taken != 0; time.Sleep(time.Millisecond) { // the server has a little to do when the client is gone
			s.mu.Lock()
			taken = s.taken
			s.mu.Unlock()
		}
	}
}

// noHeap says that the kernel makes no dma-bufs for programs.
type noHeap struct{ error }

// Unsupported implements the interface of package testenv.
func (noHeap) Unsupported() (feature string, since [2]int) { return "dma-buf heaps", [2]int{} }

// heapMemory returns memory of a dma-buf heap, and a name for its descriptor.
func heapMemory(t *testing.T, size int) (name string, mem []byte) {
	t.Helper()
	r, err := mmio.MapHeap("system", size)
	if errors.Is(err, errors.ErrUnsupported) {
		testenv.Skip(t, noHeap{err})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return fmt.Sprint("/proc/self/fd/", r.DMABuf().Fd()), r.Bytes()
}

// TestDMABuf names dma-bufs of a heap and by their descriptor, which the driver refuses.
func TestDMABuf(t *testing.T) {
	testenv.Guest(t)
	fd, _ := heapMemory(t, 1<<18)
	config := Default(Send, BW)
	config.Sizes, config.Iterations = []int{64}, 10
	for name, want := range map[string]string{
		heaps + "system":    "REG_DMABUF_MR not supported by driver rxe",
		fd:                  "REG_DMABUF_MR not supported by driver rxe",
		"/dev/fd/1023":      "bad file descriptor",
		heaps + "no-such":   "Heap is no-such, allowed: the heaps of this machine: ",
		"/proc/self/fd/one": "no such file or directory",
		"/proc/self/status": "is 0 bytes long",
	} {
		_, err := measure(t, &Client{Config: config, Local: Local{DMABuf: name}, Port: serveHere(t, &Server{})})
		if err == nil || !strings.Contains(err.Error(), "--dmabuf: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// TestDMABufTraffic: messages go from one dma-buf to another, and the data with them.
func TestDMABufTraffic(t *testing.T) {
	testenv.Guest(t)
	testenv.Needs(t, "REG_DMABUF_MR", "mlx5")
	const size, room = 8192, 1 << 18
	heapMemory(t, room) // or the test is skipped, and not its parts
	for _, c := range []struct {
		op, metric string
		from       int // who has the data: 0 the client, 1 the server
	}{{Send, BW, 0}, {Send, Lat, 0}, {Send, Lat, 1}, {Write, BW, 0}, {Read, BW, 1}, {Read, Lat, 1}} {
		t.Run(fmt.Sprintf("%s-%s from %d", c.op, c.metric, c.from), func(t *testing.T) {
			var names [2]string
			var mems [2][]byte
			for i := range names {
				names[i], mems[i] = heapMemory(t, room)
			}
			for i := range mems[c.from] {
				mems[c.from][i] = byte(i*7 + i/251)
			}
			config := Default(c.op, c.metric)
			config.Sizes, config.Iterations = []int{size}, 20
			report, err := measure(t, &Client{Config: config, Local: Local{DMABuf: names[0]}, Port: serveHere(t, &Server{Local: Local{DMABuf: names[1]}})})
			if err != nil {
				t.Fatal(err)
			}
			if n := report.Results[0].Iterations; n != 20 {
				t.Errorf("%d messages were measured, want 20", n)
			}
			found := false // wherever in the memory messages begin
			for at := 0; at+size <= room && !found; at += cacheLine {
				found = bytes.Contains(mems[1-c.from], mems[c.from][at:at+size])
			}
			if !found {
				t.Errorf("no message of %d bytes has come", size)
			}
		})
	}
	config := Default(Write, Lat) // looks at the memory, which that of a heap allows
	config.Verify, config.Iterations = true, 20
	local := Local{DMABuf: heaps + "system"}
	if _, err := measure(t, &Client{Config: config, Local: local, Port: serveHere(t, &Server{Local: local})}); err != nil {
		t.Error(err)
	}
}

// TestLost: the report counts datagrams that found no receive.
func TestLost(t *testing.T) {
	testenv.Guest(t)
	config := Default(Send, BW)
	config.Type, config.Sizes, config.RecvDepth, config.Warmup, config.Iterations = UD, []int{64}, 1, 0, 2000
	report, err := measure(t, &Client{Config: config, Port: serveHere(t, &Server{})})
	if err != nil {
		t.Fatal(err)
	}
	if r := report.Results[0]; r.Lost == 0 || r.Lost >= r.Iterations || r.Iterations != 2000 {
		t.Errorf("%d of %d datagrams are lost, with one receive", r.Lost, r.Iterations)
	}
}
