package ordered

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// network carries the frames of fake wires, and delivers them and their completions in an order
// from a seed.
type network struct {
	mu      sync.Mutex
	rng     *rand.Rand
	pending []func() // guarded by mu
	late    int      // guarded by mu; frames that others have overtaken
	stopped bool     // guarded by mu
}

// run delivers until it is stopped. It waits until nobody sends any more, so that there is
// something to shuffle.
func (n *network) run() {
	for last := -1; ; {
		for range 20 {
			runtime.Gosched()
		}
		n.mu.Lock()
		if n.stopped {
			n.mu.Unlock()
			return
		}
		next := func() {}
		if count := len(n.pending); count > 0 && count == last {
			i := n.rng.IntN(count)
			next, n.late = n.pending[i], n.late+min(i, 1)
			n.pending = slices.Delete(n.pending, i, i+1)
		}
		last = len(n.pending)
		n.mu.Unlock()
		next()
	}
}

// later has something happen later.
func (n *network) later(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pending = append(n.pending, f)
}

// fake is a wire without a device. Like the device it takes receives in the order in which they
// were posted.
type fake struct {
	t    *testing.T
	net  *network
	peer *fake
	size int

	in, out [][]byte

	mu     sync.Mutex
	posted []int         // guarded by mu
	events []event       // guarded by mu
	wake   chan struct{} // has one when there are events
	sends  int           // guarded by mu; in flight
	fails  error         // guarded by mu; of sends
	closed bool          // guarded by mu
}

// newFake returns a wire with a window, whose receives are posted.
func newFake(t *testing.T, n *network, window, size int) *fake {
	f := &fake{t: t, net: n, size: size, wake: make(chan struct{}, 1)}
	for range window + 1 {
		f.out = append(f.out, make([]byte, size))
	}
	for slot := range window + controls {
		f.in = append(f.in, make([]byte, size))
		f.posted = append(f.posted, slot)
	}
	return f
}

func (f *fake) received(slot int) []byte { return f.in[slot] }
func (f *fake) toSend(slot int) []byte   { return f.out[slot] }

func (f *fake) post(slot int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.posted = append(f.posted, slot)
	return nil
}

func (f *fake) send(slot, n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sends++; f.sends > len(f.out) {
		f.t.Errorf("%d sends are in flight, and the queue has room for %d", f.sends, len(f.out))
	}
	frame := append([]byte(nil), f.out[slot][:n]...) // the memory is not read later than the completion
	f.net.later(func() {
		err := f.peer.take(frame)
		f.net.later(func() { f.event(event{send: true, slot: slot, err: err}) })
	})
	return nil
}

// take takes a frame of the peer.
func (f *fake) take(frame []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.fails != nil:
		return f.fails
	case f.closed:
		f.t.Error("a frame arrives after this side has closed its QP")
		return errors.New("no such QP")
	case len(f.posted) == 0:
		f.t.Error("a frame finds no receive")
		return errors.New("receiver not ready")
	}
	slot := f.posted[0]
	f.posted = f.posted[1:]
	f.add(event{slot: slot, n: copy(f.in[slot], frame)})
	return nil
}

// event adds an event.
func (f *fake) event(e event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sends--
	f.add(e)
}

// add adds an event, with mu locked.
func (f *fake) add(e event) {
	f.events = append(f.events, e)
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *fake) wait(ctx context.Context) ([]event, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-f.wake:
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	events := f.events
	f.events = nil
	return events, nil
}

func (f *fake) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed = true; f.sends > 0 && f.fails == nil {
		f.t.Errorf("the QP is closed with %d sends in flight", f.sends)
	}
	return nil
}

// pair returns two connections with windows of these sizes, over a network of its own, and the
// wires below.
func pair(t *testing.T, seed uint64, a, b int) (conns [2]*Conn, wires [2]*fake, n *network) {
	const size, longest = 256, 200 // of a slot, and of a message
	n = &network{rng: rand.New(rand.NewPCG(seed, 0))}
	wires = [2]*fake{newFake(t, n, a, size), newFake(t, n, b, size)}
	wires[0].peer, wires[1].peer = wires[1], wires[0]
	left, right := tcpPair(t)
	conns[0] = newConn(wires[0], left, longest, a, b)
	conns[1] = newConn(wires[1], right, longest, b, a)
	var done sync.WaitGroup
	done.Go(n.run)
	t.Cleanup(func() {
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		for i := range conns {
			wires[i].mu.Lock()
			wires[i].fails = errors.New("the test is over")
			wires[i].mu.Unlock()
			conns[i].Close(gone)
		}
		n.mu.Lock()
		n.stopped = true
		n.mu.Unlock()
		done.Wait()
	})
	return conns, wires, n
}

// tcpPair returns the ends of a TCP connection.
func tcpPair(t *testing.T) (left, right net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	defer l.Close()
	left, err = net.Dial("tcp", l.Addr().String())
	testenv.Must(t, err)
	right, err = l.Accept()
	testenv.Must(t, err)
	return left, right
}
