package wire

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// unhex decodes hexadecimal digits with spaces between them.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// golden are packets without ICRC: the bytes, and what they mean.
var golden = []struct {
	name    string
	hex     string
	header  Header
	payload string
}{
	{
		name:    "RC SEND Only",
		hex:     "04 f0 ffff 00 000011 80 123456 61 000000",
		header:  Header{Opcode: RC | SendOnly, Solicited: true, MigReq: true, Pad: 3, PKey: 0xffff, DestQP: 0x11, AckReq: true, PSN: 0x123456},
		payload: "a",
	},
	{
		name:    "RC SEND Last with Immediate",
		hex:     "03 20 8001 c0 abcdef 00 ffffff 01020304 6162 0000",
		header:  Header{Opcode: RC | SendLastImm, Pad: 2, PKey: 0x8001, FECN: true, BECN: true, DestQP: 0xabcdef, PSN: 0xffffff, Imm: 0x01020304},
		payload: "ab",
	},
	{
		name:    "UC RDMA WRITE Only with Immediate",
		hex:     "2b 40 ffff 40 000012 00 000001 1122334455667788 99aabbcc 00000004 deadbeef 77777777",
		header:  Header{Opcode: UC | WriteOnlyImm, MigReq: true, PKey: 0xffff, BECN: true, DestQP: 0x12, PSN: 1, Addr: 0x1122334455667788, RKey: 0x99aabbcc, Length: 4, Imm: 0xdeadbeef},
		payload: "wwww",
	},
	{
		name:   "RC RDMA READ Request",
		hex:    "0c 40 ffff 80 000013 80 000002 0000000000001000 00000123 00010000",
		header: Header{Opcode: RC | ReadRequest, MigReq: true, PKey: 0xffff, FECN: true, DestQP: 0x13, AckReq: true, PSN: 2, Addr: 0x1000, RKey: 0x123, Length: 0x10000},
	},
	{
		name:    "RC RDMA READ Response Last",
		hex:     "0f 00 ffff 00 000014 00 000003 1f000005 72727272",
		header:  Header{Opcode: RC | ReadResponseLast, PKey: 0xffff, DestQP: 0x14, PSN: 3, Syndrome: 0x1f, MSN: 5},
		payload: "rrrr",
	},
	{
		name:    "RC RDMA READ Response Middle",
		hex:     "0e 00 ffff 00 000014 00 000003 72727272",
		header:  Header{Opcode: RC | ReadResponseMiddle, PKey: 0xffff, DestQP: 0x14, PSN: 3},
		payload: "rrrr",
	},
	{ // sent by rxe of Linux 6.1
		name:   "RC Acknowledge",
		hex:    "11 00 ffff 00 00b59c 00 9f682e 1f000001",
		header: Header{Opcode: RC | Acknowledge, PKey: 0xffff, DestQP: 0xb59c, PSN: 0x9f682e, Syndrome: SyndromeACK, MSN: 1},
	},
	{
		name:   "RC ATOMIC Acknowledge",
		hex:    "12 00 ffff 00 000015 00 000004 1f000006 0102030405060708",
		header: Header{Opcode: RC | AtomicAcknowledge, PKey: 0xffff, DestQP: 0x15, PSN: 4, Syndrome: 0x1f, MSN: 6, Original: 0x0102030405060708},
	},
	{
		name:   "RC CmpSwap",
		hex:    "13 00 ffff 00 000016 80 000005 0000000000002000 00000a0b 1111111111111111 2222222222222222",
		header: Header{Opcode: RC | CompareSwap, PKey: 0xffff, DestQP: 0x16, AckReq: true, PSN: 5, Addr: 0x2000, RKey: 0xa0b, SwapAdd: 0x1111111111111111, Compare: 0x2222222222222222},
	},
	{
		name:    "RC SEND Only with Invalidate",
		hex:     "17 00 ffff 00 000017 80 000006 00c0ffee 69696969",
		header:  Header{Opcode: RC | SendOnlyInv, PKey: 0xffff, DestQP: 0x17, AckReq: true, PSN: 6, InvKey: 0xc0ffee},
		payload: "iiii",
	},
	{
		name:   "RC FLUSH",
		hex:    "1c 00 ffff 00 000018 80 000007 00000013 0000000000003000 00000456 00000040",
		header: Header{Opcode: RC | Flush, PKey: 0xffff, DestQP: 0x18, AckReq: true, PSN: 7, FlushType: FlushGlobal | FlushPersistent, FlushLevel: FlushMR, Addr: 0x3000, RKey: 0x456, Length: 0x40},
	},
	{
		name:    "RC ATOMIC WRITE",
		hex:     "1d 00 ffff 00 000019 80 000008 0000000000004000 00000789 00000008 6161616161616161",
		header:  Header{Opcode: RC | AtomicWrite, PKey: 0xffff, DestQP: 0x19, AckReq: true, PSN: 8, Addr: 0x4000, RKey: 0x789, Length: 8},
		payload: "aaaaaaaa",
	},
	{
		name:    "UD SEND Only with Immediate",
		hex:     "65 10 ffff 00 ffffff 00 000009 80010000 00000001 0000002a 75757500",
		header:  Header{Opcode: UD | SendOnlyImm, Pad: 1, PKey: 0xffff, DestQP: MulticastQP, PSN: 9, QKey: GSIQKey, SrcQP: GSIQP, Imm: 42},
		payload: "uuu",
	},
}

func TestGoldenPackets(t *testing.T) {
	for _, g := range golden {
		t.Run(g.name, func(t *testing.T) {
			want := append(unhex(t, g.hex), 1, 2, 3, 4) // any ICRC
			if got := PacketSize(g.header.Opcode, len(g.payload)); got != len(want) {
				t.Errorf("PacketSize is %d, want %d", got, len(want))
			}
			if got := Padding(len(g.payload)); got != int(g.header.Pad) {
				t.Errorf("Padding is %d, want %d", got, g.header.Pad)
			}
			b := make([]byte, len(want))
			for i := range g.header.Size() {
				b[i] = 0xaa // Put must overwrite every byte
			}
			n := g.header.Put(b)
			copy(b[n:], g.payload)
			copy(b[len(b)-ICRCSize:], want[len(b)-ICRCSize:])
			if diff := cmp.Diff(want, b); diff != "" {
				t.Errorf("Put (-want +got):\n%s", diff)
			}
			h := Header{Addr: 1, RKey: 1, Length: 1, Imm: 1, QKey: 1, Original: 1, MSN: 1} // Parse must clear these
			payload, err := Parse(want, &h)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(g.header, h); diff != "" {
				t.Errorf("Parse (-want +got):\n%s", diff)
			}
			if string(payload) != g.payload || cap(payload) != len(payload) {
				t.Errorf("payload is %q with capacity %d, want %q", payload, cap(payload), g.payload)
			}
		})
	}
}

// TestPutCutsOff: numbers that are too large for their field do not spill into the next one.
func TestPutCutsOff(t *testing.T) {
	for _, k := range known {
		h := Header{
			Opcode: k.op, Pad: 0xfc, TVer: 0xf0, PKey: 0xffff, DestQP: 0xff000001, PSN: 0xff000000, Syndrome: 0x1f, MSN: 0xff000000,
			QKey: 0, SrcQP: 0xff000000, FlushType: 0xf0, FlushLevel: 0xfc,
		}
		b := make([]byte, h.Size()+ICRCSize)
		h.Put(b)
		var got Header
		if _, err := Parse(b, &got); err != nil {
			t.Fatalf("opcode %#02x: %v", uint8(k.op), err)
		}
		want := Header{Opcode: k.op, PKey: 0xffff, DestQP: 1}
		if k.op.HasAETH() {
			want.Syndrome = 0x1f
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("opcode %#02x (-want +got):\n%s", uint8(k.op), diff)
		}
	}
}

func TestParseErrors(t *testing.T) {
	good := "04 30 ffff 00 000011 80 123456 61000000 00000000"
	for _, c := range []struct {
		name string
		hex  string
		want ParseError
	}{
		{"empty", "", TooShort},
		{"15 bytes", good[:len("04 30 ffff 00 000011 80 123456 610000")], TooShort},
		{"padding in place of the header", "04 30 ffff 00 000011 80 123456 00000000", TooShort},
		{"RETH cut off", "0a 00 ffff 00 000011 80 123456 0000000000000000 00000000 00000000", TooShort},
		{"17 bytes", "04 00 ffff 00 000011 80 123456 61 00000000", BadLength},
		{"RD", "44" + good[2:], UnknownOpcode},
		{"XRC", "a4" + good[2:], UnknownOpcode},
		{"RC 0x15", "15" + good[2:], UnknownOpcode},
		{"UC READ", "2c" + good[2:], UnknownOpcode},
		{"UD WRITE", "6a" + good[2:], UnknownOpcode},
		{"CNP", "81" + good[2:], CongestionNotification},
		{"TVer 1", "04 31" + good[5:], BadVersion},
		{"QP 0", strings.Replace(good, "000011", "000000", 1), ZeroQPN},
	} {
		t.Run(c.name, func(t *testing.T) {
			payload, err := Parse(unhex(t, c.hex), new(Header))
			if !errors.Is(err, c.want) || payload != nil {
				t.Errorf("Parse returned %v, %v, want %v", payload, err, c.want)
			}
		})
	}
}

func TestParseErrorNames(t *testing.T) {
	seen := map[string]bool{}
	for e := range ParseError(NumParseErrors) {
		for _, s := range []string{e.Counter(), e.Error()} {
			if s == "" || seen[s] {
				t.Errorf("error %d has the name %q, which is empty or not the only one", e, s)
			}
			seen[s] = true
		}
	}
}

// fuzzHeader makes a header from bytes, with zeros in the fields that its opcode does not have.
func fuzzHeader(op Opcode, b []byte) (h Header) {
	var at int
	next := func(size int) (v uint64) {
		for range size {
			v <<= 8
			if at < len(b) {
				v |= uint64(b[at])
			}
			at++
		}
		return v
	}
	flags := next(1)
	h = Header{
		Opcode: op, Solicited: flags&1 != 0, MigReq: flags&2 != 0, AckReq: flags&4 != 0, FECN: flags&8 != 0, BECN: flags&16 != 0,
		PKey: uint16(next(2)), DestQP: uint32(next(3)) | 1, PSN: uint32(next(3)),
	}
	in := opcodes[op]
	if in&hasDETH != 0 {
		h.QKey, h.SrcQP = uint32(next(4)), uint32(next(3))
	}
	if in&(hasRETH|hasAtomicETH) != 0 {
		h.Addr, h.RKey = next(8), uint32(next(4))
	}
	if in&hasRETH != 0 {
		h.Length = uint32(next(4))
	}
	if in&hasAtomicETH != 0 {
		h.Compare, h.SwapAdd = next(8), next(8)
	}
	if in&hasAETH != 0 {
		h.Syndrome, h.MSN = uint8(next(1)), uint32(next(3))
	}
	if in&hasAtomicAckETH != 0 {
		h.Original = next(8)
	}
	if in&hasImm != 0 {
		h.Imm = uint32(next(4))
	}
	if in&hasIETH != 0 {
		h.InvKey = uint32(next(4))
	}
	if in&hasFETH != 0 {
		h.FlushType, h.FlushLevel = uint8(next(1))&0xf, uint8(next(1))&3
	}
	return h
}

// FuzzPutParse: Parse returns what Put wrote, for every opcode.
func FuzzPutParse(f *testing.F) {
	for i := range known {
		f.Add(uint8(i), []byte("0123456789abcdefghijklmnopqrstuvwxyz"), []byte("payload"))
	}
	f.Fuzz(func(t *testing.T, i uint8, fields, payload []byte) {
		want := fuzzHeader(known[int(i)%len(known)].op, fields)
		want.Pad = uint8(Padding(len(payload)))
		b := make([]byte, PacketSize(want.Opcode, len(payload)))
		copy(b[want.Put(b):], payload)
		var got Header
		p, err := Parse(b, &got)
		if err != nil {
			t.Fatal(err)
		}
		if got != want || string(p) != string(payload) {
			t.Errorf("Parse returned %+v, %q, want %+v, %q", got, p, want, payload)
		}
	})
}

// FuzzParse: Parse never panics, and Put writes what Parse read, but for reserved bits.
func FuzzParse(f *testing.F) {
	for _, g := range golden {
		f.Add(append(unhex(f, g.hex), 0, 0, 0, 0))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Header
		payload, err := Parse(b, &h)
		if err != nil {
			return
		}
		if n := PacketSize(h.Opcode, len(payload)); h.Pad == uint8(Padding(len(payload))) && n != len(b) {
			t.Errorf("PacketSize is %d, the packet has %d bytes", n, len(b))
		}
		again := make([]byte, len(b))
		n := h.Put(again)
		copy(again[n:], b[n:])
		var h2 Header
		payload2, err := Parse(again, &h2)
		if err != nil || h2 != h || string(payload2) != string(payload) {
			t.Errorf("second Parse returned %+v, %q, %v, want %+v, %q", h2, payload2, err, h, payload)
		}
	})
}
