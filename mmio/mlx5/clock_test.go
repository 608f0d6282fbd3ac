//go:build amd64 || arm64

package mlx5

import (
	"encoding/binary"
	"math/big"
	"testing"
	"unsafe"

	"github.com/goverbs/goverbs/mmio/mlx5/internal/abi"
	"github.com/goverbs/goverbs/test/testenv"
)

// errorIs checks which error a call returned.
var errorIs = testenv.ErrorIs

// errorOf returns the error of a call.
func errorOf[T any](_ T, err error) error { return err }

// TestClock reads the counter, whose halves are big-endian, where the context says that it is.
func TestClock(t *testing.T) {
	page := region(t, 4096)
	for _, offset := range []uint64{0, 0x100, 4096 - 8, 0x7000 + 0x100} {
		c, err := NewClock(page, offset)
		if err != nil {
			t.Errorf("at %#x: %v", offset, err)
			continue
		}
		const want = 0x0102030405060708
		clear(page)
		binary.BigEndian.PutUint64(page[offset%4096:], want)
		if got := c.Read(); got != want {
			t.Errorf("at %#x: %#x, want %#x", offset, got, want)
		}
	}
	for _, offset := range []uint64{2, 4096 - 4, 1<<64 - 1} {
		errorIs(t, errorOf(NewClock(page, offset)), ErrLayout, "at %#x", offset)
	}
	errorIs(t, errorOf(NewClock(page[:7], 0)), ErrLayout, "on 7 bytes")
	errorIs(t, errorOf(NewClock(nil, 0)), ErrLayout, "without a page")
}

// TestClockInfo: stamps before and after the kernel's last look, counters that have begun anew, and
// pages that make no sense.
func TestClockInfo(t *testing.T) {
	page := region(t, 4096)
	c, err := NewClockInfo(page)
	must(t, err)
	const second = 1e9
	for _, v := range []struct {
		name         string
		sign         uint32
		nsec, cycles uint64
		frac         uint64
		mult, shift  uint32
		mask         uint64
		stamp, want  uint64
		fails        bool
	}{
		{name: "now", nsec: second, cycles: 100, mult: 1 << 10, shift: 10, mask: 1<<63 - 1, stamp: 100, want: second},
		{name: "after", nsec: second, cycles: 100, mult: 3 << 10, shift: 10, mask: 1<<63 - 1, stamp: 150, want: second + 150},
		{name: "before", nsec: second, cycles: 100, mult: 3 << 10, shift: 10, mask: 1<<63 - 1, stamp: 50, want: second - 150},
		{name: "a fraction after", nsec: second, cycles: 100, frac: 512, mult: 512, shift: 10, mask: 1<<63 - 1, stamp: 101, want: second + 1},
		{name: "a fraction before", nsec: second, cycles: 100, frac: 512, mult: 512, shift: 10, mask: 1<<63 - 1, stamp: 97, want: second - 1},
		{name: "begun anew", nsec: second, cycles: 0xfff0, mult: 1, mask: 0xffff, stamp: 0x10, want: second + 0x20},
		{name: "before it began anew", nsec: second, cycles: 0x10, mult: 1, mask: 0xffff, stamp: 0xfff0, want: second - 0x20},
		{name: "more than 64 bits", nsec: second, mult: 1 << 31, shift: 32, mask: 1<<63 - 1, stamp: 1 << 40, want: second + 1<<39},
		{name: "the largest shift", nsec: second, mult: 1 << 31, shift: 63, mask: 1<<63 - 1, stamp: 1 << 40, want: second + 1<<8},
		{name: "a shift of more than there is", mult: 1, shift: 64, mask: 1<<63 - 1, fails: true},
		{name: "never finished", sign: 1, mult: 1, mask: 1<<63 - 1, fails: true},
	} {
		c.info.Sign, c.info.Nsec, c.info.Cycles, c.info.Frac = v.sign, v.nsec, v.cycles, v.frac
		c.info.Mult, c.info.Shift, c.info.Mask = v.mult, v.shift, v.mask
		if ns, ok := c.Nanoseconds(v.stamp); ok == v.fails || ok && ns != v.want {
			t.Errorf("%s: %d, %v; want %d, %v", v.name, ns, ok, v.want, !v.fails)
		}
	}
	errorIs(t, errorOf(NewClockInfo(page[:unsafe.Sizeof(*c.info)-1])), ErrLayout, "a page that is too short")
}

// FuzzClockInfo compares Nanoseconds with the same formula in math/big, for any content of the page.
func FuzzClockInfo(f *testing.F) {
	f.Add(uint32(0), uint64(1e9), uint64(100), uint64(512), uint32(512), uint32(10), uint64(1<<63-1), uint64(97))
	f.Add(uint32(1), uint64(0), uint64(0), uint64(0), uint32(1), uint32(0), uint64(0xffff), uint64(1))
	f.Add(uint32(2), uint64(1<<63), uint64(1<<62), uint64(1<<63), uint32(1<<32-1), uint32(63), uint64(1<<64-1), uint64(0))
	f.Add(uint32(0), uint64(1), uint64(1), uint64(1), uint32(1), uint32(64), uint64(1), uint64(1))
	f.Fuzz(func(t *testing.T, sign uint32, nsec, cycles, frac uint64, mult, shift uint32, mask, stamp uint64) {
		c, err := NewClockInfo(make([]byte, 4096))
		must(t, err)
		c.info.Sign, c.info.Nsec, c.info.Cycles, c.info.Frac = sign, nsec, cycles, frac
		c.info.Mult, c.info.Shift, c.info.Mask = mult, shift, mask
		got, ok := c.Nanoseconds(stamp)
		if valid := sign&abi.MLX5_IB_CLOCK_INFO_KERNEL_UPDATING == 0 && shift < 64; ok != valid {
			t.Fatalf("ok is %v, want %v", ok, valid)
		}
		if !ok {
			return
		}
		delta, part, past := (stamp-cycles)&mask, int64(frac), false
		if past = delta > mask/2; past {
			delta, part = (cycles-stamp)&mask, -part
		}
		ns := new(big.Int).Mul(new(big.Int).SetUint64(delta), big.NewInt(int64(mult)))
		ns.Rsh(ns.Add(ns, big.NewInt(part)), uint(shift))
		if past {
			ns.Neg(ns)
		}
		ns.And(ns.Add(ns, new(big.Int).SetUint64(nsec)), new(big.Int).SetUint64(1<<64-1))
		if got != ns.Uint64() {
			t.Errorf("%d, want %d", got, ns)
		}
	})
}
