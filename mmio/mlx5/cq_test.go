//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

// TestPoll reads completions around the ring, as many at a time as there are.
func TestPoll(t *testing.T) {
	for _, size := range []int{64, 128} {
		k := newCard(t, Connected, 8, 1, 0)
		k.withCQ(t, 16, size)
		next, read := uint16(0), uint16(0)
		for round := range 200 {
			n := round % 17 // the ring may be full
			for range n {
				k.sent(next)
				next++
			}
			got := k.cq.Avail(100)
			if got != n {
				t.Fatalf("size %d, round %d: %d completions, want %d", size, round, got, n)
			}
			if some := k.cq.Avail(n / 2); some != n/2 {
				t.Fatalf("%d completions of at most %d", some, n/2)
			}
			for i := range n {
				if c := k.cq.Entry(i).Counter(); c != read {
					t.Fatalf("completion of %d, want %d", c, read)
				}
				read++
			}
			k.cq.Release(n)
			if rec := k.record(k.cqRec, 0); n > 0 && rec != uint32(read)&0xffffff {
				t.Fatalf("the record says %d, want %d", rec, read)
			}
		}
	}
}

// withCQ gives the card another CQ.
func (c *card) withCQ(tb testing.TB, n, size int) {
	tb.Helper()
	c.cqMB, c.cqeSize, c.cqeLog, c.pi = region(tb, n*size), size, log2(n), 0
	for i := range c.cqMB {
		c.cqMB[i] = 0xff
	}
	var err error
	c.cq, err = NewCompQueue(c.cqMB, n, size, c.cqRec)
	ok(tb, err)
	ok(tb, c.cq.SetNumber(0x1234, c.uar))
}

// TestCQE decodes what a device writes, field by field.
func TestCQE(t *testing.T) {
	k := newCard(t, Connected, 8, 1, 0)
	put := func(opcode byte, fields map[int][]byte) CQE {
		t.Helper()
		k.put(opcode, 0, fields)
		if k.cq.Avail(1) != 1 {
			t.Fatal("no completion")
		}
		e := k.cq.Entry(0)
		k.cq.Release(1)
		return e
	}
	e := put(2, map[int][]byte{
		17: {0x85}, 22: u16(0x1122), rqpOffset: u32(0x1a345678), idxOffset: u32(0xff654321), immOffset: u32(0xcafe1234), lenOffset: u32(77),
		48: u64(0x0102030405060708), opOffset: u32(0xaa4a5b6c), cntOffset: u16(0xbeef),
	})
	if e.Kind() != KindRecv || e.PathBits() != 5 || e.SLID() != 0x1122 || e.SL() != 10 || e.SrcQP() != 0x345678 || e.UserIndex() != 0x654321 ||
		e.Imm() != 0xcafe1234 || e.ByteCount() != 77 || e.Timestamp() != 0x0102030405060708 || e.QPN() != 0x4a5b6c || e.Counter() != 0xbeef || e.Extra() != HasGRH || e.RawOpcode() != 2 {
		t.Errorf("completion is %+v", e)
	}
	for op, want := range map[byte]struct {
		kind  Kind
		extra Extra
	}{
		0: {KindSend, 0}, 1: {KindRecv, HasImm | HasWrite}, 2: {KindRecv, 0}, 3: {KindRecv, HasImm}, 4: {KindRecv, HasInv}, 5: {}, 6: {}, 7: {}, 8: {}, 9: {}, 10: {}, 11: {}, 12: {},
		13: {KindSendError, 0}, 14: {KindRecvError, 0},
	} {
		if e := put(op, nil); e.Kind() != want.kind || e.Extra() != want.extra {
			t.Errorf("opcode %d: kind %d, extra %d, want %+v", op, e.Kind(), e.Extra(), want)
		}
	}
	for syndrome, want := range map[byte]Status{1: 1, 2: 2, 4: 4, 5: 5, 6: 6, 0x10: 7, 0x11: 8, 0x12: 9, 0x13: 10, 0x14: 11, 0x15: 12, 0x16: 13, 0x22: 16, 0: 21, 3: 21, 0x99: 21} {
		e := put(13, map[int][]byte{synOffset: {syndrome}, vendOffset: {0x81}})
		vendor, s := e.Vendor()
		if e.Status() != want || vendor != 0x81 || s != syndrome {
			t.Errorf("syndrome %#x: status %d, vendor %#x", syndrome, e.Status(), vendor)
		}
	}
	if VendorText(0x81) == VendorText(0x82) || VendorText(0x82) != "vendor syndrome 0x82" {
		t.Errorf("vendor syndromes read %q and %q", VendorText(0x81), VendorText(0x82))
	}
}

// TestInline: data that the device has put into the completion.
func TestInline(t *testing.T) {
	for _, c := range []struct {
		size   int
		inline byte
		n      uint32
		want   int // bytes, or -1 for none
	}{{64, 4, 20, 20}, {64, 4, 32, 32}, {64, 4, 99, 32}, {64, 0, 20, -1}, {64, 8, 20, -1}, {128, 8, 50, 50}, {128, 8, 1 << 30, 64}, {128, 4, 10, 10}} {
		k := newCard(t, Connected, 8, 1, 0)
		k.withCQ(t, 4, c.size)
		k.put(2, c.inline, map[int][]byte{lenOffset: u32(c.n)})
		data := k.cqMB[:64] // of the first CQE: the first half, if it has two
		copy(data[:32], pattern(32))
		if c.size == 128 && c.inline == 8 {
			copy(data, pattern(64))
		} else if c.size == 128 {
			copy(k.cqMB[64:96], pattern(32))
		}
		k.cq.Avail(1)
		got := k.cq.Inline(k.cq.Entry(0), k.cq.Entry(0).ByteCount())
		if c.want < 0 && got != nil || c.want >= 0 && !bytes.Equal(got, pattern(c.want)) {
			t.Errorf("%+v: %x", c, got)
		}
	}
}

// TestArm: the record and the register get the same word, with the number of events that were
// delivered and the index.
func TestArm(t *testing.T) {
	k := newCard(t, Connected, 8, 1, 0)
	for i, c := range []struct {
		solicited bool
		events    int
		want      uint32
	}{{false, 0, 0}, {true, 0, 0x01000000}, {false, 1, 0x10000000}, {true, 2, 0x31000000}, {false, 1, 0}} {
		for range c.events {
			k.cq.Event()
		}
		k.cq.Arm(c.solicited)
		if got := k.record(k.cqRec, 1); got != c.want {
			t.Errorf("%d: the record has %#x, want %#x", i, got, c.want)
		}
		if got, want := binary.BigEndian.Uint64(k.uar[0x20:]), uint64(c.want)<<32|0x1234; got != want {
			t.Errorf("%d: the register has %#x, want %#x", i, got, want)
		}
	}
	k.sent(1)
	k.sent(2)
	k.cq.Avail(2)
	k.cq.Release(2)
	k.cq.Arm(true)
	if got := k.record(k.cqRec, 1); got != 0x01000002 {
		t.Errorf("after two completions the record has %#x", got)
	}
	if k.record(k.cqRec, 0) != 2 {
		t.Errorf("the index is %d", k.record(k.cqRec, 0))
	}
}

// TestResize: completions that were not read are in the new ring, in their order, and the
// device goes on behind them; up and down, with CQEs of both sizes, wherever the ring is.
func TestResize(t *testing.T) {
	for _, size := range []int{64, 128} {
		k := newCard(t, Connected, 8, 1, 0)
		k.withCQ(t, 8, size)
		posted, read := uint16(0), uint16(0)
		for step, c := range []struct{ put, n, get int }{{3, 32, 0}, {20, 64, 23}, {0, 4, 0}, {3, 16, 1}, {7, 16, 9}, {2, 4, 0}, {0, 128, 0}, {100, 256, 102}} {
			for range c.put {
				k.sent(posted)
				posted++
			}
			mem := region(t, c.n*size)
			next, err := k.cq.Succeed(mem, c.n)
			ok(t, err)
			k.put(5, 0, nil) // the mark
			k.cqMB, k.cqeLog = mem, log2(c.n)
			k.cq, err = k.cq.Switch(next)
			ok(t, err)
			if got := k.record(k.cqRec, 0); got != uint32(k.cq.index) {
				t.Errorf("step %d: the record has %d, want %d", step, got, k.cq.index)
			}
			if k.cq.Cap() != c.n-1 {
				t.Errorf("step %d: Cap is %d", step, k.cq.Cap())
			}
			k.sent(posted) // behind them
			posted++
			get := func(n int) {
				t.Helper()
				for range n {
					if k.cq.Avail(1) != 1 {
						t.Fatalf("step %d: completion %d is not there", step, read)
					}
					if got := k.cq.Entry(0).Counter(); got != read {
						t.Fatalf("step %d: completion of %d, want %d", step, got, read)
					}
					k.cq.Release(1)
					read++
				}
			}
			get(c.get)
			get(1)
		}
		for read < posted {
			k.cq.Avail(1)
			k.cq.Release(1)
			read++
		}
		if k.cq.Avail(1) != 0 {
			t.Error("there are more completions than were put")
		}
		if next, err := k.cq.Succeed(region(t, 4*size), 4); err != nil {
			t.Error(err)
		} else if _, err := k.cq.Switch(next); err != ErrCorrupt {
			t.Errorf("without the mark: %v", err)
		}
	}
}

// TestSweep takes out every choice of completions of a ring, at every place in it.
func TestSweep(t *testing.T) {
	for start := range 9 {
		for choice := range 1 << 6 {
			k := newCard(t, Connected, 8, 1, 0)
			k.withCQ(t, 8, 128)
			for range start {
				k.sent(99)
				k.cq.Avail(1)
				k.cq.Release(1)
			}
			var want []uint16
			for i := range uint16(6) {
				k.sent(i)
				if choice>>i&1 == 0 {
					want = append(want, i)
				}
			}
			k.cq.Sweep(func(e CQE) bool { return choice>>e.Counter()&1 != 0 })
			k.sent(77)
			want = append(want, 77)
			var got []uint16
			for k.cq.Avail(1) == 1 {
				got = append(got, k.cq.Entry(0).Counter())
				k.cq.Release(1)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("from %d, without %06b: %v, want %v", start, choice, got, want)
			}
			if rec := k.record(k.cqRec, 0); rec != uint32(start+7) {
				t.Fatalf("the record has %d, want %d", rec, start+7)
			}
		}
	}
}

// TestSweepKeepsMark: the mark of a resized CQ stays whatever the other bytes of it say, so that
// Switch finds it, and the completions before it that stay.
func TestSweepKeepsMark(t *testing.T) {
	k := newCard(t, Connected, 8, 1, 0)
	k.withCQ(t, 8, 64)
	for i := range uint16(4) {
		k.sent(i)
	}
	mem := region(t, 16*64)
	next, err := k.cq.Succeed(mem, 16)
	ok(t, err)
	k.put(5, 0, nil)
	k.cq.Sweep(func(e CQE) bool { return e.Counter() != 2 || e.RawOpcode() == 5 })
	k.cqMB, k.cqeLog = mem, 4
	k.cq, err = k.cq.Switch(next)
	ok(t, err)
	k.sent(9)
	var got []uint16
	for k.cq.Avail(1) == 1 {
		got = append(got, k.cq.Entry(0).Counter())
		k.cq.Release(1)
	}
	if want := []uint16{2, 9}; !slices.Equal(got, want) {
		t.Errorf("the new ring has completions of %v, want %v", got, want)
	}
}

// TestResizeMeanwhile: what happens to the old ring before Switch counts: completions are read, and
// events are delivered.
func TestResizeMeanwhile(t *testing.T) {
	k := newCard(t, Connected, 8, 1, 0)
	k.withCQ(t, 8, 64)
	for i := range uint16(3) {
		k.sent(i)
	}
	mem := region(t, 16*64)
	next, err := k.cq.Succeed(mem, 16)
	ok(t, err)
	k.cq.Avail(1)
	k.cq.Release(1)
	k.cq.Event()
	k.put(5, 0, nil)
	k.cqMB, k.cqeLog = mem, 4
	k.cq, err = k.cq.Switch(next)
	ok(t, err)
	for want := uint16(1); want < 3; want++ {
		if k.cq.Avail(1) != 1 || k.cq.Entry(0).Counter() != want {
			t.Fatalf("completion %d is not there", want)
		}
		k.cq.Release(1)
	}
	k.cq.Arm(false)
	if got := k.record(k.cqRec, 1); got != 1<<armSeqShift|4 {
		t.Errorf("the queue is armed with %#x, want sequence 1 and index 4", got)
	}
}

// TestQueueErrors: memory that is too small, and sizes that there are not.
func TestQueueErrors(t *testing.T) {
	rec := Record{new([2]uint32)}
	mem := make([]byte, 4096)
	reg := &Register{}
	for i, f := range []func() error{
		func() error { _, err := NewCompQueue(mem, 64, 96, rec); return err },
		func() error { _, err := NewCompQueue(mem, 3, 64, rec); return err },
		func() error { _, err := NewCompQueue(mem, 128, 64, rec); return err },
		func() error { _, err := NewCompQueue(mem, 0, 64, rec); return err },
		func() error { _, err := NewCompQueue(mem, 1<<30, 64, rec); return err },
		func() error {
			_, err := NewSendQueue(mem, SendSize{Blocks: 128, MaxWR: 1}, Connected, 1, rec, reg)
			return err
		},
		func() error {
			_, err := NewSendQueue(mem, SendSize{Blocks: 3, MaxWR: 1}, Connected, 1, rec, reg)
			return err
		},
		func() error { _, err := NewSendQueue(mem, SendSize{}, Connected, 1, rec, reg); return err },
		func() error { _, err := NewRecvQueue(mem, RecvSize{Entries: 512, Shift: 4}, rec); return err },
		func() error { _, err := NewRecvQueue(mem, RecvSize{Entries: 2, Shift: 3}, rec); return err },
		func() error { _, err := NewRecvQueue(mem, RecvSize{Entries: 2, Shift: 63}, rec); return err },
		func() error { _, err := NewRecvQueue(mem, RecvSize{}, rec); return err },
		func() error { _, err := NewSharedRecvQueue(mem, RecvSize{Entries: 256, Shift: 5}, rec); return err },
		func() error { _, err := NewSharedRecvQueue(mem, RecvSize{Entries: 1, Shift: 5}, rec); return err },
		func() error { q, _ := NewCompQueue(mem, 64, 64, rec); return q.SetNumber(1, mem[:100]) },
	} {
		if f() == nil {
			t.Errorf("%d: no error", i)
		}
	}
}

// FuzzCQ has a device write anything at all, and goes through all that a poll does: nothing
// panics, and nothing outside the queues is touched.
func FuzzCQ(f *testing.F) {
	f.Add([]byte{0, 1, 2}, uint32(7))
	f.Add(bytes.Repeat([]byte{0xff}, 256), uint32(0))
	f.Add(bytes.Repeat([]byte{0x50, 0x20, 0xe1}, 100), uint32(1<<24-1))
	f.Fuzz(func(t *testing.T, ring []byte, index uint32) {
		k := newCard(t, Connected, 8, 2, 32)
		k.withCQ(t, 16, 64<<(index&1))
		var recs Records
		defer recs.Close()
		rec, err := recs.Take()
		ok(t, err)
		size, err := testContext.SizeSRQ(4, 1, false)
		ok(t, err)
		srq, err := NewSharedRecvQueue(region(t, size.Bytes()), size, rec)
		ok(t, err)
		for range 5 { // which have completed, before 3 that have not
			k.post(1, Send, Signaled, nil)
			k.sq.Complete(uint16(k.sq.last))
		}
		for i := range uint64(3) {
			k.post(100+i, Send, Signaled, nil)
			s := k.rq.Slot(0, 200+i)
			s.Finish()
			k.rq.Publish(1)
		}
		sent, received := uint64(99), map[uint64]bool{}
		k.cq.index = index
		for len(ring) > 0 && len(ring) < len(k.cqMB) {
			ring = append(ring, ring...)
		}
		copy(k.cqMB, ring)
		for range 40 {
			n := k.cq.Avail(5)
			for i := range n {
				e := k.cq.Entry(i)
				switch e.Kind() {
				case KindSend, KindSendError:
					if id, _, ok := k.sq.Complete(e.Counter()); ok && (id <= sent || id > 102) {
						t.Fatalf("the completion of send %d after %d", id, sent)
					} else if ok {
						sent = id
					}
				case KindRecv, KindRecvError:
					k.rq.Scatter(e.Counter(), func(uint64, uint32, uint32) bool { return true })
					if id, ok := k.rq.Complete(e.Counter()); ok && (id < 200 || id > 202 || received[id]) {
						t.Fatalf("the completion of receive %d after those of %v", id, received)
					} else if ok {
						received[id] = true
					}
					if _, err := srq.ID(e.Counter()); err == nil {
						t.Fatal("a completion of an entry that was not posted")
					}
					if srq.Free(e.Counter()) == nil {
						t.Fatal("an entry was freed that was not posted")
					}
				}
				if d := k.cq.Inline(e, e.ByteCount()); len(d) > 64 {
					t.Fatalf("%d bytes in a completion", len(d))
				}
				e.Status()
				e.Extra()
				e.Timestamp()
			}
			k.cq.Sweep(func(e CQE) bool { return e.Counter()&1 == 0 })
			k.cq.Release(n)
			k.sq.Room(1)
			k.rq.Room(1)
		}
		if next, err := k.cq.Succeed(region(t, 4*128), 4); err == nil {
			k.cq.Switch(next)
		}
	})
}
