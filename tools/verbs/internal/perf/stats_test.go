package perf

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// near reports whether two numbers are equal but for rounding.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Max(1, math.Abs(b)) }

// TestLatency compares with values that were computed by hand.
func TestLatency(t *testing.T) {
	thousand := make([]int64, 1000) // 1 to 1000 µs, not in order
	for i := range thousand {
		thousand[i] = int64((i*7)%1000+1) * 1000
	}
	for name, c := range map[string]struct {
		ns                                           []int64
		min, median, average, p99, p999, most, stdev float64
	}{
		"one":   {[]int64{2500}, 2.5, 2.5, 2.5, 2.5, 2.5, 2.5, 0},
		"two":   {[]int64{3000, 1000}, 1, 2, 2, 3, 3, 3, 1},
		"eight": {[]int64{2000, 4000, 4000, 4000, 5000, 5000, 7000, 9000}, 2, 4.5, 5, 9, 9, 9, 2}, // the textbook's
		"many":  {thousand, 1, 500.5, 500.5, 990, 999, 1000, math.Sqrt((1000*1000 - 1) / 12.0)},
	} {
		l := NewLatency(c.ns)
		for _, f := range []struct {
			name      string
			got, want float64
		}{
			{"min", l.Min, c.min}, {"median", l.Median, c.median}, {"average", l.Average, c.average},
			{"p99", l.P99, c.p99}, {"p99.9", l.P999, c.p999}, {"max", l.Max, c.most}, {"stdev", l.Stdev, c.stdev},
		} {
			if !near(f.got, f.want) {
				t.Errorf("%s: %s is %v, want %v", name, f.name, f.got, f.want)
			}
		}
		n := 0
		for _, b := range l.Histogram {
			n += b.Count
		}
		if n != len(c.ns) || l.Samples != n {
			t.Errorf("%s: %d samples, %d in the histogram, want %d", name, l.Samples, n, len(c.ns))
		}
	}
	if NewLatency(nil) != nil {
		t.Error("there is a latency of no samples")
	}
}

// TestLatencies: a latency is from one doorbell to the next, half of it where a message goes there and back.
func TestLatencies(t *testing.T) {
	for _, c := range []struct {
		op    string
		times []int64
		want  []int64
	}{
		{Send, []int64{100, 120, 160}, []int64{10, 20}},
		{Read, []int64{100, 120, 160}, []int64{20, 40}},
		{Write, []int64{100}, []int64{35}}, // the only message took all of the time
		{Atomic, []int64{100}, []int64{70}},
		{Send, nil, nil},
	} {
		m := meter{times: c.times, ns: 1}
		if diff := cmp.Diff(c.want, m.latencies(c.op, 70)); diff != "" {
			t.Errorf("%s, %v (-want +got):\n%s", c.op, c.times, diff)
		}
	}
}

func TestHistogram(t *testing.T) {
	want := []Bin{{From: 0.005, To: 0.006, Count: 2}, {From: 0.127, To: 0.128, Count: 1}, {From: 0.128, To: 0.13, Count: 2}, {From: 1.024, To: 1.04, Count: 2}, {From: 1.04, To: 1.056, Count: 1}}
	if diff := cmp.Diff(want, histogram([]int64{5, 5, 127, 128, 129, 1024, 1039, 1040})); diff != "" {
		t.Errorf("bins (-want +got):\n%s", diff)
	}
	for v := int64(0); v < 1<<40; v = v*9/8 + 1 {
		from, to := bin(v)
		if v < from || v >= to || float64(to-from) > math.Max(1, 0.016*float64(from)) {
			t.Errorf("the bin of %d is from %d to %d", v, from, to)
		}
	}
}

func TestBandwidth(t *testing.T) {
	got := NewBandwidth(1000, 1<<20, 2*time.Second) // 500 MiB in a second
	if want := (Bandwidth{500, 500 * 8 * 1.048576e6 / 1e9, 500}); !near(got.MiBPerSecond, want.MiBPerSecond) || !near(got.GbitPerSecond, want.GbitPerSecond) || !near(got.MessagesPerSecond, want.MessagesPerSecond) {
		t.Errorf("bandwidth is %+v, want %+v", got, want)
	}
	if NewBandwidth(1, 1, 0) != (Bandwidth{}) {
		t.Error("there is a bandwidth of no time")
	}
}

// TestResult puts both sides of a test together.
func TestResult(t *testing.T) {
	c := Default(Send, BW)
	c.Type, c.Both = UD, true
	client := &Run{Took: time.Second, CPU: time.Second / 2, Sent: 100, AllSent: 110, Received: 108}
	server := &Run{Took: 2 * time.Second, CPU: time.Second / 2, Sent: 100, AllSent: 110, Received: 107}
	s := c.Result(1<<20, client, server)
	if s.Iterations != 200 || s.Lost != 5 || s.ClientCPU != 0.5 || s.ServerCPU != 0.25 || s.Seconds != 1 || !near(s.Bandwidth.MiBPerSecond, 150) || s.Latency != nil {
		t.Errorf("result is %+v, %+v", s, s.Bandwidth)
	}
	c = Default(Read, Lat)
	s = c.Result(2, &Run{Took: time.Second, Sent: 2, Latencies: []int64{1000, 3000}}, nil)
	if s.Iterations != 2 || s.Latency.Median != 2 || s.Bandwidth != nil || s.ServerCPU != 0 {
		t.Errorf("result is %+v", s)
	}
}

func TestRate(t *testing.T) {
	for _, c := range []struct {
		text    string
		n, size int
		want    time.Duration
	}{
		{"1000", 1, 65536, time.Millisecond},
		{"1000", 8, 65536, 8 * time.Millisecond},
		{"8Gb", 1, 1000, time.Microsecond},
		{"8Mb", 1, 1000, time.Millisecond},
		{"2MiB", 1, 1 << 20, 500 * time.Millisecond},
		{"0.5", 1, 1, 2 * time.Second},
	} {
		r, err := ParseRate(c.text)
		if got := r.gap(c.n, c.size); err != nil || got != c.want {
			t.Errorf("%s: %d messages of %d bytes take %s, %v, want %s", c.text, c.n, c.size, got, err, c.want)
		}
	}
	for gb, want := range map[float64]ib.StaticRate{2.5: ib.Rate2500M, 10: ib.Rate10G, 14: ib.Rate14G, 25: ib.Rate25G, 28: ib.Rate28G, 50: ib.Rate50G, 100: ib.Rate100G, 1200: ib.Rate1200G, 12: ib.RateMax, 9.5: ib.RateMax, 98: ib.RateMax} {
		if r := (Rate{gb, Gigabits, true}); r.static() != want || r.gap(1, 1) != 0 {
			t.Errorf("%g Gb in hardware are %s, want %s", gb, r.static(), want)
		}
	}
	if (Rate{}).gap(1, 1) != 0 {
		t.Error("without a limit there is a gap")
	}
	for _, bad := range []string{"", "fast", "-1", "0", "NaN", "Inf", "1kb", "1e300Gb"} {
		if r, err := ParseRate(bad); err == nil || !strings.Contains(err.Error(), "--rate is") {
			t.Errorf("%q is taken for %+v: %v", bad, r, err)
		}
	}
}
