// Package ringbench has the common part of the rings' benchmarks.
package ringbench

import (
	"slices"
	"testing"
	"time"
)

// InFlight is how many work requests PostPoll posts before it polls.
const InFlight = 64

// PostPoll posts InFlight work requests, n at a time, calls play for the other side, and polls the
// completions, n at a time. It reports the time per work request of posting and of polling, without
// play. Each is the median of the last rounds, so that interruptions do not count.
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
	b.ReportMetric(0, "ns/op") // it includes the other side's time
}
