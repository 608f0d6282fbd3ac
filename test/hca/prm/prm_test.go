package prm

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

func TestField(t *testing.T) {
	b := []byte{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0}
	for _, tt := range []struct {
		f    Field
		want uint64
	}{
		{Field{0, 4}, 0x1}, {Field{4, 4}, 0x2}, {Field{8, 24}, 0x345678}, {Field{0, 32}, 0x12345678}, {Field{31, 1}, 0},
		{Field{0x20, 16}, 0x9abc}, {Field{0x30, 16}, 0xdef0}, {Field{0x21, 3}, 1}, {Field{0, 64}, 0x123456789abcdef0},
	} {
		if got := tt.f.Get(b); got != tt.want {
			t.Errorf("%+v: %#x, want %#x", tt.f, got, tt.want)
		}
	}
}

// A read returns what was written, and nothing else changes.
func TestPut(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		b := make([]byte, 16)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f := Field{Width: 1 + rng.IntN(32)}
		f.Off = 32*rng.IntN(4) + rng.IntN(33-f.Width)
		if rng.IntN(8) == 0 {
			f = Field{64 * rng.IntN(2), 64}
		}
		old, v := bytes.Clone(b), rng.Uint64()
		f.Put(b, v)
		if f.Width < 64 {
			v &= 1<<f.Width - 1
		}
		if got := f.Get(b); got != v {
			t.Fatalf("%+v: %#x, want %#x", f, got, v)
		}
		for i := range len(b) * 8 {
			if bit := byte(0x80) >> (i % 8); (i < f.Off || i >= f.Off+f.Width) && (b[i/8]^old[i/8])&bit != 0 {
				t.Fatalf("%+v: bit %d has changed", f, i)
			}
		}
	}
}

// Fields that a record does not have read as 0 and are not written.
func TestShort(t *testing.T) {
	for _, f := range []Field{{0x20, 4}, {0x18, 64}, {0, 64}, {0x3f, 1}} {
		b := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
		if got := f.Get(b); got != 0 {
			t.Errorf("%+v: %#x", f, got)
		}
		f.Put(b, 0)
		if !bytes.Equal(b, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}) {
			t.Errorf("%+v has written %x", f, b)
		}
	}
	for _, tt := range []struct{ off, n, want int }{{0, 4, 4}, {2, 4, 2}, {4, 4, 0}, {9, 1, 0}} {
		if got := Record(make([]byte, 4), tt.off, tt.n); len(got) != tt.want {
			t.Errorf("%d bytes at %d of 4: %d", tt.n, tt.off, len(got))
		}
	}
}

func TestNames(t *testing.T) {
	if CreateQP.String() != "CREATE_QP" || Op(0xfff).String() != "opcode 0xfff" {
		t.Errorf("%s, %s", CreateQP, Op(0xfff))
	}
	if BadQPState.String() != "bad QP state" || Status(0x77).String() != "status 0x77" {
		t.Errorf("%s, %s", BadQPState, Status(0x77))
	}
}
