package ordered

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// message returns the i-th message of a side.
func message(side, i int) []byte {
	return bytes.Repeat(binary.BigEndian.AppendUint32(nil, uint32(side<<24|i)), i%7)
}

// exchange sends n messages each way and closes both sides. After an error nobody waits for
// anything.
func exchange(t *testing.T, conns [2]*Conn, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := func(format string, args ...any) {
		t.Errorf(format, args...)
		cancel()
	}
	var both sync.WaitGroup
	for side, c := range conns {
		both.Go(func() {
			for i := range n {
				if err := c.Send(ctx, message(side, i)); err != nil {
					failed("side %d, message %d: %v", side, i, err)
					return
				}
			}
			if err := c.CloseSend(ctx); err != nil {
				failed("side %d: %v", side, err)
			}
		})
		both.Go(func() {
			b := make([]byte, c.MaxSize())
			for i := 0; ; i++ {
				k, err := c.Recv(ctx, b)
				if err == io.EOF && i == n {
					return
				}
				if err != nil || i >= n || !bytes.Equal(b[:k], message(1-side, i)) {
					failed("side %d has received %x (%v) as message %d of %d", side, b[:k], err, i, n)
					return
				}
			}
		})
	}
	both.Wait()
	for side, c := range conns {
		both.Go(func() {
			for range 2 { // the second time it does nothing
				if err := c.Close(ctx); err != nil {
					failed("side %d: %v", side, err)
				}
			}
		})
	}
	both.Wait()
}

// TestOrder sends over a network that delivers in any order, to small windows and unequal ones. The
// fake wires fail the test if a frame finds no receive.
func TestOrder(t *testing.T) {
	late := 0
	for seed, windows := range [][2]int{{1, 1}, {1, 2}, {2, 3}, {3, 3}, {4, 64}, {17, 5}, {64, 64}} {
		t.Run(fmt.Sprint(windows), func(t *testing.T) {
			conns, _, n := pair(t, uint64(seed), windows[0], windows[1])
			exchange(t, conns, 400)
			n.mu.Lock()
			defer n.mu.Unlock()
			late += n.late
		})
	}
	if late < 100 {
		t.Errorf("%d frames or completions were overtaken, so there was no disorder", late)
	}
}

// TestSlowReceiver has a side send until the window is full. Sending goes on when
// the other side receives.
func TestSlowReceiver(t *testing.T) {
	const window = 8
	conns, _, _ := pair(t, 1, window, window)
	for i := range window {
		testenv.Must(t, conns[0].Send(t.Context(), message(0, i)))
	}
	over, cancel := context.WithCancelCause(t.Context())
	full := errors.New("full")
	cancel(full)
	if err := conns[0].Send(over, nil); err != full {
		t.Fatalf("message %d: %v, want %v", window, err, full)
	}
	b := make([]byte, 100)
	if _, err := conns[1].Recv(t.Context(), b[:0]); err != nil { // message 0 is empty
		t.Fatal(err)
	}
	if _, err := conns[1].Recv(t.Context(), b[:1]); err != io.ErrShortBuffer {
		t.Fatalf("with a buffer of 1 byte: %v, want %v", err, io.ErrShortBuffer)
	}
	for i := 1; i < window; i++ {
		if n, err := conns[1].Recv(t.Context(), b); err != nil || !bytes.Equal(b[:n], message(0, i)) {
			t.Fatalf("message %d: %x, %v", i, b[:n], err)
		}
	}
	testenv.Must(t, conns[0].Send(t.Context(), nil))
	if err := conns[0].Send(t.Context(), make([]byte, conns[0].MaxSize()+1)); err == nil || !strings.Contains(err.Error(), "allowed: up to 200") {
		t.Fatalf("a message that is too long: %v", err)
	}
}

// TestGone has a peer go, perhaps after a goodbye that comes too early: what has arrived is received,
// and then each call fails.
func TestGone(t *testing.T) {
	for _, said := range []string{"", "b"} {
		conns, wires, _ := pair(t, 1, 4, 4)
		testenv.Must(t, conns[1].Send(t.Context(), []byte("last")))
		waitFor(t, conns[0], func() bool { slot, _ := conns[0].window.first(); return slot != none })
		io.WriteString(conns[1].tcp, said)
		conns[1].tcp.Close() // as when its process ends
		waitFor(t, conns[0], func() bool { return conns[0].err != nil })
		wires[1].mu.Lock()
		wires[1].fails = errors.New("no such QP")
		wires[1].mu.Unlock()
		b := make([]byte, 10)
		if n, err := conns[0].Recv(t.Context(), b); err != nil || string(b[:n]) != "last" {
			t.Fatalf("the last message is %q, %v", b[:n], err)
		}
		if _, err := conns[0].Recv(t.Context(), b); !errors.Is(err, ErrGone) {
			t.Errorf("Recv: %v", err)
		}
		if err := conns[0].Send(t.Context(), b); !errors.Is(err, ErrGone) {
			t.Errorf("Send: %v", err)
		}
		if err := conns[0].Close(t.Context()); !errors.Is(err, ErrGone) {
			t.Errorf("Close: %v", err)
		}
		if _, err := conns[0].Recv(t.Context(), b); err == nil {
			t.Error("Recv after Close succeeds")
		}
	}
}

// TestSendFails has the device report that the peer does not answer.
func TestSendFails(t *testing.T) {
	conns, wires, _ := pair(t, 1, 4, 4)
	silent := errors.New("unresponsive remote")
	wires[1].mu.Lock()
	wires[1].fails = silent
	wires[1].mu.Unlock()
	testenv.Must(t, conns[0].Send(t.Context(), nil))
	if _, err := conns[0].Recv(t.Context(), nil); !errors.Is(err, silent) {
		t.Errorf("Recv: %v, want %v", err, silent)
	}
}

// waitFor waits for a state of a connection.
func waitFor(t *testing.T, c *Conn, ready func() bool) {
	t.Helper()
	for {
		c.mu.Lock()
		ok, changed := ready(), c.changed
		c.mu.Unlock()
		if ok {
			return
		}
		<-changed
	}
}

// TestHostile has a peer send frames that break the protocol. Its connection fails, and the error
// says why.
func TestHostile(t *testing.T) {
	frame := func(kind byte, number, limit uint64) []byte {
		b := make([]byte, headerSize)
		header{kind, number, limit}.put(b)
		return b
	}
	reserved := frame(kindData, 0, 4)
	reserved[3] = 1
	for want, frames := range map[string][][]byte{
		"a frame has 3 bytes":                   {{1, 2, 3}},
		"the kind of a frame is 0":              {frame(0, 0, 4)},
		"bytes 1 to 7 of a frame":               {reserved},
		"a frame of kind 2 has number 1":        {frame(kindCredit, 1, 4)},
		"a frame of kind 3 has 25 bytes":        {append(frame(kindEnd, 0, 4), 0)},
		"a message has 201 bytes, want up to 2": {append(frame(kindData, 0, 4), make([]byte, 201)...)},
		"it permits 5 messages, want up to 4":   {frame(kindCredit, 0, 5)},
		"message 4 has arrived, want 0 to 3":    {frame(kindData, 4, 4)},
		"message 1 has arrived twice":           {frame(kindData, 1, 4), frame(kindData, 1, 4)},
		"message 2 has arrived, and the end is": {frame(kindEnd, 1, 4), frame(kindData, 2, 4)},
		"message 1 has arrived, and the end is": {frame(kindData, 2, 4), frame(kindEnd, 1, 4)},
	} {
		conns, wires, _ := pair(t, 1, 4, 4)
		for _, f := range frames {
			testenv.Must(t, wires[0].take(f))
		}
		waitFor(t, conns[0], func() bool { return conns[0].err != nil })
		if err := conns[0].Send(t.Context(), nil); !errors.Is(err, errPeer) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestOldLimit has a frame arrive after a newer one, which has permitted more.
func TestOldLimit(t *testing.T) {
	w := newWindow(4, 4)
	for range 3 {
		w.header(kindData)
	}
	for _, limit := range []uint64{6, 4} {
		b := make([]byte, headerSize)
		header{kindCredit, 0, limit}.put(b)
		if _, err := w.arrived(0, b); err != nil || w.limit != 6 {
			t.Errorf("after a limit of %d it is %d, want 6; %v", limit, w.limit, err)
		}
	}
}

// FuzzWindow has two windows talk, where a third party may add frames. Whatever arrives, a window
// holds no more messages than its size, and delivers each number once and in order.
func FuzzWindow(f *testing.F) {
	f.Add(uint64(1), uint8(4), uint8(4), []byte{})
	f.Add(uint64(2), uint8(1), uint8(9), []byte("\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, seed uint64, a, b uint8, added []byte) {
		size, peers := int(a%64)+1, int(b%64)+1
		rng := rand.New(rand.NewPCG(seed, 1))
		near, far := newWindow(size, peers), newWindow(peers, size)
		var pending [][]byte
		slot := 0
		for step := range 300 {
			switch rng.IntN(4) {
			case 0:
				if far.credit() {
					frame := make([]byte, headerSize)
					far.header(kindData).put(frame)
					pending = append(pending, frame)
				}
			case 1:
				if n := len(added) / headerSize; n > 0 {
					i := step % n * headerSize
					pending = append(pending, added[i:min(len(added), i+headerSize+step%2)])
				}
			case 2:
				if len(pending) == 0 {
					continue
				}
				i := rng.IntN(len(pending))
				frame := pending[i]
				pending = append(pending[:i], pending[i+1:]...)
				if _, err := near.arrived(slot%(size+controls), frame); err != nil {
					if !errors.Is(err, errPeer) {
						t.Fatal(err)
					}
					if len(added) < headerSize {
						t.Fatalf("a frame of the peer is refused: %v", err)
					}
					return
				}
				slot++
			case 3:
				before := near.next
				if s, end := near.first(); s != none && !end {
					near.take()
					if near.next != before+1 {
						t.Fatalf("message %d follows message %d", near.next, before)
					}
				}
				if near.due() {
					frame := make([]byte, headerSize)
					near.header(kindCredit).put(frame)
					if _, err := far.arrived(0, frame); err != nil {
						t.Fatal(err)
					}
				}
			}
			held := 0
			for _, s := range near.slots {
				if s != none {
					held++
				}
			}
			if held > size || len(near.slots) != size || near.sent+near.peers < near.limit {
				t.Fatalf("%d messages are held of %d, with limit %d of %d and %d", held, size, near.limit, near.sent, near.peers)
			}
		}
	})
}

// FuzzHello reads what a peer may say first.
func FuzzHello(f *testing.F) {
	var good bytes.Buffer
	binary.Write(&good, binary.BigEndian, &hello{Magic: magic, QPN: 1, Window: 1, Size: 1000})
	f.Add(good.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		var h hello
		if err := h.read(bytes.NewReader(b)); err == nil && (h.Window < 1 || h.Window > maxWindow || h.Size <= headerSize || h.QPN >= 1<<24) {
			t.Errorf("%+v is accepted", h)
		}
	})
}

// TestDevice connects two programs by software devices, which have UD in place of SRD, while
// another peer connects and says nothing, and one says nonsense.
func TestDevice(t *testing.T) {
	var names [2]string
	for i := range names {
		d, err := soft.New(soft.Options{})
		testenv.Must(t, err)
		t.Cleanup(func() { d.Close() })
		names[i] = d.Name()
	}
	o := Options{Window: 8, Conns: 3, typ: ib.UD}
	serving := o
	serving.Device = names[0]
	l, err := Listen(t.Context(), "127.0.0.1:0", serving)
	testenv.Must(t, err)
	defer l.Close()
	for _, say := range []string{"", strings.Repeat("x", 100)} {
		idle, err := net.Dial("tcp", l.Addr().String())
		testenv.Must(t, err)
		defer idle.Close()
		io.WriteString(idle, say)
	}
	for range 3 { // more than there is room for at a time
		o.Device = names[1]
		var conns [2]*Conn
		conns[0], err = Dial(t.Context(), l.Addr().String(), o)
		testenv.Must(t, err)
		conns[1], err = l.Accept(t.Context())
		testenv.Must(t, err)
		exchange(t, conns, 100)
	}
	if _, err := Dial(t.Context(), l.Addr().String(), Options{Device: names[1], Window: 5000}); err == nil || !strings.Contains(err.Error(), "Window is 5000, allowed: 1 to 4096") {
		t.Errorf("a window of 5000: %v", err)
	}
}
