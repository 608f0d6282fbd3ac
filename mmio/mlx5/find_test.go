//go:build amd64 || arm64

package mlx5

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestFind reads back what was posted, as long as it is in the ring.
func TestFind(t *testing.T) {
	k := newCard(t, Connected, 8, 3, 200)
	post := func(id uint64, op Op, fill func(s *SendSlot)) {
		t.Helper()
		if !k.sq.Room(1) {
			k.sq.Complete(uint16(k.sq.last))
		}
		k.post(id, op, 0, fill)
	}
	post(1, Write, func(s *SendSlot) {
		s.SetRDMA(0x1000, 7)
		ok(t, s.AddSGE(0x2000, 5, 8))
		ok(t, s.AddSGE(0x3000, 6, 9))
	})
	post(2, FAA, func(s *SendSlot) {
		s.SetAtomic(0x1000, 1, 2, 7)
		ok(t, s.AddSGE(0x2000, 8, 8))
	})
	post(3, Send, func(s *SendSlot) { ok(t, s.AddInline(pattern(150))) })
	post(4, BindMW, func(s *SendSlot) { ok(t, s.SetBind(&Window{Key: 0x2806, NewKey: 0x2807, LKey: 1, Addr: 1, Length: 1})) })
	post(5, LocalInv, func(s *SendSlot) { s.SetLocalInv(0x2807) })
	for id, want := range map[uint64]SendInfo{
		1: {Op: Write, Length: 11, RemoteAddr: 0x1000, RKey: 7, SGEs: []SGEInfo{{0x2000, 5, 8}, {0x3000, 6, 9}}},
		2: {Op: FAA, Length: 8, RemoteAddr: 0x1000, RKey: 7, SGEs: []SGEInfo{{0x2000, 8, 8}}},
		3: {Op: Send, Length: 150},
		4: {Op: BindMW, OldKey: 0x2806, RKey: 0x2807},
		5: {Op: LocalInv, OldKey: 0x2807, RKey: 0x2807},
	} {
		if got, found := k.sq.Find(id); !found || !cmp.Equal(got, want) {
			t.Errorf("%d: %+v, %v, want %+v", id, got, found, want)
		}
	}
	var read []uint32
	k.sq.Scatter(0, func(_ uint64, length, _ uint32) bool { read = append(read, length); return len(read) < 2 })
	if !cmp.Equal(read, []uint32{5, 6}) {
		t.Errorf("the first one's entries are %v", read)
	}
	for range 100 { // of another length, so that old beginnings are in the middle
		post(6, Send, func(s *SendSlot) { ok(t, s.AddInline(pattern(70))) })
	}
	post(7, Send, nil)
	post(6, Read, func(s *SendSlot) { s.SetRDMA(1, 2) }) // the youngest of that ID
	for id := range uint64(10) {
		got, found := k.sq.Find(id)
		if found != (id == 6 || id == 7) || id == 6 && got.Op != Read {
			t.Errorf("%d: %+v, %v", id, got, found)
		}
	}
	d := newCard(t, Datagram, 8, 1, 0)
	av := NewAV(&AVAttr{})
	d.post(1, SendImm, 0, func(s *SendSlot) {
		s.SetUD(0x123456, 1, &av)
		ok(t, s.AddSGE(1, 2, 3))
	})
	if got, _ := d.sq.Find(1); !cmp.Equal(got, SendInfo{Op: SendImm, Length: 2, RemoteQPN: 0x123456, SGEs: []SGEInfo{{1, 2, 3}}}) {
		t.Errorf("datagram: %+v", got)
	}
}

// TestFindBesidePost looks for work requests while others are posted: it finds what was posted or
// nothing, and the race detector has nothing to say.
func TestFindBesidePost(t *testing.T) {
	const posts = 2000
	k := newCard(t, Connected, 8, 1, 0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range uint64(posts) {
			if !k.sq.Room(1) {
				k.sq.Complete(uint16(k.sq.last))
			}
			k.post(i%16, Send, 0, func(s *SendSlot) { s.AddSGE(0x2000, 64, 8) })
		}
	}()
	want, found := SendInfo{Op: Send, Length: 64, SGEs: []SGEInfo{{0x2000, 64, 8}}}, 0
	for running := true; running || found == 0; {
		select {
		case <-done:
			running = false
		default:
		}
		if got, ok := k.sq.Find(posts % 16); ok {
			if found++; !cmp.Equal(got, want) {
				t.Fatalf("found %+v, want %+v", got, want)
			}
		}
		if !running && found == 0 {
			if _, ok := k.sq.Find((posts - 1) % 16); !ok {
				t.Fatal("the last work request is not found")
			}
			break
		}
	}
	<-done
}

// TestFindRecv: the receive that has completed last is found by its ID, unless the ring has another length under the
// same ID.
func TestFindRecv(t *testing.T) {
	k := newCard(t, Connected, 8, 3, 200)
	find := func(id uint64) (length uint32, ok bool) {
		ok = k.rq.Find(id, func(_ uint64, n, _ uint32) bool { length += n; return true })
		return length, ok
	}
	at := uint16(0)
	take := func(id uint64, length uint32) {
		t.Helper()
		s := k.rq.Slot(0, id)
		must(t, s.AddSGE(0x2000, length, 9))
		s.Finish()
		k.rq.Publish(1)
		if got, ok := k.rq.Complete(at); !ok || got != id {
			t.Fatalf("completed %d, %v", got, ok)
		}
		at++
	}
	if _, ok := find(1); ok {
		t.Error("found in an empty ring")
	}
	take(1, 64)
	take(2, 32)
	take(1, 64)
	if n, ok := find(1); !ok || n != 64 {
		t.Errorf("found %d bytes, %v", n, ok)
	}
	take(1, 65)
	if n, ok := find(1); ok {
		t.Errorf("found %d bytes for an ID of two lengths", n)
	}
	if n, ok := find(2); !ok || n != 32 {
		t.Errorf("found %d bytes, %v", n, ok)
	}
}
