//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestStrayRecv checks that a completion is taken of a receive that was posted and has not completed,
// in any order, and of nothing else.
func TestStrayRecv(t *testing.T) {
	k := newCard(t, Connected, 8, 1, 0)
	n := uint16(k.rq.Cap())
	take := func(at uint16, want uint64, takes bool) {
		t.Helper()
		posted := k.rq.Posted()
		if waits := k.rq.Waits(at); waits != takes {
			t.Errorf("entry %d: waits %v, want %v", at, waits, takes)
		}
		id, done := k.rq.Complete(at)
		if done != takes || id != want || !done && k.rq.Posted() != posted {
			t.Errorf("entry %d: %d, %v, want %d, %v; %d were posted, and %d then", at, id, done, want, takes, posted, k.rq.Posted())
		}
	}
	for at := range 3 * n {
		take(at, 0, false)
		for i := range uint64(2) {
			s := k.rq.Slot(int(i), uint64(at)+i)
			s.Finish()
		}
		take(at, 0, false)
		k.rq.Publish(2)
		take(at+2, 0, false)
		take(at-1, 0, false)
		if at%2 == 0 {
			take(at, uint64(at), true)
			take(at, 0, false)
			take(at+1, uint64(at)+1, true)
		} else {
			take(at+1, uint64(at)+1, true)
			take(at+1, 0, false)
			take(at, uint64(at), true)
			take(at, 0, false)
		}
		take(at+1, 0, false)
		k.rq.Reset()
		take(0, 0, false)
		for range at + 1 { // so that the next round begins one further
			s := k.rq.Slot(0, 7)
			s.Finish()
			k.rq.Publish(1)
			k.rq.Complete(uint16(k.rq.head - 1))
		}
	}
}

// TestRecvOutOfOrder: entries complete in any order, each once and with its ID, and none is filled
// anew before all that were posted earlier have completed.
func TestRecvOutOfOrder(t *testing.T) {
	k := newCard(t, Connected, 8, 1, 0)
	rnd := rand.New(rand.NewPCG(7, 8))
	type entry struct {
		at uint16
		id uint64
	}
	var out []entry // posted and not completed, in order
	next, early := uint16(0), 0
	for id := uint64(1); id < 5000; {
		for k.rq.Room(1) && rnd.IntN(4) > 0 {
			if len(out) > 0 && next-out[0].at >= uint16(k.rq.Cap()) {
				t.Fatalf("entry %d has room, and %d has not completed", next, out[0].at)
			}
			s := k.rq.Slot(0, id)
			s.Finish()
			k.rq.Publish(1)
			out = append(out, entry{next, id})
			id, next = id+1, next+1
		}
		if !k.rq.Room(1) && len(out) > 0 && next-out[0].at < uint16(k.rq.Cap()) {
			t.Fatalf("no room with entries from %d to %d", out[0].at, next)
		}
		for len(out) > 0 && rnd.IntN(3) > 0 {
			i := rnd.IntN(min(len(out), 5))
			e := out[i]
			if i > 0 {
				early++
			}
			oldest := e == out[0]
			if got, ok := k.rq.CompleteNext(e.at); ok && (!oldest || got != e.id) {
				t.Fatalf("entry %d is taken as the next one, with ID %d", e.at, got)
			} else if !ok {
				if got, ok := k.rq.Complete(e.at); got != e.id || !ok {
					t.Fatalf("entry %d: %d, %v, want %d", e.at, got, ok, e.id)
				}
			}
			if k.rq.Waits(e.at) && len(out) < k.rq.Cap() {
				t.Fatalf("entry %d waits after its completion", e.at)
			}
			out = slices.Delete(out, i, i+1)
		}
	}
	if early < 500 {
		t.Errorf("%d completions were out of order", early)
	}
}

// TestRecvHalf: of a queue that is used in any order half of the entries may be posted, whichever have
// completed, and no entry is filled anew before the earlier ones have completed.
func TestRecvHalf(t *testing.T) {
	k := newCard(t, Connected, 8, 1, 0)
	size, err := testContext.SizeRecvOutOfOrder(5, 1)
	if err != nil || size.Entries != 16 || size.InUse != 8 {
		t.Fatalf("a queue for 5 receives: %+v, %v", size, err)
	}
	q, err := NewRecvQueue(region(t, size.Bytes()), size, k.qpRec)
	ok(t, err)
	if q.Cap() != 8 || !q.Room(8) || q.Room(9) {
		t.Errorf("the queue has room for %d", q.Cap())
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	var out []uint16
	next := uint16(0)
	rings := 0 // entries without room although fewer than 8 are posted: the ring is at its end
	for range 20000 {
		room := len(out) < 8 && (len(out) == 0 || next-out[0] < 16)
		if q.Posted() != len(out) {
			t.Fatalf("%d are posted, want %d", q.Posted(), len(out))
		}
		if q.Room(1) != room {
			t.Fatalf("room for entry %d is %v with %d posted, the first of them %d", next, !room, len(out), out[0])
		}
		if len(out) < 8 && !room {
			rings++
		}
		if room && rnd.IntN(8) > 0 {
			s := q.Slot(0, uint64(next))
			s.Finish()
			q.Publish(1)
			out, next = append(out, next), next+1
			continue
		}
		i := rnd.IntN(len(out) + 1)
		if i == len(out) || i == 0 && rnd.IntN(20) > 0 {
			continue // the first one stays for long
		}
		if id, done := q.Complete(out[i]); !done || uint16(id) != out[i] {
			t.Fatalf("entry %d: %d, %v", out[i], id, done)
		}
		out = slices.Delete(out, i, i+1)
	}
	if rings < 10 {
		t.Errorf("the ring was at its end %d times", rings)
	}
	q.Reset()
	if !q.Room(8) || q.Room(9) {
		t.Error("a queue that was reset has no room")
	}
	for _, wr := range []int{-1, testContext.MaxRecvWR/2 + 1} {
		if _, err := testContext.SizeRecvOutOfOrder(wr, 1); err == nil {
			t.Errorf("%d receives are not refused", wr)
		}
	}
	if _, err := NewRecvQueue(region(t, size.Bytes()), RecvSize{Entries: 16, Shift: 4, InUse: 17}, k.qpRec); err == nil {
		t.Error("more entries in use than there are: no error")
	}
}

// TestRecv compares receives byte by byte, around the ring.
func TestRecv(t *testing.T) {
	k := newCard(t, Connected, 8, 1, 0)
	n := k.rq.Cap()
	if n != 16 {
		t.Fatalf("the queue has %d entries", n)
	}
	for i := range 5 * n {
		for j := range k.rqMB {
			k.rqMB[j] = 0xee
		}
		s := k.rq.Slot(0, uint64(1000+i))
		ok(t, s.AddSGE(0x1000, 0, 9)) // of no length, and no segment
		ok(t, s.AddSGE(0x2000, 5, 7))
		want := "00000005 00000007 0000000000002000"
		switch i % 3 {
		case 1:
			ok(t, s.AddSGE(0x3000, 1<<31-5, 8))
			want += "7ffffffb 00000008 0000000000003000"
		case 2:
			for range 3 {
				ok(t, s.AddSGE(0x3000, 1, 8))
				want += "00000001 00000008 0000000000003000"
			}
			if err := s.AddSGE(0, 1, 1); err != ErrTooManySGE {
				t.Errorf("a fifth: %v", err)
			}
		}
		if i%3 != 2 {
			want += "00000000 00000100 0000000000000000"
			if err := s.AddSGE(0, 1<<31, 1); err != ErrTooLong {
				t.Errorf("more than 2 GiB: %v", err)
			}
		}
		s.Finish()
		k.rq.Publish(1)
		at := i % n * 64
		if w := unhex(t, want); !bytes.Equal(k.rqMB[at:at+len(w)], w) || bytes.Count(k.rqMB, []byte{0xee}) != len(k.rqMB)-len(w) {
			t.Fatalf("entry %d is %x, want %x and nothing else written", i, k.rqMB[at:at+64], w)
		}
		if got := k.record(k.qpRec, 0); got != uint32(i+1)&0xffff {
			t.Errorf("the record says %d after %d receives", got, i+1)
		}
		if i >= n/2 { // with half of the queue in use
			if id, ok := k.rq.Complete(uint16(i - n/2)); id != uint64(1000+i-n/2) || !ok {
				t.Errorf("ID of entry %d is %d, %v", i-n/2, id, ok)
			}
		}
	}
	if !k.rq.Room(n / 2) {
		t.Error("half of the queue is free and there is no room")
	}
	if k.rq.Room(n/2 + 1) {
		t.Error("there is room for more than is free")
	}
	k.rq.Reset()
	k.rq.Hold()
	s := k.rq.Slot(0, 1)
	s.Finish()
	k.rq.Publish(1)
	if got := k.record(k.qpRec, 0); got != 0 {
		t.Errorf("the record says %d though the queue is held", got)
	}
	k.rq.Release()
	if got := k.record(k.qpRec, 0); got != 1 {
		t.Errorf("the record says %d when the queue is not held any more", got)
	}
}

// TestSharedRecv takes receives out of order, as messages of many QPs complete, and follows
// the list as the device does.
func TestSharedRecv(t *testing.T) {
	var recs Records
	defer recs.Close()
	rec, err := recs.Take()
	ok(t, err)
	size, err := testContext.SizeSRQ(12, 2, false)
	ok(t, err)
	mem := region(t, size.Bytes())
	q, err := NewSharedRecvQueue(mem, size, rec)
	ok(t, err)
	if q.Cap() != 15 {
		t.Fatalf("the queue holds %d", q.Cap())
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	var at uint16              // where the device is in the list
	out := map[uint16]uint64{} // what it has taken and not completed
	posted, taken := 0, 0      // entries
	var ids []uint64           // posted and not taken
	for id := uint64(1); id < 4000; id++ {
		b := q.Begin()
		n := rnd.IntN(3) + 1
		var batch []uint64
		for i := range n {
			if !q.Next(&b, id*10+uint64(i)) {
				break
			}
			ok(t, b.AddSGE(id, uint32(i+1), 77))
			b.Finish()
			batch = append(batch, id*10+uint64(i))
		}
		if len(batch) == n {
			q.Publish(&b)
			posted += n
			ids = append(ids, batch...)
		} else if free := q.Cap() - len(ids) - len(out); free >= n {
			t.Fatalf("no room for %d where %d are free", n, free)
		}
		if got := uint16(get32(ptr(rec), 0)); got != uint16(posted) {
			t.Fatalf("the record says %d after %d receives", got, posted)
		}
		for taken < posted && rnd.IntN(3) > 0 {
			e := mem[int(at)<<size.Shift:]
			if want := append(u32(uint32(ids[0]%10+1)), u32(77)...); !bytes.Equal(e[16:24], want) || !bytes.Equal(e[24:32], u64(ids[0]/10)) {
				t.Fatalf("entry %d is %x, want that of %d", at, e[:64], ids[0])
			}
			if _, busy := out[at]; busy {
				t.Fatalf("entry %d was posted while the device had it", at)
			}
			out[at], ids = ids[0], ids[1:]
			at = uint16(e[2])<<8 | uint16(e[3])
			taken++
		}
		for i, want := range out { // in the order of a map: any
			if rnd.IntN(2) > 0 {
				continue
			}
			got, err := q.ID(i)
			if err != nil || got != want {
				t.Fatalf("ID of entry %d is %d, %v, want %d", i, got, err, want)
			}
			ok(t, q.Free(i))
			delete(out, i)
			if err := q.Free(i); err != ErrCorrupt {
				t.Fatalf("an entry that is free: %v", err)
			}
		}
	}
	if _, err := q.ID(999); err != ErrCorrupt {
		t.Errorf("an entry that does not exist: %v", err)
	}
	if taken < 1000 {
		t.Errorf("only %d receives were taken", taken)
	}
}
