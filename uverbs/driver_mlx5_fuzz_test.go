//go:build amd64 || arm64

package uverbs

import (
	"errors"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// IDs of the fuzzer's work requests: sends count from one, receives from the other.
const (
	fuzzSend = 1000
	fuzzRecv = 1 << 32
)

// FuzzMlx5Poll has the program post and poll as the input says, four bytes a step, while the device
// writes any completions, at last a ring full of anything. Every completion belongs to a posted
// request, once and in order, though a send that completes takes those before it along; everything
// else is an error that says so, the memory outside of what was lent stays as it was, and nothing
// panics.
func FuzzMlx5Poll(f *testing.F) {
	const send, recv, poll, sent, received = 0, 1, 2, 3, 0x23
	f.Add([]byte{send, 1, 0, 0, recv, 1, 0, 0, sent, 0, 0, 0, received, 0, 0, 0, poll, 5, 0, 0}, []byte{0}, true, false)
	f.Add([]byte{recv, 3, 0, 0, 0xe3, 1, 0, 0, 0xd3, 0, 0, 0, poll, 5, 0, 0}, []byte{0x20, 0xe0, 1}, false, true)
	f.Add([]byte{send, 8, 0, 0, sent, 7, 0, 0, poll, 1, 0, 0, send, 8, 0, 0, sent, 2, 0, 0, sent, 8, 0, 0, poll, 4, 0, 0}, []byte{0xff, 0, 0x10}, true, true)
	f.Add([]byte{recv, 8, 0, 0, 0x23, 0, 0, 2, 0x23, 2, 0, 0, poll, 4, 0, 0, 0x93, 0, 0, 0, 0x53, 0, 0, 0, poll, 4, 0, 0}, []byte{}, true, false)
	f.Fuzz(func(t *testing.T, steps, ring []byte, userIndex, shared bool) {
		c := newMlx5Card(t, userIndex, shared, 64<<(len(ring)&1))
		x := fuzzPoll{card: c, recv: c.qp.PostRecv, due: map[uint64]bool{}}
		if shared {
			x.recv = c.srq.PostRecv
		}
		for ; len(steps) >= 4; steps = steps[4:] {
			op, n, high, more := steps[0]&3, int(steps[1]), steps[2], steps[3]
			switch op {
			case send:
				x.postSends(n % 10)
			case recv:
				x.postRecvs(n % 10)
			case poll:
				x.poll(n % 8)
			default:
				fields := map[int][]byte{60: {high, byte(n)}, 44: b32(uint32(more)), 55: {more & 0x1f}}
				if more&0x40 != 0 {
					fields[32], fields[56] = b32(uint32(high)), b32(uint32(high))
				}
				var data []byte
				if more&0x80 != 0 {
					data = []byte("data in the completion")
				}
				c.put(steps[0]>>4, fields, data...)
			}
		}
		x.poll(cardCQEs)
		mem := c.cq.region.Bytes()
		for len(ring) > 0 && len(ring) < len(mem) {
			ring = append(ring, ring...)
		}
		copy(mem, ring)
		for range 40 {
			x.poll(5)
			x.postSends(1)
		}
		for i, b := range c.mem[fuzzLent:] {
			if b != 0 {
				t.Fatalf("byte %d, which was lent to nobody, was written", fuzzLent+i)
			}
		}
		mlx5Driver{}.qpModified(c.qp, ib.QPRTS, ib.QPReset)
	})
}

// fuzzLent is how much of the card's memory the fuzzer's receives and READs have.
const fuzzLent = 100

// fuzzPoll is what a program knows of what it has posted.
type fuzzPoll struct {
	*card
	recv     func(id uint64, sgl ...SGE) error
	posted   uint64          // sends
	sent     uint64          // sends that have completed
	received uint64          // receives that were posted
	due      map[uint64]bool // of which these have not completed
}

func (x *fuzzPoll) postSends(n int) {
	for range n {
		wr := SendWR{ID: fuzzSend + x.posted, Opcode: WRRDMARead, Flags: SendSignaled, SGL: []SGE{x.sge(0, fuzzLent)}}
		if x.posted%3 == 0 {
			wr = SendWR{ID: wr.ID, Opcode: WRSend, Inline: x.mem[2000 : 2000+x.posted%64]}
		}
		switch err := x.qp.PostSend(wr); {
		case err == nil:
			x.posted++
		case !errors.Is(err, ErrQueueFull):
			x.t.Fatal(err)
		case x.posted-x.sent < uint64(x.qp.Caps().MaxSendWR):
			x.t.Fatalf("the queue is full with %d of %d", x.posted-x.sent, x.qp.Caps().MaxSendWR)
		default:
			return
		}
	}
}

func (x *fuzzPoll) postRecvs(n int) {
	for range n {
		id := fuzzRecv + x.received
		switch err := x.recv(id, x.sge(0, fuzzLent)); {
		case err == nil:
			x.due[id] = true
			x.received++
		case !errors.Is(err, ErrQueueFull):
			x.t.Fatal(err)
		default:
			return
		}
	}
}

func (x *fuzzPoll) poll(n int) {
	wcs := make([]WC, n)
	got, err := x.cq.Poll(wcs)
	if err != nil && !errors.Is(err, ErrCQOverrun) {
		x.t.Fatal(err)
	}
	for i := range wcs[:got] {
		wc := &wcs[i]
		_ = x.qp.Err(wc)
		if wc.ID < fuzzRecv {
			n := wc.ID - fuzzSend
			if wc.ID < fuzzSend || n < x.sent || n >= x.posted || wc.Status == WCSuccess && wc.Opcode >= WCRecv {
				x.t.Fatalf("%+v, when %d sends of %d had completed", *wc, x.sent, x.posted)
			}
			x.sent = n + 1
			continue
		}
		if !x.due[wc.ID] || wc.Status == WCSuccess && wc.Opcode < WCRecv {
			x.t.Fatalf("%+v, when of %d receives these had not completed: %v", *wc, x.received, x.due)
		}
		delete(x.due, wc.ID)
	}
}
