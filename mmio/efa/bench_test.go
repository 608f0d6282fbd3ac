//go:build amd64 || arm64

package efa

import (
	"fmt"
	"testing"

	"github.com/goverbs/goverbs/mmio/internal/ringbench"
)

// BenchmarkPostPoll posts SENDs of one entry and polls for their completions.
func BenchmarkPostPoll(b *testing.B) {
	for _, n := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := plain(b, 128)
			var sum uint64
			ringbench.PostPoll(b, n, func(n int) {
				if !r.sq.Room(n) {
					b.Fatal("no room")
				}
				for i := range n {
					if err := r.sq.put(i, uint64(i), Send, 0, NewPeer(1, 2, 3), 0, 0, 0x2000, 64, 9); err != nil {
						b.Fatal(err)
					}
				}
				r.sq.Publish(n)
			}, func(n int) {
				for range n {
					r.complete(0, entry(idOf(r.llq[int(r.sent)%128*64:]), 0, entrySend, 1))
					r.sent++
				}
			}, func(n int) {
				for range n {
					c, ok := next(r.cq)
					if !ok || c.Kind() != KindSend {
						b.Fatal("no completion")
					}
					id, op, length, ok := r.sq.Complete(c.ReqID())
					if !ok {
						b.Fatal("refused")
					}
					sum += id + uint64(op) + uint64(length) + uint64(c.Status()) + uint64(c.QPN())
				}
				r.cq.Release()
			})
			_ = sum
		})
	}
}

// BenchmarkRecv posts receives of one entry and polls for their completions.
func BenchmarkRecv(b *testing.B) {
	r := plain(b, 128)
	var sum uint64
	ringbench.PostPoll(b, 16, func(n int) {
		if !r.rq.Room(n) {
			b.Fatal("no room")
		}
		r.rq.Begin()
		for i := range n {
			if r.rq.Put(i, uint64(i), 0x2000, 64, 9) != nil {
				b.Fatal("refused")
			}
		}
		r.rq.Publish(n)
	}, func(n int) {
		for range n {
			r.complete(0, entry(idOf(r.peer.rq[int(r.received)%128*16:][:16]), 0, entryRecv, 1))
			r.received++
		}
	}, func(n int) {
		for range n {
			c, ok := next(r.cq)
			if !ok || c.Kind() != KindRecv {
				b.Fatal("no completion")
			}
			s := c.Source()
			id, ok := r.rq.Complete(c.ReqID())
			if !ok {
				b.Fatal("refused")
			}
			sum += id + uint64(s.Length) + uint64(s.Imm) + uint64(s.QPN) + uint64(s.AH) + uint64(c.Status())
		}
		r.cq.Release()
	})
	_ = sum
}
