package rxe

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRecvBytes compares what is in the ring with struct rxe_recv_wqe. The offsets come from the C
// header.
func TestRecvBytes(t *testing.T) {
	for _, tc := range []struct {
		name string
		fill func(s *RecvSlot)
		size int
		want []field
	}{
		{"nothing", func(s *RecvSlot) {}, recvSize, nil},
		{"one", func(s *RecvSlot) {
			ok(t, s.AddSGE(0xa0a1a2a3a4a5a6a7, 0x10203, 0xb0b1b2b3))
		}, recvSize + 16, []field{
			{"dma.length", 16, uint32(0x10203)}, {"dma.resid", 20, uint32(0x10203)}, {"dma.num_sge", 28, uint32(1)},
			{"sge[0].addr", 40, uint64(0xa0a1a2a3a4a5a6a7)}, {"sge[0].length", 48, uint32(0x10203)}, {"sge[0].lkey", 52, uint32(0xb0b1b2b3)},
		}},
		{"two", func(s *RecvSlot) {
			ok(t, s.AddSGE(1, 2, 3))
			ok(t, s.AddSGE(4, 5, 6))
		}, recvSize + 32, []field{
			{"dma.length", 16, uint32(7)}, {"dma.resid", 20, uint32(7)}, {"dma.num_sge", 28, uint32(2)},
			{"sge[0].addr", 40, uint64(1)}, {"sge[0].length", 48, uint32(2)}, {"sge[0].lkey", 52, uint32(3)},
			{"sge[1].addr", 56, uint64(4)}, {"sge[1].length", 64, uint32(5)}, {"sge[1].lkey", 68, uint32(6)},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPeer(7, 2)
			q := must[*RecvQueue](t)(NewRecvQueue(p.mem, 3, 2))
			if ok, err := q.Room(1); !ok || err != nil {
				t.Fatal(ok, err)
			}
			s := q.Slot(0)
			s.Start(0x1122334455667788)
			tc.fill(&s)
			q.Publish(1)
			want := element(7, tc.size, append(tc.want, field{"wr_id", 0, uint64(0x1122334455667788)}))
			if diff := cmp.Diff(want, p.take()); diff != "" {
				t.Errorf("the kernel sees another element (-want +got):\n%s", diff)
			}
			if rest := p.mem[hdrSize+128:]; !bytes.Equal(rest, bytes.Repeat([]byte{0xee}, len(rest))) {
				t.Error("other elements were written to")
			}
		})
	}
}

func TestRecvDataErrors(t *testing.T) {
	p := newPeer(7, 2)
	q := must[*RecvQueue](t)(NewRecvQueue(p.mem, 3, 2))
	s := q.Slot(0)
	s.Start(1)
	ok(t, s.AddSGE(1, math.MaxUint32, 1))
	before := bytes.Clone(p.mem)
	if err := s.AddSGE(1, 1, 1); err != ErrTooLong {
		t.Errorf("4 GiB: %v, want ErrTooLong", err)
	}
	if !bytes.Equal(before, p.mem) {
		t.Error("a refused entry changed the request")
	}
	ok(t, s.AddSGE(1, 0, 1))
	before = bytes.Clone(p.mem)
	if err := s.AddSGE(1, 0, 1); err != ErrTooManySGE {
		t.Errorf("third of two: %v, want ErrTooManySGE", err)
	}
	if !bytes.Equal(before, p.mem) {
		t.Error("a refused entry changed the request")
	}
	s.Start(2)
	ok(t, s.AddSGE(1, 1, 1))
}

func TestNewRecvQueueLimits(t *testing.T) {
	p := newPeer(7, 2) // 128 - 40 = 88 bytes: 5 entries
	q := must[*RecvQueue](t)(NewRecvQueue(p.mem, 3, 5))
	if q.MaxSGE() != 5 || q.Cap() != 3 {
		t.Errorf("limit %d, capacity %d; want 5, 3", q.MaxSGE(), q.Cap())
	}
	if _, err := NewRecvQueue(p.mem, 3, 6); !errors.Is(err, ErrCorrupt) {
		t.Errorf("six entries: %v, want ErrCorrupt", err)
	}
	if _, err := NewRecvQueue(p.mem, 3, -1); err == nil || errors.Is(err, ErrCorrupt) {
		t.Errorf("a negative number of entries: %v, want an error that is not ErrCorrupt", err)
	}
}

func TestRecvDoesNotAllocate(t *testing.T) {
	p := newPeer(7, 2)
	q := must[*RecvQueue](t)(NewRecvQueue(p.mem, 3, 2))
	if n := testing.AllocsPerRun(1000, func() {
		if ok, err := q.Room(3); !ok || err != nil {
			t.Fatal(ok, err)
		}
		for i := range 3 {
			s := q.Slot(i)
			s.Start(1)
			ok(t, s.AddSGE(1, 2, 3))
		}
		q.Publish(3)
		p.setConsumer(p.producer())
	}); n != 0 {
		t.Errorf("%v allocations for three work requests, want 0", n)
	}
}
