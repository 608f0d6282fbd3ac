package cm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/inprocess"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
)

// small are options of connections of which there are many.
var small = ConnOptions{MessageSize: 64, Depth: 2, Tuning: Tuning{SendDepth: 2, Transfers: 1}}

// answerOne sends back the one message of a client, and waits for the end of the connection.
func answerOne(ctx context.Context, c *Conn) error {
	defer c.Close()
	msg, err := c.Recv(ctx)
	if err == nil {
		err = c.Send(ctx, msg)
	}
	if err == nil {
		if _, err = c.Recv(ctx); err != nil && err.Error() == "EOF" {
			err = nil
		}
	}
	return err
}

// dialOne makes connection number i, and sends a message that comes back. If the message fails, it
// returns the connection with the error.
func dialOne(ctx context.Context, addr string, i int) (*Conn, error) {
	c, err := Dial(ctx, addr, DialOptions{ConnOptions: small})
	if err != nil {
		return nil, fmt.Errorf("%d: %w", i, err)
	}
	return c, roundTrip(ctx, c, "number "+strconv.Itoa(i))
}

// roundTrip sends a message that comes back.
func roundTrip(ctx context.Context, c *Conn, word string) error {
	err := c.Send(ctx, []byte(word))
	var msg []byte
	if err == nil {
		msg, err = c.Recv(ctx)
	}
	if err == nil && string(msg) != word {
		err = fmt.Errorf("%s comes back as %q", word, msg)
	}
	return err
}

// TestManyConns: 1,000 connections open at once on one listener, 200 dialled at a time, and a
// message over each both ways.
func TestManyConns(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard, testenv.Race)
	conns := load(testenv.Brief(), 1000, 300, 100)
	l := newListener(t, ListenOptions{ConnOptions: small})
	atOnce := 200
	if v := testenv.Kernel(t); v[0] == 5 && v[1] < 19 { // rxe has 100 address handles, of which each attempt takes some
		atOnce = 20
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*timeout)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	errs := make(chan error, 2*conns)
	all.Go(func() {
		for range conns {
			c, err := l.Accept(ctx)
			if err != nil {
				errs <- err
				return
			}
			all.Go(func() { errs <- answerOne(ctx, c) })
		}
	})
	dialled := make(chan *Conn, conns)
	turn := make(chan struct{}, atOnce)
	for i := range conns {
		all.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			c, err := dialOne(ctx, l.Addr().String(), i)
			errs <- err
			dialled <- c
		})
	}
	var open []*Conn // all of them, at the end
	for range conns {
		if c := <-dialled; c != nil {
			open = append(open, c)
		}
	}
	if len(open) != conns {
		t.Errorf("%d connections are open", len(open))
		cancel()
	}
	for _, c := range open {
		all.Go(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

// kernelUse is what a process has of the kernel.
type kernelUse struct {
	goroutines, files int
	devices           []netlinkrdma.ResourceCounts
	ids               int // IDs of software devices
}

// use counts it.
func use(t *testing.T) (u kernelUse) {
	t.Helper()
	u.goroutines = runtime.NumGoroutine()
	u.files = len(value(os.ReadDir("/proc/self/fd"))(t))
	if testenv.TheRig().Soft { // objects that are left on a software device make its Close fail
		u.ids = inprocess.Host.Len()
		return u
	}
	for _, dev := range value(netlinkrdma.Devices())(t) {
		u.devices = append(u.devices, value(netlinkrdma.Resources(dev, netlinkrdma.ListOptions{}))(t))
	}
	return u
}

// connsEnv says how many connections the tests of leaks make, if not as many as take some seconds.
const connsEnv = "GOVERBS_CONNS"

// howMany returns that number.
func howMany(t *testing.T, brief bool) int {
	t.Helper()
	if s := os.Getenv(connsEnv); s != "" {
		return value(strconv.Atoi(s))(t)
	}
	return load(brief, 250, 100, 40)
}

// load is how much a test does: all of it, less if the machine or its devices are slow, or the least in a brief run.
func load(brief bool, all, slow, least int) int {
	switch {
	case testenv.Slow():
		return slow
	case brief:
		return least
	}
	return all
}

// heapInUse returns the number of bytes that are in use after a garbage collection.
func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestConnLeaks: after many connects and closes, and attempts that failed, all is as it was before.
func TestConnLeaks(t *testing.T) {
	before := quiet(t)
	n := howMany(t, testenv.Brief())
	ctx := context.Background()
	l := value(Listen(ctx, firstAny, ListenOptions{ConnOptions: small}))(t)
	const workers = 4
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept(ctx)
			if err != nil {
				return
			}
			all.Go(func() {
				c.Recv(ctx)
				c.Close()
			})
		}
	})
	var made, refused, cut atomic.Int64
	begin := time.Now()
	var dialling sync.WaitGroup
	for w := range workers {
		dialling.Go(func() {
			for i := w; i < n; i += workers {
				c, err := Dial(ctx, l.Addr().String(), DialOptions{ConnOptions: small})
				if err == nil {
					made.Add(1)
					err = errors.Join(c.Send(ctx, []byte("x")), c.Close())
				}
				if err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				switch i % 8 {
				case 3: // nobody listens
					if c, err := Dial(ctx, firstBad, DialOptions{ConnOptions: small}); err == nil {
						t.Error("connected to nobody")
						c.Close()
					}
					refused.Add(1)
				case 7: // ends somewhere on the way
					short, cancel := context.WithTimeout(ctx, time.Duration(i/10%6)*time.Millisecond)
					if c, err := Dial(short, l.Addr().String(), DialOptions{ConnOptions: small}); err == nil {
						c.Close()
					}
					cancel()
					cut.Add(1)
				}
			}
		})
	}
	dialling.Wait()
	took := time.Since(begin)
	must(t, l.Close())
	all.Wait()
	after := nothingLeft(t, before)
	t.Logf("%d connections were made and closed in %s; %d attempts were refused, and %d had up to 4 ms", made.Load(), took.Round(time.Millisecond), refused.Load(), cut.Load())
	t.Logf("before: %+v", before)
	t.Logf("after:  %+v", after)
}

// TestStreamLeaks: many streams, closed by either side first, half of them after a half close, all with deadlines that
// have not passed, leave nothing: no goroutine, open file or object of the kernel, and no more memory than 1 MiB or
// 100 bytes per stream. A software device keeps some bytes for each number of a QP or a memory region until it uses
// the number again.
func TestStreamLeaks(t *testing.T) {
	before := quiet(t)
	n := howMany(t, testenv.Brief())
	l := value(Listen(t.Context(), firstAny, ListenOptions{ConnOptions: small}))(t)
	streams := l.Streams()
	var heap uint64
	begin := time.Now()
	for i := range n {
		if i == 10 { // what is made once is there
			heap = heapInUse()
		}
		first := value(DialStream(t.Context(), l.Addr().String(), DialOptions{ConnOptions: small}))(t)
		second := value(streams.Accept())(t).(*Stream)
		if i%2 == 0 {
			first, second = second, first
		}
		later := time.Now().Add(time.Hour)
		must(t, first.SetDeadline(later), second.SetDeadline(later))
		if i%4 < 2 {
			must(t, second.CloseWrite())
			if got := value(io.ReadAll(first))(t); len(got) > 0 {
				t.Errorf("stream %d: %d bytes after a half close", i, len(got))
			}
		}
		value(first.Write([]byte("bye")))(t)
		must(t, first.Close())
		got := value(io.ReadAll(second))(t)
		must(t, second.Close())
		if string(got) != "bye" {
			t.Errorf("stream %d: %q arrives", i, got)
		}
	}
	took := time.Since(begin)
	must(t, streams.Close())
	after := nothingLeft(t, before)
	now := heapInUse()
	if now > heap+max(1<<20, uint64(100*n)) {
		t.Errorf("the heap has %d bytes after %d streams, and had %d", now, n, heap)
	}
	t.Logf("%d streams were made and closed in %s; the heap has %d bytes, and had %d", n, took.Round(time.Millisecond), now, heap)
	t.Logf("before: %+v", before)
	t.Logf("after:  %+v", after)
}

// noMore reports whether nothing is more than before. Less can be: of the test before, a device that
// its connections have shared is closed a moment after them.
func noMore(now, before kernelUse) bool {
	more := now.ids > before.ids || now.goroutines > before.goroutines || now.files > before.files || len(now.devices) != len(before.devices)
	for i := 0; i < len(now.devices) && !more; i++ {
		n, b := now.devices[i], before.devices[i]
		more = n.QPs > b.QPs || n.CQs > b.CQs || n.MRs > b.MRs || n.PDs > b.PDs || n.CMIDs > b.CMIDs || n.Contexts > b.Contexts || n.SRQs > b.SRQs
	}
	return !more
}
