package hosts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// traffic are calls that go on, or wait, on connections with host 1 until they fail.
type traffic struct {
	conns []*cm.Conn
	calls sync.WaitGroup
	mu    sync.Mutex
	ends  map[string]error // guarded by mu: of each call
}

// startTraffic connects, and starts them.
func startTraffic(t *testing.T, ctx context.Context) *traffic {
	t.Helper()
	f := &traffic{ends: map[string]error{}}
	call := func(name string, do func() error) {
		f.calls.Go(func() {
			_, err := repeat(do)
			f.mu.Lock()
			defer f.mu.Unlock()
			f.ends[name] = err
		})
	}
	conn := func(port string) *cm.Conn {
		c, err := dial(ctx, net.JoinHostPort(address[1], port), cm.DialOptions{ConnOptions: cm.ConnOptions{KeepAlive: 200 * time.Millisecond}})
		must(t, err)
		f.conns = append(f.conns, c)
		return c
	}
	idle, busy, stream := conn(echoPort), conn(echoPort), conn(streamPort).Stream()
	call("Recv of an idle connection", func() error { _, err := idle.Recv(ctx); return err })
	call("Send", func() error { return busy.Send(ctx, make([]byte, 2000)) })
	call("Recv", func() error { _, err := busy.Recv(ctx); return err })
	call("Write", func() error { _, err := stream.Write(make([]byte, 50_000)); return err })
	call("Read", func() error { _, err := stream.Read(make([]byte, 50_000)); return err })
	time.Sleep(300 * time.Millisecond) // all of them are under way
	return f
}

// end waits until all calls have returned, and fails the test if one says nothing of what has happened:
// says are texts of which each error has one.
func (f *traffic) end(t *testing.T, says ...string) {
	t.Helper()
	all := make(chan error, 1)
	go func() {
		f.calls.Wait()
		all <- nil
	}()
	if within(t, "one of the calls", all); t.Failed() {
		return
	}
	for name, err := range f.ends {
		t.Logf("%s: %v", name, err)
		told := strings.Contains(err.Error(), address[1]) && !errors.Is(err, context.DeadlineExceeded)
		found := false
		for _, s := range says {
			found = found || strings.Contains(err.Error(), s)
		}
		if !told || !found {
			t.Errorf("%s: %v; want %s and one of %q", name, err, address[1], says)
		}
	}
	f.close(t)
}

// close closes what there is.
func (f *traffic) close(t *testing.T) {
	t.Helper()
	for _, c := range f.conns {
		ended := make(chan error, 1)
		go func() { ended <- c.Close() }()
		within(t, "Close", ended)
	}
}

// again fails the test unless connections can be made and used, after a while.
func again(t *testing.T, ctx context.Context) {
	t.Helper()
	for {
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		c, err := cm.Dial(short, net.JoinHostPort(address[1], echoPort), cm.DialOptions{})
		cancel()
		if err == nil {
			pingPong(t, ctx, c, 5)
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("no connection any more: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestLinkDown: a network interface goes down in mid-traffic, on this host, on the other, or on both,
// and comes back only after all that waits had to return.
func TestLinkDown(t *testing.T) {
	testenv.Tags(t, testenv.KernelLink)
	for _, where := range []string{"here", "there", "both"} {
		t.Run(where, func(t *testing.T) {
			_, ctx := client(t)
			f := startTraffic(t, ctx)
			if where != "here" {
				on(t, ctx, 1, cutAnewWord, "10s")
				time.Sleep(2 * soon)
			}
			if where != "there" {
				vmlink(t, "down")
			}
			begin := time.Now()
			f.end(t, down...)
			t.Logf("all calls have returned after %s", time.Since(begin).Round(time.Millisecond))
			short, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			if c, err := cm.Dial(short, net.JoinHostPort(address[1], echoPort), cm.DialOptions{}); err == nil || !strings.Contains(err.Error(), address[1]) {
				t.Errorf("Dial over a link that is down: %v", err)
				if err == nil {
					c.Close()
				}
			}
			if where != "there" {
				vmlink(t, "up")
			}
			if where != "there" {
				if where == "both" {
					time.Sleep(time.Until(begin.Add(10*time.Second + 2*soon))) // host 1 is back
				}
				reached(t, ctx)
			}
			again(t, ctx)
		})
	}
}

// reached makes this host's device again unless the peer can be dialled: see remake.
func reached(t *testing.T, ctx context.Context) {
	t.Helper()
	short, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	c, err := dial(short, net.JoinHostPort(address[1], echoPort), cm.DialOptions{})
	if err == nil {
		c.Close()
		return
	}
	t.Logf("%s is made again: %v", device, err)
	must(t, remake())
}

// down is what errors say of a link that is.
var down = []string{syscall.ETIMEDOUT.Error(), syscall.ECONNRESET.Error(), "no route to the peer, as when the port is down", "port 1 is DOWN", beingRemoved}

// beingRemoved is what they say of a device that goes.
const beingRemoved = "device " + device + " is being removed"

// TestLinkBack: a network interface goes down in mid-traffic and comes back after a moment. Each
// connection goes on, or all that uses it returns and tells why; there are new ones in any case, on
// rxe when the device was made again.
func TestLinkBack(t *testing.T) {
	testenv.Tags(t, testenv.KernelLink)
	for _, where := range []string{"here", "there", "both"} {
		t.Run(where, func(t *testing.T) {
			_, ctx := client(t)
			f := startTraffic(t, ctx)
			if where != "here" {
				on(t, ctx, 1, cutAnewWord, "400ms")
				time.Sleep(soon)
			}
			if where != "there" {
				vmlink(t, "down")
				time.Sleep(400 * time.Millisecond)
				vmlink(t, "up")
			}
			time.Sleep(time.Second)
			reached(t, ctx)
			again(t, ctx)
			f.close(t) // what goes on ends by that
			f.end(t, append(down, net.ErrClosed.Error(), "it is closed")...)
		})
	}
}

// TestDeviceRemoved: the RDMA device is deleted in mid-traffic, of this host and of the other, and comes
// back.
func TestDeviceRemoved(t *testing.T) {
	testenv.Tags(t, testenv.KernelLink)
	t.Run("here", func(t *testing.T) {
		_, ctx := client(t)
		f := startTraffic(t, ctx)
		removed := make(chan error, 1)
		go func() { removed <- removeDevice() }()
		f.end(t, beingRemoved, syscall.ECONNRESET.Error(), uverbs.WCLocQPOpErr.Error())
		must(t, within(t, "the removal", removed))
		if _, err := cm.Dial(ctx, net.JoinHostPort(address[1], echoPort), cm.DialOptions{}); err == nil {
			t.Error("there is a connection without a device")
		} else {
			t.Log(err)
		}
		must(t, addDevice())
		again(t, ctx)
	})
	t.Run("there", func(t *testing.T) {
		_, ctx := client(t)
		f := startTraffic(t, ctx)
		on(t, ctx, 1, removeWord, fmt.Sprint(500*time.Millisecond))
		f.end(t, syscall.ETIMEDOUT.Error(), syscall.ECONNRESET.Error())
		again(t, ctx)
	})
}
