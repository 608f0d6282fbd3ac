//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// goldenQueues is what queues.txt has: what its program was given, and the entries of each queue.
type goldenQueues struct {
	uc, ucPeer, ud, rc, rcPeer, xrc uint32 // QPs
	srqn                            uint32 // of XRC
	buf                             uint64
	lkey, window, lid               uint32
	gid                             [16]byte
	sends                           map[uint32][][]byte // by QP
	recvs                           [][][]byte          // by queue, in the order of their first entries
}

func readGoldenQueues(t *testing.T) *goldenQueues {
	t.Helper()
	lines := goldenLines(t, "queues.txt")
	g := &goldenQueues{sends: map[uint32][][]byte{}}
	var gid string
	_, err := fmt.Sscanf(lines[0], "uc %v %v ud %v rc %v %v xrc %v srqn %v memory %v lkey %v window %v lid %v gid %s",
		&g.uc, &g.ucPeer, &g.ud, &g.rc, &g.rcPeer, &g.xrc, &g.srqn, &g.buf, &g.lkey, &g.window, &g.lid, &gid)
	ok(t, err)
	_, err = hex.Decode(g.gid[:], []byte(gid))
	ok(t, err)
	var queues []string
	for _, l := range lines[1:] {
		f := strings.Fields(l)
		b, err := hex.DecodeString(f[len(f)-1])
		ok(t, err)
		if f[0] != "rq" {
			var qpn uint32
			_, err := fmt.Sscan(f[0], &qpn)
			ok(t, err)
			g.sends[qpn] = append(g.sends[qpn], b)
			continue
		}
		i := slices.Index(queues, f[1])
		if i < 0 {
			i = len(queues)
			queues, g.recvs = append(queues, f[1]), append(g.recvs, nil)
		}
		g.recvs[i] = append(g.recvs[i], b)
	}
	return g
}

// pieces appends entries of those lengths, each 1 KiB behind the one before.
func (g *goldenQueues) pieces(t *testing.T, s *SendSlot, lengths ...uint32) {
	t.Helper()
	for i, n := range lengths {
		ok(t, s.AddSGE(g.buf+1024*uint64(i), n, g.lkey))
	}
}

// step is a send that the recorded program posted, with so many bytes of inline data.
type step struct {
	op     Op
	inline int
	fill   func(s *SendSlot)
}

// compareSends posts what a recorded program did on a queue, and compares each WQE with the recorded
// one. It returns how many went on at the start of the ring.
func (k *card) compareSends(t *testing.T, qpn uint32, steps []step, lines [][]byte) (wraps int) {
	t.Helper()
	if len(lines) != len(steps) {
		t.Fatalf("%d WQEs were recorded, there are %d here", len(lines), len(steps))
	}
	k.qpn, k.sq.number = qpn, qpn<<8
	for i, s := range steps {
		at := k.taken
		k.post(1, s.op, Signaled, s.fill)
		got, want := k.take(), lines[i]
		if pad := (octoSize - (s.inline+inlineSize)%octoSize) % octoSize; s.inline > 0 && len(got) == len(want) {
			clear(got[len(got)-pad:])
			clear(want[len(want)-pad:])
		}
		if !bytes.Equal(got, want) {
			t.Errorf("WQE %d is\n%x, libmlx5's is\n%x", i, got, want)
		}
		if k.wraps(at, got) {
			wraps++
		}
		k.sq.Complete(at)
	}
	return wraps
}

// TestRecordedQueues does what the recorded program did on queues of every type, several entries and
// none, and inline data of several sizes, up to two blocks, and compares all of each WQE but
// for the bytes behind inline data, which nobody writes.
func TestRecordedQueues(t *testing.T) {
	g := readGoldenQueues(t)
	const imm = 0xabcd1234
	far := g.buf + 40000
	inline := func(s *SendSlot, n int) { ok(t, s.AddInline(pattern(n))) }
	sl2 := AVAttr{LID: uint16(g.lid), SL: 2, Rate: 6} // IBV_RATE_20_GBPS
	plain := NewAV(&sl2)
	sl2.Global, sl2.GID, sl2.HopLimit, sl2.TrafficClass, sl2.FlowLabel = true, g.gid, 64, 3, 0xabcde
	global := NewAV(&sl2)
	queues := []struct {
		name  string
		qpn   uint32
		t     Transport
		steps []step
	}{
		{"UC", g.uc, Connected, append([]step{
			{op: Send, fill: func(s *SendSlot) { g.pieces(t, s, 8, 0, 16) }},
			{op: Write, inline: 28, fill: func(s *SendSlot) { s.SetRDMA(far, g.lkey); inline(s, 28) }},
			{op: WriteImm, fill: func(s *SendSlot) { s.SetRDMA(far, g.lkey); s.SetImm(imm); g.pieces(t, s, 64, 64) }},
		}, slices.Repeat([]step{{op: Send, inline: 100, fill: func(s *SendSlot) { inline(s, 100) }}}, 70)...)},
		{"UD", g.ud, Datagram, []step{
			{op: Send, fill: func(s *SendSlot) { s.SetUD(g.ud, 0x11111111, &plain); g.pieces(t, s, 64) }},
			{op: SendImm, inline: 20, fill: func(s *SendSlot) { s.SetUD(g.ud, 0x11111111, &global); s.SetImm(imm); inline(s, 20) }},
		}},
		{"RC", g.rc, Connected, append(slices.Repeat([]step{{op: Send, fill: func(s *SendSlot) { g.pieces(t, s, 64, 64) }}}, 6),
			step{op: Read, fill: func(s *SendSlot) { s.SetRDMA(far, g.lkey); g.pieces(t, s, 64, 0, 64) }},
			step{op: SendInv, fill: func(s *SendSlot) { s.SetInvalidate(g.window + 1); g.pieces(t, s, 64) }})},
		{"RC with an SRQ", g.rcPeer, Connected, []step{{op: BindMW, fill: func(s *SendSlot) {
			ok(t, s.SetBind(&Window{Key: g.window, NewKey: g.window + 1, Type2: true, LKey: g.lkey, Addr: g.buf + 52000, Length: 1000, Access: AccessRemoteWrite}))
		}}}},
		{"XRC", g.xrc, XRC, append(slices.Repeat([]step{{op: Send, fill: func(s *SendSlot) { s.SetSRQ(g.srqn); g.pieces(t, s, 64) }}}, 5),
			step{op: Write, fill: func(s *SendSlot) { s.SetSRQ(g.srqn); s.SetRDMA(far, g.lkey); g.pieces(t, s, 64, 64) }},
			step{op: SendImm, inline: 10, fill: func(s *SendSlot) { s.SetSRQ(g.srqn); s.SetImm(imm); inline(s, 10) }})},
	}
	for _, q := range queues {
		t.Run(q.name, func(t *testing.T) {
			wraps := newCard(t, q.t, 16, 3, 100).compareSends(t, q.qpn, q.steps, g.sends[q.qpn])
			if q.t == Connected && len(q.steps) > 40 && wraps == 0 {
				t.Error("no WQE goes on at the start of the ring")
			}
		})
	}
}

// TestRecordedReceives is TestRecordedQueues for receives: each entry as a whole, with the links of
// those of an SRQ, which go round in the order in which entries come back.
func TestRecordedReceives(t *testing.T) {
	g := readGoldenQueues(t)
	if len(g.recvs) != 4 {
		t.Fatalf("receives of %d queues were recorded, want 4", len(g.recvs))
	}
	fill := func(s *RecvSlot, n int) {
		for i := range n {
			ok(t, s.AddSGE(g.buf+20000+1000*uint64(i), 1000, g.lkey))
		}
		s.Finish()
	}
	same := func(name string, i int, got, want []byte) {
		if !bytes.Equal(got, want) {
			t.Errorf("%s: receive %d is\n%x, libmlx5's is\n%x", name, i, got, want)
		}
	}
	uc := []int{1, 2}
	for i := range 70 {
		uc = append(uc, 1+i%3)
	}
	for i, entries := range [][]int{uc, {3, 1}} {
		name := [...]string{"UC", "UD"}[i]
		if len(g.recvs[i]) != len(entries) {
			t.Fatalf("%d receives of %s were recorded, there are %d here", len(g.recvs[i]), name, len(entries))
		}
		k := newCard(t, Connected, 16, 3, 100) // which has as many receives of as many entries
		for j, n := range entries {
			s := k.rq.Slot(0, 1)
			fill(&s, n)
			k.rq.Publish(1)
			size := len(k.rqMB) / k.rq.Cap()
			same(name, j, k.rqMB[j%k.rq.Cap()*size:][:size], g.recvs[i][j])
			if _, done := k.rq.Complete(uint16(j)); !done {
				t.Fatalf("%s: receive %d was not posted", name, j)
			}
		}
	}
	for i, entries := range [][]int{{1, 2, 1, 2, 1, 2, 1}, {1, 1, 1, 1, 1, 1}} {
		name, want := [...]string{"SRQ", "XRC SRQ"}[i], g.recvs[2+i]
		if len(want) != len(entries) {
			t.Fatalf("%d receives of the %s were recorded, there are %d here", len(want), name, len(entries))
		}
		size, err := testContext.SizeSRQ(3, 2-i, false)
		ok(t, err)
		mem := region(t, size.Bytes())
		q, err := NewSharedRecvQueue(mem, size, recordAt(make([]byte, 64)))
		ok(t, err)
		for j, n := range entries {
			at, s := q.head, q.Begin()
			if !q.Next(&s, 1) {
				t.Fatalf("%s: no room for receive %d", name, j)
			}
			fill(&s.RecvSlot, n)
			q.Publish(&s)
			same(name, j, mem[int(at)<<size.Shift:][:1<<size.Shift], want[j])
			ok(t, q.Free(at))
		}
	}
}
