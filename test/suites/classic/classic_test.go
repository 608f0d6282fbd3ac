package classic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// must fails a test on an error.
var must = testenv.Must

func TestMain(m *testing.M) { os.Exit(testenv.Main(m, lacking)) }

// lacking is what kernels lack. A message that finds no receive may hang in rxe of Linux 5.10,
// with any program.
const lacking = "<6.0 TestBlast/few_receives: RNR_RETRY"

// Addresses of the guest's devices.
var (
	first  = netip.MustParseAddr("10.1.0.1")
	second = netip.MustParseAddr("10.1.0.2")
)

// resources counts the objects of each device.
func resources(t *testing.T) map[string]netlinkrdma.ResourceCounts {
	t.Helper()
	all := map[string]netlinkrdma.ResourceCounts{}
	devices, err := netlinkrdma.Devices()
	must(t, err)
	for _, d := range devices {
		if all[d.Name], err = netlinkrdma.Resources(d, netlinkrdma.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// guest begins a test in a VM. At its end everything must be as before.
func guest(t *testing.T) context.Context {
	t.Helper()
	testenv.Guest(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	before := resources(t)
	t.Cleanup(func() {
		if diff := cmp.Diff(before, resources(t)); diff != "" {
			t.Errorf("objects (-before +after):\n%s", diff)
		}
	})
	return ctx
}

// open opens a channel, which is closed at the end of the test.
func open(t *testing.T) *rdmacm.Channel {
	t.Helper()
	c, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{})
	must(t, err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// both runs the two sides of a program.
func both(t *testing.T, serve func(context.Context, *rdmacm.ID) error, dial func(context.Context, *rdmacm.Channel, netip.AddrPort) error) {
	t.Helper()
	ctx := guest(t)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l, err := Listen(open(t), rdmacm.TCP, netip.AddrPortFrom(first, 0))
	must(t, err)
	defer l.Close()
	a, err := l.Addrs()
	must(t, err)
	served := make(chan error, 1)
	go func() {
		err := serve(ctx, l)
		if err != nil {
			cancel() // the client would wait for more
		}
		served <- err
	}()
	err = dial(ctx, open(t), netip.AddrPortFrom(first, a.Local.Port))
	if err != nil {
		cancel()
	}
	if err := errors.Join(err, <-served); err != nil {
		t.Error(err)
	}
}

// game runs a ping-pong.
func game(t *testing.T, size, count int, server func(context.Context, *rdmacm.ID, int, int) error, client func(context.Context, *rdmacm.Channel, netip.AddrPort, int, int) error) {
	t.Helper()
	both(t, func(ctx context.Context, l *rdmacm.ID) error { return server(ctx, l, size, count) },
		func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort) error {
			return client(ctx, c, addr, size, count)
		})
}

// TestPingpong waits by polling.
func TestPingpong(t *testing.T) { game(t, 5000, 100, PingpongServer, PingpongClient) }

// TestSleep waits by completion channels.
func TestSleep(t *testing.T) { agreed(t, 64, 100, 1000, 64, SleepServer, SleepClient) }

// TestTerms has size and number of messages in the private data, and a server that wants
// smaller ones.
func TestTerms(t *testing.T) {
	for size, want := range map[int]int{17: 17, 3000: 1000} {
		agreed(t, size, 20, 1000, want, TermsServer, TermsClient)
	}
}

// agreed runs a ping-pong whose sides agree on the size.
func agreed(t *testing.T, size, count, largest, want int, server func(context.Context, *rdmacm.ID, int) error,
	client func(context.Context, *rdmacm.Channel, netip.AddrPort, int, int) (int, error)) {
	t.Helper()
	both(t, func(ctx context.Context, l *rdmacm.ID) error { return server(ctx, l, largest) },
		func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort) error {
			got, err := client(ctx, c, addr, size, count)
			if err == nil && got != want {
				t.Errorf("the size is %d, want %d", got, want)
			}
			return err
		})
}

// TestEvents has a goroutine for the events of each side.
func TestEvents(t *testing.T) {
	ctx := guest(t)
	const size, count = 100, 50
	addr := netip.AddrPortFrom(first, 7471)
	c, served := open(t), make(chan error, 1)
	go func() { served <- EventsServer(ctx, c, addr, size) }()
	var err error
	for { // until the server listens
		err = EventsClient(ctx, open(t), addr, size, count)
		var e *rdmacm.EventError
		if !errors.As(err, &e) || e.Type != rdmacm.EventRejected || ctx.Err() != nil {
			break
		}
	}
	if err := errors.Join(err, <-served); err != nil {
		t.Error(err)
	}
}

// TestLoop has one goroutine deal with events and completions.
func TestLoop(t *testing.T) {
	const size, count = 300, 50
	both(t, func(ctx context.Context, l *rdmacm.ID) error {
		n, err := LoopServer(ctx, l, size)
		if n != count {
			t.Errorf("the server has answered %d messages, want %d", n, count)
		}
		return err
	}, func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort) error {
		return LoopClient(ctx, c, addr, size, count)
	})
}

// TestBlast has more receives posted than are sent at a time, and fewer.
func TestBlast(t *testing.T) {
	const size, count, sends = 512, 1000, 16
	blast := func(t *testing.T, receives int) {
		both(t, func(ctx context.Context, l *rdmacm.ID) error { return BlastServer(ctx, l, size, count, receives) },
			func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort) error {
				return BlastClient(ctx, c, addr, size, count, sends)
			})
	}
	k := testenv.Kernel(t)
	hangs := k[0] < 6 && testenv.TheRig().Driver == "rxe" // where a message finds no receive
	t.Run("many receives", func(t *testing.T) {
		many := 64
		if hangs { // a server that is kept from running for a while must have them all
			many = count
		}
		blast(t, many)
	})
	t.Run("few receives", func(t *testing.T) {
		if hangs {
			testenv.Skip(t, &uverbs.FeatureError{Feature: "RNR_RETRY", Since: uverbs.Version{6, 0}})
		}
		blast(t, 2)
	})
}

// TestLend has the server write and read the client's memory.
func TestLend(t *testing.T) {
	both(t, func(ctx context.Context, l *rdmacm.ID) error {
		got, err := LendServer(ctx, l, "some text")
		if err == nil && got != "SOME TEXT" {
			t.Errorf("the server has read %q", got)
		}
		return err
	}, LendClient)
}

// TestAnnounce has the client write and read the server's memory.
func TestAnnounce(t *testing.T) {
	for _, text := range []string{"x", strings.Repeat("some text ", 5000)} {
		both(t, func(ctx context.Context, l *rdmacm.ID) error {
			got, err := AnnounceServer(ctx, l, 1<<20)
			if err == nil && got != text {
				t.Errorf("the server has %d bytes, %.20q", len(got), got)
			}
			return err
		}, func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort) error {
			return AnnounceClient(ctx, c, addr, text)
		})
	}
}

// TestCopy copies files of all kinds of length.
func TestCopy(t *testing.T) {
	for _, size := range []int{0, 1, pieceSize, pieceSize + 1, 10*pieceSize + 5} {
		file := make([]byte, size)
		for i := range file {
			file[i] = byte(rand.Uint32())
		}
		var got bytes.Buffer
		both(t, func(ctx context.Context, l *rdmacm.ID) error { return CopyServer(ctx, l, &got) },
			func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort) error {
				return CopyClient(ctx, c, addr, bytes.NewReader(file))
			})
		if !bytes.Equal(got.Bytes(), file) {
			t.Errorf("the copy of %d bytes has %d, or others", size, got.Len())
		}
	}
}

// TestChat has three talk, until each has heard both of the others.
func TestChat(t *testing.T) {
	ctx := guest(t)
	const chatters = 3
	group := netip.MustParseAddr("239.3.4.5")
	type hearing struct {
		by   int
		line string
	}
	var mu sync.Mutex
	all := map[hearing]bool{} // guarded by mu
	done := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(all) >= chatters*(chatters-1) || ctx.Err() != nil
	}
	var running sync.WaitGroup
	for i := range chatters {
		c, lines := open(t), make(chan string)
		running.Go(func() {
			err := Chat(ctx, c, first, group, lines, func(_ uint32, line string) {
				mu.Lock()
				defer mu.Unlock()
				all[hearing{i, line}] = true
			})
			if err != nil {
				t.Error(err)
			}
		})
		running.Go(func() {
			defer close(lines)
			for !done() { // again and again, as nobody knows who has joined already
				select {
				case lines <- fmt.Sprintf("I am %d", i):
				case <-ctx.Done():
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	running.Wait()
	for i := range chatters {
		if all[hearing{i, fmt.Sprintf("I am %d", i)}] {
			t.Errorf("chatter %d hears itself", i)
		}
	}
}

// TestDevices lists the guest's devices.
func TestDevices(t *testing.T) {
	guest(t)
	var out bytes.Buffer
	must(t, Devices(&out))
	rig := testenv.TheRig()
	wants := []string{rig.Devices[0] + ": driver " + rig.Driver, rig.Devices[1] + ": driver " + rig.Driver, "port 1: "}
	if rig.InfiniBand() {
		wants = append(wants, "GID 0: fe80:", ", IB)")
	} else {
		wants = append(wants, first.String(), second.String(), "RoCE v2")
	}
	for _, want := range wants {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the list does not say %q:\n%s", want, out.String())
		}
	}
}
