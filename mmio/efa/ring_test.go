//go:build amd64 || arm64

package efa

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/test/testenv"
)

// TestSendAround posts around the ring, past the end of the doorbell's 16 bits: each request is where the
// device looks for it, with the phase of its round and an ID of its own, and completes once.
func TestSendAround(t *testing.T) {
	for _, size := range []SendSize{{Depth: 1, Width: 64, MaxSGE: 2}, {Depth: 4, Width: 64, MaxSGE: 2}, {Depth: 8, Width: 128, MaxSGE: 1}} {
		r := newRig(t, size, RecvSize{MaxWR: 1, MaxSGE: 1, Descriptors: 1}, 1, 8)
		id, batch := uint64(0), 0
		for id < 70000 {
			batch = batch%size.Depth + 1
			for i := range batch {
				if !r.sq.Room(i + 1) {
					t.Fatalf("no room for %d of %d", i+1, batch)
				}
				testenv.Must(t, r.sq.put(i, id+uint64(i), Send, 0, Peer{}, 0, 0, id+uint64(i), 5, 9))
			}
			if r.sq.Room(size.Depth + 1) {
				t.Fatalf("room for %d more than %d", 1, size.Depth)
			}
			r.sq.Publish(batch)
			if bell := le.Uint32(r.sendBell); bell != uint32(id+uint64(batch))&0xffff {
				t.Fatalf("doorbell %#x after %d requests", bell, id+uint64(batch))
			}
			if n := r.sq.Posted(); n != batch {
				t.Fatalf("%d posted, want %d", n, batch)
			}
			all, used := r.requests(), map[uint16]bool{}
			if len(all) != batch {
				t.Fatalf("the device sees %d requests, want %d", len(all), batch)
			}
			for i, w := range all {
				if addr, phase := le.Uint64(w[40:]), uint64(w[3]&1); addr != id+uint64(i) || phase != (id+uint64(i))/uint64(size.Depth)&1 {
					t.Fatalf("request %d has the address %d and the phase %d", id+uint64(i), addr, phase)
				}
				if used[idOf(w)] {
					t.Fatalf("two requests with the ID %#x", idOf(w))
				}
				used[idOf(w)] = true
			}
			for i := range all {
				at := len(all) - 1 - i // the last one completes first
				got, op, length, ok := r.sq.Complete(idOf(all[at]))
				if !ok || got != id+uint64(at) || op != Send || length != 5 {
					t.Fatalf("request %d completes as %d, operation %d, %d bytes, %v", id+uint64(at), got, op, length, ok)
				}
			}
			id += uint64(batch)
		}
	}
}

// TestOutOfOrder: room is counted by completions, and the slot of a request that stays for long is not used
// again although the others are.
func TestOutOfOrder(t *testing.T) {
	r := plain(t, 4)
	r.send(t, 1000)
	old := r.requests()[0]
	for id := range uint64(1 << 17) {
		r.send(t, id)
		w := r.requests()[0]
		if idOf(w) == idOf(old) {
			t.Fatalf("request %d has the ID %#x, which is in use", id, idOf(w))
		}
		if got, _, _, ok := r.sq.Complete(idOf(w)); !ok || got != id {
			t.Fatalf("request %d completes as %d, %v", id, got, ok)
		}
	}
	for id := range uint64(3) {
		r.send(t, id)
	}
	if r.sq.Room(1) {
		t.Error("room for more than the queue has")
	}
	if got, _, n, ok := r.sq.Complete(idOf(old)); !ok || got != 1000 || n != 1001 {
		t.Errorf("the old request completes as %d, %d bytes, %v", got, n, ok)
	}
	if !r.sq.Room(1) || r.sq.Room(2) {
		t.Error("one completion does not make room for one")
	}
}

// TestRefused: a completion that belongs to no request changes nothing.
func TestRefused(t *testing.T) {
	r := newRig(t, SendSize{Depth: 8, Width: 64, MaxSGE: 2}, RecvSize{MaxWR: 5, MaxSGE: 3, Descriptors: 16}, 1, 32)
	r.send(t, 1)
	r.receive(t, 2)
	send, recv := idOf(r.requests()[0]), idOf(r.descriptors()[0])
	testenv.Must(t, r.sq.put(0, 5, Send, 0, Peer{}, 0, 0, 0, 0, 0)) // not published
	for id := range 1 << 16 {
		if uint16(id) != send {
			if _, _, _, ok := r.sq.Complete(uint16(id)); ok {
				t.Fatalf("the send queue accepts the ID %#x, and %#x is posted", id, send)
			}
		}
		if uint16(id) != recv {
			if _, ok := r.rq.Complete(uint16(id)); ok {
				t.Fatalf("the receive queue accepts the ID %#x, and %#x is posted", id, recv)
			}
		}
		if stale := id>>3 != 1; r.sq.Stale(uint16(id)) != stale || r.rq.Stale(uint16(id)) != stale {
			t.Fatalf("Stale(%#x) is not %v", id, stale)
		}
	}
	for range 2 {
		id, _, _, ok := r.sq.Complete(send)
		id2, ok2 := r.rq.Complete(recv)
		if again := r.sq.Posted() == 0 && id == 0; ok == again || ok2 == again || ok && (id != 1 || id2 != 2) {
			t.Errorf("completes as %d %v and %d %v", id, ok, id2, ok2)
		}
	}
	if a, b := r.sq.Posted(), r.rq.Posted(); a != 0 || b != 0 {
		t.Errorf("%d sends and %d receives are posted, want 0", a, b)
	}
}

// TestReset: after a reset the queues are empty and count from 0, the phase goes on, and completions from
// before are refused.
func TestReset(t *testing.T) {
	deep := must[*SendQueue](t)(NewSendQueue(alloc(maxDepth*64), alloc(4), SendSize{Depth: maxDepth, Width: 64}, 1))
	for gen := range uint16(6) {
		before := uint16(deep.gen)
		if deep = deep.Renewed(2*gen + 1); !deep.Stale(before) {
			t.Errorf("reset %d of a queue with two generations keeps the one that it has", gen)
		}
	}
	deep.tail.Release(deep.n + 5) // as a reset leaves it half-way
	if n := deep.Posted(); n != deep.Cap() {
		t.Errorf("during a reset %d requests are posted, want %d at most", n, deep.Cap())
	}

	r := plain(t, 4)
	for id := range uint64(6) { // into the second round
		r.send(t, id)
		if id < 4 {
			r.sq.Complete(idOf(r.requests()[0]))
		}
	}
	r.receive(t, 7)
	old, oldRecv := idOf(r.requests()[0]), idOf(r.descriptors()[0])
	r.sq = r.sq.Renewed(2)
	r.rq.Reset(2)
	r.sent, r.received = 0, 0
	clear(r.sendBell)
	clear(r.recvBell)
	if _, _, _, ok := r.sq.Complete(old); ok || !r.sq.Stale(old) {
		t.Errorf("a completion of before is accepted, or not stale")
	}
	if _, ok := r.rq.Complete(oldRecv); ok || !r.rq.Stale(oldRecv) {
		t.Errorf("a completion of a receive of before is accepted, or not stale")
	}
	if !r.sq.Room(4) || r.sq.Room(5) || !r.rq.Room(4) || r.rq.Room(5) || r.sq.Posted() != 0 || r.rq.Posted() != 0 {
		t.Error("the queues are not empty")
	}
	for id := range uint64(8) {
		r.send(t, id)
		r.receive(t, id)
		all, recvs := r.requests(), r.descriptors()
		if len(all) != 1 || len(recvs) != 1 || le.Uint32(r.sendBell) != uint32(id)+1 {
			t.Fatalf("the device sees %d requests and %d descriptors with the doorbell %d", len(all), len(recvs), le.Uint32(r.sendBell))
		}
		if want := byte(1 ^ id/4&1); all[0][3]&1 != want {
			t.Errorf("request %d after the reset has the phase %d, want %d", id, all[0][3]&1, want)
		}
		if got, _, _, ok := r.sq.Complete(idOf(all[0])); !ok || got != id || idOf(all[0])>>2 != 2 {
			t.Errorf("request %d with the ID %#x completes as %d, %v", id, idOf(all[0]), got, ok)
		}
		if got, ok := r.rq.Complete(idOf(recvs[0])); !ok || got != id {
			t.Errorf("receive %d completes as %d, %v", id, got, ok)
		}
	}
}

// firstDoorbell posts n requests to a queue whose doorbell faults, and returns how many the device has then.
func firstDoorbell(t *testing.T, size SendSize, n int) (copied int) {
	t.Helper()
	region := must[*mmio.Region](t)(mmio.MapAnonymous(4, false))
	defer region.Close()
	testenv.Must(t, unix.Mprotect(region.Bytes()[:4:4], unix.PROT_READ))
	llq := alloc(size.Bytes())
	q := must[*SendQueue](t)(NewSendQueue(llq, region.Bytes(), size, 0))
	for i := range n {
		testenv.Must(t, q.put(i, 1, Send, 0, Peer{}, 0, 0, 0, 1, 9))
	}
	func() {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() { recover() }()
		q.Publish(n)
		t.Error("there was no doorbell")
	}()
	for i := range size.Depth {
		if le.Uint16(llq[i*size.Width+2:]) != 0xeeee {
			copied++
		}
	}
	return copied
}

// TestBatch: a doorbell comes after as many requests as the device accepts at a time, and before the next is
// copied.
func TestBatch(t *testing.T) {
	for _, tc := range []struct{ depth, batch, n, want int }{{16, 4, 10, 4}, {16, 4, 4, 4}, {16, 4, 3, 3}, {16, 15, 16, 15}, {16, 0, 16, 16}, {2, 1, 2, 1}} {
		if got := firstDoorbell(t, SendSize{Depth: tc.depth, Width: 64, MaxSGE: 1, Batch: tc.batch}, tc.n); got != tc.want {
			t.Errorf("of %d requests, %d at a time, %d were copied before the first doorbell, want %d", tc.n, tc.batch, got, tc.want)
		}
	}
	r := newRig(t, SendSize{Depth: 8, Width: 64, MaxSGE: 1, Batch: 3}, RecvSize{MaxWR: 1, MaxSGE: 1, Descriptors: 1}, 1, 8)
	for id := uint64(0); id < 7*100; id += 7 { // batches go around the end of the ring
		for i := range 7 {
			testenv.Must(t, r.sq.put(i, id, Send, 0, Peer{}, 0, 0, id+uint64(i), 1, 9))
		}
		r.sq.Publish(7)
		all := r.requests()
		if len(all) != 7 || !r.sq.Room(1) {
			t.Fatalf("the device sees %d of 7 requests", len(all))
		}
		for i, w := range all {
			if le.Uint64(w[40:]) != id+uint64(i) {
				t.Fatalf("request %d has the address %d", id+uint64(i), le.Uint64(w[40:]))
			}
			r.sq.Complete(idOf(w))
		}
	}
}

// TestPut: a request that is put is one that is filled step by step, whatever was in its place. A refused one
// leaves that as it was.
func TestPut(t *testing.T) {
	for _, c := range []struct {
		width  int
		op     Op
		inline int // bytes of inline data, 0 for an entry
		bad    bool
	}{
		{64, Send, 0, false}, {64, SendImm, 0, false}, {64, Write, 0, false}, {64, WriteImm, 0, false}, {64, Read, 0, false},
		{64, Send | Quiet, 0, false}, {128, Send, 0, false}, {128, WriteImm | Quiet, 0, false}, {128, Read, 0, false},
		{64, Send, 1, false}, {64, SendImm, 8, false}, {64, Send | Quiet, 23, false}, {64, Send, 32, false},
		{128, Send, 31, false}, {128, SendImm, 80, false}, {128, Write, 1, false}, {128, WriteImm | Quiet, 80, false},
		{64, Send, 33, true}, {128, Send, 81, true}, {64, Write, 1, true}, {128, Read, 1, true}, {128, Read | Quiet, 1, true},
	} {
		var ways [2][]byte
		data := bytes.Repeat([]byte{0x5a}, max(c.inline, 1))
		for way := range ways {
			size := SendSize{Depth: 2, Width: c.width, MaxSGE: 2, InlineWrite: c.width == wide}
			size.MaxInline = size.inlineRoom()
			r := newRig(t, size, RecvSize{MaxWR: 1, MaxSGE: 1, Descriptors: 1}, 1, 8)
			full := r.sq.Slot(0)
			full.Start(1, SendImm, NewPeer(math.MaxUint32, math.MaxUint16, math.MaxUint16).WithImm(math.MaxUint32))
			testenv.Must(t, full.AddInline(bytes.Repeat([]byte{0xff}, size.MaxInline)))
			to, length := NewPeer(0x11223344, 0x5566, 0x7788), uint32(100)
			if c.inline > 0 {
				length = uint32(c.inline)
			}
			if way == 0 && c.inline == 0 {
				testenv.Must(t, r.sq.put(0, 7, c.op, 0xaabbccdd, to, 0x8877665544332211, 0x99887766, 0x1122334455667788, 100, 0xabcdef))
			} else if way == 0 {
				ring := unsafe.Slice((*byte)(r.sq.ring), size.Bytes())
				before := bytes.Clone(ring)
				ok := r.sq.PutInline(0, 7, NewMeta(c.op, 0x99887766), to.WithImm(0xaabbccdd), 0x8877665544332211, &data[0], c.inline)
				if ok == c.bad || c.bad && !bytes.Equal(ring, before) {
					t.Errorf("PutInline of %+v: %v, or it changes the ring", c, ok)
				}
			} else {
				s := r.sq.Slot(0)
				s.Start(7, c.op, to.WithImm(0xaabbccdd))
				if c.op&^Quiet != Send && c.op != SendImm {
					s.SetRDMA(0x8877665544332211, 0x99887766)
				}
				if c.inline == 0 {
					testenv.Must(t, s.AddSGE(0x1122334455667788, 100, 0xabcdef))
				} else if err := s.AddInline(data); (err != nil) != c.bad {
					t.Errorf("AddInline of %+v: %v", c, err)
				}
				s.Finish()
			}
			if c.bad {
				continue
			}
			r.sq.Publish(1)
			ways[way] = r.requests()[0]
			if id, o, n, ok := r.sq.Complete(idOf(ways[way])); !ok || id != 7 || o != c.op || n != length {
				t.Errorf("%+v completes as %d, operation %d, %d bytes, %v", c, id, o, n, ok)
			}
		}
		if diff := cmp.Diff(ways[1], ways[0]); diff != "" {
			t.Errorf("%+v (-step by step +put):\n%s", c, diff)
		}
	}
	r := plain(t, 1)
	if err := r.sq.put(0, 7, Send, 0, Peer{}, 0, 0, 0, 0, 1<<24); err != ErrKey {
		t.Errorf("a key of 25 bits: %v, want %v", err, ErrKey)
	}
}

func TestSendErrors(t *testing.T) {
	size := SendSize{Depth: 2, Width: 64, MaxSGE: 2, MaxInline: 20}
	wide := SendSize{Depth: 2, Width: 128, MaxSGE: 2, MaxInline: 80, InlineWrite: true}
	sge := func(s *SendSlot) error { return s.AddSGE(1, 1, 1) }
	inline := func(n int) func(s *SendSlot) error {
		return func(s *SendSlot) error { return s.AddInline(make([]byte, n)) }
	}
	steps := func(fs ...func(s *SendSlot) error) []func(s *SendSlot) error { return fs }
	for _, tc := range []struct {
		name string
		size SendSize
		op   Op
		add  []func(s *SendSlot) error // all but the last of which must do
		want error
	}{
		{"three entries", size, Send, steps(sge, sge, sge), ErrTooManySGE},
		{"two entries of a READ", size, Read, steps(sge, sge), ErrTooManySGE},
		{"two entries of a WRITE", wide, WriteImm, steps(sge, sge), ErrTooManySGE},
		{"4 GiB", size, Send, steps(func(s *SendSlot) error { return s.AddSGE(1, math.MaxUint32, 1) }, sge), ErrTooLong},
		{"a long key", size, Send, steps(func(s *SendSlot) error { return s.AddSGE(1, 1, 1<<24) }), ErrKey},
		{"inline data and an entry", size, Send, steps(inline(1), sge), ErrMixedData},
		{"an entry and inline data", size, Send, steps(sge, inline(1)), ErrMixedData},
		{"too much inline data", size, Send, steps(inline(20), inline(1)), ErrInlineTooLong},
		{"too much inline data at once", wide, Write, steps(inline(81)), ErrInlineTooLong},
		{"inline data of a READ", wide, Read, steps(inline(1)), ErrInlineOp},
		{"inline data of a WRITE", size, Write, steps(inline(1)), ErrInlineOp},
		{"inline data of a READ that is quiet", wide, Read | Quiet, steps(inline(1)), ErrInlineOp},
		{"inline data of a SEND that is quiet", size, Send | Quiet, steps(inline(20)), nil},
		{"inline data of a WRITE in a wide request", wide, Write, steps(inline(40), inline(40)), nil},
	} {
		r := newRig(t, tc.size, RecvSize{MaxWR: 1, MaxSGE: 1, Descriptors: 1}, 1, 8)
		s := r.sq.Slot(0)
		s.Start(1, tc.op, Peer{})
		for i, add := range tc.add {
			want := tc.want
			if i < len(tc.add)-1 {
				want = nil
			}
			if err := add(&s); err != want {
				t.Errorf("%s: step %d: %v, want %v", tc.name, i, err, want)
			}
		}
	}
}

// TestRecvAround posts receives of one to three entries around the ring, past the end of the doorbell's 16 bits.
func TestRecvAround(t *testing.T) {
	r := newRig(t, SendSize{Depth: 1, Width: 64}, RecvSize{MaxWR: 5, MaxSGE: 3, Descriptors: 16}, 1, 8)
	var stay uint16 // the ID of a receive that stays for long
	for id := uint64(0); id < 40000; id++ {
		if !r.rq.Room(2) {
			t.Fatal("no room")
		}
		r.rq.Begin()
		n := int(id%3) + 1
		dropped := r.rq.Slot(0, 99)
		testenv.Must(t, dropped.AddSGE(1, 1, 1))
		testenv.Must(t, dropped.Finish())
		r.rq.Begin() // which drops it
		if n == 1 && id%2 == 0 {
			testenv.Must(t, r.rq.Put(0, id, id<<8, 100, 0xabcdef))
		} else {
			s := r.rq.Slot(0, id)
			for j := range n {
				testenv.Must(t, s.AddSGE(id<<8+uint64(j), uint32(100+j), 0xabcdef))
			}
			testenv.Must(t, s.Finish())
		}
		r.rq.Publish(1)
		if sges, ok := r.rq.Find(id); !ok || len(sges) != n || sges[0].Addr != id<<8 {
			t.Fatalf("receive %d of %d entries is remembered as %+v, %v", id, n, sges, ok)
		}
		all := r.descriptors()
		if bell := le.Uint32(r.recvBell); bell != r.received&0xffff {
			t.Fatalf("doorbell %#x after %d descriptors", bell, r.received)
		}
		if len(all) != n {
			t.Fatalf("receive %d has %d descriptors, want %d", id, len(all), n)
		}
		for j, d := range all {
			want := make([]byte, 16)
			le.PutUint64(want, id<<8+uint64(j))
			le.PutUint16(want[10:], uint16(100+j))
			le.PutUint32(want[12:], 0xabcdef)
			if j == 0 {
				copy(want[8:], d[8:10])
				want[15] |= 0x40
			}
			if j == n-1 {
				want[15] |= 0x80
			}
			if !bytes.Equal(want, d) {
				t.Fatalf("receive %d, descriptor %d is % x, want % x", id, j, d, want)
			}
		}
		if id == 0 {
			stay = idOf(all[0])
			continue
		}
		if got, ok := r.rq.Complete(idOf(all[0])); !ok || got != id || idOf(all[0]) == stay {
			t.Fatalf("receive %d, with the ID %#x, completes as %d, %v", id, idOf(all[0]), got, ok)
		}
	}
	if got, ok := r.rq.Complete(stay); !ok || got != 0 {
		t.Errorf("the receive that stayed completes as %d, %v", got, ok)
	}
}

func TestRecvErrors(t *testing.T) {
	r := newRig(t, SendSize{Depth: 1, Width: 64}, RecvSize{MaxWR: 4, MaxSGE: 2, Descriptors: 8}, 1, 8)
	s := r.rq.Slot(0, 1)
	if err := s.Finish(); err != ErrNoSGE {
		t.Errorf("no entry: %v, want %v", err, ErrNoSGE)
	}
	if err := s.AddSGE(0, 1, 1<<24); err != ErrKey {
		t.Errorf("a long key: %v, want %v", err, ErrKey)
	}
	testenv.Must(t, s.AddSGE(0, math.MaxUint32, 1)) // longer than any message
	testenv.Must(t, s.AddSGE(0, 0, 1))
	if err := s.AddSGE(0, 1, 1); err != ErrTooManySGE {
		t.Errorf("three entries: %v, want %v", err, ErrTooManySGE)
	}
	testenv.Must(t, s.Finish())
	if err := r.rq.Put(1, 1, 0, 1, 1<<24); err != ErrKey {
		t.Errorf("a long key: %v, want %v", err, ErrKey)
	}
	testenv.Must(t, r.rq.Put(1, 1, 0, math.MaxUint32, 1))
	r.rq.Publish(2)
	if all := r.descriptors(); len(all) != 3 || le.Uint16(all[2][10:]) != math.MaxUint16 || le.Uint16(all[0][10:]) != math.MaxUint16 || le.Uint16(all[1][10:]) != 0 {
		t.Errorf("descriptors % x", all)
	}
}

func TestNewErrors(t *testing.T) {
	bell, mem := alloc(8), alloc(1<<16)
	send := func(llq, bell []byte, s SendSize) error { _, err := NewSendQueue(llq, bell, s, 0); return err }
	recv := func(mem, bell []byte, s RecvSize) error { _, err := NewRecvQueue(mem, bell, s, 0); return err }
	comp := func(mem, bell []byte, rings, depth int) error {
		_, err := NewCompQueue(mem, bell, rings, depth)
		return err
	}
	second := func(_ []byte, err error) error { return err }
	for i, tc := range []struct{ got, want error }{
		{send(mem, bell, SendSize{Depth: 0, Width: 64}), ErrSize},
		{send(mem, bell, SendSize{Depth: 3, Width: 64}), ErrSize},
		{send(mem, bell, SendSize{Depth: 1 << 16, Width: 64}), ErrSize},
		{send(mem, bell, SendSize{Depth: 4, Width: 32}), ErrSize},
		{send(mem, bell, SendSize{Depth: 4, Width: 64, MaxSGE: 3}), ErrSize},
		{send(mem, bell, SendSize{Depth: 4, Width: 64, MaxInline: 33}), ErrSize},
		{send(mem, bell, SendSize{Depth: 4, Width: 64, InlineWrite: true}), ErrSize},
		{send(mem, bell, SendSize{Depth: 4, Width: 64, Batch: -1}), ErrSize},
		{send(mem[:255], bell, SendSize{Depth: 4, Width: 64}), ErrMapping},
		{send(nil, bell, SendSize{Depth: 4, Width: 64}), ErrMapping},
		{send(mem[8:], bell, SendSize{Depth: 4, Width: 64}), ErrMapping},
		{send(mem, bell[:3], SendSize{Depth: 4, Width: 64}), ErrMapping},
		{send(mem, bell[2:], SendSize{Depth: 4, Width: 64}), ErrMapping},
		{recv(mem, bell, RecvSize{}), ErrSize},
		{recv(mem, bell, RecvSize{MaxWR: 3, MaxSGE: 3, Descriptors: 8}), ErrSize},
		{recv(mem, bell, RecvSize{MaxWR: 3, MaxSGE: 1, Descriptors: 6}), ErrSize},
		{recv(mem[:127], bell, RecvSize{MaxWR: 8, MaxSGE: 1, Descriptors: 8}), ErrMapping},
		{recv(mem, nil, RecvSize{MaxWR: 8, MaxSGE: 1, Descriptors: 8}), ErrMapping},
		{comp(mem, bell, 0, 4), ErrSize},
		{comp(mem, bell, 1, 3), ErrSize},
		{comp(mem, bell, 1, 1<<17), ErrSize},
		{comp(mem, bell, maxSubCQs+1, 1), ErrSize},
		{comp(mem[:255], bell, 2, 4), ErrMapping},
		{comp(mem[4:], bell, 1, 4), ErrMapping},
		{comp(mem, bell[:0], 1, 4), ErrMapping},
		{second(Doorbell(bell, 5)), ErrMapping},
		{second(Doorbell(bell, math.MaxUint32)), ErrMapping},
		{second(Doorbell(bell, 4)), nil},
	} {
		if !errors.Is(tc.got, tc.want) {
			t.Errorf("case %d: %v, want %v", i, tc.got, tc.want)
		}
	}
}

func TestFind(t *testing.T) {
	r := newRig(t, SendSize{Depth: 4, Width: 64, MaxSGE: 2, MaxInline: 32}, RecvSize{MaxWR: 4, MaxSGE: 2, Descriptors: 8}, 1, 8)
	to, peers := NewPeer(1, 2, 3), cmp.AllowUnexported(Peer{})
	testenv.Must(t, r.sq.put(0, 10, Write, 0, to, 0x1000, 5, 0x2000, 100, 6))
	s := r.sq.Slot(1)
	s.Start(11, Send, to)
	testenv.Must(t, s.AddSGE(0x3000, 1, 7))
	testenv.Must(t, s.AddSGE(0x4000, 2, 8))
	s.Finish()
	s = r.sq.Slot(2)
	s.Start(11, SendImm, to.WithImm(9))
	testenv.Must(t, s.AddInline([]byte("inline")))
	s.Finish()
	if _, ok := r.sq.Find(10); ok {
		t.Error("a request is found before it is published")
	}
	r.sq.Publish(2)
	for id, want := range map[uint64]*SendInfo{
		9: nil, 10: {Write, 100, to, 0x1000, 5, []SGEInfo{{0x2000, 100, 6}}}, 11: {Send, 3, to, 0, 0, []SGEInfo{{0x3000, 1, 7}, {0x4000, 2, 8}}},
	} {
		got, ok := r.sq.Find(id)
		if ok != (want != nil) || ok && cmp.Diff(*want, got, peers) != "" {
			t.Errorf("Find(%d) = %+v, %v, want %+v", id, got, ok, want)
		}
	}
	r.sq.Publish(1)
	if got, ok := r.sq.Find(11); !ok || cmp.Diff(SendInfo{Op: SendImm, Length: 6, Peer: to}, got, peers) != "" {
		t.Errorf("the latest request with an ID: %+v, %v", got, ok)
	}
	all := r.requests()
	for _, w := range all[1:] { // the first one stays while the ring goes around
		r.sq.Complete(idOf(w))
	}
	for id := range uint64(2) {
		r.send(t, id)
	}
	if got, ok := r.sq.Find(10); !ok || cmp.Diff(SendInfo{Op: Write, Length: 100}, got, peers) != "" {
		t.Errorf("a request whose place is used again: %+v, %v", got, ok)
	}

	slot := r.rq.Slot(0, 20)
	testenv.Must(t, slot.AddSGE(0x3000, 1, 7))
	testenv.Must(t, slot.AddSGE(0x4000, 2, 8))
	testenv.Must(t, slot.Finish())
	r.rq.Publish(1)
	if got, ok := r.rq.Find(20); !ok || cmp.Diff([]SGEInfo{{0x3000, 1, 7}, {0x4000, 2, 8}}, got) != "" {
		t.Errorf("Find = %v, %v", got, ok)
	}
	r.descriptors()
	for id := range uint64(7) {
		r.receive(t, id)
		r.rq.Complete(idOf(r.descriptors()[0]))
	}
	if got, ok := r.rq.Find(20); ok {
		t.Errorf("a receive whose place is used again: %v", got)
	}
}

// TestNoAllocs holds the data path to what it promises.
func TestNoAllocs(t *testing.T) {
	r := plain(t, 8)
	data := []byte("inline")
	if n := testing.AllocsPerRun(100, func() {
		r.sq.Room(2)
		r.sq.put(0, 1, Write, 0, Peer{}, 1, 2, 3, 4, 5)
		s := r.sq.Slot(1)
		s.Start(2, Send, Peer{})
		s.AddInline(data)
		s.Finish()
		r.sq.Publish(2)
		r.rq.Begin()
		r.rq.Put(0, 1, 1, 2, 3)
		r.rq.Publish(1)
		at := int(r.sent) % 8 * 64
		r.complete(0, entry(idOf(r.llq[at:]), 0, entrySend, 1))
		c, _ := next(r.cq)
		r.sq.Complete(c.ReqID())
		r.sent++
		r.complete(0, entry(idOf(r.llq[int(r.sent)%8*64:]), 0, entrySend, 1))
		c, _ = next(r.cq)
		r.sq.Complete(c.ReqID())
		r.sent++
		r.rq.Complete(idOf(r.peer.rq[int(r.received)%8*16:][:16]))
		r.received++
		r.cq.Release()
		r.cq.Arm()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if r.sq.Posted()+r.rq.Posted() != 0 {
		t.Error(fmt.Sprint("posted: ", r.sq.Posted(), r.rq.Posted()))
	}
}
