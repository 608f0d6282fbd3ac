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
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/cm/rsocket"
	"github.com/goverbs/goverbs/cm/valkey"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// Variables of the environment: how long TestDelivery runs, and the seed of its first connection.
const (
	timeEnv = "GOVERBS_DELIVERY_TIME"
	seedEnv = "GOVERBS_DELIVERY_SEED"
)

// timeout bounds what must not wait for ever.
const timeout = time.Minute

// must fails a test on an error.
var must = testenv.Must

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
	o := cm.ConnOptions{Depth: between(r, 1, 16384), Linger: timeout / 3, Tuning: cm.Tuning{SendDepth: between(r, 1, 512), Wait: cm.WaitMode(r.IntN(2) * 2)}}
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

// pause sleeps now and then.
func pause(r *rand.Rand, each time.Duration) {
	if each > 0 && r.IntN(8) == 0 {
		time.Sleep(time.Duration(r.Int64N(int64(each))))
	}
}

// TestDelivery: if the sender's Close or CloseWrite has returned no error, the receiver gets every byte that Write has
// reported and then io.EOF, whatever the options, the sizes, the speeds, the moment of the end and the traffic in the
// other direction are, with and without loss. After CloseWrite the other direction goes on.
func TestDelivery(t *testing.T) {
	const short = 4 * time.Second
	runs, seed := short, firstSeed(t)
	if s := os.Getenv(timeEnv); s != "" {
		d, err := time.ParseDuration(s)
		must(t, err)
		runs = d
	}
	dev := device(t, soft.Options{})
	for round := 0; round == 0 || runs > 0; round++ {
		for _, lossy := range []bool{false, true} {
			for i := range links {
				begin := time.Now()
				what := fmt.Sprintf("%s, loss: %t, %s=%d", links[i].name, lossy, seedEnv, seed)
				if err := deliver(t.Context(), dev, &links[i], rand.New(rand.NewPCG(seed, uint64(i))), lossy, 0); err != nil {
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

// firstSeed returns the seed of the first connection.
func firstSeed(t *testing.T) uint64 {
	s := os.Getenv(seedEnv)
	if s == "" {
		return rand.Uint64()
	}
	n, err := strconv.ParseUint(s, 10, 64)
	must(t, err)
	return n
}

// TestDeliveryCut: if the link breaks at any time, every call ends, and what Close has promised by returning no
// error has arrived.
func TestDeliveryCut(t *testing.T) {
	const rounds = 4
	seed := firstSeed(t)
	for range rounds {
		for i := range links {
			dev, k, r := device(t, soft.Options{}), &links[i], rand.New(rand.NewPCG(seed, uint64(i)))
			t.Run(fmt.Sprintf("%s/%s=%d", k.name, seedEnv, seed), func(t *testing.T) {
				t.Parallel()
				must(t, deliver(t.Context(), dev, k, r, false, time.Duration(between(r, 1, 200_000))*time.Microsecond))
			})
		}
		seed++
	}
}

// deliver makes a connection, sends data over it and ends it. If cut is not 0, the link breaks at that time.
func deliver(ctx context.Context, dev *soft.Device, k *link, r *rand.Rand, lossy bool, cut time.Duration) (err error) {
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
		if err := dev.SetFaults(soft.Faults{Seed: uint64(r.Uint32()), Rules: []soft.Rule{
			{Direction: soft.Sent, Loss: soft.Percent, Reorder: soft.Percent, Behind: 3},
		}}); err != nil {
			return err
		}
		defer dev.SetFaults(soft.Faults{})
	}
	if cut > 0 {
		time.AfterFunc(cut, func() { dev.Partition(netip.Addr{}) })
	}
	x := newExchange(from, to, r)
	x.there.cut, x.back.cut = cut > 0, cut > 0
	to.SetReadDeadline(time.Now().Add(timeout))
	if err := x.run(ctx, r); err != nil {
		return fmt.Errorf("%s: %w", x, err)
	}
	return nil
}

// endMoment is when a direction ends.
type endMoment int

const (
	afterLast  endMoment = iota // after the last Write
	betweenTwo                  // between two of them, and more are tried
	meanwhile                   // at any time, by another goroutine
	endMoments
)

// flow is one direction of a connection.
type flow struct {
	// How it is sent.
	name        string
	total, most int // bytes that are there to send, and bytes of a Write
	pause       time.Duration
	copies      bool // by ReadFrom, if the connection has it
	ends        endMoment
	after       int           // with betweenTwo: after how many bytes
	in          time.Duration // with meanwhile: after which time
	hold        int           // after how many bytes it waits for resume

	// How it is read.
	readAfter time.Duration // after which time; at the latest when the sender has ended the direction
	readPause time.Duration

	w, r     net.Conn
	end      func() error    // ends the direction
	resume   <-chan struct{} // nil, or closed when the sender may go on, and end
	cut      bool            // the link may break
	once     sync.Once
	ending   atomic.Bool // end was called
	ended    chan struct{}
	endErr   error         // what end has returned; guarded by ended
	received chan struct{} // closed when the receiver has read all
	sent     int           // what Write has reported
	sendErr  error         // of Write, unless it says that the direction was ended
	got      int
	readErr  error // io.EOF in the end
}

// newFlow returns a direction with random properties.
func newFlow(name string, w, r net.Conn, rnd *rand.Rand) *flow {
	f := &flow{name: name, w: w, r: r, end: w.Close, ended: make(chan struct{}), received: make(chan struct{})}
	f.total, f.most = between(rnd, 1, 1<<20), between(rnd, 1, 64<<10)
	f.total = min(f.total, f.most*4000) // a few thousand messages
	f.copies, f.ends = rnd.IntN(3) == 0, endMoment(rnd.IntN(int(endMoments)))
	if rnd.IntN(2) == 0 {
		f.pause = time.Duration(1+rnd.IntN(2000)) * time.Microsecond
	}
	if rnd.IntN(2) == 0 {
		f.readPause = time.Duration(1+rnd.IntN(2000)) * time.Microsecond
	}
	f.readAfter = time.Duration(rnd.IntN(3)) * 50 * time.Millisecond
	switch {
	case f.ends == meanwhile && rnd.IntN(3) == 0: // the end ends the calls of Write, of which there is no last one
		f.total, f.pause, f.readPause = 1<<40, 0, 0
	case f.ends == meanwhile && rnd.IntN(2) == 0:
		f.readAfter = timeout // the end does not wait for the reader
		if rnd.IntN(2) == 0 {
			f.most, f.pause = f.total, 0 // one Write, which waits for room
		}
	case rnd.IntN(3) == 0: // more messages wait for the receiver than it takes at a time
		f.most = between(rnd, 1, 64)
		f.total = f.most * between(rnd, 1000, 4000) / 2
		f.readAfter, f.pause = 600*time.Millisecond, 0
	}
	f.after, f.in = rnd.IntN(f.total+1), time.Duration(between(rnd, 1, 50_000))*time.Microsecond
	return f
}

// String describes the properties.
func (f *flow) String() string {
	return fmt.Sprintf("%s: %d bytes in writes of up to %d, ReadFrom %t, pause %v, ends at moment %d, after %d bytes or %v, held at %d, read after %v, pause %v",
		f.name, f.total, f.most, f.copies, f.pause, f.ends, f.after, f.in, f.hold, f.readAfter, f.readPause)
}

// pattern fills p with the bytes of a direction from an offset on.
func (f *flow) pattern(p []byte, from int) {
	for i := range p {
		p[i] = byte((from+i)*167>>3) ^ f.name[0]
	}
}

// finish ends the direction.
func (f *flow) finish() {
	f.once.Do(func() {
		f.ending.Store(true)
		f.endErr = f.end()
		close(f.ended)
	})
}

// source is what a flow sends.
type source struct {
	f *flow
	r *rand.Rand
	n int
}

// Read returns the bytes for the next Write. It also ends the flow between two of them.
func (s *source) Read(p []byte) (int, error) {
	f := s.f
	if s.n >= f.hold && f.resume != nil {
		<-f.resume
	}
	if s.n > 0 {
		pause(s.r, f.pause)
	}
	if f.ends == betweenTwo && s.n >= f.after {
		f.finish()
	}
	k := min(len(p), f.total-s.n)
	if k == 0 {
		return 0, io.EOF
	}
	if f.most < f.total {
		k = min(k, 1+s.r.IntN(f.most))
	}
	f.pattern(p[:k], s.n)
	s.n += k
	return k, nil
}

// write sends all bytes, unless the direction is ended before.
func (f *flow) write(r *rand.Rand) (n int, err error) {
	from := &source{f: f, r: r}
	if to, ok := f.w.(io.ReaderFrom); ok && f.copies {
		n, err := to.ReadFrom(from)
		return int(n), err
	}
	for b := make([]byte, f.most); ; {
		k, err := from.Read(b)
		if err != nil { // io.EOF
			return n, nil
		}
		k, err = f.w.Write(b[:k])
		if n += k; err != nil {
			return n, err
		}
	}
}

// send writes, and ends the direction.
func (f *flow) send(r *rand.Rand) error {
	if f.ends == meanwhile {
		go func() {
			if f.resume != nil {
				<-f.resume
			}
			time.Sleep(f.in)
			f.finish()
		}()
	}
	var err error
	if f.sent, err = f.write(r); err != nil && !(f.ending.Load() && (errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE))) {
		if f.sendErr = err; !f.cut {
			return fmt.Errorf("the sender, after %d bytes: %w", f.sent, err)
		}
	}
	if f.ends != meanwhile {
		f.finish()
	}
	<-f.ended
	if f.endErr != nil && !f.cut {
		return fmt.Errorf("the end, after %d bytes: %w", f.sent, f.endErr)
	}
	if n, err := f.w.Write([]byte("late")); n != 0 || err == nil {
		return fmt.Errorf("Write after the end: %d, %v", n, err)
	}
	return nil
}

// receive reads until an error, and checks what it reads.
func (f *flow) receive(r *rand.Rand) error {
	defer close(f.received)
	select {
	case <-f.ended:
	case <-time.After(f.readAfter):
	}
	b, want := make([]byte, between(r, 1, 64<<10)), make([]byte, 64<<10)
	if f.total/len(b) > 20000 {
		b = make([]byte, 64)
	}
	for f.readErr == nil {
		var k int
		k, f.readErr = f.r.Read(b)
		f.pattern(want[:k], f.got)
		if string(want[:k]) != string(b[:k]) {
			return fmt.Errorf("bytes %d to %d are wrong", f.got, f.got+k)
		}
		f.got += k
		pause(r, f.readPause)
	}
	if f.readErr != io.EOF && !f.cut {
		return fmt.Errorf("the receiver, after %d bytes: %w", f.got, f.readErr)
	}
	return nil
}

// check checks that the receiver has all that the sender was promised, and io.EOF, unless a call of its program, Close
// included, says that something may be missing.
func (f *flow) check(others error) error {
	if f.sendErr == nil && f.endErr == nil && others == nil && (f.got != f.sent || f.readErr != io.EOF) {
		return fmt.Errorf("%s: %d of %d bytes arrive, then %w", f.name, f.got, f.sent, f.readErr)
	}
	return nil
}

// closeWriter is a connection with half-close, which valkey's protocol does not have.
type closeWriter interface{ CloseWrite() error }

// exchange is what happens on a connection. If the sender ends by CloseWrite, the other direction goes on.
type exchange struct {
	there, back *flow
	half        bool // the sender ends by CloseWrite
	both        bool // with half: the receiver does so too, at any time, or else by Close once it has read everything
	talks       bool // otherwise: the receiver sends, too, but what arrives is not of interest
}

// newExchange returns a random exchange between the ends of a connection.
func newExchange(from, to net.Conn, r *rand.Rand) *exchange {
	x := &exchange{there: newFlow("there", from, to, r), back: newFlow("back", to, from, r)}
	ends, ok := from.(closeWriter)
	x.half, x.both, x.talks = ok && r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(3) == 0
	switch {
	case !x.half:
		x.back.ends = afterLast // write does not end it
	case x.half && x.both:
		x.there.end, x.back.end = ends.CloseWrite, to.(closeWriter).CloseWrite
	case x.half:
		x.there.end = ends.CloseWrite
		x.back.hold, x.back.resume = r.IntN(min(x.back.total, 1<<20)), x.there.received
		x.back.after = max(x.back.after, x.back.hold)
		x.back.readAfter = min(x.back.readAfter, 600*time.Millisecond) // before resume, too
	}
	return x
}

// String describes the exchange.
func (x *exchange) String() string {
	return fmt.Sprintf("half-close %t, on both sides %t, traffic back %t\n%s\n%s\n", x.half, x.both, x.talks, x.there, x.back)
}

// run runs the exchange.
func (x *exchange) run(ctx context.Context, r *rand.Rand) error {
	random := func() *rand.Rand { return rand.New(rand.NewPCG(r.Uint64(), r.Uint64())) }
	flows := []*flow{x.there}
	if x.half {
		flows = append(flows, x.back)
	} else if x.talks {
		go x.back.write(random())
	}
	done := make(chan error, 4)
	for _, f := range flows {
		for _, do := range []func(r *rand.Rand) error{f.send, f.receive} {
			r := random()
			go func() { done <- do(r) }()
		}
	}
	for range 2 * len(flows) {
		select {
		case err := <-done:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("still waiting after %v", timeout)
		}
	}
	closed, closedThere := x.there.w.Close(), x.there.r.Close()
	if err := errors.Join(closed, closedThere); err != nil && x.half && !x.there.cut {
		return err
	}
	read := func(f *flow) error { // what the reader was told
		if !x.half || f.readErr == io.EOF {
			return nil
		}
		return f.readErr
	}
	if x.half {
		if err := x.back.check(errors.Join(closedThere, read(x.there))); err != nil {
			return err
		}
	}
	return x.there.check(errors.Join(closed, read(x.back)))
}
