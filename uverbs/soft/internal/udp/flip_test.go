package udp

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// TestFlip: the receiver drops the packets of a batch that are damaged, and no others.
func TestFlip(t *testing.T) {
	forFamilies(t, func(t *testing.T, local netip.AddrPort) {
		for _, m := range modes {
			t.Run(m.name, func(t *testing.T) {
				a, b := open(t, local, m.o), open(t, local, m.o)
				var batch, good Batch
				for i, bit := range []int{-1, 0, -1, 64*8 - 1, 200, -1} {
					fill(t, &batch, b.LocalAddr(), 64, uint64(i))
					if bit >= 0 {
						batch.Flip(bit)
						continue
					}
					fill(t, &good, b.LocalAddr(), 64, uint64(i))
				}
				must(t, a.Send(&batch))
				got, _ := collect(t, b, 3)
				if diff := cmp.Diff(sent(a, &good), got); diff != "" {
					t.Errorf("packets (-sent +received):\n%s", diff)
				}
				if n := b.Counters().BadICRC; n != 3 {
					t.Errorf("%d packets with a wrong ICRC, want 3", n)
				}
			})
		}
	})
}

// TestFlipAgain: sealing a packet again does not make its damage right.
func TestFlipAgain(t *testing.T) {
	src, dst := netip.MustParseAddrPort("[fd00::1]:4791"), netip.MustParseAddrPort("[fd00::2]:4791")
	var b Batch
	fill(t, &b, dst, 32, 1)
	b.Flip(13)
	if bit, ok := b.Flipped(0); bit != 13 || !ok {
		t.Errorf("Flipped is %d, %v; want 13, true", bit, ok)
	}
	_, data := b.Packet(0)
	for i := range 2 {
		before := bytes.Clone(data)
		b.seal(0, src, dst, 0, 0)
		if _, ok := wire.CheckICRC(src, dst, data); ok {
			t.Errorf("call %d of seal: the ICRC is right", i)
		}
		if want := before[1] ^ 0x04; i == 0 && data[1] != want || i == 1 && data[1] != before[1] {
			t.Errorf("call %d of seal: byte 1 becomes %#x of %#x", i, data[1], before[1])
		}
	}
	data[1] ^= 0x04
	if _, ok := wire.CheckICRC(src, dst, data); !ok {
		t.Error("more than one bit is wrong")
	}
	fill(t, &b, dst, 32, 2)
	if bit, ok := b.Flipped(1); ok {
		t.Errorf("bit %d of a packet is flipped without Flip", bit)
	}
	_, data = b.Packet(1)
	b.seal(1, src, dst, 0, 0)
	if _, ok := wire.CheckICRC(src, dst, data); !ok {
		t.Error("the ICRC of a packet that is not damaged is wrong")
	}
}
