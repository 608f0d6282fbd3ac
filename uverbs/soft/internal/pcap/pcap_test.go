package pcap

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// must fails a test on an error.
var must = testenv.Must

// unhex decodes hexadecimal digits with white space between them, and comments from # on.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	var digits strings.Builder
	for line := range strings.Lines(s) {
		line, _, _ = strings.Cut(line, "#")
		digits.WriteString(strings.Join(strings.Fields(line), ""))
	}
	b, err := hex.DecodeString(digits.String())
	must(t, err)
	return b
}

// fromRxe are ACKs that rxe of Linux 6.1 sent, from the IP header on.
var fromRxe = []struct {
	name, hex string
	p         Packet
	udpAt     int // where the UDP header begins
}{
	{
		name:  "IPv4",
		hex:   "45000030d7f9400040114ebf0a0100010a010002 faa112b7001c0000 1100ffff0000b59c009f682e1f000001a97d601e",
		p:     Packet{From: netip.MustParseAddrPort("10.1.0.1:64161"), To: netip.MustParseAddrPort("10.1.0.2:4791"), ID: 0xd7f9},
		udpAt: 20,
	},
	{
		name:  "IPv6",
		hex:   "60000000001c1140fd000001000000000000000000000001fd000001000000000000000000000002 dbd912b7001c0000 1100ffff00004c3600ede9971f00000162fe8f5a",
		p:     Packet{From: netip.MustParseAddrPort("[fd00:1::1]:56281"), To: netip.MustParseAddrPort("[fd00:1::2]:4791"), HopLimit: 64},
		udpAt: 40,
	},
}

// TestHeadersOfRxe: the headers that the Writer makes up are those that rxe sent, but for the UDP
// checksum, which rxe leaves out.
func TestHeadersOfRxe(t *testing.T) {
	for _, c := range fromRxe {
		t.Run(c.name, func(t *testing.T) {
			want := unhex(t, c.hex)
			for _, seal := range []bool{false, true} {
				p := c.p
				p.Data = bytes.Clone(want[c.udpAt+udpSize:])
				if p.Seal = seal; seal {
					clear(p.Data[len(p.Data)-wire.ICRCSize:])
				}
				before := bytes.Clone(p.Data)
				got := make([]byte, len(want))
				for i := range got {
					got[i] = 0xaa
				}
				putIP(got, &p, p.From.Addr(), p.To.Addr())
				checkUDP(t, got, c.udpAt)
				clear(got[c.udpAt+6 : c.udpAt+8])
				if diff := cmp.Diff(hex.EncodeToString(want), hex.EncodeToString(got)); diff != "" {
					t.Errorf("seal %v (-rxe +written):\n%s", seal, diff)
				}
				if !bytes.Equal(before, p.Data) {
					t.Errorf("seal %v: Data was changed", seal)
				}
			}
		})
	}
}

// checkUDP checks a UDP checksum: the sum over pseudo-header and datagram is 0xffff.
func checkUDP(t *testing.T, ip []byte, at int) {
	t.Helper()
	s := uint64(protoUDP) + uint64(len(ip)-at)
	addrs := ip[12:20]
	if at == 40 {
		addrs = ip[8:40]
	}
	for _, part := range [][]byte{addrs, ip[at:]} {
		for i, v := range part {
			s += uint64(v) << (8 * (1 - i%2))
		}
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	if s != 0xffff || ip[at+6] == 0 && ip[at+7] == 0 {
		t.Errorf("the UDP checksum % x is wrong: the sum is %#x", ip[at+6:at+8], s)
	}
}

// TestFile: a file is as the specification of pcapng says.
func TestFile(t *testing.T) {
	var file bytes.Buffer
	w, err := NewWriter(&file, "goverbs", "soft0")
	must(t, err)
	p := fromRxe[0].p
	p.Data = unhex(t, "1100ffff0000b59c009f682e1f000001a97d601e")
	p.Time = time.Unix(1700000000, 123456789)
	p.Direction = Sent
	p.Comment = "ACK!!"
	p.TrafficClass = 2
	must(t, w.Write(&p))
	const want = `
		0a0d0d0a 2c000000                     # section header block
		4d3c2b1a 0100 0000 ffffffffffffffff   # byte order, version 1.0, length unknown
		0400 0700 676f766572627300            # shb_userappl goverbs
		0000 0000 2c000000

		01000000 2c000000                     # interface description block
		6500 0000 00000000                    # LINKTYPE_RAW, no limit
		0200 0500 736f667430000000            # if_name soft0
		0900 0100 09000000                    # if_tsresol 10^-9
		0000 0000 2c000000

		06000000 68000000                     # enhanced packet block
		00000000 fe9c9717 15cd853d            # interface 0, 0x17979cfe3d85cd15 ns
		30000000 30000000
		45020030d7f9400040114ebd0a0100010a010002 faa112b7001c8651 1100ffff0000b59c009f682e1f000001a97d601e
		0200 0400 02000000                    # epb_flags: outbound
		0100 0500 41434b2121000000            # opt_comment
		0000 0000 68000000`
	if diff := cmp.Diff(hex.Dump(unhex(t, want)), hex.Dump(file.Bytes())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestErrors(t *testing.T) {
	w, err := NewWriter(io.Discard, "", "")
	must(t, err)
	v4, v6 := netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("[fd00::1]:1")
	for _, c := range []struct {
		name     string
		from, to netip.AddrPort
		size     int
		want     error
	}{
		{"two families", v4, v6, 16, errFamilies},
		{"no address", v4, netip.AddrPort{}, 16, errFamilies},
		{"too short", v4, v4, 15, errSize},
		{"too long", v6, v6, 65508, errSize},
		{"longest", v6, v6, 65507, nil},
		{"shortest", netip.MustParseAddrPort("[::ffff:10.0.0.1]:1"), v4, 16, nil},
	} {
		if err := w.Write(&Packet{From: c.from, To: c.to, Data: make([]byte, c.size)}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	r, bad := io.Pipe()
	r.CloseWithError(io.ErrUnexpectedEOF)
	if _, err := NewWriter(bad, "", ""); err != io.ErrUnexpectedEOF {
		t.Errorf("NewWriter: %v", err)
	}
	w.w = bad
	if err := w.Write(&Packet{From: v4, To: v4, Data: make([]byte, 16)}); err != io.ErrUnexpectedEOF {
		t.Errorf("Write: %v", err)
	}
}

// TestBlocks: every block of a file ends where its length says, whatever the sizes of data and comments,
// and also if several goroutines write.
func TestBlocks(t *testing.T) {
	var file bytes.Buffer
	w, err := NewWriter(&file, strings.Repeat("x", 1<<17), "")
	must(t, err)
	const writers, each = 4, 20
	var wg sync.WaitGroup
	for k := range writers {
		wg.Go(func() {
			for i := range each {
				p := fromRxe[i%2].p
				p.Data, p.Comment, p.Seal = make([]byte, 16+k+i), strings.Repeat("c", i), true
				if err := w.Write(&p); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	blocks := 0
	for b := file.Bytes(); len(b) > 0; blocks++ {
		n := int(b[4]) | int(b[5])<<8 | int(b[6])<<16
		if n%4 != 0 || n < 12 || n > len(b) || !bytes.Equal(b[4:8], b[n-4:n]) {
			t.Fatalf("block %d: the lengths % x before and % x behind it are wrong", blocks, b[4:8], b[n-4:n])
		}
		b = b[n:]
	}
	if blocks != 2+writers*each {
		t.Errorf("%d blocks, want %d", blocks, 2+writers*each)
	}
}

func TestAllocations(t *testing.T) {
	w, err := NewWriter(io.Discard, "goverbs", "soft0")
	if err != nil {
		t.Fatal(err)
	}
	p := fromRxe[1].p
	p.Data, p.Comment, p.Seal, p.Time = make([]byte, 1040), "a comment", true, time.Unix(1, 2)
	if n := testing.AllocsPerRun(100, func() {
		if err := w.Write(&p); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("Write allocates %v times", n)
	}
}
