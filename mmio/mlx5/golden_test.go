//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unsafe"
)

// golden are recordings of rdma-core's library over a modelled card.
//
//go:embed testdata/golden/*.txt
var golden embed.FS

// goldenLines returns the lines of a recording without its comments.
func goldenLines(t *testing.T, name string) (lines []string) {
	t.Helper()
	text, err := golden.ReadFile("testdata/golden/" + name)
	ok(t, err)
	for l := range strings.Lines(string(text)) {
		if !strings.HasPrefix(l, "#") {
			lines = append(lines, strings.TrimSpace(l))
		}
	}
	return lines
}

// recordedProgram is what the recorded WQEs contain of the program that posted them: the QPs' numbers,
// the memory, its key, and those of a window of type 1 and one of type 2 before they are bound.
type recordedProgram struct {
	qpns           [2]uint32
	buf            uint64
	lkey, mw1, mw2 uint32
}

// wqeStep posts a WQE.
type wqeStep struct {
	b     bool // on the second QP
	op    Op
	flags uint8
	fill  func(s *SendSlot)
	pad   int
}

// steps posts the recorded WQEs again, in their order.
func (r *recordedProgram) steps(t *testing.T) []wqeStep {
	return []wqeStep{
		{op: Send, flags: Signaled, fill: func(s *SendSlot) { ok(t, s.AddSGE(r.buf, 64, r.lkey)) }},
		{op: SendImm, flags: Signaled, pad: 12, fill: func(s *SendSlot) {
			s.SetImm(0xabcd1234)
			data := make([]byte, 64)
			for i := range data {
				data[i] = byte(i * 7)
			}
			ok(t, s.AddInline(data))
		}},
		{op: Write, flags: Signaled | Fence, fill: func(s *SendSlot) {
			s.SetRDMA(r.buf+40000, r.lkey)
			ok(t, s.AddSGE(r.buf, 64, r.lkey))
		}},
		{op: WriteImm, flags: Signaled | Solicited, fill: func(s *SendSlot) {
			s.SetRDMA(r.buf+40000, r.lkey)
			s.SetImm(0xabcd1234)
			ok(t, s.AddSGE(r.buf, 64, r.lkey))
		}},
		{op: Read, flags: Signaled, fill: func(s *SendSlot) {
			s.SetRDMA(r.buf+40000, r.lkey)
			ok(t, s.AddSGE(r.buf, 64, r.lkey))
		}},
		{op: FAA, flags: Signaled, fill: func(s *SendSlot) {
			s.SetAtomic(r.buf+48000, 1, 0, r.lkey)
			ok(t, s.AddSGE(r.buf, 8, r.lkey))
		}},
		{op: CAS, flags: Signaled, fill: func(s *SendSlot) {
			s.SetAtomic(r.buf+48000, 42, 77, r.lkey)
			ok(t, s.AddSGE(r.buf, 8, r.lkey))
		}},
		{op: Send, flags: Signaled, fill: func(s *SendSlot) { ok(t, s.AddSGE(r.buf, 16, r.lkey)) }},
		{b: true, op: BindMW, flags: Signaled, fill: func(s *SendSlot) {
			ok(t, s.SetBind(&Window{Key: r.mw1, NewKey: r.mw1 + 1, LKey: r.lkey, Addr: r.buf + 50000, Length: 1000, Access: AccessRemoteWrite | AccessRemoteRead}))
		}},
		{op: Write, flags: Signaled, fill: func(s *SendSlot) {
			s.SetRDMA(r.buf+50000, r.mw1+1)
			ok(t, s.AddSGE(r.buf, 64, r.lkey))
		}},
		{b: true, op: BindMW, flags: Signaled, fill: func(s *SendSlot) {
			ok(t, s.SetBind(&Window{Key: r.mw2, NewKey: r.mw2 + 1, Type2: true, LKey: r.lkey, Addr: r.buf + 52000, Length: 1000, Access: AccessRemoteWrite}))
		}},
		{op: Write, flags: Signaled, fill: func(s *SendSlot) {
			s.SetRDMA(r.buf+52000, r.mw2+1)
			ok(t, s.AddSGE(r.buf, 64, r.lkey))
		}},
		{b: true, op: LocalInv, flags: Signaled, fill: func(s *SendSlot) { s.SetLocalInv(r.mw2 + 1) }},
		{op: Write, flags: Signaled, fill: func(s *SendSlot) {
			s.SetRDMA(r.buf+52000, r.mw2+1)
			ok(t, s.AddSGE(r.buf, 64, r.lkey))
		}},
	}
}

// TestRecordedWQEs does what the recorded program did, on two QPs, and compares all of each
// WQE: indices, sizes, flags and the fences behind what changes a key. Only the bytes between
// inline data and the end of the WQE are left out, which libmlx5 and this package leave as
// they were.
func TestRecordedWQEs(t *testing.T) {
	lines := goldenLines(t, "wqes.txt")
	var r recordedProgram
	_, err := fmt.Sscanf(lines[0], "qps %v %v memory %v lkey %v windows %v %v", &r.qpns[0], &r.qpns[1], &r.buf, &r.lkey, &r.mw1, &r.mw2)
	ok(t, err)
	lines = lines[1:]
	steps := r.steps(t)
	if len(lines) != len(steps) {
		t.Fatalf("%d WQEs were recorded, there are %d here", len(lines), len(steps))
	}
	var qps [2]*card
	for i := range qps {
		qps[i] = newCard(t, Connected, 16, 3, 100)
		qps[i].qpn = r.qpns[i]
		qps[i].sq.number = qps[i].qpn << 8
	}
	for i, s := range steps {
		k := qps[0]
		if s.b {
			k = qps[1]
		}
		qp, text, _ := strings.Cut(lines[i], " ")
		want, err := hex.DecodeString(text)
		ok(t, err)
		if qp != fmt.Sprintf("%#x", k.qpn) {
			t.Fatalf("WQE %d is of QP %s, here of %#x", i, qp, k.qpn)
		}
		k.post(1, s.op, s.flags, s.fill)
		got := k.take()
		if len(got) == len(want) {
			clear(got[len(got)-s.pad:])
			clear(want[len(want)-s.pad:])
		}
		if !bytes.Equal(got, want) {
			t.Errorf("WQE %d is\n%x, libmlx5's is\n%x", i, got, want)
		}
	}
}

// goldenCommand is a recorded ioctl.
type goldenCommand struct {
	Object, Method int
	Attrs          []goldenAttr
}

// goldenAttr is an attribute of it.
type goldenAttr struct {
	ID, Len       int
	Data, In, Out string
}

// bytes returns what was told in an attribute, or the answer.
func (c *goldenCommand) bytes(t *testing.T, id int, out bool) []byte {
	t.Helper()
	for _, a := range c.Attrs {
		if a.ID != id {
			continue
		}
		text := a.In
		if out {
			text = a.Out
		} else if a.Len <= 8 {
			text = a.Data
		}
		b, err := hex.DecodeString(text)
		ok(t, err)
		return b
	}
	t.Fatalf("attribute %#x was not recorded", id)
	return nil
}

// recordAt is a doorbell record at a recorded address. It is not looked at.
func recordAt(b []byte) Record {
	return Record{(*[2]uint32)(unsafe.Pointer(&b[0]))}
}

// TestRecordedCommands makes the driver's part of each recorded command from what the command
// asks for, and compares it with what libmlx5 has put there. Addresses are its own. It asks
// for two things that the library asks for only if told to: short messages in completions, and commands
// to the firmware.
func TestRecordedCommands(t *testing.T) {
	le := binary.LittleEndian
	var c Context
	count := map[string]int{}
	for _, l := range goldenLines(t, "commands.txt") {
		var cmd goldenCommand
		ok(t, json.Unmarshal([]byte(l), &cmd))
		want := cmd.bytes(t, uhwIn, false)
		var got []byte
		var name string
		rec := recordAt(make([]byte, 64))
		switch {
		case cmd.Object == 0 && cmd.Method == 3:
			name = "context"
			got = EncodeContext(true, true)
			var err error
			c, err = DecodeContext(cmd.bytes(t, uhwOut, true), 4096)
			ok(t, err)
		case cmd.Object == 3 && cmd.Method == 0:
			name = "CQ"
			n, err := SizeCQ(int(le.Uint32(cmd.bytes(t, 1, false))))
			ok(t, err)
			if asked := le.Uint32(cmd.bytes(t, 1, false)); uint32(n) != asked+1 {
				t.Errorf("a CQ of %d has %d entries", asked, n)
			}
			r := CQRequest{Record: rec, CQESize: 64, UAR: uint32(le.Uint16(want[24:])), HasUAR: true}
			got, _ = r.Encode()
			copy(got[:16], want[:16])
		case cmd.Object == 5 && cmd.Method == 0:
			name = "SRQ"
			got = EncodeSRQ(0, rec, le.Uint32(want[24:]))
			copy(got[:16], want[:16])
		case cmd.Object == 4 && cmd.Method == 0:
			name = "QP"
			typ := cmd.bytes(t, 9, false)[0]
			caps := cmd.bytes(t, 8, false)
			r := QPRequest{Record: rec, UserIndex: le.Uint32(want[32:]), UAR: le.Uint32(want[36:]), HasUAR: true, InlineScatter: true, ECE: c.ECE}
			const xrcRecv = 10
			if typ != xrcRecv {
				var err error
				transport := map[byte]Transport{2: Connected, 3: Connected, 4: Datagram, 9: XRC}[typ]
				// The recording has what libmlx5 answered for inline data: what is left of the WQE.
				r.Send, err = c.SizeSend(transport, int(le.Uint32(caps)), int(le.Uint32(caps[8:])), 0)
				ok(t, err)
				if typ != 9 && le.Uint32(caps[4:]) > 0 {
					r.Recv, err = c.SizeRecv(int(le.Uint32(caps[4:])), int(le.Uint32(caps[12:])))
					ok(t, err)
				}
				if hasSRQ(&cmd) {
					r.Recv = RecvSize{}
				}
			}
			got = r.Encode()
			copy(got[:16], want[:16])
		default:
			t.Fatalf("nothing is known of object %d, method %d", cmd.Object, cmd.Method)
		}
		count[name]++
		if !bytes.Equal(got, want) {
			t.Errorf("%s:\n%x, libmlx5 has\n%x", name, got, want)
		}
	}
	for name, n := range map[string]int{"context": 5, "CQ": 6, "QP": 7, "SRQ": 2} {
		if count[name] != n {
			t.Errorf("%d commands for a %s were recorded, want %d", count[name], name, n)
		}
	}
}

// hasSRQ reports whether a QP takes its receives from an SRQ.
func hasSRQ(c *goldenCommand) bool {
	for _, a := range c.Attrs {
		if a.ID == 6 { // UVERBS_ATTR_CREATE_QP_SRQ_HANDLE
			return true
		}
	}
	return false
}
