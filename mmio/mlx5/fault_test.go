//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestSharedRecvFaults: receives whose pages are missing are posted again, in entries that the device
// has not seen lately, and all complete once with their IDs and their memory. The device may look at
// the entry of a receive that had a page fault until as many others had one as there are entries that
// cool down.
func TestSharedRecvFaults(t *testing.T) {
	for _, cooling := range []bool{true, false} {
		q := newFaultQueue(t, cooling)
		faults, done := 0, 0
		for done < 3000 {
			q.post()
			if q.posted == q.taken {
				continue
			}
			if q.take() {
				faults++
			} else {
				done++
			}
			q.check()
		}
		if faults < 1000 || q.Repost(999) != ErrCorrupt {
			t.Errorf("%d faults", faults)
		}
	}
}

// faultQueue is a shared receive queue and a device that has page faults.
type faultQueue struct {
	*SharedRecvQueue
	t    *testing.T
	size RecvSize
	mem  []byte
	rec  Record
	rnd  *rand.Rand

	cool          []hotEntry // entries that had page faults, the latest last
	at            uint16     // where the device is in the list
	posted, taken uint16     // entries
	waiting       []uint64   // IDs in the order in which the device will find them
	free          int
	id            uint64 // of the next receive
}

// hotEntry is an entry that the device may still look at.
type hotEntry struct {
	at   uint16
	data []byte
}

// newFaultQueue makes a queue of 15 receives. Without cooling the device has no room for entries that
// cool down.
func newFaultQueue(t *testing.T, cooling bool) *faultQueue {
	t.Helper()
	recs := &Records{}
	t.Cleanup(func() { recs.Close() })
	rec, err := recs.Take()
	ok(t, err)
	c, want := testContext, [2]int{32, 16}
	c.MaxSRQWR = 32
	if !cooling {
		c.MaxSRQWR, want = 31, [2]int{16, 0}
	}
	size, err := c.SizeSRQ(12, 3, true)
	ok(t, err)
	if size.Entries != want[0] || size.Cooling != want[1] {
		t.Fatalf("the size is %+v, want entries %d", size, want)
	}
	mem := region(t, size.Bytes())
	q, err := NewSharedRecvQueue(mem, size, rec)
	ok(t, err)
	if q.Cap() != 15 || q.Entries() != size.Entries-1 {
		t.Fatalf("the queue holds %d of %d", q.Cap(), q.Entries())
	}
	return &faultQueue{SharedRecvQueue: q, t: t, size: size, mem: mem, rec: rec, rnd: rand.New(rand.NewPCG(5, 6)), free: 15, id: 1}
}

// bytes returns an entry.
func (q *faultQueue) bytes(i uint16) []byte { return q.mem[int(i)<<q.size.Shift:][:1<<q.size.Shift] }

// post posts up to three receives, as many as there is room for.
func (q *faultQueue) post() {
	t := q.t
	for n := q.rnd.IntN(4); n > 0 && q.free > 0; n-- {
		b := q.Begin()
		if !q.Next(&b, q.id) {
			t.Fatalf("no room for one where %d are free", q.free)
		}
		for i := range q.id % 4 {
			ok(t, b.AddSGE(q.id, uint32(i+1), 77))
		}
		b.Finish()
		q.Publish(&b)
		q.waiting = append(q.waiting, q.id)
		q.id, q.free, q.posted = q.id+1, q.free-1, q.posted+1
	}
	if q.free == 0 {
		if b := q.Begin(); q.Next(&b, 0) {
			t.Fatal("one more than the queue holds")
		}
	}
}

// take has the device take the next receive, which completes or has a page fault, and reports which.
func (q *faultQueue) take() (fault bool) {
	t, this, id := q.t, q.at, q.waiting[0]
	e := q.bytes(this)
	for i := range id % 4 {
		if s := e[16+16*i:]; !bytes.Equal(s[:4], u32(uint32(i+1))) || !bytes.Equal(s[8:16], u64(id)) {
			t.Fatalf("entry %d is %x, want that of %d", this, e, id)
		}
	}
	q.at = uint16(e[2])<<8 | uint16(e[3])
	q.taken++
	if got, err := q.ID(this); err != nil || got != id {
		t.Fatalf("entry %d has %d, %v, want %d", this, got, err, id)
	}
	q.waiting = q.waiting[1:]
	if q.rnd.IntN(3) != 0 {
		ok(t, q.Free(this))
		q.free++
		return false
	}
	q.waiting = append(q.waiting, id)
	q.cool = append(q.cool, hotEntry{this, bytes.Clone(e[16:])})
	ok(t, q.Repost(this))
	q.posted++
	if q.Repost(this) != ErrCorrupt {
		t.Fatal("an entry is posted again that the device does not have")
	}
	return true
}

// check compares the record, the number of receives and the entries that cool down with what they
// should be.
func (q *faultQueue) check() {
	if got := uint16(get32(ptr(q.rec), 0)); got != q.posted {
		q.t.Fatalf("the record says %d after %d receives", got, q.posted)
	}
	if n := q.Posted(); n != len(q.waiting) {
		q.t.Fatalf("%d receives are posted, want %d", n, len(q.waiting))
	}
	for _, h := range q.cool[max(0, len(q.cool)-q.size.Cooling):] {
		if now := q.bytes(h.at)[16:]; !bytes.Equal(now, h.data) {
			q.t.Fatalf("entry %d was filled anew while it cooled down", h.at)
		}
	}
}

// TestPageFault: of all failures one is of a page that was missing.
func TestPageFault(t *testing.T) {
	k := newCard(t, Connected, 8, 1, 0)
	k.withCQ(t, 8, 64)
	for _, c := range []struct {
		syndrome, vendor byte
		want             bool
	}{{0x22, 0x93, true}, {0x22, 0x92, false}, {0x21, 0x93, false}, {0x05, 0x93, false}} {
		k.put(0xe, 0, map[int][]byte{synOffset: {c.syndrome}, vendOffset: {c.vendor}})
		if k.cq.Avail(1) != 1 || k.cq.Entry(0).PageFault() != c.want {
			t.Errorf("syndrome %#x with %#x: %v", c.syndrome, c.vendor, !c.want)
		}
		k.cq.Release(1)
	}
}
