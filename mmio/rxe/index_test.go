package rxe

import (
	"math/rand/v2"
	"testing"
)

// postIDs posts sends or receives with IDs, which the kernel takes at once.
func postIDs(t *testing.T, q any, p *peer, ids ...uint64) {
	t.Helper()
	for _, id := range ids {
		switch q := q.(type) {
		case *SendQueue:
			must[bool](t)(q.Room(1))
			s := q.Slot(0)
			s.Start(id, Send, 0)
			q.Publish(1)
		case *RecvQueue:
			must[bool](t)(q.Room(1))
			s := q.Slot(0)
			s.Start(id)
			ok(t, s.AddSGE(1, 2, 3))
			q.Publish(1)
		}
		p.setConsumer(p.producer())
	}
}

// indexedQueues returns a send and a receive queue of n elements as the kernel makes them, all zero.
func indexedQueues(t *testing.T, log2 uint32) map[any]*peer {
	t.Helper()
	send, recv := newPeer(9, log2), newPeer(7, log2)
	clear(send.mem[hdrSize:])
	clear(recv.mem[hdrSize:])
	return map[any]*peer{
		must[*SendQueue](t)(NewSendQueue(send.mem, int(send.mask), 4, 300)): send,
		must[*RecvQueue](t)(NewRecvQueue(recv.mem, int(recv.mask), 2)):      recv,
	}
}

// finder returns what finds an ID in a queue with the given index.
func finder(q any) func(x *IDIndex, id uint64) (uint32, bool) {
	return func(x *IDIndex, id uint64) (uint32, bool) {
		if q, ok := q.(*SendQueue); ok {
			return x.find(&q.producer, id, q.readID)
		}
		r := q.(*RecvQueue)
		return x.find(&r.producer, id, r.readID)
	}
}

// TestIndexFinds: the index finds the element that a search of the whole ring finds, whatever was
// posted or reset since it was last used.
func TestIndexFinds(t *testing.T) {
	const log2 = 8
	for q, p := range indexedQueues(t, log2) {
		find, x, random := finder(q), new(IDIndex), rand.New(rand.NewPCG(1, 2))
		check := func(step string, id uint64) {
			t.Helper()
			wantAt, want := find(nil, id)
			if at, found := find(x, id); found != want || at != wantAt {
				t.Fatalf("%T, %s: ID %d is found %t at %d, want %t at %d", q, step, id, found, at, want, wantAt)
			}
		}
		check("empty", 0)
		check("empty", 1)
		fresh := uint64(1000)
		for range 300 {
			step := "posted"
			for range []int{0, 1, 2, 30, 1<<log2 - 1, 1 << log2, 3 << log2, 1<<log2 + 1}[random.IntN(8)] {
				postIDs(t, q, p, random.Uint64N(40)+1)
			}
			if random.IntN(20) == 0 {
				step = "reset"
				clear(p.mem[hdrSize:])
			}
			fresh++
			if random.IntN(2) == 0 {
				postIDs(t, q, p, fresh)
			}
			for id := uint64(1); id < 42; id++ { // 0 is also that of an element that was reset
				check(step, id)
			}
			check(step, fresh)
			check(step, fresh-1)
		}
	}
}

// TestIndexLap: a whole lap after which the newest element has the ID that the newest had before.
func TestIndexLap(t *testing.T) {
	const last = 7
	for q, p := range indexedQueues(t, 8) {
		find, x := finder(q), new(IDIndex)
		for id := range uint64(200) {
			postIDs(t, q, p, 1000+id)
		}
		postIDs(t, q, p, last)
		find(x, last)
		for id := range uint64(255) {
			postIDs(t, q, p, 5000+id)
		}
		postIDs(t, q, p, last)
		for _, id := range []uint64{1000, 1199, 5000, 5254, last} {
			wantAt, want := find(nil, id)
			if at, found := find(x, id); found != want || at != wantAt {
				t.Errorf("%T: ID %d is found %t at %d, want %t at %d", q, id, found, at, want, wantAt)
			}
		}
	}
}

// TestIndexCost: looking for every work request of a deep ring reads each element twice, not the ring
// for each, and an ID that the ring does not hold costs no more. So does a program that posts again for
// each.
func TestIndexCost(t *testing.T) {
	const depth = 1 << 12
	for q, p := range indexedQueues(t, 12) {
		find, x := finder(q), new(IDIndex)
		for id := range uint64(depth) {
			postIDs(t, q, p, id+1)
		}
		for id := range uint64(depth) {
			_, has := find(x, id+1)
			if _, hasNot := find(x, id+1+10*depth); !has || hasNot {
				t.Fatalf("%T: ID %d: %t and %t", q, id, has, hasNot)
			}
		}
		if limit := 4 * depth; x.reads > limit {
			t.Errorf("%T: %d elements were read for %d work requests, want at most %d", q, x.reads, depth, limit)
		}
		x.reads = 0
		for id := range uint64(depth) {
			find(x, id+1)
			postIDs(t, q, p, id+1+depth)
		}
		if limit := 4 * depth; x.reads > limit {
			t.Errorf("%T: %d elements were read while %d were posted, want at most %d", q, x.reads, depth, limit)
		}
		if len(x.byID) > depth {
			t.Errorf("%T: the index has %d IDs of a ring of %d", q, len(x.byID), depth)
		}
	}
}
