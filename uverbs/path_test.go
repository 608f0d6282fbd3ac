package uverbs

import (
	"errors"
	"os"
	"testing"
)

// TestStaticRate: both ways round, with libibverbs' figures.
func TestStaticRate(t *testing.T) {
	for _, c := range []struct {
		r          StaticRate
		mbps, mult int
		text       string
	}{
		{RateMax, 0, 0, "no limit"}, {1, 0, 0, "rate 1"}, {25, 0, 0, "rate 25"}, {255, 0, 0, "rate 255"},
		{2, 2500, 1, "2500 Mbit/s"}, {3, 10000, 4, "10000 Mbit/s"}, {4, 30000, 12, "30000 Mbit/s"}, {5, 5000, 2, "5000 Mbit/s"},
		{6, 20000, 8, "20000 Mbit/s"}, {7, 40000, 16, "40000 Mbit/s"}, {8, 60000, 24, "60000 Mbit/s"}, {9, 80000, 32, "80000 Mbit/s"},
		{10, 120000, 48, "120000 Mbit/s"}, {11, 14062, 0, "14062 Mbit/s"}, {12, 56250, 0, "56250 Mbit/s"}, {13, 112500, 0, "112500 Mbit/s"},
		{14, 168750, 0, "168750 Mbit/s"}, {15, 25781, 0, "25781 Mbit/s"}, {16, 103125, 0, "103125 Mbit/s"}, {17, 206250, 0, "206250 Mbit/s"},
		{18, 309375, 0, "309375 Mbit/s"}, {19, 28125, 11, "28125 Mbit/s"}, {20, 53125, 20, "53125 Mbit/s"}, {21, 425000, 160, "425000 Mbit/s"},
		{22, 637500, 240, "637500 Mbit/s"}, {23, 850000, 320, "850000 Mbit/s"}, {24, 1275000, 480, "1275000 Mbit/s"},
	} {
		if c.r.Mbps() != c.mbps || c.r.Mult() != c.mult || c.r.String() != c.text {
			t.Errorf("%d: %d Mbit/s, %d times 2.5 Gbit/s, %q, want %d, %d and %q", uint8(c.r), c.r.Mbps(), c.r.Mult(), c.r, c.mbps, c.mult, c.text)
		}
	}
	for r := RateMax; r <= Rate1200G; r++ {
		if r.Mbps() != 0 && RateFromMbps(r.Mbps()) != r {
			t.Errorf("%d Mbit/s are %s, want %s", r.Mbps(), RateFromMbps(r.Mbps()), r)
		}
		if r.Mult() != 0 && RateFromMult(r.Mult()) != r {
			t.Errorf("%d times 2.5 Gbit/s are %s, want %s", r.Mult(), RateFromMult(r.Mult()), r)
		}
	}
	for _, n := range []int{-1, 0, 3, 14000} {
		if RateFromMbps(n) != RateMax || RateFromMult(n) != RateMax {
			t.Errorf("%d: %s, %s", n, RateFromMbps(n), RateFromMult(n))
		}
	}
}

// TestFlowLabelPort: the 20 bits are folded into the 14 below the fixed two.
func TestFlowLabelPort(t *testing.T) {
	for label, want := range map[uint32]uint16{0: 0xc000, 1: 0xc001, 0x3fff: 0xffff, 0x4000: 0xc001, 0xfc000: 0xc03f, 0xfffff: 0xffc0, 0x12345: 0xe341, 1 << 20: 0xc000} {
		if got := FlowLabelPort(label); got != want {
			t.Errorf("flow label %#x: port %#x, want %#x", label, got, want)
		}
	}
}

func TestQPTypes(t *testing.T) {
	s := QPTypes(1<<RC | 1<<RawPacket)
	for typ, want := range map[QPType]bool{RC: true, UC: false, UD: false, RawPacket: true, 32: false, 255: false} {
		if s.Has(typ) != want {
			t.Errorf("%s: %t", typ, s.Has(typ))
		}
	}
}

// TestDataInOrder: nothing is promised, of what there is.
func TestDataInOrder(t *testing.T) {
	f := newFakeQP(t, QPOptions{})
	for i := range opcodeNames {
		op := WROpcode(i)
		if !op.known() {
			continue
		}
		if got, err := f.qp.DataInOrder(op); got != 0 || err != nil {
			t.Errorf("%s: %d, %v, want 0", op, got, err)
		}
	}
	var arg *ArgError
	if _, err := f.qp.DataInOrder(250); !errors.As(err, &arg) || arg.Field != "op" {
		t.Errorf("an unknown opcode: %v", err)
	}
	must(t, f.qp.Close())
	errorIs(t, second(f.qp.DataInOrder(WRSend)), os.ErrClosed, "after Close")
}
