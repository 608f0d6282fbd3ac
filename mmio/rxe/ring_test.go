package rxe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

// poster is what send and receive queues have in common, for tests that run
// over both.
type poster struct {
	room    func(n int) (bool, error)
	fill    func(i int, id uint64) // fill slot i
	publish func(n int)
	capa    func() int
}

func posters(t *testing.T, p *peer) map[string]poster {
	t.Helper()
	sq := must[*SendQueue](t)(NewSendQueue(p.mem, int(p.mask), 1, 0))
	rq := must[*RecvQueue](t)(NewRecvQueue(p.mem, int(p.mask), 1))
	return map[string]poster{
		"send": {sq.Room, func(i int, id uint64) { s := sq.Slot(i); s.Start(id, Send, 0) }, sq.Publish, sq.Cap},
		"recv": {rq.Room, func(i int, id uint64) { s := rq.Slot(i); s.Start(id) }, rq.Publish, rq.Cap},
	}
}

// TestPostWraps posts batches of every size from every start of a ring, and has
// the kernel take them in pieces of another size. wr_id is at offset 0 of both
// kinds of elements.
func TestPostWraps(t *testing.T) {
	const mask = 7
	for _, kind := range []string{"send", "recv"} {
		t.Run(kind, func(t *testing.T) {
			for start := range uint32(mask + 1) {
				for batch := 1; batch <= mask; batch++ {
					p := newPeer(8, 3)
					p.startAt(start)
					q := posters(t, p)[kind]
					var posted, taken uint64
					for range 40 {
						if ok, err := q.room(batch); err != nil {
							t.Fatalf("start %d, batch %d: %v", start, batch, err)
						} else if want := int(posted-taken)+batch <= mask; ok != want {
							t.Fatalf("start %d: Room(%d) = %v with %d of %d in use", start, batch, ok, posted-taken, mask)
						} else if ok {
							for i := range batch {
								q.fill(i, posted+uint64(i))
							}
							if got, want := p.producer(), (start+uint32(posted))&mask; got != want {
								t.Fatalf("start %d: the kernel sees producer %d before Publish, want %d", start, got, want)
							}
							q.publish(batch)
							posted += uint64(batch)
							if got, want := p.producer(), (start+uint32(posted))&mask; got != want {
								t.Fatalf("start %d: the kernel sees producer %d after Publish, want %d", start, got, want)
							}
						}
						for range 3 {
							if e := p.take(); e != nil {
								if got := binary.NativeEndian.Uint64(e); got != taken {
									t.Fatalf("start %d, batch %d: the kernel takes ID %d, want %d", start, batch, got, taken)
								}
								taken++
							}
						}
					}
					if posted < 3*mask {
						t.Fatalf("start %d, batch %d: only %d were posted, too few to go around", start, batch, posted)
					}
				}
			}
		})
	}
}

func TestRoomOfFullRing(t *testing.T) {
	for _, kind := range []string{"send", "recv"} {
		t.Run(kind, func(t *testing.T) {
			p := newPeer(8, 2)
			q := posters(t, p)[kind]
			if got := q.capa(); got != 3 {
				t.Fatalf("Cap() = %d of four elements, want 3", got)
			}
			q.fill(0, 0)
			q.publish(1)
			for n, want := range map[int]bool{math.MinInt: true, -1: true, 0: true, 1: true, 2: true, 3: false, 4: false, math.MaxInt: false} {
				if ok, err := q.room(n); ok != want || err != nil {
					t.Errorf("Room(%d) = %v, %v with two free, want %v", n, ok, err, want)
				}
			}
			q.fill(0, 1)
			q.fill(1, 2)
			q.publish(2)
			if ok, err := q.room(1); ok || err != nil {
				t.Errorf("Room(1) = %v, %v of a full ring", ok, err)
			}
			if ok, err := q.room(0); !ok || err != nil {
				t.Errorf("Room(0) = %v, %v of a full ring", ok, err)
			}
			p.take()
			if ok, err := q.room(1); !ok || err != nil {
				t.Errorf("Room(1) = %v, %v after the kernel took one", ok, err)
			}
		})
	}
}

// TestRoomLooksOnlyWhenItMust puts nonsense into the consumer index: as long as
// the last known one leaves room, it is not even loaded.
func TestRoomLooksOnlyWhenItMust(t *testing.T) {
	for _, kind := range []string{"send", "recv"} {
		t.Run(kind, func(t *testing.T) {
			p := newPeer(8, 2)
			q := posters(t, p)[kind]
			p.setConsumer(math.MaxUint32)
			for i := range 3 {
				if ok, err := q.room(1); !ok || err != nil {
					t.Fatalf("Room(1) = %v, %v with %d in use", ok, err, i)
				}
				q.fill(0, 1)
				q.publish(1)
			}
			if ok, err := q.room(1); ok || err != ErrCorrupt {
				t.Errorf("Room(1) = %v, %v of a full ring with a corrupt index, want ErrCorrupt", ok, err)
			}
		})
	}
}

func TestRoomHostileIndex(t *testing.T) {
	for _, kind := range []string{"send", "recv"} {
		for _, tc := range []struct {
			name     string
			consumer uint32
			want     bool
			err      error
		}{
			{"as it was", 4, false, nil},
			{"one on", 5, false, nil},
			{"two on", 6, true, nil},
			{"all taken", 0, true, nil},
			{"past the producer", 1, false, ErrCorrupt},
			{"far past the producer", 2, false, ErrCorrupt},
			{"one back", 3, false, ErrCorrupt},
			{"one past the mask", 8, false, ErrCorrupt},
			{"right but for a high bit", 1<<16 + 6, false, ErrCorrupt},
			{"top bit", 1 << 31, false, ErrCorrupt},
			{"all ones", math.MaxUint32, false, ErrCorrupt},
		} {
			t.Run(kind+"/"+tc.name, func(t *testing.T) {
				p := newPeer(8, 3)
				p.startAt(4)
				q := posters(t, p)[kind]
				q.publish(4) // producer 0, consumer 4, three free
				p.setConsumer(tc.consumer)
				if ok, err := q.room(5); ok != tc.want || err != tc.err {
					t.Errorf("Room(5) = %v, %v; want %v, %v", ok, err, tc.want, tc.err)
				}
			})
		}
	}
}

// TestHeaderIsReadOnce changes the header of a running ring to every kind of
// nonsense: nothing may change for its user.
func TestHeaderIsReadOnce(t *testing.T) {
	for _, kind := range []string{"send", "recv"} {
		t.Run(kind, func(t *testing.T) {
			p := newPeer(8, 2)
			q := posters(t, p)[kind]
			binary.NativeEndian.PutUint32(p.mem[hdrLog2ElemSize:], math.MaxUint32)
			binary.NativeEndian.PutUint32(p.mem[hdrIndexMask:], math.MaxUint32)
			for id := range uint64(10) {
				if ok, err := q.room(1); !ok || err != nil || q.capa() != 3 {
					t.Fatalf("Room(1) = %v, %v, capacity %d", ok, err, q.capa())
				}
				q.fill(0, id)
				q.publish(1)
				if e := p.take(); e == nil || binary.NativeEndian.Uint64(e) != id {
					t.Fatalf("the kernel takes %x, want ID %d", e, id)
				}
			}
		})
	}
	t.Run("comp", func(t *testing.T) {
		p := newPeer(6, 2)
		q := must[*CompQueue](t)(NewCompQueue(p.mem, 3))
		binary.NativeEndian.PutUint32(p.mem[hdrLog2ElemSize:], 0)
		binary.NativeEndian.PutUint32(p.mem[hdrIndexMask:], math.MaxUint32)
		for id := range uint64(10) {
			p.put(field{"wr_id", 0, id})
			if n, err := q.Avail(); n != 1 || err != nil || q.Entry(0).WRID() != id || q.Cap() != 3 {
				t.Fatalf("Avail() = %d, %v, ID %d, capacity %d", n, err, q.Entry(0).WRID(), q.Cap())
			}
			q.Release(1)
		}
	})
}

// makers makes each kind of queue for a number of entries.
var makers = map[string]func(mem []byte, entries int) error{
	"send": func(mem []byte, entries int) error { _, err := NewSendQueue(mem, entries, 1, 16); return err },
	"recv": func(mem []byte, entries int) error { _, err := NewRecvQueue(mem, entries, 1); return err },
	"comp": func(mem []byte, entries int) error { _, err := NewCompQueue(mem, entries); return err },
}

func TestNewQueueOfBadMemory(t *testing.T) {
	const shift, log2Elems, entries = 8, 3, 5
	put := func(offset int, v uint32) func([]byte) []byte {
		return func(mem []byte) []byte {
			binary.NativeEndian.PutUint32(mem[offset:], v)
			return mem
		}
	}
	for _, tc := range []struct {
		name  string
		spoil func(mem []byte) []byte
		says  string
	}{
		{"no memory", func([]byte) []byte { return nil }, "mapping: got 0 bytes"},
		{"four bytes", func(mem []byte) []byte { return mem[:4] }, "mapping: got 4 bytes"},
		{"header less one", func(mem []byte) []byte { return mem[:hdrSize-1] }, "mapping: got 383 bytes"},
		{"header alone", func(mem []byte) []byte { return mem[:hdrSize] }, "need 2432"},
		{"one byte short", func(mem []byte) []byte { return mem[:len(mem)-1] }, "mapping: got 2431 bytes"},
		{"unaligned", func(mem []byte) []byte { return append(alloc(1), mem...)[1:] }, "aligned"},
		{"elements of 32 bytes", put(hdrLog2ElemSize, 5), "log2_elem_size"},
		{"elements of a byte", put(hdrLog2ElemSize, 0), "log2_elem_size"},
		{"elements of 512 bytes", put(hdrLog2ElemSize, 9), "need 4480"},
		{"elements of 2 GiB", put(hdrLog2ElemSize, 31), "mapping"},
		{"elements of 4 GiB", put(hdrLog2ElemSize, 32), "log2_elem_size: got 32"},
		{"shift of 64", put(hdrLog2ElemSize, 64), "log2_elem_size: got 64"},
		{"shift of all ones", put(hdrLog2ElemSize, math.MaxUint32), "log2_elem_size"},
		{"mask with a hole", put(hdrIndexMask, 5), "index_mask: got 0x5"},
		{"mask of a power of two", put(hdrIndexMask, 8), "index_mask: got 0x8"},
		{"mask of the top bit", put(hdrIndexMask, 1<<31), "index_mask"},
		{"mask of all ones", put(hdrIndexMask, math.MaxUint32), "mapping"},
		{"mask too large by one bit", put(hdrIndexMask, 15), "16 elements"},
		{"mask too small for the entries", put(hdrIndexMask, 3), "room for 3 entries"},
		{"mask of zero", put(hdrIndexMask, 0), "room for 0 entries"},
		{"producer past the mask", put(hdrProducer, 8), "producer 8"},
		{"producer of all ones", put(hdrProducer, math.MaxUint32), "producer"},
		{"consumer past the mask", put(hdrConsumer, 8), "consumer 8"},
		{"consumer of all ones", put(hdrConsumer, math.MaxUint32), "consumer"},
	} {
		for kind, make := range makers {
			t.Run(tc.name+"/"+kind, func(t *testing.T) {
				err := make(tc.spoil(newPeer(shift, log2Elems).mem), entries)
				if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("got %v, want ErrCorrupt that says %q", err, tc.says)
				}
			})
		}
	}
}

func TestNewQueueElementSize(t *testing.T) {
	for kind, want := range map[string]uint32{"send": 8, "recv": 6, "comp": 6} { // log2 of what 208+16, 40+16 and 48 need
		for _, d := range []uint32{0, 1} {
			err := makers[kind](newPeer(want-d, 3).mem, 1)
			if (err == nil) != (d == 0) {
				t.Errorf("%s queue with elements of %d bytes: %v", kind, 1<<(want-d), err)
			}
		}
	}
}

func TestNewQueueEntries(t *testing.T) {
	for kind, make := range makers {
		if err := make(newPeer(8, 3).mem, 7); err != nil {
			t.Errorf("%s queue of 7 entries in 8 elements: %v", kind, err)
		}
		if err := make(newPeer(8, 3).mem, 8); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s queue of 8 entries in 8 elements: %v, want ErrCorrupt", kind, err)
		}
	}
}

func TestNewQueueOfNegativeSize(t *testing.T) {
	for kind, make := range makers {
		for _, n := range []int{-1, math.MinInt} {
			if err := make(newPeer(8, 3).mem, n); err == nil || errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), fmt.Sprint(n)) {
				t.Errorf("%s queue of %d entries: %v, want an error that is not ErrCorrupt and names the number", kind, n, err)
			}
		}
	}
}

func TestQueueOfNoEntries(t *testing.T) {
	// The kernel makes a ring of one element, which holds nothing.
	p := newPeer(8, 0)
	for kind, q := range posters(t, p) {
		if got := q.capa(); got != 0 {
			t.Errorf("%s: Cap() = %d, want 0", kind, got)
		}
		if ok, err := q.room(1); ok || err != nil {
			t.Errorf("%s: Room(1) = %v, %v", kind, ok, err)
		}
	}
	q := must[*CompQueue](t)(NewCompQueue(p.mem, 0))
	if n, err := q.Avail(); n != 0 || err != nil {
		t.Errorf("Avail() = %d, %v", n, err)
	}
}

// TestNewQueueTakesOverEntries is a completion ring after a resize, and a shared
// receive ring: the kernel has copied the old entries into it.
func TestNewQueueTakesOverEntries(t *testing.T) {
	p := newPeer(8, 3)
	p.put(field{"wr_id", 0, uint64(11)})
	p.put(field{"wr_id", 0, uint64(12)})
	q := must[*CompQueue](t)(NewCompQueue(p.mem, 7))
	if n, err := q.Avail(); n != 2 || err != nil {
		t.Fatalf("Avail() = %d, %v; want 2", n, err)
	}
	if a, b := q.Entry(0).WRID(), q.Entry(1).WRID(); a != 11 || b != 12 {
		t.Errorf("IDs %d and %d, want 11 and 12", a, b)
	}
	before := bytes.Clone(p.elem(0))
	rq := must[*RecvQueue](t)(NewRecvQueue(p.mem, 7, 1))
	if ok, err := rq.Room(6); ok || err != nil {
		t.Errorf("Room(6) = %v, %v with two of seven in use", ok, err)
	}
	s := rq.Slot(0)
	s.Start(13)
	rq.Publish(1)
	if got := binary.NativeEndian.Uint64(p.elem(2)); got != 13 || !bytes.Equal(before, p.elem(0)) || p.producer() != 3 {
		t.Errorf("the third element has ID %d, the producer is %d, want 13 and 3, and the first one as it was", got, p.producer())
	}
}
