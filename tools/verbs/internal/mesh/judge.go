package mesh

import (
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
)

// Validate refuses thresholds that make no sense. Errors name them by their flags.
func (t *Thresholds) Validate() error {
	const percent = 100
	for _, f := range []struct {
		name    string
		given   float64
		ok      bool
		allowed string
	}{
		{"max-latency", t.MaxLatency, t.MaxLatency >= 0, "a time above 0"},
		{"max-p99", t.MaxP99, t.MaxP99 >= 0, "a time above 0"},
		{"min-bandwidth", t.MinBandwidth, t.MinBandwidth >= 0, "0 and more, in Gb per second"},
		{"max-loss", t.MaxLoss, t.MaxLoss >= 0 && t.MaxLoss < percent, "0 to less than 100, in percent"},
		{"latency-ratio", t.LatencyRatio, t.LatencyRatio > 1, "above 1: how many times the fleet's median is too much"},
		{"bandwidth-ratio", t.BandwidthRatio, t.BandwidthRatio >= 0 && t.BandwidthRatio < 1, "0 to less than 1: the part of the fleet's median that is too little"},
	} {
		if !f.ok || math.IsInf(f.given, 0) || math.IsNaN(f.given) {
			return fmt.Errorf("--%s is %g, allowed: %s", f.name, f.given, f.allowed)
		}
	}
	if t.MaxLatency > 0 && t.MaxP99 > 0 && t.MaxP99 < t.MaxLatency {
		return fmt.Errorf("--max-p99 is %g µs, allowed: --max-latency and more, which is %g µs", t.MaxP99, t.MaxLatency)
	}
	return nil
}

// judge holds the measurements against the thresholds.
func (r *Report) judge() {
	r.Medians = []Median{}
	for i := range r.Measurements {
		typ := r.Measurements[i].Type
		if !slices.ContainsFunc(r.Medians, func(m Median) bool { return m.Type == typ }) {
			r.Medians = append(r.Medians, r.median(typ))
		}
	}
	for i := range r.Measurements {
		m := &r.Measurements[i]
		m.Problems = nil
		for _, p := range r.problems(m) {
			m.Problems = append(m.Problems, p.kind)
		}
	}
}

// median returns what is usual for a type. Of an even number it takes the better one of the two in the
// middle: where half of the fleet is bad, the other half is the measure.
func (r *Report) median(typ string) Median {
	var lat, bw []float64
	for i := range r.Measurements {
		m := &r.Measurements[i]
		if m.Type == typ && m.Latency != nil {
			lat = append(lat, m.Latency.Median)
		}
		if m.Type == typ && m.Bandwidth != nil {
			bw = append(bw, *m.Bandwidth)
		}
	}
	all := Median{Type: typ}
	sort.Slice(lat, func(i, j int) bool { return lat[i] < lat[j] })
	sort.Slice(bw, func(i, j int) bool { return bw[i] < bw[j] })
	if n := len(lat); n > 0 {
		all.Latency = lat[(n-1)/2]
	}
	if n := len(bw); n > 0 {
		all.Bandwidth = bw[n/2]
	}
	return all
}

// usual returns the median of a type.
func (r *Report) usual(typ string) Median {
	i := slices.IndexFunc(r.Medians, func(m Median) bool { return m.Type == typ })
	if i < 0 {
		return Median{Type: typ}
	}
	return r.Medians[i]
}

// problem is what is wrong with a measurement, and how far.
type problem struct{ kind, text string }

// problems finds what is wrong with a measurement.
func (r *Report) problems(m *Measurement) (all []problem) {
	t, usual := r.Thresholds, r.usual(m.Type)
	add := func(kind, format string, args ...any) {
		all = append(all, problem{kind, fmt.Sprintf(format, args...)})
	}
	for _, e := range m.Errors {
		add("failed", "%s", e)
	}
	if l := m.Latency; l != nil {
		if limit := t.LatencyRatio * usual.Latency; l.Median > limit {
			add("latency", "median latency %.1f µs, of the fleet %.1f µs, allowed: up to %.1f µs", l.Median, usual.Latency, limit)
		} else if t.MaxLatency > 0 && l.Median > t.MaxLatency {
			add("latency", "median latency %.1f µs, allowed: up to %.1f µs", l.Median, t.MaxLatency)
		}
		if t.MaxP99 > 0 && l.P99 > t.MaxP99 {
			add("p99", "latency of 99 %% up to %.1f µs, allowed: up to %.1f µs", l.P99, t.MaxP99)
		}
	}
	if b := m.Bandwidth; b != nil {
		if limit := t.BandwidthRatio * usual.Bandwidth; *b < limit {
			add("bandwidth", "bandwidth %.3f Gb/s, of the fleet %.3f Gb/s, allowed: from %.3f Gb/s", *b, usual.Bandwidth, limit)
		} else if *b < t.MinBandwidth {
			add("bandwidth", "bandwidth %.3f Gb/s, allowed: from %.3f Gb/s", *b, t.MinBandwidth)
		}
		if m.Loss > t.MaxLoss {
			add("loss", "%.2f %% of the datagrams lost, allowed: up to %g %%", m.Loss, t.MaxLoss)
		}
	}
	return all
}

// describe words what is wrong with a measurement.
func (r *Report) describe(m *Measurement) (lines []string) {
	label := ""
	if m.FlowLabel != 0 {
		label = fmt.Sprintf(" with flow label %d", m.FlowLabel)
	}
	for _, p := range r.problems(m) {
		lines = append(lines, fmt.Sprintf("%s -> %s on %s over %s%s: %s", peertext.Quote(m.From), peertext.Quote(m.To), m.Rail, m.Type, label, p.text))
	}
	return lines
}
