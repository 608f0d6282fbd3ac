//go:build linux && (amd64 || arm64)

package uverbs

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/goverbs/goverbs/mmio/siw"
	"github.com/goverbs/goverbs/test/steps"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/hook"
)

// hotRing is a QP and a CQ on rings in memory, whose device the test plays.
type hotRing struct {
	driver   string
	qp       *QP
	cq       *CQ
	to       SendWR    // the target of a DCI, or the peer of an SRD QP
	inline   int       // bytes of inline data
	sent     func() WC // the device completes the next send, and writes the returned completion
	received func() WC // the same with a receive
}

// Lists and batches have hotBatch requests, and messages hotLength bytes. Requests that are posted or polled one by one
// are counted for hotSingles of them at a time.
const hotBatch, hotLength, hotSingles = 32, 64, 8

// mlx5HotRing makes a QP of mlx5.
func mlx5HotRing(tb testing.TB, typ ib.QPType) *hotRing {
	c := newMlx5Card(tb, true, false, 64)
	c.n = 2 * hotBatch
	c.cq = &CQ{kind: kindMlx5}
	c.cq.dev, c.cq.object.kind = c.dev, "CQ"
	value(mlx5Driver{}.prepareCQ(c.cq, &CQOptions{Size: c.n - 1, CQESize: 64}))(tb)
	must(tb, mlx5Driver{}.mapCQ(c.cq, udata{out: make([]byte, 64)}))
	c.qp = mlx5HotQP(tb, c, typ, 2*hotBatch)
	h := &hotRing{driver: "mlx5", qp: c.qp, cq: c.cq, inline: hotLength}
	if typ == ib.DCI {
		_, h.to.AH = dcCard(tb, true)
		h.to.AH.dev = c.dev
	}
	ring := h.qp.sqRegion.Bytes()[h.qp.mlx5.recv.Bytes():]
	block, entry := 0, uint16(0) // those that the card takes next
	h.sent = func() WC {
		const size = 64
		c.fast(0, uint16(block))
		block += (int(ring[block*size%h.qp.mlx5.send.Bytes()+7]&0x3f)*16 + size - 1) / size // the size of the WQE
		return WC{Opcode: WCSend}
	}
	h.received = func() WC {
		c.fast(2, entry)
		entry++
		return WC{Opcode: WCRecv}
	}
	return h
}

// mlx5HotQP makes another QP on a card.
func mlx5HotQP(tb testing.TB, c *card, typ ib.QPType, maxWR int) *QP {
	q := &QP{kind: kindMlx5, typ: typ, sendCQ: c.cq, recvCQ: c.cq, qpn: cardQPN}
	q.dev, q.object.kind = c.dev, "QP"
	ops, _ := mlx5Driver{}.operations(typ)
	q.setOps(ops)
	o := QPOptions{Type: typ, SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: maxWR, MaxSendSGE: 1, MaxInline: hotLength}
	s := &qpSpec{QPOptions: o, pd: &PD{}}
	if typ == ib.DCI {
		s.dc, q.noRecv = &hook.DC{}, ErrNoRecvQueue
	} else {
		s.MaxRecvWR, s.MaxRecvSGE = maxWR, 1
	}
	value(mlx5Driver{}.prepareQP(q, s))(tb)
	must(tb, mlx5Driver{}.mapQP(q, udata{out: make([]byte, 64)}))
	q.state.Store(uint32(ib.QPRTS))
	return q
}

// rxeHotRing makes a QP of rxe.
func rxeHotRing(tb testing.TB) *hotRing {
	const log2Len = 6
	r := newQuietRig(tb, log2Len)
	cq, ring := newPollRig(tb, log2Len)
	h := &hotRing{driver: "rxe", qp: r.qp, cq: cq, inline: hotLength}
	h.sent = func() WC {
		clear(ring.slot(ring.get(ringProducer)))
		ring.put(1)
		r.sq.set(ringConsumer, (r.sq.get(ringConsumer)+1)&r.sq.mask)
		return WC{Opcode: WCSend}
	}
	h.received = func() WC {
		slot := ring.slot(ring.get(ringProducer))
		clear(slot)
		binary.NativeEndian.PutUint32(slot[12:], uint32(WCRecv))
		ring.put(1)
		r.rq.set(ringConsumer, (r.rq.get(ringConsumer)+1)&r.rq.mask)
		return WC{Opcode: WCRecv}
	}
	return h
}

// siwHotRing makes a QP of siw.
func siwHotRing(tb testing.TB) *hotRing {
	r := newSiwRigOf(tb, 2*hotBatch)
	next := 0
	return &hotRing{driver: "siw", qp: r.qp, cq: r.cq, inline: hotLength, sent: func() WC {
		_, _, op, _ := r.take()
		r.put(0, op, siw.StatusSuccess, hotLength)
		return WC{Opcode: WCSend}
	}, received: func() WC {
		clear(r.rq[next%r.n*siwRQESize:][:siwRQESize])
		next++
		r.put(0, siw.Recv, siw.StatusSuccess, hotLength)
		return WC{Opcode: WCRecv}
	}}
}

// efaHotRing makes an SRD QP of efa, whose requests have the usual width: they have room for half as much inline data.
func efaHotRing(tb testing.TB) *hotRing {
	const n, entry, most = 2 * hotBatch, 16, 32
	r := newEfaRig(tb, QPOptions{MaxSendWR: n, MaxRecvWR: n, MaxInline: most}, CQOptions{Size: n})
	sent, received := 0, 0
	return &hotRing{driver: "efa", qp: r.qp, cq: r.cq, to: r.to, inline: most, sent: func() WC {
		r.complete(1, 0, r.qp.qpn, r.id(sent%n))
		sent++
		return WC{Opcode: WCSend}
	}, received: func() WC {
		r.complete(2, 0, r.qp.qpn, binary.LittleEndian.Uint16(r.recv[received%n*entry+8:]))
		received++
		return WC{Opcode: WCRecv}
	}}
}

// A hotPath is what a program does for each request.
type hotPath struct {
	name     string
	requests int
	before   func()
	do       func() error
	after    func()
}

// hotPaths returns the paths of a ring.
func (h *hotRing) hotPaths(tb testing.TB) []hotPath {
	var wcs [hotBatch]WC
	drain := func(n int, device func() WC) {
		want := WC{}
		for range n {
			want = device()
		}
		if got, err := h.cq.Poll(wcs[:]); got != n || err != nil || slices.ContainsFunc(wcs[:n], func(wc WC) bool { return wc.Opcode != want.Opcode || wc.Status != WCSuccess }) {
			tb.Fatalf("%s: %d completions %+v, %v, want %d of %s", h.driver, got, wcs[:min(got, 1)], err, n, want.Opcode)
		}
	}
	inline := h.to
	inline.Opcode, inline.Flags, inline.SGL, inline.Inline = WRSend, SendSignaled, nil, make([]byte, h.inline)
	sgl := []SGE{{Addr: 1 << 20, Length: hotLength, LKey: 5}}
	sge := inline
	sge.SGL, sge.Inline = sgl, nil
	recv := RecvWR{SGL: sgl}
	var all []hotPath
	sends := func(name string, n int, do func() error) {
		all = append(all, hotPath{h.driver + "/" + name, n, func() {}, do, func() { drain(n, h.sent) }})
	}
	single := func(wr SendWR) func() error {
		wrs := []SendWR{wr}
		return func() error {
			for i := range hotSingles {
				wrs[0].ID = uint64(i)
				if err := h.qp.PostSend(wrs...); err != nil {
					return err
				}
			}
			return nil
		}
	}
	list := func(wr SendWR) func() error {
		wrs := slices.Repeat([]SendWR{wr}, hotBatch)
		return func() error { return h.qp.PostSend(wrs...) }
	}
	if h.driver == "mlx5" && h.to.AH != nil {
		sends("dci/inline/n=32", hotBatch, list(inline))
		return all
	}
	srd := h.to.AH != nil
	sends("post/inline/n=1", hotSingles, single(inline))
	sends("post/inline/n=32", hotBatch, list(inline))
	sends("post/sge/n=1", hotSingles, single(sge))
	sends("post/sge/n=32", hotBatch, list(sge))
	sends("builder/inline/n=32", hotBatch, func() error {
		b := h.qp.BeginSend()
		for range hotBatch {
			b.Send(0, SendSignaled)
			if srd {
				b.To(h.to.AH, h.to.RemoteQPN, h.to.RemoteQKey)
			}
			b.Inline(inline.Inline)
		}
		return b.Post()
	})
	sends("builder/sge/n=32", hotBatch, func() error {
		b := h.qp.BeginSend()
		for range hotBatch {
			b.Send(0, SendSignaled)
			if srd {
				b.To(h.to.AH, h.to.RemoteQPN, h.to.RemoteQKey)
			}
			b.SGE(sgl[0])
		}
		return b.Post()
	})
	begin := func() *SendBuilder {
		b := h.qp.BeginSend()
		if srd {
			b.To(h.to.AH, h.to.RemoteQPN, h.to.RemoteQKey)
		}
		return b
	}
	sends("onecall/inline/n=32", hotBatch, func() error {
		b := begin()
		for i := range hotBatch {
			b.SendInline(uint64(i), SendSignaled, inline.Inline)
		}
		return b.Post()
	})
	sends("onecall/sge/n=32", hotBatch, func() error {
		b := begin()
		for i := range hotBatch {
			b.SendSGE(uint64(i), SendSignaled, sgl[0])
		}
		return b.Post()
	})
	sends("onecall/sge/n=1", hotSingles, func() error {
		for i := range hotSingles {
			b := begin()
			b.SendSGE(uint64(i), SendSignaled, sgl[0])
			if err := b.Post(); err != nil {
				return err
			}
		}
		return nil
	})
	all = append(all, hotPath{h.driver + "/recv/n=1", hotSingles, func() {}, func() error {
		for range hotSingles {
			if err := h.qp.PostRecv(0, sgl...); err != nil {
				return err
			}
		}
		return nil
	}, func() { drain(hotSingles, h.received) }})
	recvs := slices.Repeat([]RecvWR{recv}, hotBatch)
	all = append(all, hotPath{h.driver + "/recv/n=32", hotBatch, func() {}, func() error { return h.qp.PostRecvs(recvs...) },
		func() { drain(hotBatch, h.received) }})

	wrs := slices.Repeat([]SendWR{sge}, hotBatch)
	poll := func(name string, each, rounds int, before func()) {
		all = append(all, hotPath{h.driver + "/poll/" + name, each * rounds, before, func() error {
			for range rounds {
				if n, err := h.cq.Poll(wcs[:each]); n != each || err != nil {
					return fmt.Errorf("%d completions, %w", n, err)
				}
			}
			return nil
		}, func() {}})
	}
	send := func(n int) func() {
		return func() {
			must(tb, h.qp.PostSend(wrs[:n]...))
			for range n {
				h.sent()
			}
		}
	}
	receive := func(n int) func() {
		return func() {
			must(tb, h.qp.PostRecvs(recvs[:n]...))
			for range n {
				h.received()
			}
		}
	}
	poll("send/n=1", 1, hotSingles, send(hotSingles))
	poll("send/n=32", hotBatch, 1, send(hotBatch))
	poll("recv/n=1", 1, hotSingles, receive(hotSingles))
	poll("recv/n=32", hotBatch, 1, receive(hotBatch))
	return all
}

// TestHotPaths posts and polls in each way on ring memory. Nothing of it allocates memory. "make hotpaths" runs this test
// to count the instructions between the marks.
func TestHotPaths(t *testing.T) {
	steps.Begin("", 1)
	steps.End()
	for _, h := range []*hotRing{mlx5HotRing(t, ib.RC), mlx5HotRing(t, ib.DCI), efaHotRing(t), rxeHotRing(t), siwHotRing(t)} {
		for _, p := range h.hotPaths(t) {
			if n := testing.AllocsPerRun(5, func() {
				p.before()
				if err := p.do(); err != nil {
					t.Fatalf("%s: %v", p.name, err)
				}
				p.after()
			}); n != 0 {
				t.Errorf("%s makes %v allocations, want 0", p.name, n)
			}
			p.before()
			steps.Begin(p.name, p.requests)
			err := p.do()
			steps.End()
			must(t, err)
			p.after()
		}
	}
}

// TestHotLine: what posting needs of a QP, up to the queue of mlx5, is in one cache line, as a program with many QPs finds
// none of it in its caches.
func TestHotLine(t *testing.T) {
	const line = 64
	var heap atomic.Pointer[QP] // the QPs of programs are on the heap, too
	for range 10 {
		heap.Store(new(QP))
		q := heap.Load()
		first := addrOf(bytesOf(&q.sending)) / line
		for name, at := range map[string]uint64{
			"receiving": addrOf(bytesOf(&q.receiving)), "kind": addrOf(bytesOf(&q.kind)), "plain": addrOf(bytesOf(&q.plain)),
			"state": addrOf(bytesOf(&q.state)), "resets": addrOf(bytesOf(&q.resets)), "mlx5.sq": addrOf(bytesOf(&q.mlx5.sq)),
		} {
			if at/line != first {
				t.Errorf("%s of a QP is at %#x, and the lock of the send side in the line at %#x", name, at, first*line)
			}
		}
	}
}

// BenchmarkPostQPs posts SENDs of 64 bytes inline to several QPs in turn, their doorbells included. The queues of 1,024
// QPs, 160 KiB each, do not fit into the caches: what is slower than with 1 QP is the access to memory.
func BenchmarkPostQPs(b *testing.B) {
	const maxWR, ring, blocks = 256, 2048, 2 // work requests of a queue, blocks of its ring, and of a WQE
	one := 0.0
	for _, n := range []int{1, 16, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := newMlx5Card(b, true, false, 64)
			c.dev.mlx5.MaxBlocks = ring
			qps := make([]*QP, n)
			for i := range qps {
				qps[i] = mlx5HotQP(b, c, ib.RC, maxWR)
			}
			wrs := []SendWR{{Opcode: WRSend, Flags: SendSignaled, Inline: make([]byte, hotLength)}}
			var wcs [1]WC
			posted := 0
			post := func() {
				if err := qps[posted%n].PostSend(wrs...); err != nil {
					b.Fatal(err)
				}
				if posted++; posted%(maxWR*n) != 0 {
					return
				}
				for _, c.qp = range qps { // the queues are full: a completion of the last WQE makes room in each
					c.fast(0, uint16((posted/n-1)*blocks))
					if k, err := c.cq.Poll(wcs[:]); k != 1 || err != nil {
						b.Fatal(k, err)
					}
				}
			}
			for range ring / blocks * n { // so that the memory is there
				post()
			}
			for b.Loop() {
				post()
			}
			each := float64(b.Elapsed()) / float64(b.N)
			if n == 1 {
				one = each
			}
			b.ReportMetric(each/one, "x-1-QP")
		})
	}
}
