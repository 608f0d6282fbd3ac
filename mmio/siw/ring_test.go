package siw

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// poster is what send and receive queues have in common, for tests that run over both.
type poster struct {
	p       *peer
	room    func(n int) bool
	fill    func(i int, id uint64)
	publish func(n int)
	capa    func() int
	recall  func() []uint64
}

func posters(t *testing.T, num uint32) map[string]poster {
	t.Helper()
	sp, sq := newSend(t, num)
	rp, rq := newRecv(t, num)
	return map[string]poster{
		"send": {sp, sq.Room, func(i int, id uint64) { s := sq.Slot(i); s.Start(id, Send, 0) }, func(n int) { sp.ring(sq.Publish(n)) }, sq.Cap, sq.Recall},
		"recv": {rp, rq.Room, func(i int, id uint64) { s := rq.Slot(i); s.Start(id) }, rq.Publish, rq.Cap, rq.Recall},
	}
}

// TestPostWraps posts batches of every size around a ring, all of whose elements can be used,
// and has the kernel take them in pieces of another size, as long as it has been told to.
func TestPostWraps(t *testing.T) {
	const num = 8
	for _, kind := range []string{"send", "recv"} {
		t.Run(kind, func(t *testing.T) {
			for batch := 1; batch <= num; batch++ {
				for _, pieces := range []int{1, 3, num} {
					q := posters(t, num)[kind]
					var posted, taken uint64
					for range 60 {
						if ok, want := q.room(batch), int(posted-taken)+batch <= num; ok != want {
							t.Fatalf("Room(%d) = %v with %d of %d in use", batch, ok, posted-taken, num)
						} else if ok {
							for i := range batch {
								q.fill(i, posted+uint64(i))
							}
							for at := range uint32(num) {
								if valid := *q.p.word(uint32(taken) + at)&flagValid != 0; valid != (uint64(at) < posted-taken) {
									t.Fatalf("before Publish element %d is valid: %v, with %d to be taken", at, valid, posted-taken)
								}
							}
							q.publish(batch)
							posted += uint64(batch)
						}
						for range pieces {
							if kind == "send" && q.p.idle {
								break // nobody has told it
							}
							e := q.p.take()
							if e == nil {
								break
							}
							if got := binary.LittleEndian.Uint64(e); got != taken {
								t.Fatalf("batch %d: the kernel takes ID %d, want %d", batch, got, taken)
							}
							taken++
						}
					}
					for !q.p.idle || kind == "recv" {
						if q.p.take() == nil {
							break
						}
						taken++
					}
					if posted < 3*num || taken != posted {
						t.Fatalf("batch %d, pieces %d: %d were posted and %d taken", batch, pieces, posted, taken)
					}
				}
			}
		})
	}
}

func TestRoom(t *testing.T) {
	for _, kind := range []string{"send", "recv"} {
		t.Run(kind, func(t *testing.T) {
			q := posters(t, 4)[kind]
			if got := q.capa(); got != 4 {
				t.Fatalf("Cap() = %d of four elements", got)
			}
			for n, want := range map[int]bool{math.MinInt: true, -1: true, 0: true, 1: true, 4: true, 5: false, math.MaxInt: false} {
				if ok := q.room(n); ok != want {
					t.Errorf("Room(%d) = %v of an empty ring, want %v", n, ok, want)
				}
			}
			for i := range 4 {
				q.fill(i, uint64(i))
			}
			q.publish(4)
			if q.room(1) {
				t.Error("Room(1) of a full ring")
			}
			q.p.take()
			if !q.room(1) || q.room(2) {
				t.Errorf("Room(1) = %v, Room(2) = %v after the kernel took one", q.room(1), q.room(2))
			}
		})
	}
}

// TestRoomLooksOnlyWhenItMust: as long as there was room for as many, the ring is not looked at.
func TestRoomLooksOnlyWhenItMust(t *testing.T) {
	for _, kind := range []string{"send", "recv"} {
		q := posters(t, 8)[kind]
		if !q.room(8) {
			t.Fatalf("%s: no room in an empty ring", kind)
		}
		for i := range uint32(8) {
			*q.p.word(i) = math.MaxUint32
		}
		if !q.room(8) {
			t.Errorf("%s: Room looked at the ring though it knew of room", kind)
		}
	}
}

// TestDoorbell: it is needed if the kernel had taken what was posted before, if all of the ring
// is new, or if the last one did not reach it.
func TestDoorbell(t *testing.T) {
	p, q := newSend(t, 4)
	post := func(n int) bool {
		t.Helper()
		if !q.Room(n) {
			t.Fatalf("no room for %d", n)
		}
		for i := range n {
			s := q.Slot(i)
			s.Start(uint64(i), Send, 0)
		}
		return q.Publish(n)
	}
	if !post(1) {
		t.Error("no doorbell for the first of all")
	}
	if post(1) {
		t.Error("a doorbell while the kernel has one to take")
	}
	if post(2) {
		t.Error("a doorbell for two while the kernel has some to take")
	}
	for p.take() != nil {
	}
	if !post(4) {
		t.Error("no doorbell for a ring that is new as a whole")
	}
	p.take()
	q.Missed()
	if !post(1) {
		t.Error("no doorbell though the last one was missed")
	}
	p.take()
	if post(1) {
		t.Error("a doorbell while the kernel has some to take")
	}
}

func TestRecall(t *testing.T) {
	for _, kind := range []string{"send", "recv"} {
		q := posters(t, 4)[kind]
		for id := uint64(1); id < 7; id++ {
			if !q.room(1) {
				q.p.take()
			}
			if !q.room(1) {
				t.Fatalf("%s: no room", kind)
			}
			q.fill(0, id)
			q.publish(1)
		}
		if diff := cmp.Diff([]uint64{3, 4, 5, 6}, q.recall()); diff != "" {
			t.Errorf("%s: recalled (-want +got):\n%s", kind, diff)
		}
		if again := q.recall(); again != nil {
			t.Errorf("%s: recalled %v again", kind, again)
		}
		if !q.room(4) {
			t.Errorf("%s: no room after all was recalled", kind)
		}
	}
}

func TestNewErrors(t *testing.T) {
	mem := alloc(8 * sqeSize)
	for _, tc := range []struct {
		name string
		make func() error
		says string
	}{
		{"no element", func() error { _, err := NewSendQueue(mem, 0, 1); return err }, "got 0, must be a power of two"},
		{"not a power of two", func() error { _, err := NewSendQueue(mem, 3, 1); return err }, "got 3, must be a power of two"},
		{"negative", func() error { _, err := NewRecvQueue(mem, -4, 1); return err }, "got -4"},
		{"too many", func() error { _, err := NewRecvQueue(mem, 1<<30, 1); return err }, "must be a power of two up to"},
		{"too short", func() error { _, err := NewSendQueue(mem[:8*sqeSize-1], 8, 1); return err }, "got 959 bytes, 8 elements need 960"},
		{"no room for the control word", func() error { _, err := NewCompQueue(mem[:4*cqeSize], 4); return err }, "got 128 bytes, 4 elements need 136"},
		{"unaligned", func() error { _, err := NewSendQueue(mem[4:], 4, 1); return err }, "aligned to 8"},
		{"too many entries", func() error { _, err := NewSendQueue(mem, 8, 7); return err }, "got 7, elements have room for 6"},
		{"entries below 0", func() error { _, err := NewRecvQueue(mem, 8, -1); return err }, "got -1"},
	} {
		err := tc.make()
		if !errors.Is(err, ErrMapping) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: error %v, want one that says %q", tc.name, err, tc.says)
		}
	}
}

// TestComp reads completions around a ring, of which the kernel fills no element that was not
// released.
func TestComp(t *testing.T) {
	const num = 4
	p, q := newComp(t, num)
	if _, ok := q.Next(); ok {
		t.Fatal("a completion in an empty ring")
	}
	next := uint64(0)
	for id := range uint64(4 * num) {
		for !p.put(id, Recv, StatusLocLenErr, uint32(id)+100, 1<<32|uint64(id)+7) {
			c, ok := q.Next()
			if again, _ := q.Next(); !ok || again != c {
				t.Fatalf("Next = %v, %v of a full ring, and then %v", c, ok, again)
			}
			if c.WRID() != next || c.Opcode() != Recv || c.Status() != StatusLocLenErr || c.ByteLen() != uint32(next)+100 || c.QPN() != uint32(next)+7 {
				t.Fatalf("completion %d: ID %d, opcode %d, status %d, %d bytes, QP %d", next, c.WRID(), c.Opcode(), c.Status(), c.ByteLen(), c.QPN())
			}
			q.Release()
			next++
		}
	}
	if next != 3*num {
		t.Errorf("%d were read before the ring was full for good, want %d", next, 3*num)
	}
}

func TestArm(t *testing.T) {
	p, q := newComp(t, 4)
	before := append([]byte(nil), p.mem...)
	q.Arm()
	binary.LittleEndian.PutUint32(before[4*cqeSize:], 3) // SIW_NOTIFY_SOLICITED | SIW_NOTIFY_NEXT_COMPLETION
	if diff := cmp.Diff(before, p.mem); diff != "" {
		t.Errorf("memory after Arm (-want +got):\n%s", diff)
	}
}
