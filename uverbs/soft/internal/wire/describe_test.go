package wire

import "testing"

func TestDescribe(t *testing.T) {
	want := map[string]string{
		"RC SEND Only":                      "RC SEND Only QP 17 PSN 1193046, solicited, ack requested, 1 byte",
		"RC SEND Last with Immediate":       "RC SEND Last with Immediate QP 11259375 PSN 16777215, immediate 0x1020304, FECN, BECN, P_Key 0x8001, 2 bytes",
		"UC RDMA WRITE Only with Immediate": "UC RDMA WRITE Only with Immediate QP 18 PSN 1, address 0x1122334455667788 rkey 0x99aabbcc length 4, immediate 0xdeadbeef, BECN, 4 bytes",
		"RC RDMA READ Request":              "RC RDMA READ Request QP 19 PSN 2, address 0x1000 rkey 0x123 length 65536, ack requested, FECN",
		"RC RDMA READ Response Last":        "RC RDMA READ Response Last QP 20 PSN 3, ACK MSN 5, 4 bytes",
		"RC RDMA READ Response Middle":      "RC RDMA READ Response Middle QP 20 PSN 3, 4 bytes",
		"RC Acknowledge":                    "RC Acknowledge QP 46492 PSN 10446894, ACK MSN 1",
		"RC ATOMIC Acknowledge":             "RC ATOMIC Acknowledge QP 21 PSN 4, ACK MSN 6, original 0x102030405060708",
		"RC CmpSwap":                        "RC CmpSwap QP 22 PSN 5, address 0x2000 rkey 0xa0b compare 0x2222222222222222 swap 0x1111111111111111, ack requested",
		"RC SEND Only with Invalidate":      "RC SEND Only with Invalidate QP 23 PSN 6, invalidate rkey 0xc0ffee, ack requested, 4 bytes",
		"RC FLUSH":                          "RC FLUSH QP 24 PSN 7, global and persistent of the MR, address 0x3000 rkey 0x456 length 64, ack requested",
		"RC ATOMIC WRITE":                   "RC ATOMIC WRITE QP 25 PSN 8, address 0x4000 rkey 0x789 length 8, ack requested, 8 bytes",
		"UD SEND Only with Immediate":       "UD SEND Only with Immediate QP 16777215 PSN 9, from QP 1 Q_Key 0x80010000, immediate 0x2a, 3 bytes",
	}
	for _, g := range golden {
		if got := Describe(append(unhex(t, g.hex), 0, 0, 0, 0)); got != want[g.name] {
			t.Errorf("%s:\n got %s\nwant %s", g.name, got, want[g.name])
		}
	}
	for _, c := range []struct{ hex, want string }{
		{"", "0 bytes: roce: the packet is shorter than its headers, padding and ICRC"},
		{"81 00 ffff 00 000011 00 000000 00000000", "16 bytes: roce: the packet is a congestion notification (opcode 0x81)"},
		{"14 00 ffff 00 000016 00 000005 0000000000002000 00000a0b 0000000000000003 0000000000000000 00000000", "RC FetchAdd QP 22 PSN 5, address 0x2000 rkey 0xa0b add 0x3"},
		{"11 00 ffff 00 000016 00 000005 1f000005 aaaaaaaa 00000000", "RC Acknowledge QP 22 PSN 5, ACK MSN 5, 4 bytes"}, // data where none belongs
	} {
		if got := Describe(unhex(t, c.hex)); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.hex, got, c.want)
		}
	}
}

func TestDescribeSyndrome(t *testing.T) {
	for _, c := range []struct {
		syndrome uint8
		want     string
	}{
		{0x1f, "ACK"},
		{0x05, "ACK credits 5"},
		{0x2c, "RNR NAK wait 640µs"},
		{0x20, "RNR NAK wait 655.36ms"},
		{0x45, "reserved syndrome 0x45"},
		{0x60, "NAK PSN sequence error"},
		{0x61, "NAK invalid request"},
		{0x62, "NAK remote access error"},
		{0x63, "NAK remote operational error"},
		{0x64, "NAK code 4"},
	} {
		if got := DescribeSyndrome(c.syndrome); got != c.want {
			t.Errorf("syndrome %#02x: %q, want %q", c.syndrome, got, c.want)
		}
	}
}

func TestDescribeFlush(t *testing.T) {
	for _, c := range []struct {
		typ, level uint8
		want       string
	}{
		{1, 0, "global of a range"}, {2, 1, "persistent of the MR"}, {0, 2, "to nowhere, level 2"}, {8, 0, "placement 0x8 of a range"},
	} {
		if got := describeFlush(c.typ, c.level); got != c.want {
			t.Errorf("type %d, level %d: %q, want %q", c.typ, c.level, got, c.want)
		}
	}
}

func TestOpcodeNames(t *testing.T) {
	seen := map[string]Opcode{}
	for n := range 256 {
		op := Opcode(n)
		name := op.String()
		if other, ok := seen[name]; ok {
			t.Errorf("opcodes %#02x and %#02x have the name %q", uint8(other), n, name)
		}
		seen[name] = op
	}
	for _, c := range []struct {
		op   Opcode
		want string
	}{
		{RC | SendOnly, "RC SEND Only"}, {UD | SendOnlyImm, "UD SEND Only with Immediate"}, {CNP, "CNP"}, {0x44, "opcode 0x44"}, {0x15, "opcode 0x15"},
	} {
		if got := c.op.String(); got != c.want {
			t.Errorf("opcode %#02x is %q, want %q", uint8(c.op), got, c.want)
		}
	}
}
