//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// goldenEthernet is what ethernet.txt has: what its program was given, and the entries of each queue.
type goldenEthernet struct {
	raw, headers, ud  uint32 // QPs
	buf               uint64
	lkey, lkeyHeaders uint32
	index             uint8
	gid               [16]byte
	sends             map[uint32][][]byte // by QP
}

func readGoldenEthernet(t *testing.T) *goldenEthernet {
	t.Helper()
	lines := goldenLines(t, "ethernet.txt")
	g := &goldenEthernet{sends: map[uint32][][]byte{}}
	var gid string
	_, err := fmt.Sscanf(lines[0], "raw %v headers %v ud %v memory %v lkeys %v %v index %v gid %s",
		&g.raw, &g.headers, &g.ud, &g.buf, &g.lkey, &g.lkeyHeaders, &g.index, &gid)
	ok(t, err)
	_, err = hex.Decode(g.gid[:], []byte(gid))
	ok(t, err)
	for _, l := range lines[1:] {
		number, text, _ := strings.Cut(l, " ")
		var qpn uint32
		_, err := fmt.Sscan(number, &qpn)
		ok(t, err)
		b, err := hex.DecodeString(text)
		ok(t, err)
		g.sends[qpn] = append(g.sends[qpn], b)
	}
	return g
}

// recordedMAC is the address that the recorded CREATE_AH was answered with.
func recordedMAC(t *testing.T) (mac [6]byte) {
	t.Helper()
	for _, cmd := range ethernetCommands(t) {
		if cmd.invokes(t) == invokeCreateAH {
			b := cmd.bytes(t, uhwOut, true)
			if len(b) != AHRespSize {
				t.Fatalf("the answer to CREATE_AH has %d bytes, want %d", len(b), AHRespSize)
			}
			mac, there, err := DecodeAH(b)
			if ok(t, err); !there {
				t.Fatal("CREATE_AH was not answered")
			}
			return mac
		}
	}
	t.Fatal("no CREATE_AH was recorded")
	return mac
}

// TestRecordedEthernet does what the recorded program did: frames, of cards that take all headers from
// memory and of those that want 18 bytes in the work request, and a datagram. It compares all of each
// WQE but for the bytes behind inline data, which nobody writes.
func TestRecordedEthernet(t *testing.T) {
	g := readGoldenEthernet(t)
	frame := pattern(128)
	frame[0] = 2
	const header = 18
	// A piece is part of the frame in memory, of which the first bytes may stand in the header.
	type piece struct{ at, n int }
	frames := func(lkey uint32, skip int) (steps []step) {
		sges := func(pieces ...piece) step {
			return step{op: Send, fill: func(s *SendSlot) {
				for _, p := range pieces {
					n := min(p.n, s.HeaderLeft())
					s.AddHeader(frame[p.at:][:n])
					ok(t, s.AddSGE(g.buf+uint64(p.at+n), uint32(p.n-n), lkey))
				}
			}}
		}
		inline := func(n int) step {
			return step{op: Send, inline: n - skip, fill: func(s *SendSlot) {
				s.AddHeader(frame[:skip])
				ok(t, s.AddInline(frame[skip:n]))
			}}
		}
		steps = []step{sges(piece{0, 128}), sges(piece{0, 14}, piece{14, 100}), sges(piece{0, 10}, piece{10, 10}, piece{20, 60}), inline(60)}
		return append(steps, slices.Repeat([]step{inline(100)}, 40)...)
	}
	av := NewAV(&AVAttr{RoCE: true, MAC: recordedMAC(t), Sport: SourcePort(0xabcde), SL: 3, Global: true, GID: g.gid, GIDIndex: g.index,
		HopLimit: 64, TrafficClass: 12, FlowLabel: 0xabcde})
	for _, q := range []struct {
		name   string
		qpn    uint32
		t      Transport
		header int
		steps  []step
	}{
		{"raw packets", g.raw, Raw, 0, frames(g.lkey, 0)},
		{"raw packets with headers", g.headers, Raw, header, frames(g.lkeyHeaders, header)},
		{"UD on RoCE", g.ud, Datagram, 0, []step{{op: Send, fill: func(s *SendSlot) {
			s.SetUD(g.ud, 0x11111111, &av)
			ok(t, s.AddSGE(g.buf, 64, g.lkey))
		}}}},
	} {
		t.Run(q.name, func(t *testing.T) {
			k := newCard(t, q.t, 16, 3, 100)
			if q.header > 0 {
				k.sq.WantHeader(q.header)
			}
			wraps := k.compareSends(t, q.qpn, q.steps, g.sends[q.qpn])
			if q.t == Raw && wraps == 0 {
				t.Error("no WQE goes on at the start of the ring")
			}
		})
	}
}

// The attributes of a recorded command that are the driver's part, and what INVOKE_WRITE can name in
// attribute 2.
const (
	uhwIn, uhwOut   = 0x1000, 0x1001
	invokeCreateAH  = 5
	invokeResizeCQ  = 0x13
	invokeAttribute = 2
)

// ethernetCommands are the commands in commands_ethernet.txt.
func ethernetCommands(t *testing.T) (all []goldenCommand) {
	t.Helper()
	for _, l := range goldenLines(t, "commands_ethernet.txt") {
		var cmd goldenCommand
		ok(t, json.Unmarshal([]byte(l), &cmd))
		all = append(all, cmd)
	}
	return all
}

// invokes is which command an INVOKE_WRITE is, 0 for another ioctl.
func (c *goldenCommand) invokes(t *testing.T) uint64 {
	t.Helper()
	if c.Object != 0 || c.Method != 0 {
		return 0
	}
	return binary.LittleEndian.Uint64(c.bytes(t, invokeAttribute, false))
}

// TestRecordedEthernetCommands is TestRecordedCommands for what is only on Ethernet, and for a CQ of
// another size.
func TestRecordedEthernetCommands(t *testing.T) {
	le := binary.LittleEndian
	rec := recordAt(make([]byte, 64))
	var c Context
	count := map[string]int{}
	for _, cmd := range ethernetCommands(t) {
		var name string
		var got, want []byte
		if !slices.ContainsFunc(cmd.Attrs, func(a goldenAttr) bool { return a.ID == uhwIn }) {
			name = "without the driver's part" // and that of CREATE_AH has an answer only
			if cmd.invokes(t) != invokeCreateAH {
				t.Errorf("object %d, method %d has no driver's part", cmd.Object, cmd.Method)
			}
		} else {
			want = cmd.bytes(t, uhwIn, false)
		}
		switch {
		case name != "":
		case cmd.Object == 0 && cmd.Method == 3:
			name = "context"
			got = EncodeContext(true, true)
			var err error
			c, err = DecodeContext(cmd.bytes(t, uhwOut, true), 4096)
			ok(t, err)
			if header := []int{0, 18}[count[name]]; c.EthHeader != header {
				t.Errorf("context %d wants %d bytes of header, want %d", count[name], c.EthHeader, header)
			}
		case cmd.invokes(t) == invokeResizeCQ:
			name = "RESIZE_CQ"
			n, err := SizeCQ(300)
			ok(t, err)
			if asked := le.Uint32(cmd.bytes(t, 0, false)[12:]); asked+1 != uint32(n) {
				t.Errorf("libmlx5 asks for %d completions, we for %d", asked, n-1)
			}
			got = EncodeResize(le.Uint64(want), 64)
		case cmd.Object == 4 && cmd.Method == 0:
			caps := cmd.bytes(t, 8, false)
			const rawPacket = 8
			transport := Datagram
			name = "UD QP"
			if cmd.bytes(t, 9, false)[0] == rawPacket {
				transport, name = Raw, "raw packet QP"
			}
			r := QPRequest{Buf: le.Uint64(want), Record: rec, SendBuf: le.Uint64(want[40:]), UserIndex: le.Uint32(want[32:]), UAR: le.Uint32(want[36:]), HasUAR: true, InlineScatter: true, ECE: c.ECE}
			if (r.SendBuf != 0) != (transport == Raw) {
				t.Errorf("%s: the send queue is at %#x", name, r.SendBuf)
			}
			var err error
			r.Send, err = c.SizeSend(transport, int(le.Uint32(caps)), int(le.Uint32(caps[8:])), 100)
			ok(t, err)
			r.Recv, err = c.SizeRecv(int(le.Uint32(caps[4:])), int(le.Uint32(caps[12:])))
			ok(t, err)
			got = r.Encode()
			copy(got[8:16], want[8:16])
		default:
			t.Fatalf("nothing is known of object %d, method %d", cmd.Object, cmd.Method)
		}
		count[name]++
		if !bytes.Equal(got, want) {
			t.Errorf("%s:\n%x, libmlx5 has\n%x", name, got, want)
		}
	}
	for name, n := range map[string]int{"context": 2, "raw packet QP": 2, "UD QP": 1, "RESIZE_CQ": 1, "without the driver's part": 1} {
		if count[name] != n {
			t.Errorf("%d commands were recorded of %s, want %d", count[name], name, n)
		}
	}
}
