package rxe

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// newSend returns a send queue of seven entries of 512 bytes, for four
// scatter/gather entries or 300 bytes inline, and its kernel.
func newSend(t *testing.T) (*SendQueue, *peer) {
	t.Helper()
	p := newPeer(9, 3)
	return must[*SendQueue](t)(NewSendQueue(p.mem, 7, 4, 300)), p
}

// post posts one work request that fill completes.
func post(t *testing.T, q *SendQueue, opcode, flags uint32, fill func(s *SendSlot)) {
	t.Helper()
	if ok, err := q.Room(1); !ok || err != nil {
		t.Fatalf("Room(1) = %v, %v", ok, err)
	}
	s := q.Slot(0)
	s.Start(0x1122334455667788, opcode, flags)
	if fill != nil {
		fill(&s)
	}
	q.Publish(1)
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sendID is the field that post fills in every work request.
var sendID = field{"wr.wr_id", 0, uint64(0x1122334455667788)}

// sendBytes are work requests and the fields of struct rxe_send_wqe that they set. The offsets come
// from the C header.
var sendBytes = []struct {
	name          string
	opcode, flags uint32
	fill          func(t *testing.T, s *SendSlot)
	size          int // of the part that is written, tail included
	want          []field
}{
	{"send of nothing", Send, Signaled, func(*testing.T, *SendSlot) {}, sendSize, []field{
		sendID, {"wr.opcode", 12, uint32(2)}, {"wr.send_flags", 16, uint32(2)},
	}},
	{"send", Send, Signaled | Solicited | Fence, func(t *testing.T, s *SendSlot) {
		ok(t, s.AddSGE(0xa0a1a2a3a4a5a6a7, 0x10203, 0xb0b1b2b3))
	}, sendSize + 16, []field{
		sendID, {"wr.opcode", 12, uint32(2)}, {"wr.send_flags", 16, uint32(7)},
		{"dma.length", 184, uint32(0x10203)}, {"dma.resid", 188, uint32(0x10203)}, {"dma.num_sge", 196, uint32(1)},
		{"sge[0].addr", 208, uint64(0xa0a1a2a3a4a5a6a7)}, {"sge[0].length", 216, uint32(0x10203)}, {"sge[0].lkey", 220, uint32(0xb0b1b2b3)},
	}},
	{"send with immediate", SendImm, 0, func(t *testing.T, s *SendSlot) {
		s.SetImm(0xc0c1c2c3)
	}, sendSize, []field{
		sendID, {"wr.opcode", 12, uint32(3)}, {"wr.ex.imm_data", 20, be32(0xc0c1c2c3)},
	}},
	{"send with invalidate", SendInv, 0, func(t *testing.T, s *SendSlot) {
		s.SetInvalidate(0xd0d1d2d3)
	}, sendSize, []field{
		sendID, {"wr.opcode", 12, uint32(9)}, {"wr.ex.invalidate_rkey", 20, uint32(0xd0d1d2d3)},
	}},
	{"local invalidate", LocalInv, 0, func(t *testing.T, s *SendSlot) {
		s.SetInvalidate(0xd0d1d2d3)
	}, sendSize, []field{
		sendID, {"wr.opcode", 12, uint32(7)}, {"wr.ex.invalidate_rkey", 20, uint32(0xd0d1d2d3)},
	}},
	{"atomic write", AtomicWrite, 0, func(t *testing.T, s *SendSlot) {
		s.SetAtomicWrite(0xe0e1e2e3e4e5e6e8, 0xf0f1f2f3, [8]byte{1, 2, 3, 4, 5, 6, 7, 8})
	}, sendSize + 8, []field{
		sendID, {"wr.opcode", 12, uint32(15)}, {"rdma.remote_addr", 24, uint64(0xe0e1e2e3e4e5e6e8)}, {"rdma.rkey", 32, uint32(0xf0f1f2f3)},
		{"iova", 152, uint64(0xe0e1e2e3e4e5e6e8)}, {"dma.length", 184, uint32(8)}, {"dma.resid", 188, uint32(8)},
		{"atomic_wr", 208, []byte{1, 2, 3, 4, 5, 6, 7, 8}},
	}},
	{"flush", Flush, 0, func(t *testing.T, s *SendSlot) {
		s.SetFlush(0xe0e1e2e3e4e5e6e7, 0x10203, 0xf0f1f2f3, 2, 1)
	}, sendSize, []field{
		sendID, {"wr.opcode", 12, uint32(14)}, {"flush.remote_addr", 24, uint64(0xe0e1e2e3e4e5e6e7)}, {"flush.length", 32, uint32(0x10203)},
		{"flush.rkey", 36, uint32(0xf0f1f2f3)}, {"flush.type", 40, []byte{2}}, {"flush.level", 41, []byte{1}},
		{"iova", 152, uint64(0xe0e1e2e3e4e5e6e7)}, {"dma.length", 184, uint32(0x10203)}, {"dma.resid", 188, uint32(0x10203)},
	}},
	{"bind", BindMW, 0, func(t *testing.T, s *SendSlot) {
		s.SetMW(0xe0e1e2e3e4e5e6e7, 0x1020304050607, 0x11, 0x22, 0x33, 0x44)
	}, sendSize, []field{
		sendID, {"wr.opcode", 12, uint32(8)}, {"mw.addr", 24, uint64(0xe0e1e2e3e4e5e6e7)}, {"mw.length", 32, uint64(0x1020304050607)},
		{"mw.mr_lkey", 40, uint32(0x11)}, {"mw.mw_rkey", 44, uint32(0x22)}, {"mw.rkey", 48, uint32(0x33)}, {"mw.access", 52, uint32(0x44)},
	}},
	{"datagram by number", Send, 0, func(t *testing.T, s *SendSlot) {
		av := NewAV(AVAttr{Port: 1})
		s.SetUD(0x111213, 0x21222324, 0x31323334, &av)
	}, sendSize, []field{
		sendID, {"wr.opcode", 12, uint32(2)}, {"ud.remote_qpn", 24, uint32(0x111213)}, {"ud.remote_qkey", 28, uint32(0x21222324)},
		{"ud.ah_num", 36, uint32(0x31323334)},
	}},
	{"datagram by IPv4 address", Send, 0, func(t *testing.T, s *SendSlot) {
		av := NewAV(AVAttr{
			SGID: [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 1, 14: 0, 15: 1}, DGID: [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 1, 14: 0, 15: 2},
			DMAC: [6]byte{1, 2, 3, 4, 5, 6}, FlowLabel: 0x41424344, Port: 9, SGIDIndex: 8, HopLimit: 7, TrafficClass: 6,
		})
		s.SetUD(0x111213, 0x21222324, 0, &av)
	}, sendSize, []field{
		sendID, {"wr.opcode", 12, uint32(2)}, {"ud.remote_qpn", 24, uint32(0x111213)}, {"ud.remote_qkey", 28, uint32(0x21222324)},
		{"av.port_num", 56, []byte{9}}, {"av.network_type", 57, []byte{1}}, {"av.dmac", 58, []byte{1, 2, 3, 4, 5, 6}},
		{"av.grh.dgid", 64, []byte{10: 0xff, 11: 0xff, 12: 10, 13: 1, 14: 0, 15: 2}}, {"av.grh.flow_label", 80, uint32(0x41424344)},
		{"av.grh.sgid_index", 84, []byte{8, 7, 6}},
		{"av.sgid_addr.sin_addr", 92, []byte{10, 1, 0, 1}}, {"av.dgid_addr.sin_addr", 120, []byte{10, 1, 0, 2}},
	}},
	{"datagram by IPv6 address", Send, 0, func(t *testing.T, s *SendSlot) {
		av := NewAV(AVAttr{SGID: [16]byte{0xfd, 15: 1}, DGID: [16]byte{0xfd, 15: 2}})
		s.SetUD(0, 0, 0, &av)
	}, sendSize, []field{
		sendID, {"wr.opcode", 12, uint32(2)}, {"av.network_type", 57, []byte{2}}, {"av.grh.dgid", 64, []byte{0xfd, 15: 2}},
		{"av.sgid_addr.sin6_family", 88, []byte{10}}, {"av.sgid_addr.sin6_addr", 96, []byte{0xfd, 15: 1}},
		{"av.dgid_addr.sin6_family", 116, []byte{10}}, {"av.dgid_addr.sin6_addr", 124, []byte{0xfd, 15: 2}},
	}},
	{"write of four pieces", Write, 0, func(t *testing.T, s *SendSlot) {
		s.SetRDMA(0xe0e1e2e3e4e5e6e7, 0xf0f1f2f3)
		for i := range uint32(4) {
			ok(t, s.AddSGE(uint64(i)<<32, 1000+i, 40+i))
		}
	}, sendSize + 64, []field{
		sendID, {"wr.opcode", 12, uint32(0)},
		{"wr.wr.rdma.remote_addr", 24, uint64(0xe0e1e2e3e4e5e6e7)}, {"wr.wr.rdma.rkey", 32, uint32(0xf0f1f2f3)},
		{"iova", 152, uint64(0xe0e1e2e3e4e5e6e7)},
		{"dma.length", 184, uint32(4006)}, {"dma.resid", 188, uint32(4006)}, {"dma.num_sge", 196, uint32(4)},
		{"sge[0].addr", 208, uint64(0)}, {"sge[0].length", 216, uint32(1000)}, {"sge[0].lkey", 220, uint32(40)},
		{"sge[1].addr", 224, uint64(1 << 32)}, {"sge[1].length", 232, uint32(1001)}, {"sge[1].lkey", 236, uint32(41)},
		{"sge[2].addr", 240, uint64(2 << 32)}, {"sge[2].length", 248, uint32(1002)}, {"sge[2].lkey", 252, uint32(42)},
		{"sge[3].addr", 256, uint64(3 << 32)}, {"sge[3].length", 264, uint32(1003)}, {"sge[3].lkey", 268, uint32(43)},
	}},
	{"write with immediate", WriteImm, 0, func(t *testing.T, s *SendSlot) {
		s.SetRDMA(0xe0e1e2e3e4e5e6e7, 0xf0f1f2f3)
		s.SetImm(1)
	}, sendSize, []field{
		sendID, {"wr.opcode", 12, uint32(1)}, {"wr.ex.imm_data", 20, be32(1)},
		{"wr.wr.rdma.remote_addr", 24, uint64(0xe0e1e2e3e4e5e6e7)}, {"wr.wr.rdma.rkey", 32, uint32(0xf0f1f2f3)},
		{"iova", 152, uint64(0xe0e1e2e3e4e5e6e7)},
	}},
	{"read", Read, Signaled, func(t *testing.T, s *SendSlot) {
		s.SetRDMA(0x1000, 5)
		ok(t, s.AddSGE(0x2000, 8, 6))
	}, sendSize + 16, []field{
		sendID, {"wr.opcode", 12, uint32(4)}, {"wr.send_flags", 16, uint32(2)},
		{"wr.wr.rdma.remote_addr", 24, uint64(0x1000)}, {"wr.wr.rdma.rkey", 32, uint32(5)}, {"iova", 152, uint64(0x1000)},
		{"dma.length", 184, uint32(8)}, {"dma.resid", 188, uint32(8)}, {"dma.num_sge", 196, uint32(1)},
		{"sge[0].addr", 208, uint64(0x2000)}, {"sge[0].length", 216, uint32(8)}, {"sge[0].lkey", 220, uint32(6)},
	}},
	{"read into one piece", Read, Signaled, func(t *testing.T, s *SendSlot) {
		s.SetRDMA(0x1000, 5)
		s.SetSGE(0x2000, 8, 6)
	}, sendSize + 16, []field{
		sendID, {"wr.opcode", 12, uint32(4)}, {"wr.send_flags", 16, uint32(2)},
		{"wr.wr.rdma.remote_addr", 24, uint64(0x1000)}, {"wr.wr.rdma.rkey", 32, uint32(5)}, {"iova", 152, uint64(0x1000)},
		{"dma.length", 184, uint32(8)}, {"dma.resid", 188, uint32(8)}, {"dma.num_sge", 196, uint32(1)},
		{"sge[0].addr", 208, uint64(0x2000)}, {"sge[0].length", 216, uint32(8)}, {"sge[0].lkey", 220, uint32(6)},
	}},
	{"compare and swap", AtomicCAS, 0, func(t *testing.T, s *SendSlot) {
		s.SetAtomic(0xe0e1e2e3e4e5e6e0, 0x1112131415161718, 0x2122232425262728, 0xf0f1f2f3)
		ok(t, s.AddSGE(0x2000, 8, 6))
	}, sendSize + 16, []field{
		sendID, {"wr.opcode", 12, uint32(5)},
		{"wr.wr.atomic.remote_addr", 24, uint64(0xe0e1e2e3e4e5e6e0)}, {"wr.wr.atomic.compare_add", 32, uint64(0x1112131415161718)},
		{"wr.wr.atomic.swap", 40, uint64(0x2122232425262728)}, {"wr.wr.atomic.rkey", 48, uint32(0xf0f1f2f3)},
		{"iova", 152, uint64(0xe0e1e2e3e4e5e6e0)},
		{"dma.length", 184, uint32(8)}, {"dma.resid", 188, uint32(8)}, {"dma.num_sge", 196, uint32(1)},
		{"sge[0].addr", 208, uint64(0x2000)}, {"sge[0].length", 216, uint32(8)}, {"sge[0].lkey", 220, uint32(6)},
	}},
	{"fetch and add", AtomicFAA, 0, func(t *testing.T, s *SendSlot) {
		s.SetAtomic(0x3000, 17, 0, 9)
	}, sendSize, []field{
		sendID, {"wr.opcode", 12, uint32(6)},
		{"wr.wr.atomic.remote_addr", 24, uint64(0x3000)}, {"wr.wr.atomic.compare_add", 32, uint64(17)},
		{"wr.wr.atomic.rkey", 48, uint32(9)}, {"iova", 152, uint64(0x3000)},
	}},
	{"inline in two pieces", Send, Signaled, func(t *testing.T, s *SendSlot) {
		ok(t, s.AddInline([]byte("remote direct ")))
		ok(t, s.AddInline([]byte("memory")))
	}, sendSize + 20, []field{
		sendID, {"wr.opcode", 12, uint32(2)}, {"wr.send_flags", 16, uint32(2 | 8)},
		{"dma.length", 184, uint32(20)}, {"dma.resid", 188, uint32(20)},
		{"inline_data", 208, []byte("remote direct memory")},
	}},
	{"inline of nothing", Send, Inline, func(t *testing.T, s *SendSlot) {
		ok(t, s.AddInline(nil))
	}, sendSize, []field{
		sendID, {"wr.opcode", 12, uint32(2)}, {"wr.send_flags", 16, uint32(8)},
	}},
}

// TestSendBytes compares what is in the ring with struct rxe_send_wqe, byte by byte.
func TestSendBytes(t *testing.T) {
	for _, tc := range sendBytes {
		t.Run(tc.name, func(t *testing.T) {
			q, p := newSend(t)
			post(t, q, tc.opcode, tc.flags, func(s *SendSlot) { tc.fill(t, s) })
			if diff := cmp.Diff(element(9, tc.size, tc.want), p.take()); diff != "" {
				t.Errorf("the kernel sees another element (-want +got):\n%s", diff)
			}
			if rest := p.mem[hdrSize+512:]; !bytes.Equal(rest, bytes.Repeat([]byte{0xee}, len(rest))) {
				t.Error("other elements were written to")
			}
		})
	}
}

// TestSendStarted: what a slot adds to a WQE that was started elsewhere is as if it had started it.
func TestSendStarted(t *testing.T) {
	q, p := newSend(t)
	q.WQE(0).Start(1, Send, Inline)
	s := q.Started(0, Inline)
	if err := s.AddSGE(0x2000, 8, 6); err != ErrMixedData {
		t.Errorf("AddSGE with the flag Inline = %v, want ErrMixedData", err)
	}
	q.WQE(0).Start(0x1122334455667788, Send, Signaled)
	s = q.Started(0, Signaled)
	ok(t, s.AddInline([]byte("data")))
	q.Publish(1)
	want := element(9, sendSize+4, []field{
		{"wr.wr_id", 0, uint64(0x1122334455667788)}, {"wr.opcode", 12, uint32(2)}, {"wr.send_flags", 16, uint32(2 | 8)},
		{"dma.length", 184, uint32(4)}, {"dma.resid", 188, uint32(4)}, {"inline_data", 208, []byte("data")},
	})
	if diff := cmp.Diff(want, p.take()); diff != "" {
		t.Errorf("the kernel sees another element (-want +got):\n%s", diff)
	}
}

// TestSendStartForgets checks that nothing of a request, or of the kernel's
// progress on it, is left when its slot is used again.
func TestSendStartForgets(t *testing.T) {
	q, p := newSend(t)
	for i := range p.elem(0) {
		p.elem(0)[i] = 0xff // all of it, the tail too
	}
	post(t, q, Send, 0, nil)
	got := p.take()
	want := make([]byte, sendSize)
	write(want, []field{{"wr.wr_id", 0, uint64(0x1122334455667788)}, {"wr.opcode", 12, uint32(2)}})
	if diff := cmp.Diff(want, got[:sendSize]); diff != "" {
		t.Errorf("the kernel sees (-want +got):\n%s", diff)
	}
}

// TestSendIgnoresWhatTheKernelWrites scribbles over the slot between two calls:
// the counts must not be read back from it.
func TestSendIgnoresWhatTheKernelWrites(t *testing.T) {
	q, p := newSend(t)
	s := q.Slot(0)
	s.Start(1, Send, 0)
	ok(t, s.AddSGE(0x1000, 10, 1))
	for i := range p.elem(0) {
		p.elem(0)[i] = 0xff
	}
	ok(t, s.AddSGE(0x2000, 20, 2))
	if err := s.AddInline([]byte{1}); err != ErrMixedData {
		t.Errorf("AddInline = %v, want ErrMixedData", err)
	}
	e := p.elem(0)
	want := bytes.Repeat([]byte{0xff}, 512)
	write(want, []field{
		{"dma.length", 184, uint32(30)}, {"dma.resid", 188, uint32(30)}, {"dma.num_sge", 196, uint32(2)},
		{"sge[1].addr", 224, uint64(0x2000)}, {"sge[1].length", 232, uint32(20)}, {"sge[1].lkey", 236, uint32(2)},
	})
	if diff := cmp.Diff(want, e); diff != "" {
		t.Errorf("second entry (-want +got):\n%s", diff)
	}
}

// TestSendDataErrors checks each limit, and that the request stays as it was.
func TestSendDataErrors(t *testing.T) {
	inline := make([]byte, 301)
	for _, tc := range []struct {
		name   string
		before func(s *SendSlot)
		fails  func(s *SendSlot) error
		want   error
	}{
		{"fifth of four entries", func(s *SendSlot) {
			for range 4 {
				ok(t, s.AddSGE(1, 1, 1))
			}
		}, func(s *SendSlot) error { return s.AddSGE(1, 1, 1) }, ErrTooManySGE},
		{"4 GiB in two entries", func(s *SendSlot) {
			ok(t, s.AddSGE(1, math.MaxUint32, 1))
		}, func(s *SendSlot) error { return s.AddSGE(1, 1, 1) }, ErrTooLong},
		{"8 GiB in two entries", func(s *SendSlot) {
			ok(t, s.AddSGE(1, math.MaxUint32, 1))
		}, func(s *SendSlot) error { return s.AddSGE(1, math.MaxUint32, 1) }, ErrTooLong},
		{"too much inline", func(s *SendSlot) {
		}, func(s *SendSlot) error { return s.AddInline(inline) }, ErrInlineTooLong},
		{"too much inline in two pieces", func(s *SendSlot) {
			ok(t, s.AddInline(inline[:300]))
		}, func(s *SendSlot) error { return s.AddInline(inline[:1]) }, ErrInlineTooLong},
		{"inline after an entry", func(s *SendSlot) {
			ok(t, s.AddSGE(1, 0, 1))
		}, func(s *SendSlot) error { return s.AddInline(inline[:1]) }, ErrMixedData},
		{"entry after inline", func(s *SendSlot) {
			ok(t, s.AddInline(inline[:1]))
		}, func(s *SendSlot) error { return s.AddSGE(1, 1, 1) }, ErrMixedData},
		{"entry after inline of nothing", func(s *SendSlot) {
			ok(t, s.AddInline(nil))
		}, func(s *SendSlot) error { return s.AddSGE(1, 1, 1) }, ErrMixedData},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q, p := newSend(t)
			s := q.Slot(0)
			s.Start(1, Send, 0)
			tc.before(&s)
			before := bytes.Clone(p.mem)
			if err := tc.fails(&s); err != tc.want {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if !bytes.Equal(before, p.mem) {
				t.Errorf("the request changed (-before +after):\n%s", cmp.Diff(before, p.mem))
			}
			s.Start(2, Send, 0)
			ok(t, s.AddSGE(1, 1, 1)) // the slot is as new
		})
	}
	q, _ := newSend(t)
	s := q.Slot(0)
	s.Start(1, Send, Inline)
	if err := s.AddSGE(1, 1, 1); err != ErrMixedData {
		t.Errorf("AddSGE to a request with the flag Inline = %v, want ErrMixedData", err)
	}
}

func TestNewSendQueueLimits(t *testing.T) {
	p := newPeer(9, 3) // 512 - 208 = 304 bytes: 19 entries
	for _, tc := range []struct {
		maxSGE, maxInline int
		good              bool
	}{
		{0, 0, true}, {19, 304, true}, {20, 0, false}, {0, 305, false},
		{-1, 0, false}, {0, -1, false}, {math.MaxInt, 0, false}, {0, math.MaxInt, false},
	} {
		q, err := NewSendQueue(p.mem, 7, tc.maxSGE, tc.maxInline)
		if (err == nil) != tc.good {
			t.Errorf("NewSendQueue with %d entries, %d inline: %v, want success %v", tc.maxSGE, tc.maxInline, err, tc.good)
		}
		if err == nil && (q.MaxSGE() != tc.maxSGE || q.MaxInline() != tc.maxInline || q.Cap() != 7) {
			t.Errorf("limits %d, %d, capacity %d; want %d, %d, 7", q.MaxSGE(), q.MaxInline(), q.Cap(), tc.maxSGE, tc.maxInline)
		}
		if big := tc.maxSGE > 19 || tc.maxInline > 304; big != errors.Is(err, ErrCorrupt) {
			t.Errorf("%d entries, %d inline: %v, want ErrCorrupt %v", tc.maxSGE, tc.maxInline, err, big)
		}
	}
}

func TestSendDoesNotAllocate(t *testing.T) {
	q, p := newSend(t)
	data := make([]byte, 64)
	var id uint64
	if n := testing.AllocsPerRun(1000, func() {
		if ok, err := q.Room(7); !ok || err != nil {
			t.Fatal(ok, err)
		}
		for i := range 7 {
			id++
			s := q.Slot(i)
			s.Start(id, WriteImm, Signaled)
			s.SetRDMA(1, 2)
			s.SetImm(3)
			if i%2 == 0 {
				ok(t, s.AddInline(data))
			} else {
				ok(t, s.AddSGE(1, 2, 3))
			}
		}
		q.Publish(7)
		p.setConsumer(p.producer())
	}); n != 0 {
		t.Errorf("%v allocations for seven work requests, want 0", n)
	}
}
