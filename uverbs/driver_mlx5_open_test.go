//go:build amd64 || arm64

package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// mlx5Answer is what a kernel says of a ConnectX-5, in the order of struct
// mlx5_ib_alloc_ucontext_resp, with some of it changed.
func mlx5Answer(change func(b []byte)) []byte {
	b := make([]byte, 72)
	for off, v := range map[int]uint32{
		0: 1 << 17, 4: 512, 12: 64, 16: 512<<16 | 1024, 20: 32768, 24: 32768, 28: 32767, 32: 1, 36: 7, 40: 72, 44: 0x01030301, 48: 0x1000, 56: 12, 60: 1,
	} {
		binary.LittleEndian.PutUint32(b[off:], v)
	}
	change(b)
	return b
}

func openFakeMlx5(t *testing.T, change func(b []byte)) (*Device, *fakeKernel, error) {
	t.Helper()
	return openFake(t, pathAuto, func(k *fakeKernel) { k.driver, k.context = mlx5Driver{}, mlx5Answer(change) })
}

// TestMlx5Layout: a card whose layout the library does not know is not opened, and the error says
// what it is about.
func TestMlx5Layout(t *testing.T) {
	for want, change := range map[string]func(b []byte){
		"CQE version 2":                     func(b []byte) { b[44] = 2 },
		"BlueFlame registers of 1536":       func(b []byte) { b[5] = 6 },
		"BlueFlame registers of 2048":       func(b []byte) { b[5] = 8 },
		"BlueFlame registers of 64 bytes":   func(b []byte) { b[4], b[5] = 64, 0 },
		"UARs of 8192 bytes":                func(b []byte) { b[56] = 13 },
		"2 on a page":                       func(b []byte) { b[60] = 2 },
		"0 on a page":                       func(b []byte) { b[60] = 0 },
		"65280 registers":                   func(b []byte) { b[9] = 0xff },
		"1 registers":                       func(b []byte) { b[8] = 1 },
		"WQEs of at most 0 bytes for sends": func(b []byte) { b[16], b[17] = 0, 0 },
		"0 for receives":                    func(b []byte) { b[18], b[19] = 0, 0 },
		"WQEs of at most 0 bytes":           func(b []byte) { clear(b) },
	} {
		d, k, err := openFakeMlx5(t, change)
		var f *FeatureError
		if !errors.As(err, &f) || f.Driver != "mlx5" || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want a FeatureError about %q", err, want)
		}
		if d.mlx5 != nil || k.ringsMapped() != 0 {
			t.Errorf("%s: it has been opened all the same, and %d bytes are mapped", want, k.ringsMapped())
		}
	}
}

// TestMlx5NothingOf: a card that can do nothing of one kind is opened, and what would need that is
// refused by the name of the field; other things work.
func TestMlx5NothingOf(t *testing.T) {
	zero := func(off, n int) func(b []byte) { return func(b []byte) { clear(b[off : off+n]) } }
	for name, c := range map[string]struct {
		change func(b []byte)
		field  string // that is refused, "" if nothing is
	}{
		"QPs":                 {zero(0, 4), ""},
		"BlueFlame":           {zero(4, 4), ""},
		"a cache line":        {zero(12, 4), ""},
		"blocks of sends":     {zero(20, 4), "MaxSendWR"},
		"receives":            {zero(24, 4), "MaxRecvWR"},
		"receives of SRQs":    {zero(28, 4), "MaxWR"},
		"ports":               {zero(32, 2), ""},
		"parts of the answer": {zero(36, 8), ""},
		"later fields":        {zero(44, 12), ""},
		"dynamic registers":   {zero(64, 8), ""},
	} {
		d, k, err := openFakeMlx5(t, c.change)
		if err != nil {
			t.Errorf("no %s: %v", name, err)
			continue
		}
		m := d.mlx5
		_, send := m.SizeSend(0, 4, 1, 16)
		_, recv := m.SizeRecv(4, 1)
		_, shared := m.SizeSRQ(4, 1, false)
		for field, err := range map[string]error{"MaxSendWR": send, "MaxRecvWR": recv, "MaxWR": shared} {
			err = mlx5Size("Create", err)
			var arg *ArgError
			switch {
			case field == c.field && (!errors.As(err, &arg) || arg.Field != field || !strings.Contains(err.Error(), "not supported by the device")):
				t.Errorf("no %s: %s is answered by %v", name, field, err)
			case field != c.field && err != nil:
				t.Errorf("no %s: %s: %v", name, field, err)
			}
		}
		reg, err := m.uars.take()
		if err != nil || reg == nil {
			t.Errorf("no %s: a register: %v", name, err)
		}
		m.uars.give(reg)
		must(t, d.Close())
		if n := k.ringsMapped(); n != 0 {
			t.Errorf("no %s: %d bytes are still mapped", name, n)
		}
	}
	// All values of one byte at any place: it opens or says why not.
	for off := range 72 {
		for _, v := range []byte{0, 1, 0x7f, 0xff} {
			d, k, err := openFakeMlx5(t, func(b []byte) { b[off] = v })
			var f *FeatureError
			if err != nil && !errors.As(err, &f) {
				t.Errorf("byte %d is %#x: %v", off, v, err)
			}
			if err != nil {
				continue
			}
			for _, n := range []int{0, 1, 1 << 20} {
				for _, err := range []error{
					func() error { _, err := d.mlx5.SizeSend(0, n, n, n); return err }(),
					func() error { _, err := d.mlx5.SizeRecv(n, n); return err }(),
					func() error { _, err := d.mlx5.SizeSRQ(n, n, true); return err }(),
				} {
					if err != nil && strings.Contains(fmt.Sprint(mlx5Size("Create", err)), "-") {
						t.Errorf("byte %d is %#x: %v", off, v, err)
					}
				}
			}
			must(t, d.Close())
			if n := k.ringsMapped(); n != 0 {
				t.Errorf("byte %d is %#x: %d bytes are still mapped", off, v, n)
			}
		}
	}
}
