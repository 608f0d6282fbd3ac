//go:build amd64 || arm64

package uverbs

import (
	"slices"
	"testing"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestMlx5PollMixed: plain completions and others alternate in one poll, and polls of any number of completions return
// the same ones in the same order.
func TestMlx5PollMixed(t *testing.T) {
	for _, shared := range []bool{false, true} {
		for most := 1; most <= 15; most++ {
			c := newMlx5Card(t, true, shared, 64)
			q := secondQP(c)
			post := c.qp.PostRecv
			if shared {
				post = c.srq.PostRecv
			}
			for i := range uint64(6) {
				must(t, post(100+i, c.sge(0, 32)))
			}
			for i := range uint64(4) {
				must(t, c.qp.PostSend(SendWR{ID: 1 + i, Opcode: WRSend, Flags: SendSignaled, SGL: []SGE{c.sge(0, 8)}}))
			}
			must(t, q.PostSend(SendWR{ID: 11, Opcode: WRSend}, SendWR{ID: 12, Opcode: WRSend, Flags: SendSignaled},
				SendWR{ID: 13, Opcode: WRSend, Flags: SendSignaled}))
			second := func(opcode byte, counter uint16) {
				c.put(opcode, map[int][]byte{32: b32(q.mlx5.index), 56: b32(q.qpn), 60: b16(counter), 55: {opcode & 5}})
			}
			c.put(0, map[int][]byte{60: b16(0)})
			second(0, 1) // behind a plain one of the first QP, where entry 1 waits too
			c.put(2, map[int][]byte{60: b16(0), 44: b32(5)})
			c.put(3, map[int][]byte{60: b16(1), 44: b32(6), 36: b32(7)}) // an immediate
			c.put(2, map[int][]byte{60: b16(2), 44: b32(4)}, []byte("data")...)
			c.put(2, map[int][]byte{60: b16(3), 44: b32(8)})
			c.put(0, map[int][]byte{60: b16(1)})
			c.put(13, map[int][]byte{60: b16(2), 55: {0x13}})
			c.put(2, map[int][]byte{60: b16(4), 44: b32(9)})
			c.put(14, map[int][]byte{60: b16(5), 55: {0x05}})
			second(13, 2) // its syndrome is 5: flushed
			c.put(0, map[int][]byte{60: b16(3)})
			want := []WC{
				{ID: 1},
				{ID: 12, QPN: q.qpn},
				{ID: 100, Opcode: WCRecv, ByteLen: 5},
				{ID: 101, Opcode: WCRecv, ByteLen: 6, Flags: WCWithImm, Imm: 7},
				{ID: 102, Opcode: WCRecv, ByteLen: 4},
				{ID: 103, Opcode: WCRecv, ByteLen: 8},
				{ID: 2},
				{ID: 3, Status: WCRemAccessErr},
				{ID: 104, Opcode: WCRecv, ByteLen: 9},
				{ID: 105, Status: WCWRFlushErr, Opcode: WCRecv},
				{ID: 13, QPN: q.qpn, Status: WCWRFlushErr},
				{ID: 4},
			}
			for i := range want {
				want[i].QPN = max(want[i].QPN, cardQPN)
			}
			var got []WC
			for {
				wcs := make([]WC, most)
				for i := range wcs {
					wcs[i] = WC{ID: 99, ByteLen: 99, Imm: 99, Flags: WCWithImm, VendorErr: 99} // Poll overwrites all
				}
				n, err := c.cq.Poll(wcs)
				must(t, err)
				if left := len(want) - len(got); n != min(most, left) {
					t.Fatalf("shared %v: a poll of %d returned %d of %d", shared, most, n, left)
				}
				if n == 0 {
					break
				}
				got = append(got, wcs[:n]...)
			}
			if !slices.Equal(got, want) {
				t.Errorf("shared %v, %d a poll:\n%+v, want\n%+v", shared, most, got, want)
			}
			if string(c.mem[:4]) != "data" {
				t.Errorf("shared %v, %d a poll: the data of the completion is %q", shared, most, c.mem[:4])
			}
		}
	}
}

// TestMlx5PollNewOwner: a QP that was reset, or that has the user index of one that was closed, gets its own completions,
// though Poll keeps the QP of the last one.
func TestMlx5PollNewOwner(t *testing.T) {
	c := newMlx5Card(t, true, false, 64)
	id := uint64(0)
	complete := func(q *QP, counter uint16) {
		t.Helper()
		id++
		must(t, q.PostSend(SendWR{ID: id, Opcode: WRSend, Flags: SendSignaled}))
		c.put(0, map[int][]byte{32: b32(q.mlx5.index), 56: b32(q.qpn), 60: b16(counter)})
		var wcs [2]WC
		if n, err := c.cq.Poll(wcs[:]); n != 1 || err != nil || wcs[0].ID != id {
			t.Errorf("%d completions, %v: %+v, want ID %d", n, err, wcs[0], id)
		}
	}
	q := secondQP(c)
	index := q.mlx5.index
	for round := range 3 {
		complete(q, 0)
		complete(q, 1)
		if kept := c.cq.mlx5.last; round > 0 && kept.sq != q.mlx5.sq {
			t.Fatalf("after two completions of %#x, Poll keeps %#x", index, kept.index)
		}
		if round == 1 {
			mlx5Driver{}.qpModified(q, ib.QPRTS, ib.QPReset)
			continue
		}
		must(t, mlx5Driver{}.freeQP(q))
		if kept := c.cq.mlx5.last; kept != noOwner {
			t.Errorf("Poll keeps %#x, which is closed", kept.index)
		}
		if q = secondQP(c); q.mlx5.index != index {
			t.Fatalf("the next QP has user index %#x, want %#x", q.mlx5.index, index)
		}
	}
}

// secondQP returns another QP of a card, with the same CQ.
func secondQP(c *card) *QP {
	q := &QP{kind: kindMlx5, typ: ib.RC, sendCQ: c.cq, recvCQ: c.cq, qpn: cardQPN + 1, noRecv: ErrNoRecvQueue}
	q.dev, q.object.kind = c.dev, "QP"
	ops, _ := mlx5Driver{}.operations(ib.RC)
	q.setOps(ops)
	o := QPOptions{Type: ib.RC, SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: 8, MaxSendSGE: 2}
	value(mlx5Driver{}.prepareQP(q, &qpSpec{QPOptions: o, pd: &PD{}}))(c.t)
	must(c.t, mlx5Driver{}.mapQP(q, udata{out: make([]byte, mlx5.QPRespSize)}))
	q.state.Store(uint32(ib.QPRTS))
	c.cq.qps.Store(uint32(q.qpn), q)
	return q
}
