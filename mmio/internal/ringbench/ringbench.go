// Package ringbench is what the benchmarks of the rings have in common.
package ringbench

import (
	"slices"
	"testing"
	"time"
)

// InFlight is how many work requests PostPoll posts before it polls.
const InFlight = 64

// PostPoll posts a queue full, n at a time, has the other side do it, and polls for it, n at a time. It
// reports the time of each half by the work request: the median of the last rounds, as who takes the
// processor away meanwhile is not what is measured. The other side's time is in neither.
func PostPoll(b *testing.B, n int, post, play, poll func(n int)) {
	var posting, polling [1 << 12]time.Duration
	round := 0
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		for range InFlight / n {
			post(n)
		}
		posting[round%len(posting)] = time.Since(start)
		play(InFlight)
		start = time.Now()
		for range InFlight / n {
			poll(n)
		}
		polling[round%len(polling)] = time.Since(start)
		round++
	}
	each := func(all []time.Duration) float64 {
		all = all[:min(round, len(all))]
		slices.Sort(all)
		return float64(all[len(all)/2].Nanoseconds()) / InFlight
	}
	wr, cqe := each(posting[:]), each(polling[:])
	b.ReportMetric(wr, "ns/WR")
	b.ReportMetric(cqe, "ns/CQE")
	b.ReportMetric(wr+cqe, "ns/both")
	b.ReportMetric(0, "ns/op") // it has the other side's time in it
}
