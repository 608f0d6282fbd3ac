package mlx5

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// TestFirmwareCommands compares commands with their layout in mlx5_ifc.h, by bytes.
func TestFirmwareCommands(t *testing.T) {
	be := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	for name, c := range map[string]struct {
		in        func() ([]byte, int)
		size, out int
		has       map[int][]byte // the bytes that are not 0
	}{
		"QUERY_HCA_CAP": {QueryCaps, 16, 16 + 4096, map[int][]byte{0: {1, 0}, 7: {1}}},
		"QUERY_LAG":     {QueryLAG, 16, 16, map[int][]byte{0: {8, 0x42}}},
		"QUERY_QP":      {func() ([]byte, int) { return QueryQP(0x123456) }, 16, 272, map[int][]byte{0: {5, 0x0b}, 8: be(0x123456)}},
		"QUERY_TIS":     {func() ([]byte, int) { return QueryTIS(0x123456) }, 16, 176, map[int][]byte{0: {9, 0x15}, 8: be(0x123456)}},
		"RTS2RTS_QP": {func() ([]byte, int) { return SetSourcePort(0x123456, 0xd903) }, 272, 16,
			map[int][]byte{0: {5, 5}, 8: be(0x123456), 82: {0xd9, 0x03}, 271: {4}}},
		"RTS2RTS_QP of a LAG": {func() ([]byte, int) { return SetLAGPort(0x123456, 2) }, 272, 16,
			map[int][]byte{0: {5, 5}, 8: be(0x123456), 16: be(1 << 15), 24: {2}}},
		"RTS2RTS_QP of a stream": {func() ([]byte, int) { return ResetStream(0x123456, 0x0708) }, 464, 16,
			map[int][]byte{0: {5, 5}, 8: be(0x80123456), 271: {1}, 274: {7, 8}}},
		"MODIFY_TIS": {func() ([]byte, int) { return SetTISLAGPort(0x123456, 2) }, 192, 16,
			map[int][]byte{0: {9, 0x13}, 8: be(0x123456), 23: {4}, 32: {2}}},
	} {
		want := make([]byte, c.size)
		for at, b := range c.has {
			copy(want[at:], b)
		}
		if in, out := c.in(); !bytes.Equal(in, want) || out != c.out {
			t.Errorf("%s: %x and %d bytes of answer, want %x and %d", name, in, out, want, c.out)
		}
	}
}

// TestFirmwareAnswers reads answers with one bit each, and ones that are too short.
func TestFirmwareAnswers(t *testing.T) {
	caps := func(at int, v byte) []byte {
		b := make([]byte, 16+4096)
		b[16+at] = v
		return b
	}
	for i, c := range []struct {
		b    []byte
		want Caps
	}{
		{caps(0x151/8, 0x40), Caps{SourcePort: true}},
		{caps(0x152/8, 0x20), Caps{SetLAGPort: true}},
		{caps(0x278/8, 0x80), Caps{LAGPort: true}},
		{caps(0x27c/8, 0x02), Caps{LAGPorts: 2}},
		{caps(0x122/8, 0x20), Caps{Extended: true}},
		{caps(0x12a/8, 0xc3), Caps{LogDCReads: 3}},
		{make([]byte, 16+4096), Caps{}},
		{caps(0x27c/8, 0x0f)[:4111], Caps{}},
	} {
		if got := DecodeCaps(c.b); got != c.want {
			t.Errorf("%d: %+v, want %+v", i, got, c.want)
		}
	}
	lag := make([]byte, 16)
	lag[11], lag[14], lag[15] = 0xf9, 0xf2, 0xf1
	if state, by := DecodeLAG(lag); state != 1 || by != [2]uint8{1, 2} {
		t.Errorf("QUERY_LAG: %d, %v", state, by)
	}
	qp := make([]byte, 272)
	qp[24], qp[82], qp[83] = 0x32, 0xd9, 0x03
	if lag, udp := DecodeQPPorts(qp); lag != 2 || udp != 0xd903 {
		t.Errorf("QUERY_QP: %d, %#x", lag, udp)
	}
	tis := make([]byte, 176)
	tis[16] = 0x82
	if lag := DecodeTISLAGPort(tis); lag != 2 {
		t.Errorf("QUERY_TIS: %d", lag)
	}
	for n := range 16 {
		DecodeLAG(lag[:n])
		DecodeAnswer(lag[:n])
		DecodeQPPorts(qp[:n])
		DecodeTISLAGPort(tis[:n])
	}
	for status, want := range map[uint8]string{3: "bad parameter (0x3), syndrome 0x12345678", 0x10: "bad QP state (0x10), syndrome 0x12345678", 0x77: "unknown status (0x77), syndrome 0x12345678"} {
		if got := DecodeAnswer([]byte{status, 0, 0, 0, 0x12, 0x34, 0x56, 0x78}).String(); got != want {
			t.Errorf("status %#x: %q, want %q", status, got, want)
		}
	}
}

// TestTIS: the number of a TIS is valid if a bit of the response says so.
func TestTIS(t *testing.T) {
	resp := make([]byte, QPRespSize)
	binary.LittleEndian.PutUint32(resp[16:], 0x2007)
	if n, ok := DecodeTIS(resp); ok {
		t.Errorf("a response without a TIS has %#x", n)
	}
	resp[8] = 2
	if n, ok := DecodeTIS(resp); !ok || n != 0x2007 {
		t.Errorf("the TIS is %#x, %v, want 0x2007", n, ok)
	}
	if _, ok := DecodeTIS(resp[:8]); ok {
		t.Error("a short response has a TIS")
	}
}
