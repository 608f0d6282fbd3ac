//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"unsafe"
)

// TestSizes: the sizes that libmlx5 44.0 found for the same requests, and the device's limits.
func TestSizes(t *testing.T) {
	for _, c := range []struct {
		t                Transport
		wr, sge, inline  int
		wantWR, wantInl  int
		wantBlocks, recv int
	}{
		{Connected, 16, 3, 100, 25, 124, 128, 4},
		{Datagram, 16, 3, 100, 21, 124, 64, 4},
		{Connected, 1, 1, 0, 1, 60, 4, 1},
		{XRC, 1, 1, 0, 1, 44, 4, 1},
	} {
		s, err := testContext.SizeSend(c.t, c.wr, c.sge, c.inline)
		if err != nil {
			t.Fatal(err)
		}
		if s.MaxWR != c.wantWR || s.MaxInline != c.wantInl || s.Blocks != c.wantBlocks || s.MaxSGE != c.sge {
			t.Errorf("%d, %d work requests of %d SGEs or %d bytes: %+v, want %d, %d bytes, %d blocks", c.t, c.wr, c.sge, c.inline, s, c.wantWR, c.wantInl, c.wantBlocks)
		}
		r, err := testContext.SizeRecv(c.wr, c.sge)
		if err != nil || r.MaxSGE != c.recv || r.Entries < c.wr || r.Bytes() < 64 {
			t.Errorf("receives of %d SGEs: %+v, %v, want %d", c.sge, r, err, c.recv)
		}
	}
	s, err := testContext.SizeSRQ(16, 2, false)
	if err != nil || s.Entries != 32 || s.Shift != 6 || s.MaxSGE != 3 {
		t.Errorf("SRQ: %+v, %v", s, err)
	}
	for in, want := range map[int]int{1: 2, 127: 128, 128: 256, 1<<24 - 1: 1 << 24} {
		if n, err := SizeCQ(in); n != want || err != nil {
			t.Errorf("CQ of %d: %d, %v, want %d", in, n, err, want)
		}
	}
	sendErr := func(wr, sge, inline int) error {
		_, err := testContext.SizeSend(Connected, wr, sge, inline)
		return err
	}
	recvErr := func(wr, sge int) error { _, err := testContext.SizeRecv(wr, sge); return err }
	srqErr := func(wr, sge int) error { _, err := testContext.SizeSRQ(wr, sge, false); return err }
	_, cq0 := SizeCQ(0)
	_, cqMax := SizeCQ(maxCQEs)
	for i, err := range []error{
		sendErr(1, 53, 0), sendErr(1, 1, 829), sendErr(1<<20, 1, 0), sendErr(-1, 1, 0), sendErr(1, -1, 0), sendErr(1, 1, -1), sendErr(8193, 1, 0),
		recvErr(32769, 1), recvErr(1, 33), recvErr(-1, 1), recvErr(1, -1),
		srqErr(0, 1), srqErr(32767, 1), srqErr(1, 32), srqErr(1, -1), cq0, cqMax,
	} {
		var size *SizeError
		if !errors.Is(err, ErrSize) || !errors.As(err, &size) || size.Most < 0 {
			t.Errorf("%d: error is %v, want a SizeError", i, err)
		}
	}
	for _, err := range []error{sendErr(8192, 1, 0), sendErr(1, 52, 0), sendErr(1, 1, 828), recvErr(32768, 1), recvErr(1, 32), srqErr(32766, 31)} {
		if err != nil {
			t.Errorf("the most that there is: %v", err)
		}
	}
	var none Context // a device that can do nothing
	for _, err := range []error{
		func() error { _, err := none.SizeSend(Connected, 1, 1, 0); return err }(),
		func() error { _, err := none.SizeRecv(1, 1); return err }(),
		func() error { _, err := none.SizeSRQ(1, 1, false); return err }(),
	} {
		errorIs(t, err, ErrSize, "a device with limits of 0")
	}
}

// TestRingWrap posts WQEs of all lengths around the ring many times over, and completes some
// of them: each arrives whole, in order, and each completion finds its ID.
func TestRingWrap(t *testing.T) {
	k := newCard(t, Connected, 8, 4, 200)
	rnd := rand.New(rand.NewPCG(1, 2))
	type wr struct {
		id   uint64
		data []byte
		at   uint16
	}
	var queue []wr
	for id := range uint64(5000) {
		for {
			if k.sq.Room(1) {
				break
			}
			// Only one of those that are there is signalled: it stands for those before it.
			n := rnd.IntN(len(queue)) + 1
			k.sent(queue[n-1].at)
			if k.cq.Avail(4) != 1 {
				t.Fatal("the completion is not there")
			}
			got, op, ok := k.sq.Complete(k.cq.Entry(0).Counter())
			if got != queue[n-1].id || op != Write || !ok {
				t.Fatalf("completion of %d (%d), %v, want %d", got, op, ok, queue[n-1].id)
			}
			k.cq.Release(1)
			queue = queue[n:]
		}
		if len(queue) >= k.sq.Cap() {
			t.Fatalf("%d work requests are in a queue of %d", len(queue), k.sq.Cap())
		}
		w := wr{id: id, data: pattern(rnd.IntN(201)), at: k.taken}
		k.post(id, Write, 0, func(s *SendSlot) {
			s.SetRDMA(id, 7)
			half := rnd.IntN(len(w.data) + 1)
			ok(t, s.AddInline(w.data[:half]))
			ok(t, s.AddInline(w.data[half:]))
		})
		got := k.take()
		if want := u64(id); !bytes.Equal(got[16:24], want) {
			t.Fatalf("WQE %d is %x", id, got)
		}
		if n := len(w.data); n == 0 && len(got) != 32 || n > 0 && (!bytes.Equal(got[32:36], u32(1<<31|uint32(n))) || !bytes.Equal(got[36:36+n], w.data)) {
			t.Fatalf("WQE %d with %d bytes of data is %x", id, n, got)
		}
		queue = append(queue, w)
	}
	if k.taken > 40000 || k.pi < 300 {
		t.Logf("blocks %d, completions %d", k.taken, k.pi)
	}
}

// TestRoom: exactly as many as Cap says fit, in batches too, and none more.
func TestRoom(t *testing.T) {
	k := newCard(t, Connected, 8, 1, 0)
	n := k.sq.Cap()
	for i, c := range []struct {
		n    int
		want bool
	}{{0, true}, {1, true}, {n, true}, {n + 1, false}, {1 << 30, false}} {
		if got := k.sq.Room(c.n); got != c.want {
			t.Errorf("%d: room for %d: %v", i, c.n, got)
		}
	}
	k.sq.Begin()
	for i := range n {
		k.add(uint64(i), Send, 0, nil)
	}
	k.sq.Publish()
	if k.sq.Room(1) {
		t.Error("a full queue has room")
	}
	k.sq.Complete(uint16(k.sq.last))
	if !k.sq.Room(n) {
		t.Error("all have completed, and there is no room for as many")
	}
	k.sq.Reset()
	if !k.sq.Room(n) || k.produced() != 0 {
		t.Errorf("after a reset: room %v, record %d", k.sq.Room(n), k.produced())
	}
}

// TestStraySend: a completion is taken of a WQE that was posted and has not completed, and of
// nothing else: neither of a block where none begins, nor of one in another round of the ring, nor
// twice, nor of one that is filled and not published.
func TestStraySend(t *testing.T) {
	k := newCard(t, Connected, 8, 1, 100)
	inline := func(s *SendSlot) { ok(t, s.AddInline(pattern(100))) } // two blocks
	take := func(at uint16, want uint64, takes bool) {
		t.Helper()
		tail := k.sq.tail.Acquire()
		if _, waits := k.sq.Done(at); waits != takes {
			t.Errorf("block %d: waits %v, want %v", at, waits, takes)
		}
		id, _, done := k.sq.Complete(at)
		if done != takes || id != want || !done && k.sq.tail.Acquire() != tail {
			t.Errorf("block %d: %d, %v, want %d, %v; the tail goes from %d to %d", at, id, done, want, takes, tail, k.sq.tail.Acquire())
		}
	}
	round := uint16(k.sendLen)
	for lap := range uint16(3) {
		at := lap * round
		take(at, 0, false) // nothing is there
		for range round / 4 {
			k.post(uint64(at)+1, Send, 0, inline)
			k.post(uint64(at)+2, Send, 0, inline)
			take(at+1, 0, false) // in the middle of the first
			take(at^0x8000, 0, false)
			take(at+round, 0, false)
			take(at-round, 0, false)
			take(at+4, 0, false)
			take(at+2, uint64(at)+2, true)
			take(at, 0, false) // it has completed with the other
			take(at+2, 0, false)
			at += 4
		}
		k.sq.Begin()
		k.add(9, Send, 0, nil)
		take(at, 0, false)
		k.sq.Begin()
	}
	k.sq.Reset()
	for at := range round {
		take(at, 0, false)
	}
}

// TestDoorbell: what is written to the register, where, and in which form.
func TestDoorbell(t *testing.T) {
	k := newCard(t, Connected, 64, 16, 800)
	reg := k.uar[0x800:]
	half := 0
	ring := func(name string, want []byte) {
		t.Helper()
		got := bytes.Clone(reg[half*256 : half*256+256])
		if !bytes.Equal(got[:len(want)], want) {
			t.Errorf("%s: the register has %x, want %x", name, got[:len(want)], want)
		}
		end := (len(want) + 63) / 64 * 64
		if len(want) == 8 {
			end = 8
		}
		for i, b := range got[end:] {
			if b != 0xee {
				t.Errorf("%s: byte %d behind the doorbell was written", name, i)
				break
			}
		}
		if other := reg[(1-half)*256 : (1-half)*256+256]; bytes.Count(other, []byte{0xee}) != 256 {
			t.Errorf("%s: the other half was written", name)
		}
		for i := range k.uar {
			k.uar[i] = 0xee
		}
		half = 1 - half
	}
	for i := range k.uar {
		k.uar[i] = 0xee
	}
	block := func(i, n int) []byte { return bytes.Clone(k.sqMB[i*64 : i*64+n]) }

	k.post(1, Send, 0, nil) // nothing but the control segment: no use in sending all of it
	ring("empty", block(0, 8))
	k.post(2, Send, 0, func(s *SendSlot) { ok(t, s.AddSGE(1, 1, 1)) })
	ring("one block", block(1, 64))
	k.post(3, Send, 0, func(s *SendSlot) { ok(t, s.AddInline(pattern(236))) })
	ring("four blocks", block(2, 256))
	k.post(4, Send, 0, func(s *SendSlot) { ok(t, s.AddInline(pattern(237))) })
	ring("five blocks", block(6, 8))
	k.sq.Begin()
	k.add(5, Send, 0, nil)
	k.add(6, Send, 0, func(s *SendSlot) { ok(t, s.AddSGE(1, 1, 1)) })
	k.sq.Publish()
	ring("a list", block(12, 8))
	if got := k.produced(); got != 13 {
		t.Errorf("the record says %d blocks, want 13", got)
	}

	// At the ring's end the copy goes on at its start.
	k = newCard(t, Connected, 8, 4, 200)
	for k.sq.next%uint32(k.sendLen) != uint32(k.sendLen-1) {
		k.post(1, Send, 0, func(s *SendSlot) { ok(t, s.AddSGE(1, 1, 1)) })
		k.sq.Complete(uint16(k.sq.last))
		k.take()
	}
	at := k.sq.reg.half
	k.post(2, Send, 0, func(s *SendSlot) { ok(t, s.AddInline(pattern(100))) })
	if got, want := k.uar[0x800+int(at):][:116], k.take(); !bytes.Equal(got, want[:116]) {
		t.Errorf("around the end the register has\n%x, want\n%x", got, want)
	}
}

// TestPlainRegister: several queues use a register for doorbells of 8 bytes at once without a lock.
// Under the race detector it shows that they need none.
func TestPlainRegister(t *testing.T) {
	uar := region(t, uarSize)
	reg, err := NewRegister(uar, 0, 0, false)
	ok(t, err)
	var wg sync.WaitGroup
	for range 4 {
		size, err := testContext.SizeSend(Connected, 8, 1, 0)
		ok(t, err)
		rec := Record{new([2]uint32)}
		q, err := NewSendQueue(region(t, size.Bytes()), size, Connected, cardQPN, rec, reg)
		ok(t, err)
		wg.Go(func() {
			for i := range uint64(500) {
				q.Begin()
				if !q.Room(1) || !q.PutSGE(i, NewMeta(Send, Signaled, 0), 0, 0, 0, 0, 0) {
					t.Error("no room")
					return
				}
				q.Publish()
				if _, _, ok := q.Complete(uint16(i)); !ok {
					t.Errorf("request %d is not there", i)
				}
			}
		})
	}
	wg.Wait()
}

// TestRegisterWithoutBlueFlame: 8 bytes, always at the same place.
func TestRegisterWithoutBlueFlame(t *testing.T) {
	k := newCard(t, Connected, 8, 4, 200)
	reg, err := NewRegister(k.uar, 0, 0, true)
	ok(t, err)
	k.sq.reg = reg
	for i := range 3 {
		clear(k.uar)
		k.post(1, Send, 0, func(s *SendSlot) { ok(t, s.AddSGE(1, 1, 1)) })
		want := make([]byte, uarSize)
		copy(want[0x800:], k.sqMB[i*64:i*64+8])
		if !bytes.Equal(k.uar, want) {
			t.Errorf("%d: the register has %x", i, k.uar[0x800:0x840])
		}
	}
	for _, c := range []struct {
		n    int
		bf   uint32
		size int
	}{{-1, 512, 4096}, {2, 512, 4096}, {0, 512, 4095}, {1, 2048, 4096}, {0, 512, 0}} {
		errorIs(t, errorOf(NewRegister(make([]byte, c.size), c.n, c.bf, false)), ErrLayout, "%+v", c)
	}
}

// TestRecords: records are apart, zero, and come back.
func TestRecords(t *testing.T) {
	var recs Records
	var all []Record
	seen := map[uintptr]bool{}
	for i := range 256 { // four pages
		r, err := recs.Take()
		ok(t, err)
		if a := r.Addr(); a%RecordSize != 0 || seen[a] || *r.w != [2]uint32{} {
			t.Fatalf("record %d at %#x, taken before %v, is %x", i, a, seen[a], *r.w)
		}
		seen[r.Addr()] = true
		r.set(0, 1)
		r.set(1, 2)
		all = append(all, r)
	}
	for _, r := range all[50:150] {
		recs.Give(r)
	}
	recs.Give(Record{})
	for range 100 {
		r, err := recs.Take()
		ok(t, err)
		if !seen[r.Addr()] || *r.w != [2]uint32{} {
			t.Fatalf("a record that came back is at %#x and has %x", r.Addr(), *r.w)
		}
	}
	if n := recs.left.Load(); n != 256 || len(recs.pages) != 4 {
		t.Errorf("%d records on %d pages, want 256 on 4", n, len(recs.pages))
	}
	for _, r := range all { // a page from the address of a record on is mapped
		if !slices.ContainsFunc(recs.pages, func(p *recordPage) bool {
			b := p.region.Bytes()
			off := r.Addr() - uintptr(unsafe.Pointer(&b[0]))
			return off < uintptr(len(b)) && off+uintptr(recordPageSize) <= uintptr(len(b))
		}) {
			t.Errorf("the region of the record at %#x ends within a page", r.Addr())
		}
	}
	ok(t, recs.Close())
}

// TestPostAllocatesNothing.
func TestPostAllocatesNothing(t *testing.T) {
	k := newCard(t, Connected, 16, 2, 100)
	data := pattern(64)
	var s SendSlot
	if n := testing.AllocsPerRun(100, func() {
		k.sq.Begin()
		if !k.sq.Room(1) {
			k.sq.Complete(uint16(k.sq.last))
		}
		k.sq.Start(&s, 1, Send, Signaled)
		s.AddInline(data)
		s.Finish()
		k.sq.Publish()
		r := k.rq.Slot(0, 1)
		r.AddSGE(1, 1, 1)
		r.Finish()
		k.rq.Publish(1)
		k.rq.Complete(uint16(k.rq.head - 1))
		k.put(0, 0, nil)
		k.cq.Avail(1)
		k.cq.Entry(0).Counter()
		k.cq.Release(1)
		k.cq.Arm(false)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkPostInline64(b *testing.B) {
	k := newCard(b, Connected, 64, 1, 64)
	data := pattern(64)
	var s SendSlot
	for b.Loop() {
		k.sq.Begin()
		if !k.sq.Room(1) {
			k.sq.Complete(uint16(k.sq.last))
		}
		k.sq.Start(&s, 1, Send, Signaled)
		s.AddInline(data)
		s.Finish()
		k.sq.Publish()
	}
}
