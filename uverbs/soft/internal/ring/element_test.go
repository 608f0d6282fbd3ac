package ring

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// request is a send work request as bytes of the C struct rxe_send_wqe: offsets from the header.
func request(id uint64, opcode, flags uint32, more ...field) []field {
	return append([]field{{0, id}, {12, opcode}, {16, flags}}, more...)
}

// data are the fields of dma for a message of some SGEs: address, length and key each.
func data(length uint32, sges ...SGE) []field {
	f := []field{{184, length}, {188, length}, {196, uint32(len(sges))}}
	for i, s := range sges {
		f = append(f, field{208 + 16*i, s.Addr}, field{216 + 16*i, s.Length}, field{220 + 16*i, s.LKey})
	}
	return f
}

// union are fields of the largest struct of the union wr, which must not show in other opcodes.
var union = []field{{24, uint64(0xaaaa)}, {32, uint64(0xbbbb)}, {40, uint64(0xcccc)}, {48, uint64(0xdddd)}}

// TestReadSend reads each opcode from the bytes that rdma_user_rxe.h says a program writes. Fields of
// other opcodes must be zero although the element's union has bytes there.
func TestReadSend(t *testing.T) {
	for _, c := range []struct {
		name   string
		fields []field
		want   Send
		inline []byte
	}{
		{"send", append(request(1, OpSend, SendSignaled, data(30, SGE{0x1000, 10, 5}, SGE{0x2000, 20, 6})...),
			field{24, uint32(0x11)}, field{28, uint32(0x22)}, field{32, uint16(3)}, field{36, uint32(0x44)}, field{64, uint64(1)}, field{152, uint64(1)}),
			Send{WRID: 1, Opcode: OpSend, Flags: SendSignaled, QPN: 0x11, QKey: 0x22, PKeyIndex: 3, AH: 0x44,
				Length: 30, NumSGE: 2, SGEs: [MaxSGE]SGE{{0x1000, 10, 5}, {0x2000, 20, 6}}}, nil},
		{"send with immediate data", request(2, OpSendImm, 0, field{20, []byte{1, 2, 3, 4}}, field{36, uint32(1)}),
			Send{WRID: 2, Opcode: OpSendImm, ImmOrKey: 0x04030201, AH: 1}, nil},
		{"send with invalidate", request(3, OpSendInv, 0, field{20, uint32(0x1234)}, field{36, uint32(1)}),
			Send{WRID: 3, Opcode: OpSendInv, ImmOrKey: 0x1234, AH: 1}, nil},
		{"write", append(request(4, OpWrite, SendFence, data(8, SGE{0x10, 8, 9})...), append(union, field{152, uint64(0x7777)})...),
			Send{WRID: 4, Opcode: OpWrite, Flags: SendFence, RemoteAddr: 0x7777, RKey: 0xbbbb, Length: 8, NumSGE: 1, SGEs: [MaxSGE]SGE{{0x10, 8, 9}}}, nil},
		{"write inline", append(request(5, OpWriteImm, SendInline, field{184, uint32(5)}, field{208, []byte("hello?")}), append(union, field{152, uint64(0x7777)})...),
			Send{WRID: 5, Opcode: OpWriteImm, Flags: SendInline, RemoteAddr: 0x7777, RKey: 0xbbbb, Length: 5}, []byte("hello")},
		{"inline of nothing", request(6, OpSend, SendInline, field{36, uint32(1)}),
			Send{WRID: 6, Opcode: OpSend, Flags: SendInline, AH: 1}, []byte{}},
		{"read", append(request(7, OpRead, 0, data(100, SGE{0x10, 200, 9})...), append(union, field{152, uint64(0x7777)})...),
			Send{WRID: 7, Opcode: OpRead, RemoteAddr: 0x7777, RKey: 0xbbbb, Length: 100, NumSGE: 1, SGEs: [MaxSGE]SGE{{0x10, 200, 9}}}, nil},
		{"compare and swap", append(request(8, OpAtomicCAS, 0, data(8, SGE{0x10, 8, 9})...), append(union, field{152, uint64(0x7777)})...),
			Send{WRID: 8, Opcode: OpAtomicCAS, RemoteAddr: 0x7777, CompareAdd: 0xbbbb, Swap: 0xcccc, RKey: 0xdddd, Length: 8, NumSGE: 1, SGEs: [MaxSGE]SGE{{0x10, 8, 9}}}, nil},
		{"fetch and add", append(request(9, OpAtomicFAA, 0, data(8, SGE{0x10, 8, 9})...), append(union, field{152, uint64(0x7777)})...),
			Send{WRID: 9, Opcode: OpAtomicFAA, RemoteAddr: 0x7777, CompareAdd: 0xbbbb, Swap: 0xcccc, RKey: 0xdddd, Length: 8, NumSGE: 1, SGEs: [MaxSGE]SGE{{0x10, 8, 9}}}, nil},
		{"atomic write", append(request(10, OpAtomicWrite, 0, field{184, uint32(8)}, field{208, []byte("8 bytes!more")}), append(union, field{152, uint64(0x7777)})...),
			Send{WRID: 10, Opcode: OpAtomicWrite, RemoteAddr: 0x7777, RKey: 0xbbbb, Length: 8}, []byte("8 bytes!")},
		{"local invalidate", append(request(11, OpLocalInv, 0, field{20, uint32(0x99)}), union...),
			Send{WRID: 11, Opcode: OpLocalInv, ImmOrKey: 0x99}, nil},
		{"bind", append(request(12, OpBindMW, 0, union...), field{152, uint64(1)}, field{40, uint32(1)}, field{44, uint32(2)}, field{48, uint32(3)}, field{52, uint32(4)}),
			Send{WRID: 12, Opcode: OpBindMW, BindAddr: 0xaaaa, BindLength: 0xbbbb, MRLKey: 1, MWRKey: 2, RKey: 3, BindAccess: 4}, nil},
		{"flush", append(request(13, OpFlush, 0, union...), field{32, uint32(7)}, field{36, uint32(8)}, field{40, uint8(2)}, field{41, uint8(1)},
			field{184, uint32(1 << 30)}, field{152, uint64(0x7777)}),
			Send{WRID: 13, Opcode: OpFlush, RemoteAddr: 0x7777, RKey: 8, FlushType: 2, FlushLevel: 1, Length: 1 << 30}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRing(t, 3, SendElemSize(2, 32))
			write(newProgram(t, r.Bytes()).elem(2), c.fields...)
			// Data of an earlier request in the copy must not show.
			s := Send{RemoteAddr: 1, RKey: 1, CompareAdd: 1, Swap: 1, QPN: 1, QKey: 1, PKeyIndex: 1, AH: 1, BindAddr: 1, BindLength: 1,
				MRLKey: 1, MWRKey: 1, BindAccess: 1, FlushType: 1, FlushLevel: 1, Length: 1, NumSGE: 1, Inline: []byte{1}}
			if !r.ReadSend(2, &s, 2) {
				t.Fatal("it is malformed")
			}
			if !bytes.Equal(s.Inline, c.inline) || (s.Inline == nil) != (c.inline == nil) || cap(s.Inline) != len(s.Inline) {
				t.Errorf("inline data is %q (of %d), want %q", s.Inline, cap(s.Inline), c.inline)
			}
			s.Inline = nil
			if diff := cmp.Diff(c.want, s); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestMalformed gives the device requests that do not fit. rxe_requester and get_srq_wqe check num_sge;
// copy_data fails at the end of the SGEs. rxe does not check inline data, which must not reach the
// next element here.
func TestMalformed(t *testing.T) {
	const maxSGE, maxInline = 2, 40 // the element has room for 8 bytes more
	for _, c := range []struct {
		name   string
		fields []field
	}{
		{"too many SGEs", request(1, OpSend, 0, field{196, uint32(4)})},
		{"SGEs that overflow", request(1, OpSend, 0, field{196, uint32(0x80000001)})},
		{"SGEs as a negative number", request(1, OpSend, 0, field{196, uint32(0xffffffff)})},
		{"too many SGEs inline", request(1, OpSend, SendInline, field{196, uint32(4)})},
		{"too many SGEs of a bind", request(1, OpBindMW, 0, field{196, uint32(4)})},
		{"SGEs shorter than the message", request(1, OpWrite, 0, data(31, SGE{0, 10, 0}, SGE{0, 20, 0})...)},
		{"no SGEs", request(1, OpRead, 0, data(1)...)},
		{"too much inline data", request(1, OpSend, SendInline, field{184, uint32(maxInline + 1)})},
		{"inline data of 4 GB", request(1, OpSend, SendInline, field{184, uint32(0xffffffff)})},
		{"atomic write of 16 bytes", request(1, OpAtomicWrite, 0, field{184, uint32(16)})},
		{"atomic write of nothing", request(1, OpAtomicWrite, 0)},
	} {
		r := newRing(t, 1, SendElemSize(maxSGE, maxInline))
		sge, _ := SendCaps(maxSGE, maxInline)
		write(newProgram(t, r.Bytes()).elem(0), c.fields...)
		s := Send{NumSGE: 7, Inline: []byte{1}}
		if r.ReadSend(0, &s, sge) || s.WRID != 1 || s.NumSGE != 0 || s.Inline != nil {
			t.Errorf("%s: it is not malformed, or has data: %+v", c.name, s)
		}
	}
	var s Send
	r := newRing(t, 1, SendElemSize(3, 0))
	write(newProgram(t, r.Bytes()).elem(0), request(1, OpSend, 0, field{196, uint32(2)})...)
	if r.ReadSend(0, &s, 1) || !r.ReadSend(0, &s, 2) {
		t.Error("2 SGEs are taken for 1, or not for 2")
	}
	write(newProgram(t, r.Bytes()).elem(0), field{196, uint32(4)})
	if r.ReadSend(0, &s, MaxSGE) {
		t.Error("4 SGEs are taken where 3 fit")
	}
	r = newRing(t, 1, RecvElemSize(2))
	for _, n := range []uint32{3, 33, 0x80000001, 0xffffffff} {
		write(newProgram(t, r.Bytes()).elem(0), field{0, uint64(5)}, field{28, n})
		w := Recv{Length: 9, NumSGE: 9}
		if r.ReadRecv(0, &w, 2) || w.WRID != 5 || w.NumSGE != 0 || w.Length != 0 {
			t.Errorf("a receive with %d SGEs is not malformed: %+v", n, w)
		}
	}
}

// TestReadRecv reads receives from the bytes of struct rxe_recv_wqe.
func TestReadRecv(t *testing.T) {
	r := newRing(t, 3, RecvElemSize(3))
	p := newProgram(t, r.Bytes())
	put := func(length uint32, sges ...SGE) {
		write(p.elem(1), field{0, uint64(7)}, field{16, length}, field{28, uint32(len(sges))})
		for i, s := range sges {
			write(p.elem(1), field{40 + 16*i, s.Addr}, field{48 + 16*i, s.Length}, field{52 + 16*i, s.LKey})
		}
	}
	for _, c := range []struct {
		name   string
		length uint32
		sges   []SGE
		want   uint32
	}{
		{"nothing", 0, nil, 0},
		{"two pieces", 300, []SGE{{1, 100, 2}, {3, 200, 4}}, 300},
		{"less than the pieces", 299, []SGE{{1, 100, 2}, {3, 200, 4}}, 299},
		{"more than the pieces", 301, []SGE{{1, 100, 2}, {3, 200, 4}}, 300},
		{"pieces of more than 4 GB", 0xfffffffe, []SGE{{1, 0xffffffff, 2}, {3, 0xffffffff, 4}, {}}, 0xfffffffe},
	} {
		put(c.length, c.sges...)
		var w Recv
		ok := r.ReadRecv(1, &w, 3)
		want := Recv{WRID: 7, Length: c.want, NumSGE: len(c.sges)}
		copy(want.SGEs[:], c.sges)
		if diff := cmp.Diff(want, w); !ok || diff != "" {
			t.Errorf("%s: ok %t (-want +got):\n%s", c.name, ok, diff)
		}
	}
}

// TestWriteCompletion compares a completion with the bytes of struct ib_uverbs_wc.
func TestWriteCompletion(t *testing.T) {
	r := newRing(t, 1, CQESize)
	p := newProgram(t, r.Bytes())
	r.WriteCompletion(1, &Completion{WRID: 0x0102030405060708, Status: 10, Opcode: WCRecv, VendorErr: 3, ByteLen: 4, ImmOrKey: 0x04030201,
		QPN: 0x11, SrcQP: 0x12, Flags: WCGRH | WCWithImm, PKeyIndex: 0x1314, SLID: 0x1516, SL: 0x17, DLIDPathBits: 0x18, PortNum: 0x19})
	want := make([]byte, 128)
	write(want, field{0, uint64(0x0102030405060708)}, field{8, uint32(10)}, field{12, uint32(128)}, field{16, uint32(3)}, field{20, uint32(4)},
		field{24, []byte{1, 2, 3, 4}}, field{28, uint32(0x11)}, field{32, uint32(0x12)}, field{36, uint32(3)},
		field{40, uint16(0x1314)}, field{42, uint16(0x1516)}, field{44, uint8(0x17)}, field{45, uint8(0x18)}, field{46, uint8(0x19)})
	if diff := cmp.Diff(want, p.elem(1)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r.WriteCompletion(1, &Completion{WRID: 1}) // an old completion leaves nothing
	if diff := cmp.Diff(append([]byte{1}, make([]byte, 127)...), p.elem(1)); diff != "" {
		t.Errorf("an empty one (-want +got):\n%s", diff)
	}
}

// TestResponses compares the driver's part of responses with the bytes of rdma_user_rxe.h.
func TestResponses(t *testing.T) {
	a, b := Map{Offset: 0x1_0000_1000, Size: 0x2000}, Map{Offset: 0x3000, Size: 0x4000}
	mi := func(m Map) []field { return []field{{0, m.Offset}, {8, m.Size}} }
	bytesOf := func(n int, fields ...field) []byte {
		b := make([]byte, n)
		write(b, fields...)
		return b
	}
	for _, c := range []struct {
		name      string
		got, want []byte
	}{
		{"map", EncodeMap(a), bytesOf(16, mi(a)...)},
		{"CQ", CQResponse(a), bytesOf(16, mi(a)...)},
		{"QP", QPResponse(a, b), bytesOf(32, append(mi(a), field{16, b.Offset}, field{24, b.Size})...)},
		{"QP with SRQ", QPResponse(Map{}, b), bytesOf(32, field{16, b.Offset}, field{24, b.Size})},
		{"SRQ", SRQResponse(a, 0x20001), bytesOf(24, append(mi(a), field{16, uint32(0x20001)})...)},
		{"AH", AHResponse(7), bytesOf(8, field{0, uint32(7)})},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	if addr, ok := ModifySRQ(bytesOf(8, field{0, uint64(0x1234)})); addr != 0x1234 || !ok {
		t.Errorf("MODIFY_SRQ: address %#x, %t", addr, ok)
	}
	if _, ok := ModifySRQ(make([]byte, 7)); ok {
		t.Error("MODIFY_SRQ with 7 bytes is accepted")
	}
}

// TestAllocs: reading and writing elements allocates nothing.
func TestAllocs(t *testing.T) {
	sq, rq, cq := newRing(t, 1, SendElemSize(2, 32)), newRing(t, 1, RecvElemSize(2)), newRing(t, 1, CQESize)
	write(newProgram(t, sq.Bytes()).elem(0), request(1, OpSend, 0, data(8, SGE{0, 8, 0})...)...)
	var s Send
	var w Recv
	c := Completion{WRID: 1}
	if n := testing.AllocsPerRun(100, func() {
		if !sq.ReadSend(0, &s, 2) || !rq.ReadRecv(0, &w, 2) {
			t.Fatal("malformed")
		}
		cq.WriteCompletion(0, &c)
		cq.SetProducer(1)
		sq.SetConsumer(sq.Producer())
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzRead reads random elements: each that is not malformed is within the limits.
func FuzzRead(f *testing.F) {
	f.Add(uint64(1), []byte{})
	e := make([]byte, 256)
	write(e, request(1, OpSend, SendInline, data(8, SGE{1, 8, 2})...)...)
	f.Add(uint64(2), e)
	f.Fuzz(func(t *testing.T, seed uint64, elem []byte) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		sges, inline := SendCaps(rnd.IntN(MaxSGE+1), rnd.IntN(MaxInline+1))
		r := newRing(t, 3, SendElemSize(sges, inline))
		copy(r.Elem(3), elem)
		var s Send
		if r.ReadSend(3, &s, sges) {
			sum := uint64(0)
			for _, e := range s.SGEs[:s.NumSGE] {
				sum += uint64(e.Length)
			}
			none := s.Opcode == OpLocalInv || s.Opcode == OpBindMW || s.Opcode == OpFlush
			if s.NumSGE > sges || len(s.Inline) > inline && s.Opcode != OpAtomicWrite ||
				!none && s.Inline == nil && sum < uint64(s.Length) || s.Inline != nil && len(s.Inline) != int(s.Length) {
				t.Errorf("%d SGEs of %d with %d bytes, %d bytes inline of %d, length %d", s.NumSGE, sges, sum, len(s.Inline), inline, s.Length)
			}
		}
		max := rnd.IntN(MaxSGE + 1)
		r = newRing(t, 3, RecvElemSize(max))
		copy(r.Elem(3), elem)
		var w Recv
		if r.ReadRecv(3, &w, max) && w.NumSGE > max {
			t.Errorf("a receive has %d SGEs of %d", w.NumSGE, max)
		}
	})
}

// BenchmarkReadSend reads a request with one SGE.
func BenchmarkReadSend(b *testing.B) {
	r := newRing(b, 1, SendElemSize(4, 64))
	write(newProgram(b, r.Bytes()).elem(0), request(1, OpWrite, 0, data(8, SGE{0, 8, 0})...)...)
	var s Send
	for b.Loop() {
		if !r.ReadSend(0, &s, 4) {
			b.Fatal("malformed")
		}
	}
}
