//go:build amd64 || arm64

package mlx5

import (
	"encoding/binary"
	"errors"
	"testing"
)

// most returns the greatest value of a size that a transport takes: MaxSendSGE or MaxInline.
func most(t *testing.T, c *Context, tr Transport, what string) int {
	t.Helper()
	n := 1 << 20
	sge, inline := n, 0
	if what == "MaxInline" {
		sge, inline = 0, n
	}
	var size *SizeError
	if _, err := c.SizeSend(tr, 1, sge, inline); !errors.As(err, &size) || size.What != what {
		t.Fatalf("%s of %d: %v", what, n, err)
	}
	return size.Most
}

// TestWQELimits: whatever the requested sizes, a work request with all the entries or all the
// inline data that the queue then has is a WQE of at most 63 units of 16 bytes, since its size has
// 6 bits.
func TestWQELimits(t *testing.T) {
	for _, tr := range []struct {
		name   string
		t      Transport
		header int // bytes of the frame that stand in the WQE
		ops    []Op
	}{
		{"RC", Connected, 0, []Op{Send, SendInv, Write, WriteImm, Read}},
		{"UD", Datagram, 0, []Op{Send, SendImm}},
		{"XRC", XRC, 0, []Op{Send, Write, WriteImm}},
		{"DC", DC, 0, []Op{Send, SendInv, Write, WriteImm, Read}},
		{"raw", Raw, 0, []Op{Send}},
		{"raw with a header", Raw, ethHeader, []Op{Send}},
	} {
		for _, wqe := range []int{512, 1024, 4096} {
			c := testContext
			c.MaxSendWQE = wqe
			mostSGE, mostInline := most(t, &c, tr.t, "MaxSendSGE"), most(t, &c, tr.t, "MaxInline")
			ask := func(sge, inline int) {
				size, err := c.SizeSend(tr.t, 4, sge, inline)
				if err != nil {
					t.Fatalf("%s, WQEs of %d bytes: %d SGEs and %d bytes inline: %v", tr.name, wqe, sge, inline, err)
				}
				if size.MaxSGE < sge || size.MaxInline < inline || size.MaxInline > mostInline {
					t.Fatalf("%s, WQEs of %d bytes: asked for %d SGEs and %d bytes inline, and got %+v; at most %d bytes", tr.name, wqe, sge, inline, size, mostInline)
				}
				for _, op := range tr.ops {
					for _, inlined := range []bool{false, true} {
						if op == Read && inlined {
							continue
						}
						mem, rec := make([]byte, size.Bytes()), Record{new([2]uint32)}
						q, err := NewSendQueue(mem, size, tr.t, cardQPN, rec, &Register{})
						ok(t, err)
						if tr.header > 0 {
							q.WantHeader(tr.header)
						}
						var s SendSlot
						q.Begin()
						q.Start(&s, 1, op, Signaled)
						if tr.t == DC {
							s.SetDC(1, 2, 3, &AV{})
						}
						if op == Read || op == Write || op == WriteImm {
							s.SetRDMA(1, 2)
						}
						s.AddHeader(make([]byte, tr.header))
						if inlined {
							ok(t, s.AddInline(make([]byte, size.MaxInline)))
						} else {
							for range size.MaxSGE {
								ok(t, s.AddSGE(1, 2, 3))
							}
						}
						bytes := s.pos
						s.Finish()
						if ds := binary.BigEndian.Uint32(mem[4:]); ds&0xff > 63 || ds>>8 != cardQPN || int(ds&0xff) != int(bytes+15)/16 || int(bytes) > wqe {
							t.Fatalf("%s, WQEs of %d bytes, inline %v, %+v: %d bytes, and the second word is %#x", tr.name, wqe, inlined, size, bytes, ds)
						}
					}
				}
			}
			for sge := range mostSGE + 1 {
				ask(sge, 0)
			}
			for inline := range mostInline + 1 {
				ask(0, inline)
			}
			ask(mostSGE, mostInline)
		}
	}
	c := testContext
	for tr, want := range map[Transport][2]int{Connected: {52, 828}, Datagram: {59, 940}, XRC: {51, 812}, DC: {49, 780}, Raw: {60, 956}} {
		if got := [2]int{most(t, &c, tr, "MaxSendSGE"), most(t, &c, tr, "MaxInline")}; got != want {
			t.Errorf("transport %d has at most %d SGEs and bytes inline, want %d", tr, got, want)
		}
	}
}
