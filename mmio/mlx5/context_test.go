//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

// answer is what a 6.1 kernel says of a ConnectX-5, in the order of struct
// mlx5_ib_alloc_ucontext_resp.
func answer(change func(b []byte)) []byte {
	b := make([]byte, 72)
	le := binary.LittleEndian
	le.PutUint32(b[0:], 1<<17)
	le.PutUint32(b[4:], 512)
	le.PutUint32(b[12:], 64)
	le.PutUint16(b[16:], 1024)
	le.PutUint16(b[18:], 512)
	le.PutUint32(b[20:], 32768)
	le.PutUint32(b[24:], 32768)
	le.PutUint32(b[28:], 32767)
	le.PutUint16(b[32:], 1)
	le.PutUint32(b[36:], 7)
	le.PutUint32(b[40:], 72)
	b[44], b[45], b[46], b[47] = 1, 3, 3, 1
	le.PutUint64(b[48:], 0x1000)
	le.PutUint32(b[56:], 12)
	le.PutUint32(b[60:], 1)
	if change != nil {
		change(b)
	}
	return b
}

func TestContext(t *testing.T) {
	c, err := DecodeContext(answer(nil), 4096)
	must(t, err)
	if c.BlueFlame != 512 || c.MaxSendWQE != 1024 || c.MaxRecvWQE != 512 || c.MaxBlocks != 32768 || c.MaxRecvWR != 32768 || c.MaxSRQWR != 32767 ||
		!c.UserIndex || !c.AHResponse || c.Static.Pages != 0 || !c.ClockInfo || !c.ClockThere || c.ClockOffset != 0x1000 || !c.ECE || c.EthHeader != 18 {
		t.Errorf("context is %+v", c)
	}
	if c, err := DecodeContext(answer(func(b []byte) { b[4], b[5], b[44], b[46] = 0, 0, 0, 1 }), 4096); err != nil || c.BlueFlame != 0 || c.UserIndex || c.EthHeader != 0 {
		t.Errorf("without BlueFlame: %+v, %v", c, err)
	}
	if c, err := DecodeContext(answer(func(b []byte) { b[8] = 16; b[56], b[60] = 0, 0 }), 4096); err != nil || c.Static.Pages != 8 {
		t.Errorf("with registers of the kernel's: %+v, %v", c, err)
	}
	if c, err := DecodeContext(answer(func(b []byte) { b[8] = 32; b[60] = 16 }), 65536); err != nil || c.Static.Pages != 1 || c.UARsPerPage != 16 {
		t.Errorf("with large pages: %+v, %v", c, err)
	}
	// Firmware without UARs of 4 KiB has one on each page of the host.
	for name, set := range map[string]func(b []byte){
		"a kernel that says so":        func(b []byte) { b[8], b[56], b[60] = 16, 16, 1 },
		"a kernel that knows no other": func(b []byte) { b[8], b[56], b[60] = 16, 0, 0 },
	} {
		c, err := DecodeContext(answer(set), 65536)
		if err != nil || c.Static.Pages != 8 || c.UARsPerPage != 1 {
			t.Errorf("with large UARs, %s: %+v, %v", name, c, err)
			continue
		}
		pages := make([][]byte, 8)
		for i := range pages {
			pages[i] = make([]byte, 65536)
		}
		if r, err := c.Static.Register(pages, 5); err != nil || uintptr(r.base) != uintptr(ptrOf(pages[1]))+0xa00 {
			t.Errorf("with large UARs, %s: register 5 is at %v, %v", name, r, err)
		}
	}
}

// TestUnknownAdapter: what the package cannot drive it refuses, and says why.
func TestUnknownAdapter(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(b []byte)
		page int
		want string
	}{
		{"CQE version", func(b []byte) { b[44] = 2 }, 4096, "CQE version 2"},
		{"BlueFlame of 1536", func(b []byte) { b[5] = 6 }, 4096, "BlueFlame registers of 1536 bytes"},
		{"BlueFlame of 64", func(b []byte) { b[4], b[5] = 64, 0 }, 4096, "BlueFlame registers of 64 bytes"},
		{"BlueFlame of 2048", func(b []byte) { b[5] = 8 }, 4096, "BlueFlame registers of 2048 bytes"},
		{"UAR of 8192", func(b []byte) { b[56] = 13 }, 4096, "UARs of 8192 bytes"},
		{"UAR of 2^255", func(b []byte) { b[56] = 255 }, 4096, "UARs of"},
		{"UARs too many", func(b []byte) { b[60] = 2 }, 4096, "2 on a page"},
		{"UARs none", func(b []byte) { b[60] = 0 }, 4096, "0 on a page"},
		{"two large UARs on a large page", func(b []byte) { b[56], b[60] = 16, 2 }, 65536, "UARs of 65536 bytes, 2 on a page of 65536"},
		{"UAR of half a large page", func(b []byte) { b[56], b[60] = 15, 1 }, 65536, "UARs of 32768 bytes"},
		{"UAR of two pages", func(b []byte) { b[56], b[60] = 17, 1 }, 65536, "UARs of 131072 bytes"},
		{"registers too many", func(b []byte) { b[9] = 0xff }, 4096, "65280 registers"},
		{"registers too few", func(b []byte) { b[8] = 1 }, 4096, "1 registers"},
		{"nothing at all", func(b []byte) { clear(b) }, 4096, "WQEs of at most 0 bytes"},
		{"all ones", func(b []byte) {
			for i := range b {
				b[i] = 0xff
			}
		}, 4096, "CQE version 255"},
		{"one register too many", func(b []byte) { b[8], b[9] = 1, 2 }, 4096, "513 registers"},
	} {
		_, err := DecodeContext(answer(c.set), c.page)
		if !errors.Is(err, ErrLayout) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := DecodeContext(make([]byte, 71), 4096); err == nil {
		t.Error("a response that is too short is not refused")
	}
}

// TestStaticRegistersMost: the largest number of registers is accepted.
func TestStaticRegistersMost(t *testing.T) {
	if c, err := DecodeContext(answer(func(b []byte) { b[8], b[9] = 0, 2 }), 4096); err != nil || c.Static.Pages != 256 {
		t.Errorf("512 registers: %+v, %v", c.Static, err)
	}
}

// TestStaticRegistersLargePages: pages of 64 KiB have 16 UARs, and a register's number says which
// page and which of its UARs it is in.
func TestStaticRegistersLargePages(t *testing.T) {
	c, err := DecodeContext(answer(func(b []byte) { b[8], b[60] = 96, 16 }), 65536)
	ok(t, err)
	if c.Static.Pages != 3 {
		t.Fatalf("%d pages, want 3", c.Static.Pages)
	}
	pages := [][]byte{region(t, 65536), region(t, 65536), region(t, 65536)}
	for index, want := range map[uint32]struct {
		page int
		off  uintptr
	}{1: {0, 0xa00}, 21: {0, 5*4096 + 0xa00}, 60: {0, 15*4096 + 0x800}, 64: {1, 0x800}, 69: {1, 4096 + 0xa00}, 189: {2, 15*4096 + 0xa00}} {
		r, err := c.Static.Register(pages, index)
		if err != nil {
			t.Errorf("register %d: %v", index, err)
		} else if off := uintptr(r.base) - uintptr(ptrOf(pages[want.page])); off != want.off {
			t.Errorf("register %d is at %#x of page %d, want %#x", index, off, want.page, want.off)
		}
	}
}

// TestStaticRegisters: where each register is, which have BlueFlame, and which are shared.
func TestStaticRegisters(t *testing.T) {
	c, err := DecodeContext(answer(func(b []byte) { b[8] = 16 }), 4096)
	ok(t, err)
	var pages [][]byte
	for range c.Static.Pages {
		pages = append(pages, region(t, 4096))
	}
	for _, want := range []struct {
		index, page, off uint32
		half             uintptr
		shared           bool
	}{{0, 0, 0x800, 0, false}, {1, 0, 0xa00, 256, true}, {4, 1, 0x800, 256, true}, {21, 5, 0xa00, 256, true}, {24, 6, 0x800, 256, false}, {29, 7, 0xa00, 256, false}} {
		r, err := c.Static.Register(pages, want.index)
		if err != nil {
			t.Errorf("%d: %v", want.index, err)
			continue
		}
		off := uintptr(r.base) - uintptr(ptrOf(pages[want.page]))
		if off != uintptr(want.off) || r.halfSize != want.half || r.shared != want.shared {
			t.Errorf("%d: at %#x, half of %d bytes, shared %v, want %+v", want.index, off, r.halfSize, r.shared, want)
		}
	}
	for _, index := range []uint32{2, 3, 32, 1<<32 - 1} {
		errorIs(t, errorOf(c.Static.Register(pages, index)), ErrLayout, "register %d", index)
	}
	errorIs(t, errorOf(c.Static.Register(pages[:2], 29)), ErrLayout, "a page that is not mapped")
	for i, want := range map[int]uint64{0: 0, 7: 0x7000, 255: 0xff000, 256: 0x10000000, 0x1ff: 0x100ff000} {
		if got := c.Static.Offset(i, 4096); got != want {
			t.Errorf("page %d is at %#x, want %#x", i, got, want)
		}
	}
	if got := mapOffset(mapCoreClock, 0, 4096); got != 0x500000 {
		t.Errorf("the clock is at %#x", got)
	}
	if got := mapOffset(mapClockInfo, 0, 4096); got != 0x700000 {
		t.Errorf("its conversion is at %#x", got)
	}
}

// FuzzContext: whatever a kernel answers is decoded or refused.
func FuzzContext(f *testing.F) {
	f.Add(answer(nil), uint16(4096))
	f.Add(answer(func(b []byte) { b[8] = 16 }), uint16(4096))
	f.Add([]byte{1}, uint16(0))
	f.Fuzz(func(t *testing.T, b []byte, page uint16) {
		c, err := DecodeContext(b, int(page))
		if err != nil {
			return
		}
		if c.Static.Pages < 0 || c.Static.Pages > 256 {
			t.Fatalf("%d pages", c.Static.Pages)
		}
		c.SizeSend(Connected, 16, 3, 100)
		c.SizeRecv(16, 3)
		c.SizeSRQ(16, 3, false)
		c.Static.Register(nil, 5)
	})
}

// FuzzResponses: the responses of the create commands are decoded if they are long enough, to what
// stands at the field's offset (mlx5-abi.h), and refused otherwise. They stay as they were.
func FuzzResponses(f *testing.F) {
	f.Add(make([]byte, 100))
	f.Add([]byte{})
	for n := range 42 {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i + 1)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		first := func() uint32 { return binary.LittleEndian.Uint32(b) }
		number := func(name string, size int, got uint32, err error) {
			switch {
			case (err == nil) != (len(b) >= size):
				t.Errorf("%s of %d bytes, %d are enough: %v", name, len(b), size, err)
			case err == nil && got != first():
				t.Errorf("%s: %#x of % x, want %#x", name, got, b, first())
			case err != nil && (got != 0 || !strings.Contains(err.Error(), name)):
				t.Errorf("%s: %#x and %v, want 0 and an error with the name", name, got, err)
			}
		}
		got, err := DecodeCQ(b)
		number("mlx5_ib_create_cq_resp", 8, got, err)
		got, _, err = DecodeQP(b)
		number("mlx5_ib_create_qp_resp", 40, got, err)
		got, err = DecodeSRQ(b)
		number("mlx5_ib_create_srq_resp", 8, got, err)
		mac, told, err := DecodeAH(b)
		if (err == nil) != (len(b) >= 16) || err == nil && (string(mac[:]) != string(b[4:10]) || told != (first() > 0)) {
			t.Errorf("mlx5_ib_create_ah_resp: %x, %v, %v of % x", mac, told, err, b)
		}
		if !bytes.Equal(before, b) {
			t.Error("a decoder changed its input")
		}
	})
}

// TestFlowBytes compares what a flow that counts has of the driver's with struct mlx5_ib_create_flow, and
// what its address leads to with struct mlx5_ib_flow_counters_desc.
func TestFlowBytes(t *testing.T) {
	for _, c := range []struct {
		got  []byte
		want string
	}{
		{EncodeFlow(0x1122334455667788), "01000000 00000000 | 8877665544332211 02000000 00000000"},
		{FlowCounters(), "00000000 00000000 | 01000000 01000000"},
	} {
		if !bytes.Equal(c.got, unhex(t, c.want)) {
			t.Errorf("%x, want %s", c.got, c.want)
		}
	}
}
