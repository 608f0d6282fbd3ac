package wire

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// properties are the methods of Opcode that report a property, by name.
var properties = []struct {
	name string
	has  func(Opcode) bool
}{
	{"request", Opcode.IsRequest},
	{"response", Opcode.IsResponse},
	{"send", Opcode.IsSend},
	{"write", Opcode.IsWrite},
	{"readrequest", Opcode.IsReadRequest},
	{"readresponse", Opcode.IsReadResponse},
	{"atomic", Opcode.IsAtomic},
	{"first", Opcode.First},
	{"middle", Opcode.Middle},
	{"last", Opcode.Last},
	{"only", Opcode.Only},
	{"deth", Opcode.HasDETH},
	{"reth", Opcode.HasRETH},
	{"aeth", Opcode.HasAETH},
	{"imm", Opcode.HasImm},
	{"inv", Opcode.HasInv},
	{"payload", Opcode.HasPayload},
	{"recv", Opcode.NeedsRecv},
	{"completes", Opcode.CompletesRecv},
}

// known lists all opcodes: number, size of the headers, properties. From the InfiniBand Architecture
// Specification, volume 1, section 9.2.1 and chapter 9.4.
var known = []struct {
	op         Opcode
	size       int
	properties string
}{
	{0x00, 12, "request send first payload recv"},
	{0x01, 12, "request send middle payload"},
	{0x02, 12, "request send last payload completes"},
	{0x03, 16, "request send last imm payload completes"},
	{0x04, 12, "request send only payload recv completes"},
	{0x05, 16, "request send only imm payload recv completes"},
	{0x06, 28, "request write first reth payload"},
	{0x07, 12, "request write middle payload"},
	{0x08, 12, "request write last payload"},
	{0x09, 16, "request write last imm payload recv completes"},
	{0x0a, 28, "request write only reth payload"},
	{0x0b, 32, "request write only reth imm payload recv completes"},
	{0x0c, 28, "request readrequest only reth"},
	{0x0d, 16, "response readresponse first aeth payload"},
	{0x0e, 12, "response readresponse middle payload"},
	{0x0f, 16, "response readresponse last aeth payload"},
	{0x10, 16, "response readresponse only aeth payload"},
	{0x11, 16, "response only aeth"},
	{0x12, 24, "response only aeth"},
	{0x13, 40, "request atomic only"},
	{0x14, 40, "request atomic only"},
	{0x16, 16, "request send last inv payload completes"},
	{0x17, 16, "request send only inv payload recv completes"},
	{0x1c, 32, "request only reth"},
	{0x1d, 28, "request only reth payload"},

	{0x20, 12, "request send first payload recv"},
	{0x21, 12, "request send middle payload"},
	{0x22, 12, "request send last payload completes"},
	{0x23, 16, "request send last imm payload completes"},
	{0x24, 12, "request send only payload recv completes"},
	{0x25, 16, "request send only imm payload recv completes"},
	{0x26, 28, "request write first reth payload"},
	{0x27, 12, "request write middle payload"},
	{0x28, 12, "request write last payload"},
	{0x29, 16, "request write last imm payload recv completes"},
	{0x2a, 28, "request write only reth payload"},
	{0x2b, 32, "request write only reth imm payload recv completes"},

	{0x64, 20, "request send only deth payload recv completes"},
	{0x65, 24, "request send only deth imm payload recv completes"},
}

func TestOpcodes(t *testing.T) {
	seen := map[Opcode]bool{}
	for _, k := range known {
		seen[k.op] = true
		if got := k.op.HeaderSize(); got != k.size {
			t.Errorf("opcode %#02x: header size is %d, want %d", uint8(k.op), got, k.size)
		}
		want := strings.Fields(k.properties)
		for _, p := range properties {
			if got, want := p.has(k.op), slices.Contains(want, p.name); got != want {
				t.Errorf("opcode %#02x: %s is %v, want %v", uint8(k.op), p.name, got, want)
			}
		}
		if got, want := k.op.Starts(), k.op.First() || k.op.Only(); got != want {
			t.Errorf("opcode %#02x: Starts is %v", uint8(k.op), got)
		}
		if got, want := k.op.Ends(), k.op.Last() || k.op.Only(); got != want {
			t.Errorf("opcode %#02x: Ends is %v", uint8(k.op), got)
		}
		if got := k.op.Transport() | k.op.Operation(); got != k.op {
			t.Errorf("opcode %#02x: transport and operation are %#02x", uint8(k.op), uint8(got))
		}
		if k.size > MaxHeaderSize {
			t.Errorf("opcode %#02x: header size %d is more than MaxHeaderSize", uint8(k.op), k.size)
		}
	}
	for n := range 256 {
		op := Opcode(n)
		if op.Known() != seen[op] {
			t.Errorf("opcode %#02x: Known is %v", n, op.Known())
		}
		if !seen[op] && slices.ContainsFunc(properties, func(p struct {
			name string
			has  func(Opcode) bool
		}) bool {
			return p.has(op)
		}) {
			t.Errorf("unknown opcode %#02x has a property", n)
		}
	}
}

func TestOpcodeOfTransport(t *testing.T) {
	for _, c := range []struct{ got, want Opcode }{
		{RC | SendOnly, 0x04}, {UC | WriteLastImm, 0x29}, {UD | SendOnlyImm, 0x65}, {RC | AtomicWrite, 0x1d},
	} {
		if c.got != c.want {
			t.Errorf("opcode is %#02x, want %#02x", uint8(c.got), uint8(c.want))
		}
	}
	if got := (UD | SendOnly).Transport(); got != UD {
		t.Errorf("transport is %#02x, want %#02x", uint8(got), uint8(UD))
	}
}

func TestPSN(t *testing.T) {
	for _, c := range []struct {
		a, b uint32
		diff int
	}{
		{0, 0, 0},
		{1, 0, 1},
		{0, 1, -1},
		{0, PSNMask, 1},
		{PSNMask, 0, -1},
		{0x7fffff, 0, 0x7fffff},
		{0x800000, 0, -0x800000},
		{5, 0xfffffe, 7},
		{0x123456, 0x123457, -1},
	} {
		t.Run(fmt.Sprintf("%#x,%#x", c.a, c.b), func(t *testing.T) {
			if got := Diff(c.a, c.b); got != c.diff {
				t.Errorf("Diff is %d, want %d", got, c.diff)
			}
			if got := Add(c.b, c.diff); got != c.a {
				t.Errorf("Add is %#x, want %#x", got, c.a)
			}
		})
	}
}

func TestSyndrome(t *testing.T) {
	for _, c := range []struct {
		syndrome uint8
		want     SyndromeType
	}{
		{SyndromeACK, ACK}, {0, ACK}, {0x21, RNRNAK}, {0x3f, RNRNAK}, {0x40, Reserved},
		{SyndromeSequence, NAK}, {SyndromeRemoteOp, NAK},
	} {
		if got := TypeOf(c.syndrome); got != c.want {
			t.Errorf("TypeOf(%#02x) is %#02x, want %#02x", c.syndrome, uint8(got), uint8(c.want))
		}
	}
}
