//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"fmt"
	"testing"
)

// TestPut: a work request that Put writes is the one that the slot's methods write, byte by byte and
// at any place of the ring, and completes the same way.
func TestPut(t *testing.T) {
	av := NewAV(&AVAttr{LID: 0x123, SL: 3, Global: true, GID: [16]byte{0xfe, 15: 1}, HopLimit: 9, FlowLabel: 0x54321})
	for name, c := range map[string]struct {
		transport Transport
		to        *Peer
	}{
		"connected": {Connected, nil},
		"datagram":  {Datagram, &Peer{AV: &av, QPN: 0x123456, Key: 0x80010000}},
		"DC":        {DC, &Peer{AV: &av, QPN: 0x123456, Key: 0x123456789abcdef0, Stream: 0x0203}},
	} {
		t.Run(name, func(t *testing.T) { testPut(t, c.transport, c.to) })
	}
}

// testPut is TestPut for a transport.
func testPut(t *testing.T, transport Transport, to *Peer) {
	requests := []Plain{
		{Op: Send, Flags: Signaled, Addr: 0x1000, Length: 64, LKey: 9},
		{Op: Send, Imm: 5, RemoteAddr: 6, RKey: 7}, // without SGEs and data
		{Op: SendImm, Flags: Solicited, Imm: 0xabcd1234, Inline: pattern(1)},
		{Op: Write, Flags: Fence, RemoteAddr: 0x123456789abc, RKey: 0x4711, Addr: 0x1000, Length: maxLength, LKey: 9},
		{Op: Write, RemoteAddr: 2, RKey: 3, Imm: 4, Inline: pattern(28)},
		{Op: WriteImm, Imm: 0xabcd1234, RemoteAddr: 2, RKey: 3, Inline: pattern(29)},
		{Op: WriteImm, Flags: Signaled | Solicited, Imm: 1, RemoteAddr: 2, RKey: 3},
		{Op: Read, Flags: Signaled, RemoteAddr: 0x123456789abc, RKey: 0x4711, Addr: 0x1000, Length: 1, LKey: 9},
		{Op: Send, Inline: pattern(200)},
	}
	plain, slot := newCard(t, transport, 16, 3, 200), newCard(t, transport, 16, 3, 200)
	for i := range 20 * len(requests) {
		w := requests[i%len(requests)]
		w.ID = uint64(i)
		if i%5 == 0 && transport != Datagram { // the next one has a fence, unless it has its own
			for _, k := range []*card{plain, slot} {
				k.post(1, LocalInv, 0, func(s *SendSlot) { s.SetLocalInv(7) })
				k.take()
			}
		}
		plain.sq.Begin()
		if !plain.sq.Room(1) || !plain.sq.Put(&w, to) {
			t.Fatalf("%d: %+v was not written", i, w)
		}
		plain.sq.Publish()
		slot.post(w.ID, w.Op, w.Flags, func(s *SendSlot) {
			switch transport {
			case Datagram:
				s.SetUD(to.QPN, uint32(to.Key), to.AV)
			case DC:
				s.SetDC(to.QPN, to.Key, to.Stream, to.AV)
			}
			if shapes[w.Op].rdma {
				s.SetRDMA(w.RemoteAddr, w.RKey)
			}
			if shapes[w.Op].imm != 0 {
				s.SetImm(w.Imm)
			}
			if len(w.Inline) > 0 {
				ok(t, s.AddInline(w.Inline))
			} else {
				ok(t, s.AddSGE(w.Addr, w.Length, w.LKey))
			}
		})
		at := plain.taken
		got, want := plain.take(), slot.take()
		if pad := -len(w.Inline) - 4; len(w.Inline) > 0 { // what is behind the data is left as it was
			pad = (pad%16 + 16) % 16
			clear(got[len(got)-pad:])
			clear(want[len(want)-pad:])
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%d: %+v is\n%x, want\n%x", i, w, got, want)
		}
		for _, k := range []*card{plain, slot} {
			if id, op, done := k.sq.Complete(at); id != w.ID || op != w.Op || !done {
				t.Fatalf("%d: completion of %d, %d, %v", i, id, op, done)
			}
		}
	}
}

// TestPutRefuses: of what is wrong nothing is written.
func TestPutRefuses(t *testing.T) {
	k := newCard(t, Connected, 4, 1, 64)
	most := int(k.sq.maxInline)
	for _, w := range []Plain{
		{Op: Send, Inline: make([]byte, most+1)},
		{Op: Send, Addr: 1, Length: maxLength + 1, LKey: 1},
	} {
		if k.sq.Begin(); !k.sq.Room(1) || k.sq.Put(&w, nil) || k.sq.begun != 0 || k.sq.next != 0 {
			t.Errorf("a request with %d bytes inline or %d at %#x was written", len(w.Inline), w.Length, w.Addr)
		}
	}
	none := newCard(t, Connected, 4, 0, 64)
	if none.sq.Begin(); !none.sq.Room(1) || none.sq.Put(&Plain{Op: Send, Length: 1}, nil) {
		t.Error("a queue without entries has taken one")
	}
	if fmt.Sprint(none.take()) != "[]" {
		t.Error("something was published")
	}
}
