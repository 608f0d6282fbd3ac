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
		var recs Records
		defer recs.Close()
		rec, err := recs.Take()
		ok(t, err)
		c := testContext
		c.MaxSRQWR = 32
		most := 12
		if !cooling {
			c.MaxSRQWR = 31 // the device has no room for more
		}
		size, err := c.SizeSRQ(most, 3, true)
		ok(t, err)
		if want := map[bool][2]int{true: {32, 16}, false: {16, 0}}[cooling]; size.Entries != want[0] || size.Cooling != want[1] {
			t.Fatalf("the size is %+v, want entries %d", size, want)
		}
		mem := region(t, size.Bytes())
		q, err := NewSharedRecvQueue(mem, size, rec)
		ok(t, err)
		if q.Cap() != 15 || q.Entries() != size.Entries-1 {
			t.Fatalf("the queue holds %d of %d", q.Cap(), q.Entries())
		}
		entry := func(i uint16) []byte { return mem[int(i)<<size.Shift:][:1<<size.Shift] }
		type hot struct {
			at   uint16
			data []byte
		}
		rnd := rand.New(rand.NewPCG(5, 6))
		var cool []hot                  // entries that had page faults, the latest last
		var at uint16                   // where the device is in the list
		var posted, taken uint16        // entries
		waiting, free := []uint64{}, 15 // IDs in the order in which the device will find them
		faults, done := 0, 0
		for id := uint64(1); done < 3000; {
			for n := rnd.IntN(4); n > 0 && free > 0; n-- {
				b := q.Begin()
				if !q.Next(&b, id) {
					t.Fatalf("no room for one where %d are free", free)
				}
				for i := range id % 4 {
					ok(t, b.AddSGE(id, uint32(i+1), 77))
				}
				b.Finish()
				q.Publish(&b)
				waiting = append(waiting, id)
				id, free, posted = id+1, free-1, posted+1
			}
			if free == 0 {
				if b := q.Begin(); q.Next(&b, 0) {
					t.Fatal("one more than the queue holds")
				}
			}
			if posted == taken {
				continue
			}
			e := entry(at)
			for i := range waiting[0] % 4 {
				if s := e[16+16*i:]; !bytes.Equal(s[:4], u32(uint32(i+1))) || !bytes.Equal(s[8:16], u64(waiting[0])) {
					t.Fatalf("entry %d is %x, want that of %d", at, e, waiting[0])
				}
			}
			this := at
			at = uint16(e[2])<<8 | uint16(e[3])
			taken++
			if got, err := q.ID(this); err != nil || got != waiting[0] {
				t.Fatalf("entry %d has %d, %v, want %d", this, got, err, waiting[0])
			}
			waiting = append(waiting[1:], waiting[0])
			if rnd.IntN(3) == 0 {
				cool = append(cool, hot{this, bytes.Clone(e[16:])})
				ok(t, q.Repost(this))
				faults, posted = faults+1, posted+1
				if q.Repost(this) != ErrCorrupt {
					t.Fatal("an entry is posted again that the device does not have")
				}
			} else {
				ok(t, q.Free(this))
				waiting, free, done = waiting[:len(waiting)-1], free+1, done+1
			}
			if got := uint16(get32(ptr(rec), 0)); got != posted {
				t.Fatalf("the record says %d after %d receives", got, posted)
			}
			if n := q.Posted(); n != len(waiting) {
				t.Fatalf("%d receives are posted, want %d", n, len(waiting))
			}
			for _, h := range cool[max(0, len(cool)-size.Cooling):] {
				if now := entry(h.at)[16:]; !bytes.Equal(now, h.data) {
					t.Fatalf("entry %d was filled anew while it cooled down", h.at)
				}
			}
		}
		if faults < 1000 || q.Repost(999) != ErrCorrupt {
			t.Errorf("%d faults", faults)
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
