package rxe

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestFind: a work request is found by its ID with what it says, the youngest of several,
// and with no more entries than there can be, whatever the kernel's side has written.
func TestFind(t *testing.T) {
	q, p := newSend(t)
	if _, found := q.Find(0x1122334455667788, false); found {
		t.Error("a work request is in an empty ring")
	}
	post(t, q, Send, 0, func(s *SendSlot) { ok(t, s.AddSGE(1, 2, 3)) })
	post(t, q, Write, Signaled, func(s *SendSlot) {
		s.SetRDMA(0x1000, 7)
		ok(t, s.AddSGE(10, 20, 30))
		ok(t, s.AddSGE(11, 21, 31))
	})
	const id = 0x1122334455667788
	got, found := q.Find(id, false)
	want := SendInfo{Opcode: Write, Length: 41, RemoteAddr: 0x1000, RKey: 7, SGEs: []SGEInfo{{10, 20, 30}, {11, 21, 31}}}
	if diff := cmp.Diff(want, got); !found || diff != "" {
		t.Errorf("found %t (-want +got):\n%s", found, diff)
	}
	if _, found := q.Find(id+1, false); found {
		t.Error("a work request that was never posted is found")
	}
	for i := range p.mem[384:] {
		p.mem[384+i] = 0xff
	}
	if got, found := q.Find(1<<64-1, true); !found || len(got.SGEs) > q.MaxSGE() {
		t.Errorf("from garbage: %+v, %t", got, found)
	}
	post(t, q, AtomicFAA, 0, func(s *SendSlot) { s.SetAtomic(8, 1, 0, 5) })
	if got, _ := q.Find(id, false); got.RemoteAddr != 8 || got.RKey != 5 {
		t.Errorf("an atomic is %+v", got)
	}
	post(t, q, Flush, 0, func(s *SendSlot) { s.SetFlush(16, 4, 6, 1, 0) })
	if got, _ := q.Find(id, false); got.RemoteAddr != 16 || got.RKey != 6 || got.Length != 4 {
		t.Errorf("a flush is %+v", got)
	}
	post(t, q, Send, Signaled, func(s *SendSlot) { s.SetUD(9, 1, 1, nil) })
	if got, _ := q.Find(id, true); got.RemoteQPN != 9 {
		t.Errorf("a datagram is %+v", got)
	}
}
