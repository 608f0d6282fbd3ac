package softrxe

import (
	"bufio"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// recordedText has the packets that the kernel's rxe sent. Its first lines say how it was made.
//
//go:embed testdata/exchanges.txt
var recordedText string

// recorded is what one end of an exchange has sent.
type recorded struct {
	numbers numbers
	packets [][]byte // from the IP header to the ICRC
}

// numbers are the values that a device chooses, by their names, such as "QPN of a".
type numbers map[string]uint32

// put writes the packets under a title, in the form that readRecorded reads.
func (r *recorded) put(w io.Writer, title string) {
	fmt.Fprintf(w, "\n[%s]\n", title)
	for _, name := range slices.Sorted(maps.Keys(r.numbers)) {
		fmt.Fprintf(w, "%s = %#x\n", name, r.numbers[name])
	}
	for _, p := range r.packets {
		fmt.Fprintf(w, "%x\n", p)
	}
}

// readRecorded reads what put has written: all exchanges by their titles.
func readRecorded(t *testing.T, text string) map[string]*recorded {
	t.Helper()
	all := map[string]*recorded{}
	var r *recorded
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		name, value, isNumber := strings.Cut(line, " = ")
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			r = &recorded{numbers: numbers{}}
			all[strings.Trim(line, "[]")] = r
		case isNumber:
			var v uint32
			if _, err := fmt.Sscanf(value, "0x%x", &v); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			r.numbers[name] = v
		default:
			p, err := hex.DecodeString(line)
			must(t, err)
			r.packets = append(r.packets, p)
		}
	}
	must(t, lines.Err())
	return all
}

// A tap takes the capture of a software device, and has the packets that it sent and received.
type tap struct {
	mu      sync.Mutex
	packets [][]byte // from the IP header to the ICRC
}

// Write takes one part of the capture, see [soft.Options.Capture].
func (p *tap) Write(b []byte) (int, error) {
	const packetBlock, sizeAt, dataAt = 6, 20, 28 // the enhanced packet block of pcapng
	le := binary.LittleEndian
	if le.Uint32(b) == packetBlock {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.packets = append(p.packets, slices.Clone(b[dataAt:][:le.Uint32(b[sizeAt:])]))
	}
	return len(b), nil
}

// from returns the packets from an address.
func (p *tap) from(addr netip.Addr) (some [][]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.packets {
		if source(b) == addr {
			some = append(some, b)
		}
	}
	return some
}

// await waits for a packet from an address.
func (p *tap) await(t *testing.T, what string, from netip.Addr, has func(b []byte) bool) {
	t.Helper()
	await(t, what, func() bool { return slices.ContainsFunc(p.from(from), func(b []byte) bool { return has(roce(b)) }) })
}

// await waits for something.
func await(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for stop := time.Now().Add(deadline); !happened(); time.Sleep(time.Millisecond) {
		if time.Now().After(stop) {
			t.Fatalf("%s: not within %s", what, deadline)
		}
	}
}

// Sizes of headers in bytes.
const (
	ip4Size  = 20
	ip6Size  = 40
	udpSize  = 8
	bthSize  = 12
	icrcSize = 4
)

// source returns the source address of an IP packet.
func source(p []byte) netip.Addr {
	if p[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(p[12:]))
	}
	return netip.AddrFrom16([16]byte(p[8:]))
}

// roce returns what an IP packet carries, from the BTH to the ICRC.
func roce(p []byte) []byte {
	if p[0]>>4 == 4 {
		return p[ip4Size+udpSize:]
	}
	return p[ip6Size+udpSize:]
}

// The opcodes that the tests ask for: the low bits, which are alike for all transports.
const (
	opMask        = 0x1f
	opSendOnlyImm = 0x05
	opAcknowledge = 0x11
	opFlush       = 0x1c
)

// layouts are the headers behind the BTH by the low bits of the opcode (IBTA volume 1, table 38). A field is
// its name and its size in bytes. Packets without a header have data alone.
var layouts = map[byte]string{
	0x03: "imm 4", opSendOnlyImm: "imm 4", 0x09: "imm 4",
	0x06: "address 8 rkey 4 length 4", 0x0a: "address 8 rkey 4 length 4", 0x0c: "address 8 rkey 4 length 4", 0x1d: "address 8 rkey 4 length 4",
	0x0b: "address 8 rkey 4 length 4 imm 4",
	0x0d: "syndrome 1 MSN 3", 0x0f: "syndrome 1 MSN 3", 0x10: "syndrome 1 MSN 3", opAcknowledge: "syndrome 1 MSN 3",
	0x12: "syndrome 1 MSN 3 original 8",
	0x13: "address 8 rkey 4 swap 8 compare 8", 0x14: "address 8 rkey 4 add 8 compare 8",
	0x16: "rkey 4", 0x17: "rkey 4",
	opFlush: "kind 4 address 8 rkey 4 length 4",
}

// layout returns the fields of a packet from its BTH on, but for its data and ICRC.
func layout(op byte) string {
	const datagram = 0x60
	bth := "opcode 1 flags 1 P_Key 2 congestion 1 QPN 3 ackreq 1 PSN 3 "
	if op&^opMask == datagram {
		bth += "Q_Key 4 reserved 1 QPN 3 "
	}
	return bth + layouts[op&opMask]
}

// form returns all bytes of a packet from the BTH on as text, with the names of the numbers in place of their
// values and without the ICRC, which must be right.
func (n numbers) form(p []byte) string {
	var text strings.Builder
	b := roce(p)
	if got, want := binary.LittleEndian.Uint32(b[len(b)-icrcSize:]), icrc(p); got != want {
		fmt.Fprintf(&text, "ICRC %08x instead of %08x: ", got, want)
	}
	b = b[:len(b)-icrcSize]
	fields := strings.Fields(layout(b[0]))
	for i := 0; i < len(fields); i += 2 {
		size := int(fields[i+1][0] - '0')
		if size > len(b) {
			fmt.Fprintf(&text, "ends within %s", fields[i])
			return text.String()
		}
		fmt.Fprintf(&text, "%s %s, ", fields[i], n.value(fields[i], b[:size]))
		b = b[size:]
	}
	fmt.Fprintf(&text, "%d bytes %x", len(b), b)
	return text.String()
}

// value returns the name of a number that the device has chosen, or the bytes of another one.
func (n numbers) value(field string, b []byte) string {
	if field == "QPN" || field == "rkey" {
		v := uint32(0)
		for _, c := range b {
			v = v<<8 | uint32(c)
		}
		for name, chosen := range n {
			if v == chosen && strings.HasPrefix(name, field) {
				return "(" + name + ")"
			}
		}
	}
	return hex.EncodeToString(b)
}

// forms returns the forms of packets.
func (r *recorded) forms() (all []string) {
	for _, p := range r.packets {
		all = append(all, r.numbers.form(p))
	}
	return all
}

// icrc computes the ICRC of an IP packet (IBTA annex A17).
func icrc(p []byte) uint32 {
	m := slices.Clone(p[:len(p)-icrcSize])
	udp := ip4Size
	if p[0]>>4 == 4 {
		m[1], m[8], m[10], m[11] = 0xff, 0xff, 0xff, 0xff // TOS, TTL, checksum
	} else {
		m[0], m[1], m[2], m[3], m[7] = 0x6f, 0xff, 0xff, 0xff, 0xff // traffic class, flow label, hop limit
		udp = ip6Size
	}
	m[udp+6], m[udp+7], m[udp+udpSize+4] = 0xff, 0xff, 0xff // checksum; FECN, BECN and reserved bits
	local := slices.Repeat([]byte{0xff}, 8)                 // in place of the LRH of InfiniBand
	sum := crc32.ChecksumIEEE(append(local, m...))
	if b := roce(p); b[0] == opFlush {
		// rxe of Linux 6.2 to 7.2 adds all of a FLUSH once more, from the BTH on. It drops a FLUSH with the ICRC
		// that the specification has, so the software device sends that of rxe, and takes both.
		sum = crc32.Update(sum, crc32.IEEETable, b[:len(b)-icrcSize])
	}
	return sum
}
