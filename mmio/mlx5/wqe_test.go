//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

// unhex reads bytes written in groups.
func unhex(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "|", "", "\n", "", "\t", "").Replace(s))
	must(tb, err)
	return b
}

// recorded are WQEs that libmlx5 44.0 wrote for the same requests, on QP 0x4a5b6c here, with the
// same keys and addresses. Bytes behind inline data, up to the next segment, are whatever was in
// the ring: they are not compared (see padding).
var recorded = []struct {
	name    string
	t       Transport
	op      Op
	flags   uint8
	fill    func(tb testing.TB, s *SendSlot)
	want    string
	padding int
}{
	{name: "send of 64 bytes", op: Send, flags: Signaled, fill: func(tb testing.TB, s *SendSlot) {
		ok(tb, s.AddSGE(0x7f50e554b000, 64, 0x2504))
	}, want: `0000000a 4a5b6c02 00000008 00000000 | 00000040 00002504 00007f50e554b000`},
	{name: "write with a fence", op: Write, flags: Signaled | Fence, fill: func(tb testing.TB, s *SendSlot) {
		s.SetRDMA(0x7f50e5554c40, 0x2504)
		ok(tb, s.AddSGE(0x7f50e554b000, 64, 0x2504))
	}, want: `00000008 4a5b6c03 00000088 00000000 | 00007f50e5554c40 00002504 00000000 | 00000040 00002504 00007f50e554b000`},
	{name: "solicited write with immediate", op: WriteImm, flags: Signaled | Solicited, fill: func(tb testing.TB, s *SendSlot) {
		s.SetRDMA(0x7f50e5554c40, 0x2504)
		s.SetImm(0xabcd1234)
		ok(tb, s.AddSGE(0x7f50e554b000, 64, 0x2504))
	}, want: `00000009 4a5b6c03 0000000a abcd1234 | 00007f50e5554c40 00002504 00000000 | 00000040 00002504 00007f50e554b000`},
	{name: "read", op: Read, flags: Signaled, fill: func(tb testing.TB, s *SendSlot) {
		s.SetRDMA(0x7f50e5554c40, 0x2504)
		ok(tb, s.AddSGE(0x7f50e554b000, 64, 0x2504))
	}, want: `00000010 4a5b6c03 00000008 00000000 | 00007f50e5554c40 00002504 00000000 | 00000040 00002504 00007f50e554b000`},
	{name: "fetch and add", op: FAA, flags: Signaled, fill: func(tb testing.TB, s *SendSlot) {
		s.SetAtomic(0x7f50e5556b80, 1, 99, 0x2504)
		ok(tb, s.AddSGE(0x7f50e554b000, 8, 0x2504))
	}, want: `00000012 4a5b6c04 00000008 00000000 | 00007f50e5556b80 00002504 00000000 | 0000000000000001 0000000000000000 | 00000008 00002504 00007f50e554b000`},
	{name: "compare and swap", op: CAS, flags: Signaled, fill: func(tb testing.TB, s *SendSlot) {
		s.SetAtomic(0x7f50e5556b80, 42, 77, 0x2504)
		ok(tb, s.AddSGE(0x7f50e554b000, 8, 0x2504))
	}, want: `00000011 4a5b6c04 00000008 00000000 | 00007f50e5556b80 00002504 00000000 | 000000000000004d 000000000000002a | 00000008 00002504 00007f50e554b000`},
	{name: "inline send with immediate", op: SendImm, flags: Signaled, fill: func(tb testing.TB, s *SendSlot) {
		s.SetImm(0xabcd1234)
		ok(tb, s.AddInline(pattern(64)))
	}, want: `0000000b 4a5b6c06 00000008 abcd1234 | 80000040 ` + hex.EncodeToString(pattern(64)) + strings.Repeat("00", 12), padding: 12},
	{name: "bind of type 1", op: BindMW, flags: Signaled, fill: func(tb testing.TB, s *SendSlot) {
		ok(tb, s.SetBind(&Window{Key: 0x2806, NewKey: 0x2807, LKey: 0x2504, Addr: 0x7f50e5557350, Length: 1000, Access: AccessRemoteWrite | AccessRemoteRead}))
	}, want: `00000025 4a5b6c0c 00000008 00002806 | 90000000 0004 0000 00000000203c2041 ` + strings.Repeat("00", 32) + `
		00003000 ffffff07 0000000000000000 00007f50e5557350 00000000000003e8 ` + strings.Repeat("00", 32) + `
		000003e8 00002504 00007f50e5557350 ` + strings.Repeat("00", 48)},
	// From here on as post_send of libmlx5 would write it, by its source.
	{name: "bind of type 2", op: BindMW, fill: func(tb testing.TB, s *SendSlot) {
		ok(tb, s.SetBind(&Window{Key: 0x2900, NewKey: 0x2901, Type2: true, LKey: 0x2504, Addr: 0x1000, Length: 1 << 31, Access: AccessRemoteAtomic | AccessLocalWrite}))
	}, want: `00000025 4a5b6c0c 00000000 00002900 | b0000000 0004 0000 00000000203c6041 ` + strings.Repeat("00", 32) + `
		00004800 4a5b6c01 0000000000000000 0000000000001000 0000000080000000 ` + strings.Repeat("00", 32) + `
		80000000 00002504 0000000000001000 ` + strings.Repeat("00", 48)},
	{name: "unbind of type 1", op: BindMW, flags: Signaled, fill: func(tb testing.TB, s *SendSlot) {
		ok(tb, s.SetBind(&Window{Key: 0x2806, NewKey: 0x2807, LKey: 0x2504}))
	}, want: `00000025 4a5b6c08 00000008 00002806 | 90000000 0000 0000 0000000020002000 ` + strings.Repeat("00", 32) + `
		40000000 ffffff07 ` + strings.Repeat("00", 56)},
	{name: "local invalidate", op: LocalInv, flags: Signaled, fill: func(_ testing.TB, s *SendSlot) {
		s.SetLocalInv(0x2901)
	}, want: `00000025 4a5b6c08 00000008 00002901 | 98000000 0000 0000 0000000020006000 ` + strings.Repeat("00", 32) + `
		40000000 ffffff00 ` + strings.Repeat("00", 56)},
	{name: "send that invalidates", op: SendInv, fill: func(tb testing.TB, s *SendSlot) {
		s.SetInvalidate(0x1234)
		ok(tb, s.AddSGE(0x10, 1, 0x2504))
	}, want: `00000001 4a5b6c02 00000000 00001234 | 00000001 00002504 0000000000000010`},
	{name: "send of nothing", op: Send, fill: func(tb testing.TB, s *SendSlot) {
		ok(tb, s.AddSGE(0x10, 0, 0x2504))
	}, want: `0000000a 4a5b6c01 00000000 00000000`},
	{name: "send of 2 GiB", op: Send, fill: func(tb testing.TB, s *SendSlot) {
		ok(tb, s.AddSGE(0x10, 1<<31, 0x2504))
	}, want: `0000000a 4a5b6c02 00000000 00000000 | 00000000 00002504 0000000000000010`},
	{name: "datagram on InfiniBand", t: Datagram, op: SendImm, flags: Signaled, fill: func(tb testing.TB, s *SendSlot) {
		av := NewAV(&AVAttr{LID: 0x1234, PathBits: 0x85, SL: 3, Rate: 3, Global: true, GID: [16]byte{0xfe, 0x80, 15: 1}, GIDIndex: 2, HopLimit: 7, TrafficClass: 9, FlowLabel: 0xabcde})
		s.SetImm(5)
		ok(tb, s.AddSGE(0x10, 1, 0x2504))
		s.SetUD(0x777777, 0x11111111, &av) // in any order
	}, want: `0000000b 4a5b6c05 00000008 00000005 | 11111111 00000000 80777777 83 05 1234 | 00000000 000000000000 09 07 402abcde | fe800000000000000000000000000001
		00000001 00002504 0000000000000010`},
	{name: "datagram on RoCE", t: Datagram, op: Send, fill: func(tb testing.TB, s *SendSlot) {
		av := NewAV(&AVAttr{RoCE: true, MAC: [6]byte{1, 2, 3, 4, 5, 6}, Sport: 0xc123, SL: 3, Global: true, GID: [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 2}, GIDIndex: 3, HopLimit: 64})
		s.SetUD(1, 0x80010000, &av)
		ok(tb, s.AddSGE(0x10, 1, 0x2504))
	}, want: `0000000a 4a5b6c05 00000000 00000000 | 80010000 00000000 80000001 06 00 c123 | 00000000 010203040506 00 40 00300000 | 00000000000000000000ffff0a000002
		00000001 00002504 0000000000000010`},
	{name: "XRC write", t: XRC, op: Write, fill: func(tb testing.TB, s *SendSlot) {
		s.SetRDMA(0x1000, 0x2504)
		s.SetSRQ(0x654321)
		ok(tb, s.AddSGE(0x10, 1, 0x2504))
	}, want: `00000008 4a5b6c04 00000000 00000000 | 00654321 000000000000000000000000 | 0000000000001000 00002504 00000000 | 00000001 00002504 0000000000000010`},
	{name: "XRC local invalidate", t: XRC, op: LocalInv, fill: func(_ testing.TB, s *SendSlot) {
		s.SetLocalInv(0x2901)
	}, want: `00000025 4a5b6c08 00000000 00002901 | 98000000 0000 0000 0000000020006000 ` + strings.Repeat("00", 32) + `
		40000000 ffffff00 ` + strings.Repeat("00", 56)},
}

// pattern is n bytes, no two neighbours of which are alike.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + 1)
	}
	return b
}

// TestRates: libmlx5 has a code for every rate up to 120 Gb/s, of that rate or the next higher one.
func TestRates(t *testing.T) {
	var codes []byte
	for rate := range uint8(25) {
		av := NewAV(&AVAttr{Rate: rate})
		codes = append(codes, av.b[avRateSL])
	}
	if want := unhex(t, "0000708090a0b0c0d0e0f0b0d0f00090f0000090d000000000"); !bytes.Equal(codes, want) {
		t.Errorf("the codes are\n%x, want\n%x", codes, want)
	}
}

// TestWQE compares WQEs byte by byte with what libmlx5 writes.
func TestWQE(t *testing.T) {
	for _, c := range recorded {
		t.Run(c.name, func(t *testing.T) {
			k := newCard(t, c.t, 16, 3, 100)
			for i := range k.sqMB { // nothing may be left of what was there
				k.sqMB[i] = 0xee
			}
			k.post(1, c.op, c.flags, func(s *SendSlot) { c.fill(t, s) })
			got, want := k.take(), unhex(t, c.want)
			if len(got) == len(want) {
				clear(got[len(got)-c.padding:])
			}
			if !bytes.Equal(got, want) {
				t.Errorf("WQE is\n%x, want\n%x", got, want)
			}
			if k.take() != nil {
				t.Error("there is another WQE")
			}
		})
	}
}

// TestFence: what follows the change of a key waits for it, whatever batch it is in.
func TestFence(t *testing.T) {
	k := newCard(t, Connected, 16, 1, 0)
	inv := func(s *SendSlot) { s.SetLocalInv(1) }
	flags := func(want byte) {
		t.Helper()
		if got := k.take(); got[11] != want {
			t.Errorf("flags are %#x, want %#x", got[11], want)
		}
	}
	k.sq.Begin()
	k.add(1, LocalInv, Signaled, inv)
	k.add(2, Send, Signaled, nil)
	k.add(3, Send, 0, nil)
	k.add(4, LocalInv, 0, inv)
	k.sq.Publish()
	k.post(5, Send, Fence, nil) // stronger
	k.post(6, LocalInv, 0, inv)
	k.post(7, Send, 0, nil)
	k.post(8, LocalInv, 0, inv)
	k.sq.Begin() // a batch that is dropped takes no fence away
	k.add(9, Send, 0, nil)
	k.post(10, Send, 0, nil)
	for _, want := range []byte{0x08, 0x28, 0, 0, 0x80, 0, 0x20, 0, 0x20} {
		flags(want)
	}
}

// TestSlotErrors: what does not fit is refused, and the request stays as it was.
func TestSlotErrors(t *testing.T) {
	k := newCard(t, Connected, 4, 2, 60)
	var s SendSlot
	begin := func() { k.sq.Begin(); k.sq.Start(&s, 1, Send, 0) }
	begin()
	ok(t, s.AddSGE(0, 1<<31, 1))
	for _, n := range []uint32{1, 1 << 31, 1<<32 - 1} {
		if err := s.AddSGE(0, n, 1); err != ErrTooLong {
			t.Errorf("%d more than 2 GiB: %v", n, err)
		}
	}
	ok(t, s.AddSGE(0, 0, 1))
	if err := s.AddSGE(0, 0, 1); err != ErrTooManySGE {
		t.Errorf("a third SGE: %v", err)
	}
	if err := s.AddInline([]byte{1}); err != ErrMixedData {
		t.Errorf("inline data behind SGEs: %v", err)
	}
	begin()
	most := int(k.sq.maxInline)
	ok(t, s.AddInline(make([]byte, most)))
	if err := s.AddInline([]byte{1}); err != ErrInlineTooLong {
		t.Errorf("one more than %d bytes: %v", most, err)
	}
	if err := s.AddSGE(0, 1, 1); err != ErrMixedData {
		t.Errorf("an SGE behind inline data: %v", err)
	}
	begin()
	if err := s.SetBind(&Window{Length: 1<<31 + 1}); err != ErrTooLong {
		t.Errorf("a bind of more than 2 GiB: %v", err)
	}
}
