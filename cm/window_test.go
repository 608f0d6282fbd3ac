package cm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// hasLarge reports whether a side has its large receives.
func hasLarge(c *Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.win.grown
}

// growNow gives a side its large receives, and tells the peer.
func growNow(c *Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && !c.closing {
		c.growOrFail()
		c.returnCredits()
	}
}

// attendAfter sets when a connection attends to itself, until the test ends.
func attendAfter(t *testing.T, d time.Duration) {
	old := attendDelay
	attendDelay = d
	t.Cleanup(func() { attendDelay = old })
}

// pattern is the n-th message of a size.
func pattern(n, size int) []byte {
	return bytes.Repeat([]byte{byte(n*7 + 1)}, size)
}

// TestWindowStaysSmall: who is sent small messages, and answers them, has memory for such only; who
// is sent some more without answering, or a large one, has the rest.
func TestWindowStaysSmall(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	attendAfter(t, time.Hour)
	l := newListener(t, ListenOptions{})
	ctx := within(t)
	for _, c := range []struct {
		name  string
		sizes []int
		grows bool
	}{
		{"few", []int{1}, false}, {"more", []int{1, firstData, 0, 5, 6}, true}, {"the largest small one", []int{firstData}, false},
		{"one byte more", []int{firstData + 1}, true}, {"a large one after small ones", []int{3, 30 << 10}, true}, {"the largest", []int{32 << 10}, true},
	} {
		client, server := connect(t, l, DialOptions{})
		for n := range 10 * firstRecvs { // there and back: many more than there are receives
			must(t, client.Send(ctx, pattern(n, firstData)))
			must(t, server.Send(ctx, value(server.Recv(ctx))(t)))
			if got := value(client.Recv(ctx))(t); !bytes.Equal(got, pattern(n, firstData)) {
				t.Fatalf("%s: message %d is wrong", c.name, n)
			}
		}
		if hasLarge(client) || hasLarge(server) {
			t.Errorf("%s: there is memory for large messages, though there was none", c.name)
		}
		sent := make(chan error, 1)
		go func() {
			for n, size := range c.sizes {
				if err := client.Send(ctx, pattern(n, size)); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		for n, size := range c.sizes {
			if got := value(server.Recv(ctx))(t); !bytes.Equal(got, pattern(n, size)) {
				t.Errorf("%s: message %d of %d bytes is wrong", c.name, n, size)
			}
		}
		must(t, <-sent)
		if hasLarge(server) != c.grows || hasLarge(client) {
			t.Errorf("%s: the server has its large receives: %v, the client: %v", c.name, hasLarge(server), hasLarge(client))
		}
		must(t, client.Close(), server.Close())
	}
}

// TestWindowUnattended: a side that is in no method gets its memory when the peer needs it, so that the peer
// can send as much as Depth says, whatever the sizes.
func TestWindowUnattended(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	attendAfter(t, time.Millisecond)
	l := newListener(t, ListenOptions{})
	ctx := within(t)
	for i, size := range []int{0, firstData, firstData + 1, 32 << 10} {
		client, server := connect(t, l, DialOptions{})
		if i%2 == 0 {
			awaitAttended(t, server)
			awaitAttended(t, client)
		}
		if hasLarge(server) || hasLarge(client) {
			t.Errorf("%d bytes: there is memory for large messages, though there was none", size)
		}
		for n := range 16 {
			must(t, client.Send(ctx, pattern(n, size)))
		}
		for n := range 16 {
			if got := value(server.Recv(ctx))(t); !bytes.Equal(got, pattern(n, size)) {
				t.Errorf("%d bytes: message %d is wrong", size, n)
			}
		}
		must(t, client.Close(), server.Close())
	}
}

// awaitAttended waits until a connection attends to itself.
func awaitAttended(t *testing.T, c *Conn) {
	t.Helper()
	until(t, "the connection attends to itself", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.users == 1 && c.win.attended && len(c.parkTurn) == 1
	})
}

// TestAttendOver: the goroutine of a connection makes room for those of the program, and ends with the
// connection, whichever side ends it.
func TestAttendOver(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	attendAfter(t, time.Millisecond)
	l := newListener(t, ListenOptions{})
	ctx := within(t)
	for _, first := range []string{"client", "server"} {
		client, server := connect(t, l, DialOptions{})
		for n := range 3 { // the second and the third time nobody has been in a method for a while
			awaitAttended(t, client)
			awaitAttended(t, server)
			must(t, client.Send(ctx, pattern(n, 8)))
			must(t, server.Send(ctx, value(server.Recv(ctx))(t)))
			if got := value(client.Recv(ctx))(t); !bytes.Equal(got, pattern(n, 8)) {
				t.Errorf("message %d is wrong", n)
			}
		}
		awaitAttended(t, client)
		awaitAttended(t, server)
		one, other := client, server
		if first == "server" {
			one, other = server, client
		}
		must(t, one.Close())
		until(t, "the goroutine of the other side has ended", func() bool {
			other.mu.Lock()
			defer other.mu.Unlock()
			return other.users == 0
		})
		must(t, other.Close())
	}
}

// TestWindowAttended: a side gets no memory because time has passed, whether or not a goroutine waits. It gets
// it when the peer has a large message.
func TestWindowAttended(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	attendAfter(t, time.Hour)
	l := newListener(t, ListenOptions{})
	ctx := within(t)
	for _, waits := range []bool{true, false} {
		client, server := connect(t, l, DialOptions{})
		waiting, stop := context.WithCancel(ctx)
		got := make(chan []byte, 1)
		go func() {
			msg, _ := server.Recv(waiting)
			got <- bytes.Clone(msg)
		}()
		for users := 0; users == 0; time.Sleep(time.Millisecond) {
			server.mu.Lock()
			users = server.users
			server.mu.Unlock()
		}
		timePasses := func() {
			server.mu.Lock()
			server.win.attendAt = time.Now()
			server.mu.Unlock()
			server.checkLiveness()
		}
		if timePasses(); hasLarge(server) {
			t.Error("a goroutine waits: there is memory for large messages")
		}
		if waits {
			must(t, client.Send(ctx, pattern(1, 32<<10)))
			if msg := <-got; !bytes.Equal(msg, pattern(1, 32<<10)) {
				t.Errorf("a message of %d bytes is wrong", len(msg))
			}
		} else {
			stop()
			<-got
			if timePasses(); hasLarge(server) {
				t.Error("no goroutine waits: there is memory for large messages")
			}
			must(t, client.Send(ctx, pattern(1, 32<<10)))
		}
		if stop(); !hasLarge(server) {
			t.Errorf("a goroutine waits: %v: there is no memory for a large message", waits)
		}
		must(t, client.Close(), server.Close())
	}
}

// TestWindowLateWant: the peer gets the credit of a request for memory back that arrives after it was told of
// the memory, while this side is in no method.
func TestWindowLateWant(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	attendAfter(t, time.Hour)
	l := newListener(t, ListenOptions{ConnOptions: ConnOptions{KeepAlive: 100 * time.Millisecond}}) // the server looks then
	ctx := within(t)
	client, server := connect(t, l, DialOptions{})
	growNow(server)
	server.mu.Lock()
	server.win.attendAt = time.Now()
	server.mu.Unlock()
	server.checkLiveness()
	client.mu.Lock()
	defer client.mu.Unlock()
	must(t, client.begin("test"))
	defer client.end()
	must(t, client.await(ctx, hasGrown, 0))
	credits := client.credits
	client.sendWant()
	returned := func(c *Conn, _ uint64) bool { return c.credits == credits || c.err != nil }
	must(t, client.await(ctx, returned, 0), client.err)
}

// notReady returns how many messages to the devices have found no receive, if they count that.
func notReady(t *testing.T) (n uint64) {
	t.Helper()
	testenv.Guest(t)
	counted := false
	for _, name := range testenv.TheRig().Devices {
		dev := value(uverbs.Open(name, uverbs.OpenOptions{}))(t)
		counters, err := dev.PortCounters(1)
		must(t, dev.Close())
		if !errors.Is(err, errors.ErrUnsupported) {
			must(t, err)
		}
		for _, c := range counters {
			if c.Name == "send_rnr_err" {
				n, counted = n+c.Value, true
			}
		}
	}
	if !counted { // on siw TCP loses nothing, and a modelled card's report tells
		testenv.Lacks(t, &uverbs.FeatureError{Feature: "a counter of messages without a receive", Driver: testenv.TheRig().Driver})
	}
	return n
}

// TestWindowRandom: messages of all sizes, both ways at once and from several goroutines, with
// windows that grow at any moment, or are there from the beginning at one side. None finds no
// receive.
func TestWindowRandom(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	ctx, cancel := context.WithTimeout(t.Context(), 10*timeout)
	defer cancel()
	before := notReady(t)
	rng := rand.New(rand.NewPCG(3, 4))
	for round := range 30 {
		attendAfter(t, time.Duration(rng.IntN(30))*time.Millisecond)
		depth := []int{0, 3 * firstDepth, 100}[rng.IntN(3)]
		l := newListener(t, ListenOptions{ConnOptions: ConnOptions{Depth: depth, Tuning: Tuning{SendDepth: 1 + rng.IntN(20)}}})
		o := DialOptions{ConnOptions: ConnOptions{Tuning: Tuning{Wait: waits[rng.IntN(len(waits))]}}}
		if round%5 == 4 {
			o.Depth = 2 // it is not lazy
		}
		client, server := connect(t, l, o)
		for _, c := range []*Conn{client, server} {
			if rng.IntN(2) == 0 {
				time.AfterFunc(time.Duration(rng.IntN(30))*time.Millisecond, func() { growNow(c) })
			}
		}
		const senders, each = 2, 30
		var all sync.WaitGroup
		for _, c := range []*Conn{client, server} {
			for s := range senders {
				sizes := make([]int, each)
				for i := range sizes {
					if sizes[i] = 4 + rng.IntN(firstData); rng.IntN(5) == 0 {
						sizes[i] = 4 + rng.IntN(c.MaxMessage()-3)
					}
				}
				all.Go(func() {
					for i, size := range sizes {
						msg := pattern(i, size)
						msg[0], msg[1] = byte(s), byte(i)
						if err := c.Send(ctx, msg); err != nil {
							t.Errorf("round %d: send: %v", round, err)
							return
						}
					}
				})
			}
			all.Go(func() {
				var next [senders]int
				for range senders * each {
					msg, err := c.Recv(ctx)
					if err != nil {
						t.Errorf("round %d: receive: %v", round, err)
						return
					}
					from, i := int(msg[0]), int(msg[1])
					if i != next[from] || !bytes.Equal(msg[2:], pattern(i, len(msg))[2:]) {
						t.Errorf("round %d: message %d of %d is wrong, %d is next", round, i, from, next[from])
						return
					}
					next[from]++
				}
			})
		}
		all.Wait()
		must(t, errors.Join(client.Close(), server.Close()))
		if t.Failed() {
			t.Fatal(fmt.Sprint("round ", round))
		}
		if now := notReady(t); now != before {
			t.Fatalf("round %d: %d messages found no receive", round, now-before)
		}
	}
}

// TestIdleConnWakeups: an idle connection on which a goroutine waits does not wake up to look whether it needs
// memory. When the goroutine has left, the connection looks once more, and starts a goroutine.
func TestIdleConnWakeups(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	attendAfter(t, time.Hour)
	o := ConnOptions{KeepAlive: -1}
	client, server := connect(t, newListener(t, ListenOptions{ConnOptions: o}), DialOptions{ConnOptions: o})
	for _, c := range []*Conn{client, server} {
		until(t, "nothing is outstanding", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.poll()
			return !c.outstanding()
		})
		look := func() {
			c.mu.Lock()
			c.win.attendAt, c.liveness.idle = time.Now(), false
			c.mu.Unlock()
			c.checkLiveness()
		}
		c.mu.Lock()
		must(t, c.begin("test"))
		c.mu.Unlock()
		look()
		c.mu.Lock()
		if c.win.grown || c.liveness.timer.Stop() {
			t.Errorf("while a goroutine waits: there is memory for large messages: %v, or there will be another look", c.win.grown)
		}
		if c.end(); !c.liveness.timer.Stop() {
			t.Error("there is no look when the goroutine has left")
		}
		c.mu.Unlock()
		look()
		awaitAttended(t, c)
		c.mu.Lock()
		if c.win.grown || c.liveness.timer.Stop() {
			t.Errorf("while its goroutine waits: there is memory for large messages: %v, or there will be another look", c.win.grown)
		}
		c.mu.Unlock()
	}
}

// TestAttendRelieved: the goroutine of a connection ends with the next message when the program has waited for one,
// even if the program does not wait at that time.
func TestAttendRelieved(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	attendAfter(t, time.Millisecond)
	client, server := connect(t, newListener(t, ListenOptions{}), DialOptions{})
	awaitAttended(t, server)
	client.mu.Lock()
	server.mu.Lock()
	attendDelay = time.Hour // it does not begin again
	server.mu.Unlock()
	client.mu.Unlock()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := server.Recv(over); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	must(t, client.Send(within(t), pattern(0, 8)))
	until(t, "the goroutine of the connection has ended", func() bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		return server.users == 0
	})
	if got := value(server.Recv(within(t)))(t); !bytes.Equal(got, pattern(0, 8)) {
		t.Error("the message is wrong")
	}
}
