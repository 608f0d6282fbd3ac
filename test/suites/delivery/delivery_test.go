// Package delivery tests what the connections of cm, rsocket and valkey promise about their end: nothing is
// lost, and nothing waits for ever. It runs on software devices of its own.
package delivery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/cm/rsocket"
	"github.com/goverbs/goverbs/cm/valkey"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// Variables of the environment: how long TestDelivery runs, and the seed of its first connection.
const (
	timeEnv = "GOVERBS_DELIVERY_TIME"
	seedEnv = "GOVERBS_DELIVERY_SEED"
)

// timeout bounds what must not wait for ever.
const timeout = time.Minute

// must fails the test on an error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// addrTries is how many random addresses are tried, some of which another process may have.
const addrTries = 20

// device makes a software device with an address that no other process is likely to use.
func device(t testing.TB, o soft.Options) *soft.Device {
	t.Helper()
	var last error
	for range addrTries {
		o.Addr = netip.AddrFrom4([4]byte{127, byte(2 + rand.N(250)), byte(rand.N(256)), byte(1 + rand.N(250))})
		d, err := soft.New(o)
		if err == nil {
			t.Cleanup(func() { must(t, d.Close()) })
			return d
		}
		last = err
	}
	t.Fatal(last)
	return nil
}

// link makes connections of one kind.
type link struct {
	name string
	// listen returns a listener, and a function that dials it, both with random options.
	listen func(ctx context.Context, r *rand.Rand, addr netip.Addr) (net.Listener, func() (net.Conn, error), error)
}

// between returns a random number from least to most, small ones as often as large ones.
func between(r *rand.Rand, least, most int) int {
	return int(math.Round(float64(least) * math.Pow(float64(most)/float64(least), r.Float64())))
}

// connOptions returns random options of a cm.Conn that need at most 16 MiB.
func connOptions(r *rand.Rand) cm.ConnOptions {
	o := cm.ConnOptions{Depth: between(r, 1, 16384), SendDepth: between(r, 1, 512), Wait: cm.WaitMode(r.IntN(2) * 2), Linger: timeout / 3}
	if r.IntN(2) == 0 {
		o.Depth = between(r, 1024, 16384)
	}
	o.MessageSize = between(r, 16, min(64<<10, 16<<20/o.Depth))
	return o
}

// messages is a net.Conn over the methods of a cm.Conn for messages: each Write is one or more messages.
type messages struct {
	*cm.Stream
	c    *cm.Conn
	rest []byte
}

// Write sends p in messages.
func (m *messages) Write(p []byte) (n int, err error) {
	for n < len(p) {
		k := min(len(p)-n, m.c.MaxMessage())
		if err := m.c.Send(context.Background(), p[n:n+k]); err != nil {
			return n, err
		}
		n += k
	}
	return n, nil
}

// Read returns the next message, or a part of it.
func (m *messages) Read(p []byte) (n int, err error) {
	for len(m.rest) == 0 {
		if m.rest, err = m.c.Recv(context.Background()); err != nil {
			return 0, err
		}
	}
	n = copy(p, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

// conns accepts and makes connections that send messages.
type conns struct{ *cm.Listener }

// Accept accepts one.
func (l conns) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept(context.Background())
	if err != nil {
		return nil, err
	}
	return &messages{Stream: c.Stream(), c: c}, nil
}

// links are the kinds of connections.
var links = []link{
	{"Conn", func(ctx context.Context, r *rand.Rand, addr netip.Addr) (net.Listener, func() (net.Conn, error), error) {
		l, err := cm.Listen(ctx, addr.String()+":0", cm.ListenOptions{ConnOptions: connOptions(r)})
		if err != nil {
			return nil, nil, err
		}
		o := cm.DialOptions{ConnOptions: connOptions(r)}
		return conns{l}, func() (net.Conn, error) {
			c, err := cm.Dial(ctx, l.Addr().String(), o)
			if err != nil {
				return nil, err
			}
			return &messages{Stream: c.Stream(), c: c}, nil
		}, nil
	}},
	{"Stream", func(ctx context.Context, r *rand.Rand, addr netip.Addr) (net.Listener, func() (net.Conn, error), error) {
		l, err := cm.Listen(ctx, addr.String()+":0", cm.ListenOptions{ConnOptions: connOptions(r)})
		if err != nil {
			return nil, nil, err
		}
		o := cm.DialOptions{ConnOptions: connOptions(r)}
		return l.Streams(), func() (net.Conn, error) { return cm.DialStream(ctx, l.Addr().String(), o) }, nil
	}},
	{"rsocket", func(ctx context.Context, r *rand.Rand, addr netip.Addr) (net.Listener, func() (net.Conn, error), error) {
		options := func() rsocket.Options {
			return rsocket.Options{RecvBuffer: between(r, 4<<10, 1<<20), SendBuffer: between(r, 4<<10, 1<<20),
				Credits: between(r, 16, 16384), SendDepth: between(r, 16, 1024), Linger: timeout / 3}
		}
		l, err := rsocket.Listen(ctx, addr.String()+":0", rsocket.ListenOptions{Options: options()})
		if err != nil {
			return nil, nil, err
		}
		o := options()
		return l, func() (net.Conn, error) { return rsocket.Dial(ctx, l.Addr().String(), o) }, nil
	}},
	{"valkey", func(ctx context.Context, r *rand.Rand, addr netip.Addr) (net.Listener, func() (net.Conn, error), error) {
		options := func() valkey.Options {
			return valkey.Options{RecvBuffer: between(r, 8<<10, 1<<20), SendBuffer: between(r, 4<<10, 1<<20),
				RecvDepth: between(r, 16, 16384), SendDepth: between(r, 16, 1024), Linger: timeout / 3}
		}
		l, err := valkey.Listen(ctx, addr.String()+":0", valkey.ListenOptions{Options: options()})
		if err != nil {
			return nil, nil, err
		}
		o := options()
		return l, func() (net.Conn, error) { return valkey.Dial(ctx, l.Addr().String(), o) }, nil
	}},
}

// pattern fills p with the bytes of a stream from an offset on.
func pattern(p []byte, from int) {
	for i := range p {
		p[i] = byte((from + i) * 167 >> 3)
	}
}

// pause sleeps now and then.
func pause(r *rand.Rand, each time.Duration) {
	if each > 0 && r.IntN(8) == 0 {
		time.Sleep(time.Duration(r.Int64N(int64(each))))
	}
}

// TestDelivery: if the sender's Close or CloseWrite has returned no error, the receiver gets every byte and then
// io.EOF, whatever the options, the sizes, the speeds, the moment of the end and the traffic in the other
// direction are, with and without loss.
func TestDelivery(t *testing.T) {
	const short = 4 * time.Second
	runs, seed := short, rand.Uint64()
	if s := os.Getenv(timeEnv); s != "" {
		d, err := time.ParseDuration(s)
		must(t, err)
		runs = d
	}
	if s := os.Getenv(seedEnv); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		must(t, err)
		seed = n
	}
	dev := device(t, soft.Options{})
	for round := 0; round == 0 || runs > 0; round++ {
		for _, lossy := range []bool{false, true} {
			for i := range links {
				begin := time.Now()
				what := fmt.Sprintf("%s, loss: %t, %s=%d", links[i].name, lossy, seedEnv, seed)
				if err := deliver(t.Context(), dev, &links[i], rand.New(rand.NewPCG(seed, uint64(i))), lossy); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				runs -= time.Since(begin)
				if d := time.Since(begin); d > 3*time.Second {
					t.Logf("%s: took %v", what, d)
				}
			}
		}
		seed++
	}
}

// deliver makes a connection, sends data over it and ends it.
func deliver(ctx context.Context, dev *soft.Device, k *link, r *rand.Rand, lossy bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	l, dial, err := k.listen(ctx, r, dev.Addr())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	from, err := dial()
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := l.Accept()
	if err != nil {
		return err
	}
	defer to.Close()
	if r.IntN(2) == 0 {
		from, to = to, from
	}
	if lossy {
		if err := dev.SetFaults(fmt.Sprintf("direction=sent,loss=1%%,reorder=1%%,behind=3,seed=%d", r.Uint32())); err != nil {
			return err
		}
		defer dev.SetFaults("")
	}

	total, most := between(r, 1, 1<<20), between(r, 1, 64<<10)
	total = min(total, most*4000) // a few thousand messages
	many := r.IntN(3) == 0        // more messages wait for the receiver than it takes at a time
	if many {
		most = between(r, 1, 64)
		total = most * between(r, 1000, 4000) / 2
	}
	half := r.IntN(2) == 0
	var writePause, readPause time.Duration
	if r.IntN(2) == 0 {
		writePause = time.Duration(1+r.IntN(2000)) * time.Microsecond
	}
	if r.IntN(2) == 0 {
		readPause = time.Duration(1+r.IntN(2000)) * time.Microsecond
	}
	readAfter := time.Duration(r.IntN(3)) * 50 * time.Millisecond
	if many {
		readAfter, writePause = 600*time.Millisecond, 0
	}
	back := r.IntN(3) == 0
	wr, rr := rand.New(rand.NewPCG(r.Uint64(), 1)), rand.New(rand.NewPCG(r.Uint64(), 2))
	config := fmt.Sprintf("%d bytes in writes of up to %d, half-close %t, reader begins after %v, traffic back %t", total, most, half, readAfter, back)

	sent, received := make(chan error, 1), make(chan error, 1)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		sent <- send(from, wr, total, most, writePause, half)
	}()
	if back { // what does not arrive there is not of interest
		go func() {
			b := make([]byte, between(rr, 1, 8192))
			for range 50 {
				if _, err := to.Write(b); err != nil {
					return
				}
			}
		}()
		if half {
			go io.Copy(io.Discard, from)
		}
	}
	select {
	case <-closed:
	case <-time.After(readAfter):
	}
	to.SetReadDeadline(time.Now().Add(timeout))
	go func() { received <- receive(to, rand.New(rand.NewPCG(r.Uint64(), 3)), total, readPause) }()
	for n := 0; n < 2; n++ {
		select {
		case err := <-sent:
			if err != nil {
				return fmt.Errorf("%s: the sender: %w", config, err)
			}
		case err := <-received:
			if err != nil {
				return fmt.Errorf("%s: the receiver: %w", config, err)
			}
		case <-ctx.Done():
			return fmt.Errorf("%s: still waiting after %v", config, timeout)
		}
	}
	if half && !back { // the other direction was open all the time
		if _, err := to.Write([]byte("back")); err == nil && k.name != "valkey" {
			b := make([]byte, 4)
			from.SetReadDeadline(time.Now().Add(timeout))
			if _, err := io.ReadFull(from, b); err != nil || string(b) != "back" {
				return fmt.Errorf("%s: after the half-close %q comes back: %w", config, b, err)
			}
		} else if k.name != "valkey" {
			return fmt.Errorf("%s: Write after the peer's half-close: %w", config, err)
		}
	}
	return nil
}

// send writes the pattern and ends the direction. Valkey's protocol has no half-close.
func send(c net.Conn, r *rand.Rand, total, most int, each time.Duration, half bool) error {
	b := make([]byte, most)
	for n := 0; n < total; {
		p := b[:min(1+r.IntN(most), total-n)]
		pattern(p, n)
		k, err := c.Write(p)
		if n += k; err != nil {
			return fmt.Errorf("after %d bytes: %w", n, err)
		}
		pause(r, each)
	}
	if h, ok := c.(interface{ CloseWrite() error }); ok && half {
		return h.CloseWrite()
	}
	return c.Close()
}

// receive reads the pattern and io.EOF.
func receive(c net.Conn, r *rand.Rand, total int, each time.Duration) error {
	b, want := make([]byte, between(r, 1, 64<<10)), make([]byte, 64<<10)
	if total/len(b) > 20000 {
		b = make([]byte, 64)
	}
	for n := 0; ; {
		k, err := c.Read(b)
		pattern(want[:k], n)
		if string(want[:k]) != string(b[:k]) {
			return fmt.Errorf("bytes %d to %d are wrong", n, n+k)
		}
		switch n += k; {
		case err == io.EOF && n == total:
			return nil
		case err != nil:
			return fmt.Errorf("%d of %d bytes: %w", n, total, err)
		}
		pause(r, each)
	}
}
