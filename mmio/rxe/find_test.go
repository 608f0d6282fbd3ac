package rxe

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestFind: a work request is found by its ID with what it says, the youngest of several,
// and with no more entries than there can be, whatever the kernel's side has written.
func TestFind(t *testing.T) {
	q, p := newSend(t)
	if _, found := q.Find(nil, 0x1122334455667788, false); found {
		t.Error("a work request is in an empty ring")
	}
	post(t, q, Send, 0, func(s *SendSlot) { ok(t, s.AddSGE(1, 2, 3)) })
	post(t, q, Write, Signaled, func(s *SendSlot) {
		s.SetRDMA(0x1000, 7)
		ok(t, s.AddSGE(10, 20, 30))
		ok(t, s.AddSGE(11, 21, 31))
	})
	const id = 0x1122334455667788
	got, found := q.Find(nil, id, false)
	want := SendInfo{Opcode: Write, Length: 41, RemoteAddr: 0x1000, RKey: 7, SGEs: []SGEInfo{{10, 20, 30}, {11, 21, 31}}}
	if diff := cmp.Diff(want, got); !found || diff != "" {
		t.Errorf("found %t (-want +got):\n%s", found, diff)
	}
	if _, found := q.Find(nil, id+1, false); found {
		t.Error("a work request that was never posted is found")
	}
	for i := range p.mem[384:] {
		p.mem[384+i] = 0xff
	}
	if got, found := q.Find(nil, 1<<64-1, true); !found || len(got.SGEs) > q.MaxSGE() {
		t.Errorf("from garbage: %+v, %t", got, found)
	}
	post(t, q, AtomicFAA, 0, func(s *SendSlot) { s.SetAtomic(8, 1, 0, 5) })
	if got, _ := q.Find(nil, id, false); got.RemoteAddr != 8 || got.RKey != 5 {
		t.Errorf("an atomic is %+v", got)
	}
	post(t, q, Flush, 0, func(s *SendSlot) { s.SetFlush(16, 4, 6, 1, 0) })
	if got, _ := q.Find(nil, id, false); got.RemoteAddr != 16 || got.RKey != 6 || got.Length != 4 {
		t.Errorf("a flush is %+v", got)
	}
	post(t, q, Send, Signaled, func(s *SendSlot) { s.SetUD(9, 1, 1, nil) })
	if got, _ := q.Find(nil, id, true); got.RemoteQPN != 9 {
		t.Errorf("a datagram is %+v", got)
	}
}

// TestFindFailed: the one that the kernel gave up on, and not those that it flushed for it.
func TestFindFailed(t *testing.T) {
	const flushed = 5
	q, _ := newSend(t)
	if _, _, _, found := q.FindFailed(flushed, false); found {
		t.Error("a failure in an empty ring")
	}
	for i := range 4 {
		post(t, q, BindMW, 0, func(s *SendSlot) {
			s.wqe.WR.WRID = uint64(i)
			s.SetMW(0x1000, 200, 3, 4, 5, 6)
			s.wqe.State, s.wqe.Status = stateError, []uint32{0, flushed, 6, flushed}[i]
		})
	}
	id, status, info, found := q.FindFailed(flushed, false)
	want := SendInfo{Opcode: BindMW, RKey: 5, MWRKey: 4, Bind: BindInfo{Addr: 0x1000, Length: 200, LKey: 3, Access: 6}}
	if diff := cmp.Diff(want, info); !found || id != 2 || status != 6 || diff != "" {
		t.Errorf("found %t, %d with status %d (-want +got):\n%s", found, id, status, diff)
	}
	post(t, q, LocalInv, 0, func(s *SendSlot) { s.SetInvalidate(9) })
	if got, _ := q.Find(nil, 0x1122334455667788, false); got.Invalid != 9 {
		t.Errorf("an invalidation is %+v", got)
	}
}

// TestFindRecv: a receive is found by its ID, unless the ring has another length under the same ID.
func TestFindRecv(t *testing.T) {
	q := must[*RecvQueue](t)(NewRecvQueue(newPeer(7, 7).mem, 127, 4))
	post := func(id uint64, length uint32) {
		s := q.Slot(0)
		s.Start(id)
		if err := s.AddSGE(0x2000, length, 9); err != nil {
			t.Fatal(err)
		}
		q.Publish(1)
	}
	post(1, 64)
	post(2, 32)
	post(1, 64)
	var x IDIndex
	for _, index := range []*IDIndex{nil, &x} {
		if got, ok := q.Find(index, 1); !ok || len(got) != 1 || got[0].Length != 64 {
			t.Errorf("found %v, %v", got, ok)
		}
	}
	post(1, 65)
	for _, index := range []*IDIndex{nil, &x} {
		if got, ok := q.Find(index, 1); ok {
			t.Errorf("found %v for an ID of two lengths", got)
		}
		if _, ok := q.Find(index, 2); !ok {
			t.Error("the ID of one length is not found")
		}
	}
}
