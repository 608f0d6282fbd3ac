package perf

import (
	"math"
	"math/bits"
	"slices"
)

// Latency is a distribution of times, in microseconds.
type Latency struct {
	Samples int     `json:"samples"`
	Min     float64 `json:"min_us"`
	Median  float64 `json:"median_us"` // of an even number the mean of the two in the middle
	Average float64 `json:"average_us"`
	P99     float64 `json:"p99_us"`   // the least that at least 99 % are not above
	P999    float64 `json:"p99_9_us"` // the same of 99.9 %
	Max     float64 `json:"max_us"`
	Stdev   float64 `json:"stdev_us"` // of the population

	Histogram []Bin `json:"histogram"`
}

// Bin is a bin of a histogram: how many samples were from From up to but not To, in
// microseconds. Bins without samples are left out; a bin is at most 1.6 % wide.
type Bin struct {
	From  float64 `json:"from_us"`
	To    float64 `json:"to_us"`
	Count int     `json:"count"`
}

// usec is a microsecond, in nanoseconds.
const usec = 1e3

// NewLatency describes samples in nanoseconds, which it sorts. Without any it returns nil.
func NewLatency(ns []int64) *Latency {
	n := len(ns)
	if n == 0 {
		return nil
	}
	slices.Sort(ns)
	l := &Latency{Samples: n, Min: float64(ns[0]) / usec, Max: float64(ns[n-1]) / usec}
	l.Median = (float64(ns[(n-1)/2]) + float64(ns[n/2])) / 2 / usec
	l.P99, l.P999 = quantile(ns, 0.99), quantile(ns, 0.999)
	sum := 0.0
	for _, v := range ns {
		sum += float64(v)
	}
	mean := sum / float64(n)
	squares := 0.0
	for _, v := range ns {
		squares += (float64(v) - mean) * (float64(v) - mean)
	}
	l.Average = mean / usec
	l.Stdev = math.Sqrt(squares/float64(n)) / usec
	l.Histogram = histogram(ns)
	return l
}

// quantile returns the least sample that at least a part q of all are not above.
func quantile(sorted []int64, q float64) float64 {
	rank := int(math.Ceil(q * float64(len(sorted))))
	return float64(sorted[max(rank, 1)-1]) / usec
}

// histogram counts sorted samples.
func histogram(sorted []int64) (bins []Bin) {
	last := int64(-1) // end of the last bin
	for _, v := range sorted {
		if v >= last || len(bins) == 0 {
			from, to := bin(v)
			bins = append(bins, Bin{From: float64(from) / usec, To: float64(to) / usec})
			last = to
		}
		bins[len(bins)-1].Count++
	}
	return bins
}

// bin returns the bin of a sample: 64 bins between one power of two and the next.
func bin(v int64) (from, to int64) {
	const fine = 6
	v = max(v, 0)
	shift := max(bits.Len64(uint64(v))-1-fine, 0)
	from = v >> shift << shift
	return from, from + 1<<shift
}
