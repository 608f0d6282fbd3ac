//go:build amd64 || arm64

package mlx5

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// inFlight is how many work requests BenchmarkPostPoll posts before it polls.
const inFlight = 64

// postPoll posts a queue full, n at a time, has the other side do it, and polls for it, n at a time. It
// reports the time of each half by the work request: the median of the last rounds, as who takes the
// processor away meanwhile is not what is measured. The other side's time is in neither.
func postPoll(b *testing.B, n int, post, play, poll func(n int)) {
	var posting, polling [1 << 12]time.Duration
	round := 0
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		for range inFlight / n {
			post(n)
		}
		posting[round%len(posting)] = time.Since(start)
		play(inFlight)
		start = time.Now()
		for range inFlight / n {
			poll(n)
		}
		polling[round%len(polling)] = time.Since(start)
		round++
	}
	each := func(all []time.Duration) float64 {
		all = all[:min(round, len(all))]
		slices.Sort(all)
		return float64(all[len(all)/2].Nanoseconds()) / inFlight
	}
	wr, cqe := each(posting[:]), each(polling[:])
	b.ReportMetric(wr, "ns/WR")
	b.ReportMetric(cqe, "ns/CQE")
	b.ReportMetric(wr+cqe, "ns/both")
	b.ReportMetric(0, "ns/op") // it has the other side's time in it
}

// BenchmarkPostPoll posts WRITEs of one entry, with their doorbell, and polls for their completions.
func BenchmarkPostPoll(b *testing.B) {
	for _, n := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			k := newCard(b, Connected, inFlight, 1, 0)
			sent := map[int][]byte{cntOffset: {0, 0}}
			var s SendSlot
			var sum uint64
			postPoll(b, n, func(n int) {
				k.sq.Begin()
				if !k.sq.Room(n) {
					b.Fatal("no room")
				}
				for i := range n {
					k.sq.Start(&s, uint64(i), Write, Signaled)
					s.SetRDMA(0x1000, 7)
					if err := s.AddSGE(0x2000, 64, 9); err != nil {
						b.Fatal(err)
					}
					s.Finish()
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
					if kind, ok := c.Plain(); !ok {
						b.Fatal(kind)
					}
					id, _, ok := k.sq.Complete(c.Counter())
					if !ok {
						b.Fatal("a completion of nothing that was posted")
					}
					sum += id + uint64(c.QPN()) + uint64(c.ByteCount())
				}
				k.cq.Release(n)
			})
			_ = sum
		})
	}
}
