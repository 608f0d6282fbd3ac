//go:build amd64 || arm64

package mlx5

import (
	"fmt"
	"testing"

	"github.com/goverbs/goverbs/mmio/internal/ringbench"
)

// BenchmarkPostPoll posts WRITEs of one entry, with their doorbell, and polls for their completions.
func BenchmarkPostPoll(b *testing.B) {
	for _, n := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			k := newCard(b, Connected, ringbench.InFlight, 1, 0)
			sent := map[int][]byte{cntOffset: {0, 0}}
			var sum uint64
			ringbench.PostPoll(b, n, func(n int) {
				k.sq.Begin()
				if !k.sq.Room(n) {
					b.Fatal("no room")
				}
				for i := range n {
					if !k.sq.PutSGE(uint64(i), NewMeta(Write, Signaled, 0), 0x1000, 7, 0x2000, 64, 9) {
						b.Fatal("refused")
					}
				}
				k.sq.Publish()
			}, func(n int) {
				for range n {
					sent[cntOffset][0], sent[cntOffset][1] = byte(k.taken>>8), byte(k.taken)
					k.put(0, 0, sent)
					k.taken++ // a WRITE of one entry is a block
				}
			}, func(n int) {
				if got := k.cq.Avail(n); got != n {
					b.Fatal(got)
				}
				for i := range n {
					c := k.cq.Entry(i)
					if c.Kind() != KindSend {
						b.Fatal(c.RawOpcode())
					}
					d, ok := k.sq.Done(c.Counter())
					if !ok {
						b.Fatal("a completion of nothing that was posted")
					}
					id, _ := k.sq.Take(d)
					sum += id + uint64(c.QPN()) + uint64(c.ByteCount())
				}
				k.cq.Release(n)
			})
			_ = sum
		})
	}
}
