package siw

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// at puts a value into an element, in the byte order of the hosts that there are.
func at(e []byte, offset int, v any) {
	switch v := v.(type) {
	case uint8:
		e[offset] = v
	case uint16:
		binary.LittleEndian.PutUint16(e[offset:], v)
	case uint32:
		binary.LittleEndian.PutUint32(e[offset:], v)
	case uint64:
		binary.LittleEndian.PutUint64(e[offset:], v)
	case string:
		copy(e[offset:], v)
	}
}

// slotField is a value at an offset of an element.
type slotField struct {
	offset int
	value  any
}

// sendSlots are work requests and the fields of struct siw_sqe that they set.
var sendSlots = []struct {
	name string
	fill func(s *SendSlot) error
	want []slotField
}{
	{"send without data", func(s *SendSlot) error { s.Start(7, Send, Signaled|Solicited); return nil },
		[]slotField{{elemFlags, uint16(1 | 4 | 8)}, {elemSGEs, uint8(0)}, {sqeOpcode, uint8(3)}}},
	{"send", func(s *SendSlot) error {
		s.Start(7, Send, Fence)
		if err := s.AddSGE(0x1122334455667788, 100, 0xaabbccdd); err != nil {
			return err
		}
		return s.AddSGE(0x10, 20, 30)
	}, []slotField{
		{elemFlags, uint16(1 | 16)}, {elemSGEs, uint8(2)}, {sqeOpcode, uint8(3)},
		{sqeSGE, uint64(0x1122334455667788)}, {sqeSGE + 8, uint32(100)}, {sqeSGE + 12, uint32(0xaabbccdd)},
		{sqeSGE + sgeSize, uint64(0x10)}, {sqeSGE + sgeSize + 8, uint32(20)}, {sqeSGE + sgeSize + 12, uint32(30)},
	}},
	{"send and invalidate", func(s *SendSlot) error { s.Start(7, SendInv, 0); s.SetInvalidate(0x12345678); return nil },
		[]slotField{{elemFlags, uint16(1)}, {elemSGEs, uint8(0)}, {sqeOpcode, uint8(5)}, {sqeRKey, uint32(0x12345678)}}},
	{"write", func(s *SendSlot) error {
		s.Start(7, Write, Signaled)
		s.SetRDMA(0x8877665544332211, 0x99)
		return s.AddSGE(1, 2, 3)
	}, []slotField{
		{elemFlags, uint16(1 | 4)}, {elemSGEs, uint8(1)}, {sqeOpcode, uint8(0)}, {sqeRKey, uint32(0x99)},
		{sqeRaddr, uint64(0x8877665544332211)}, {sqeSGE, uint64(1)}, {sqeSGE + 8, uint32(2)}, {sqeSGE + 12, uint32(3)},
	}},
	{"read, of which a fence is left out", func(s *SendSlot) error {
		s.Start(7, Read, Signaled|Fence)
		s.SetRDMA(5, 6)
		return s.AddSGE(1, 2, 3)
	}, []slotField{
		{elemFlags, uint16(1 | 4)}, {elemSGEs, uint8(1)}, {sqeOpcode, uint8(1)}, {sqeRKey, uint32(6)},
		{sqeRaddr, uint64(5)}, {sqeSGE, uint64(1)}, {sqeSGE + 8, uint32(2)}, {sqeSGE + 12, uint32(3)},
	}},
	{"read of nothing", func(s *SendSlot) error { s.Start(7, Read, 0); s.SetRDMA(5, 6); return nil },
		[]slotField{{elemFlags, uint16(1)}, {elemSGEs, uint8(0)}, {sqeOpcode, uint8(1)}, {sqeRKey, uint32(6)}, {sqeRaddr, uint64(5)}}},
	{"read and invalidate", func(s *SendSlot) error { s.Start(7, ReadInv, 0); s.SetRDMA(5, 6); return s.AddSGE(1, 2, 3) },
		[]slotField{
			{elemFlags, uint16(1)}, {elemSGEs, uint8(1)}, {sqeOpcode, uint8(2)}, {sqeRKey, uint32(6)}, {sqeRaddr, uint64(5)},
			{sqeSGE, uint64(1)}, {sqeSGE + 8, uint32(2)}, {sqeSGE + 12, uint32(3)},
		}},
	{"local invalidate", func(s *SendSlot) error { s.Start(7, LocalInv, Signaled); s.SetInvalidate(0x77); return nil },
		[]slotField{{elemFlags, uint16(1 | 4)}, {elemSGEs, uint8(0)}, {sqeOpcode, uint8(10)}, {sqeRKey, uint32(0x77)}}},
	{"inline", func(s *SendSlot) error {
		s.Start(7, Send, Signaled)
		if err := s.AddInline([]byte("data in ")); err != nil {
			return err
		}
		return s.AddInline([]byte("two pieces"))
	}, []slotField{
		{elemFlags, uint16(1 | 2 | 4)}, {elemSGEs, uint8(1)}, {sqeOpcode, uint8(3)}, {sqeSGE + 8, uint32(18)},
		{sqeSGE + sgeSize, "data in two pieces"},
	}},
}

// TestSendSlots compares what each operation writes, byte by byte, with the header. Bytes that no
// operation reads are unchanged.
func TestSendSlots(t *testing.T) {
	for _, tc := range sendSlots {
		t.Run(tc.name, func(t *testing.T) {
			p, q := newSend(t, 4)
			want := append([]byte(nil), p.elem(0)...)
			clear(want[sqeRKey : sqeSGE+sgeSize]) // what Start clears
			at(want, 0, uint64(7))
			s := q.Slot(0)
			if err := tc.fill(&s); err != nil {
				t.Fatal(err)
			}
			if w := *p.word(0); w != 0 {
				t.Fatalf("the word is %#x before it is published", w)
			}
			q.Publish(1)
			for _, f := range tc.want {
				at(want, f.offset, f.value)
			}
			if diff := cmp.Diff(want, p.elem(0)); diff != "" {
				t.Errorf("element (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSendPut: a request that is put is one that is filled step by step, whatever was in its place.
func TestSendPut(t *testing.T) {
	for _, op := range []uint8{Send, SendInv, Write, Read, ReadInv} {
		for _, flags := range []uint8{0, Signaled, Fence | Signaled | Solicited} {
			var elems [2][]byte
			for way := range elems {
				p, q := newSend(t, 4)
				at(p.elem(0), sqeRaddr, uint64(0xdead))
				if way == 0 {
					q.Put(0, 7, op, flags, 0x8877665544332211, 0x99, 0x1122334455667788, 100, 0xaabbccdd)
				} else {
					s := q.Slot(0)
					s.Start(7, op, flags)
					s.SetRDMA(0x8877665544332211, 0x99)
					if err := s.AddSGE(0x1122334455667788, 100, 0xaabbccdd); err != nil {
						t.Fatal(err)
					}
				}
				if w := *p.word(0); w != 0 {
					t.Fatalf("the word is %#x before it is published", w)
				}
				q.Publish(1)
				elems[way] = p.elem(0)
			}
			if diff := cmp.Diff(elems[1], elems[0]); diff != "" {
				t.Errorf("operation %d with flags %#x (-step by step +put):\n%s", op, flags, diff)
			}
		}
	}
}

// TestFromPages: what the kernel would copy gets a second entry without data, whose place may hold an old one,
// and nothing else changes.
func TestFromPages(t *testing.T) {
	p, q := newSend(t, 4)
	fill := func() {
		for i, n := range []uint32{1, copied + 1, copied} {
			s := q.Slot(i)
			s.Start(uint64(i), Send, Signaled)
			if err := s.AddSGE(1<<20, n, 5); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 {
		s := q.Slot(0)
		s.Start(9, Write, 0)
		if err := errors.Join(s.AddSGE(1, 50, 2), s.AddSGE(3, 60, 4)); err != nil {
			t.Fatal(err)
		}
		q.Publish(1)
		p.take()
	}
	for range 3 { // around the ring
		fill()
		q.FromPages(3)
		if got := q.Copied(0, 3); got != 3 {
			t.Errorf("slot %d is still copied", got)
		}
		q.Publish(3)
		for i, want := range []uint8{2, 1, 2} {
			e := p.take()
			if entries := e[elemFlags+2]; entries != want || e[elemFlags] != Signaled|flagValid {
				t.Errorf("request %d has %d entries, want %d; flags %#x", i, entries, want, e[elemFlags])
			}
			if second := binary.LittleEndian.Uint32(e[sqeSGE+sgeSize+8:]); want == 2 && second != 0 {
				t.Errorf("the second entry of request %d has %d bytes", i, second)
			}
		}
	}
}

// TestCopied: what the kernel copies from registered memory is found, and gets its data into the slot where
// the kernel looks for it there.
func TestCopied(t *testing.T) {
	sge := func(op, flags uint8, lengths ...uint32) func(*SendSlot) error {
		return func(s *SendSlot) error {
			s.Start(7, op, flags)
			for i, n := range lengths {
				if err := s.AddSGE(1<<20+uint64(i), n, 5); err != nil {
					return err
				}
			}
			return nil
		}
	}
	inline := func(s *SendSlot) error { s.Start(7, Send, 0); return s.AddInline([]byte("few")) }
	for _, tc := range []struct {
		name             string
		fill             func(*SendSlot) error
		copied, enclosed bool
	}{
		{"one byte", sge(Send, Signaled, 1), true, true}, {"as many as are copied", sge(Write, 0, copied), true, true},
		{"with an invalidation", sge(SendInv, 0, 2), true, false}, {"with a fence", sge(Send, Fence, 2), true, false},
		{"one more", sge(Send, 0, copied+1), false, false}, {"nothing", sge(Send, 0, 0), false, false}, {"without an entry", sge(Send, 0), false, false},
		{"two entries", sge(Send, 0, 1, 1), false, false}, {"read", sge(Read, 0, 8), false, false}, {"invalidation", sge(LocalInv, 0), false, false},
		{"inline", inline, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, q := newSend(t, 4)
			for range 2 { // so that the slots go around the end of the ring
				q.Put(0, 1, Send, 0, 0, 0, 1, 1, 1)
				q.Publish(1)
				p.take()
			}
			for i := range 3 {
				s := q.Slot(i)
				if err := tc.fill(&s); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 4 {
				want := 3
				if tc.copied && i < 3 {
					want = i
				}
				if got := q.Copied(i, 3); got != want {
					t.Errorf("from %d of 3 on: %d, want %d", i, got, want)
				}
			}
			if !tc.copied {
				return
			}
			addr, length, lkey := q.Local(1)
			if addr != 1<<20 || length == 0 || lkey != 5 {
				t.Errorf("local memory %#x+%d with %d", addr, length, lkey)
			}
			data := bytes.Repeat([]byte("x"), int(length))
			if got := q.Enclose(1, data); got != tc.enclosed {
				t.Fatalf("enclosed: %v", got)
			}
			if !tc.enclosed {
				if got := q.Copied(1, 3); got != 1 {
					t.Errorf("what was not enclosed is not found: %d", got)
				}
				return
			}
			if got := q.Copied(1, 3); got != 2 {
				t.Errorf("behind what was enclosed %d is found, want 2", got)
			}
			q.Publish(3)
			for i := range 3 {
				e := p.take()
				got, sge := e[elemFlags]&flagInline != 0, e[sqeSGE:]
				if got != (i == 1) || binary.LittleEndian.Uint32(sge[8:]) != length || got && !bytes.Equal(sge[sgeSize:][:length], data) {
					t.Errorf("request %d: flags %#x, memory % x", i, e[elemFlags], sge[:2*sgeSize])
				}
			}
		})
	}
}

func TestRecvSlot(t *testing.T) {
	p, q := newRecv(t, 4)
	want := append([]byte(nil), p.elem(0)...)
	s := q.Slot(0)
	s.Start(0x0102030405060708)
	for i := range MaxSGE {
		if err := s.AddSGE(uint64(i), uint32(i)+10, uint32(i)+20); err != nil {
			t.Fatal(err)
		}
		at(want, rqeSGE+i*sgeSize, uint64(i))
		at(want, rqeSGE+i*sgeSize+8, uint32(i)+10)
		at(want, rqeSGE+i*sgeSize+12, uint32(i)+20)
	}
	if err := s.AddSGE(0, 0, 0); err != ErrTooManySGE {
		t.Errorf("one entry more: %v, want %v", err, ErrTooManySGE)
	}
	q.Publish(1)
	at(want, 0, uint64(0x0102030405060708))
	at(want, elemFlags, uint16(flagValid))
	at(want, elemSGEs, uint8(MaxSGE))
	at(want, elemSGEs+1, uint8(0))
	if diff := cmp.Diff(want, p.elem(0)); diff != "" {
		t.Errorf("element (-want +got):\n%s", diff)
	}
	s = q.Slot(0)
	s.Start(1)
	if err := s.AddSGE(0, math.MaxUint32, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.AddSGE(0, 1, 0); err != ErrTooLong {
		t.Errorf("4 GiB: %v, want %v", err, ErrTooLong)
	}
}

func TestSendSlotErrors(t *testing.T) {
	p := newPeer(sqeSize, 4, 0)
	q := must[*SendQueue](t)(NewSendQueue(p.mem, 4, 2))
	start := func(op uint8) *SendSlot {
		s := q.Slot(0)
		s.Start(1, op, 0)
		return &s
	}
	full := make([]byte, MaxInline)
	for _, tc := range []struct {
		name string
		op   uint8
		add  func(s *SendSlot) error // all but the last of which must do
		want error
	}{
		{"three entries", Send, func(s *SendSlot) error { s.AddSGE(1, 1, 1); s.AddSGE(1, 1, 1); return s.AddSGE(1, 1, 1) }, ErrTooManySGE},
		{"two entries of a READ", Read, func(s *SendSlot) error { s.AddSGE(1, 1, 1); return s.AddSGE(1, 1, 1) }, ErrTooManySGE},
		{"two entries of a READ that invalidates", ReadInv, func(s *SendSlot) error { s.AddSGE(1, 1, 1); return s.AddSGE(1, 1, 1) }, ErrTooManySGE},
		{"4 GiB", Write, func(s *SendSlot) error { s.AddSGE(1, math.MaxUint32, 1); return s.AddSGE(1, 1, 1) }, ErrTooLong},
		{"an entry behind inline data", Send, func(s *SendSlot) error { s.AddInline([]byte{1}); return s.AddSGE(1, 1, 1) }, ErrMixedData},
		{"inline data behind an entry", Send, func(s *SendSlot) error { s.AddSGE(1, 1, 1); return s.AddInline([]byte{1}) }, ErrMixedData},
		{"too much inline", Write, func(s *SendSlot) error { s.AddInline(full); return s.AddInline([]byte{1}) }, ErrInlineTooLong},
		{"too much inline at once", Write, func(s *SendSlot) error { return s.AddInline(append(full, 1)) }, ErrInlineTooLong},
		{"inline of a READ", Read, func(s *SendSlot) error { return s.AddInline([]byte{1}) }, ErrInlineOp},
		{"inline of a SEND that invalidates", SendInv, func(s *SendSlot) error { return s.AddInline([]byte{1}) }, ErrInlineOp},
		{"inline of LOCAL_INV", LocalInv, func(s *SendSlot) error { return s.AddInline([]byte{1}) }, ErrInlineOp},
	} {
		if err := tc.add(start(tc.op)); err != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
	if err := start(Send).AddInline(full); err != nil {
		t.Errorf("as much inline data as there may be: %v", err)
	}
}

func TestFind(t *testing.T) {
	p, q := newSend(t, 4)
	for id := range uint64(6) {
		if !q.Room(1) {
			p.take()
			q.Room(1)
		}
		s := q.Slot(0)
		s.Start(id, Write, 0)
		s.SetRDMA(id, uint32(id))
		if err := s.AddSGE(0x1000+id, 10, 5); err != nil {
			t.Fatal(err)
		}
		q.Publish(1)
	}
	p.take() // what is complete is found all the same
	for id, want := range map[uint64]bool{0: false, 1: false, 2: true, 3: true, 5: true, 6: false} {
		i, ok := q.Find(id)
		if ok != want {
			t.Errorf("Find(%d) = %v, want %v", id, ok, want)
		}
		if !ok {
			continue
		}
		w := SendInfo{Opcode: Write, Length: 10, RemoteAddr: id, RKey: uint32(id), SGEs: []SGEInfo{{0x1000 + id, 10, 5}}}
		if diff := cmp.Diff(w, i); diff != "" {
			t.Errorf("Find(%d) (-want +got):\n%s", id, diff)
		}
	}
}

func TestReadsInARow(t *testing.T) {
	p, q := newSend(t, 4)
	post := func(id uint64, op uint8) {
		if !q.Room(1) {
			p.take()
			q.Room(1)
		}
		s := q.Slot(0)
		s.Start(id, op, 0)
		q.Publish(1)
	}
	for i, step := range []struct {
		id   uint64
		op   uint8
		want map[uint64]bool // by ID, then
	}{
		{1, Read, map[uint64]bool{1: false}},
		{1, Send, map[uint64]bool{1: false}},
		{2, ReadInv, map[uint64]bool{1: false, 2: false}},
		{2, Read, map[uint64]bool{1: false, 2: true}},
		{1, Read, map[uint64]bool{1: false, 2: true}},
		{0, Write, map[uint64]bool{0: false, 2: true}},
		{0, Write, map[uint64]bool{0: false, 2: false}}, // the first of the two is no longer in the ring
	} {
		post(step.id, step.op)
		for id, want := range step.want {
			if got := q.ReadsInARow(id); got != want {
				t.Errorf("after %d work requests: ReadsInARow(%d) = %v", i+1, id, got)
			}
		}
	}
}

// TestNoAllocs holds the data path to what it promises.
func TestNoAllocs(t *testing.T) {
	sp, sq := newSend(t, 8)
	rp, rq := newRecv(t, 8)
	cp, cq := newComp(t, 8)
	inline := []byte("inline")
	if n := testing.AllocsPerRun(100, func() {
		sq.Room(2)
		s := sq.Slot(0)
		s.Start(1, Write, Signaled)
		s.SetRDMA(1, 2)
		s.AddSGE(1, 2, 3)
		s = sq.Slot(1)
		s.Start(2, Send, 0)
		s.AddInline(inline)
		sq.Publish(2)
		rq.Room(1)
		r := rq.Slot(0)
		r.Start(1)
		r.AddSGE(1, 2, 3)
		rq.Publish(1)
		for i := range uint32(2) {
			sp.clear(sp.at + i)
		}
		sp.at += 2
		rp.clear(rp.at)
		rp.at++
		cp.put(1, Send, 0, 2, 3)
		c, _ := cq.Next()
		_ = c.WRID() + uint64(c.Status()) + uint64(c.Opcode()) + uint64(c.ByteLen()) + uint64(c.QPN())
		cq.Release()
		cq.Arm()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestResponses(t *testing.T) {
	word := func(vs ...uint64) (b []byte) {
		for _, v := range vs {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		return b
	}
	if r, err := DecodeCQResp(word(9|16<<32, 0x3000)); err != nil || r != (Ring{0x3000, 16*32 + 8, 16}) {
		t.Errorf("CQ: %+v, %v", r, err)
	}
	rq, sq, err := DecodeQPResp(word(9|64<<32, 128, 0x1000, 0x2000), false)
	if err != nil || sq != (Ring{0x1000, 64 * 120, 64}) || rq != (Ring{0x2000, 128 * 112, 128}) {
		t.Errorf("QP: %+v, %+v, %v", rq, sq, err)
	}
	if rq, sq, err := DecodeQPResp(word(9|64<<32, 0, 0x1000, 0), true); err != nil || sq.Num != 64 || rq != (Ring{}) {
		t.Errorf("QP with an SRQ: %+v, %+v, %v", rq, sq, err)
	}
	if r, err := DecodeSRQResp(word(32, 0x5000)); err != nil || r != (Ring{0x5000, 32 * 112, 32}) {
		t.Errorf("SRQ: %+v, %v", r, err)
	}
	if r, err := DecodeSRQResp(word(32, 0x90000)); err != nil || r.Offset != 0x90000 {
		t.Errorf("a ring at the offset that the header has for none: %+v, %v", r, err)
	}
	for name, err := range map[string]error{
		"short CQ":       second(DecodeCQResp(make([]byte, CQRespSize-1))),
		"short SRQ":      second(DecodeSRQResp(make([]byte, SRQRespSize-1))),
		"no elements":    second(DecodeCQResp(word(9, 0x3000))),
		"odd elements":   second(DecodeSRQResp(word(33, 0x5000))),
		"huge":           second(DecodeSRQResp(word(1<<31, 0x5000))),
		"short QP":       third(DecodeQPResp(make([]byte, QPRespSize-1), false)),
		"no recv number": third(DecodeQPResp(word(9|64<<32, 0, 0x1000, 0x2000), false)),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func second[T any](_ T, err error) error { return err }
func third[T any](_, _ T, err error) error {
	return err
}
