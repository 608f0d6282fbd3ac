// Package plot draws the reports of package perf, as SVG.
package plot

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/tools/verbs/internal/svg"
)

// Named is a report with the name that its curves have.
type Named struct {
	Name   string // Name may be empty.
	Report *perf.Report
}

// Kinds of pictures.
const (
	Sizes   = "sizes"   // bandwidth or latency over the size of messages
	Latency = "latency" // the latencies of one size: a histogram, and their percentiles
	Time    = "time"    // messages per second over the time, of one size
)

// Options say what is drawn.
type Options struct {
	Kind string // Kind is one of the constants; "" is what suits the reports.
	Size int    // Size is the one of the messages, in bytes; 0 is all, or the only one.
}

// MaxReports is the maximum number of reports in one picture.
const MaxReports = 12

// CheckFile refuses a file whose name does not end in .svg.
func CheckFile(flag, file string) error {
	if !strings.EqualFold(filepath.Ext(file), ".svg") {
		return fmt.Errorf("--%s is %q, allowed: a file whose name ends in .svg", flag, file)
	}
	return nil
}

// Check reports whether reports can be drawn together.
func Check(reports ...Named) error {
	if len(reports) == 0 {
		return errors.New("there is nothing to draw")
	}
	if n := len(reports); n > MaxReports {
		return fmt.Errorf("the number of reports is %d, allowed: 1 to %d in one picture", n, MaxReports)
	}
	first := reports[0].Report.Config
	for _, r := range reports {
		c := r.Report.Config
		if c.Metric != perf.Lat && c.Metric != perf.BW {
			return fmt.Errorf("%s: metric is %q, allowed: %s, %s", r.Name, c.Metric, perf.Lat, perf.BW)
		}
		if c.Metric != first.Metric {
			return fmt.Errorf("%s measures %s, and %s is about %s: they have no axis in common", r.Name, r.Report.Test, reports[0].Report.Test, first.Metric)
		}
		if n := len(r.Report.Results); n > perf.MaxSizes {
			return fmt.Errorf("%s: the number of results is %d, allowed: 1 to %d", r.Name, n, perf.MaxSizes)
		}
		for _, s := range r.Report.Results {
			if s.Size < 1 || s.Size > math.MaxInt32 {
				return fmt.Errorf("%s: the size of a result is %d, allowed: 1 to %d", r.Name, s.Size, math.MaxInt32)
			}
			if c.Metric == perf.Lat && (s.Latency == nil || len(s.Latency.Histogram) == 0) || c.Metric == perf.BW && s.Bandwidth == nil {
				what := map[string]string{perf.Lat: "latency with a histogram", perf.BW: "bandwidth"}[c.Metric]
				return fmt.Errorf("%s: the result of size %d has no %s in it", r.Name, s.Size, what)
			}
			if err := checkFigures(s); err != nil {
				return fmt.Errorf("%s: the result of size %d: %w", r.Name, s.Size, err)
			}
		}
	}
	return nil
}

// checkFigures refuses what no test measures, as a file may have it.
func checkFigures(s perf.Size) error {
	const (
		most  = 1e15 // of µs, of MiB/s, and of messages
		least = 1e-9 // of seconds
		bins  = 4096 // of a histogram: 64 from one power of two to the next
	)
	last := 0.0
	if n := len(s.Timeline); n > perf.MaxSamples {
		return fmt.Errorf("the number of intervals is %d, allowed: up to %d", n, perf.MaxSamples)
	}
	for _, p := range s.Timeline {
		if !(p.Seconds-last >= least && p.Seconds <= 1e9) || p.Messages < 0 || p.Messages > most {
			return fmt.Errorf("one of the intervals has seconds %g and messages %d, allowed: more than the one before, %g, and up to 1e+09; 0 to %g", p.Seconds, p.Messages, last, most)
		}
		last = p.Seconds
	}
	figures := map[string]float64{}
	if s.Bandwidth != nil {
		figures["mib_per_s"] = s.Bandwidth.MiBPerSecond
	}
	if l := s.Latency; l != nil {
		figures = map[string]float64{"min_us": l.Min, "median_us": l.Median, "p99_us": l.P99, "p99_9_us": l.P999, "max_us": l.Max}
		if n := len(l.Histogram); n > bins {
			return fmt.Errorf("the histogram has %d bins, allowed: up to %d", n, bins)
		}
		n := 0
		for _, b := range l.Histogram {
			if b.Count < 1 || b.Count > l.Samples-n {
				return fmt.Errorf("a bin of the histogram has count %d, allowed: 1 and more, %d in all", b.Count, l.Samples)
			}
			n += b.Count
		}
		if n != l.Samples {
			return fmt.Errorf("samples is %d, and the histogram has %d", l.Samples, n)
		}
	}
	for name, v := range figures {
		if !(v >= 0 && v <= most) {
			return fmt.Errorf("%s is %g, allowed: 0 to %g", name, v, most)
		}
	}
	if s.Latency != nil {
		last = 0
		for _, b := range s.Latency.Histogram {
			if !(b.From >= last && b.From <= b.To && b.To <= 2*most) {
				return fmt.Errorf("a bin of the histogram is from %g to %g µs, allowed: from the end of the one before, %g, up to %g", b.From, b.To, last, 2*most)
			}
			last = b.To
		}
	}
	return nil
}

// choose returns the reports with the results that are drawn, and the kind of the picture.
func (o Options) choose(reports []Named) (string, []Named, error) {
	kind, chosen := o.Kind, slices.Clone(reports)
	sizes, timed := map[int]bool{}, true
	for i, r := range chosen {
		c := *r.Report
		if o.Size != 0 {
			c.Results = slices.DeleteFunc(slices.Clone(c.Results), func(s perf.Size) bool { return s.Size != o.Size })
		}
		if len(c.Results) == 0 {
			return "", nil, fmt.Errorf("%s has no result of size %d, which --size asks for", r.Name, o.Size)
		}
		for _, s := range c.Results {
			sizes[s.Size] = true
			timed = timed && len(s.Timeline) > 0
		}
		chosen[i].Report = &c
	}
	lat := chosen[0].Report.Config.Metric == perf.Lat
	if kind == "" {
		switch {
		case len(sizes) == 1 && timed && !lat:
			kind = Time
		case len(sizes) == 1 && lat:
			kind = Latency
		default:
			kind = Sizes
		}
	}
	switch {
	case kind != Sizes && len(sizes) > 1:
		return "", nil, fmt.Errorf("--kind is %s, which shows one size, and the reports have %d: choose one by --size", kind, len(sizes))
	case kind == Time && !timed:
		return "", nil, errors.New("--kind is time, allowed: sizes, latency; not all reports are of a test with --timeline")
	case kind == Latency && !lat:
		return "", nil, fmt.Errorf("--kind is latency, allowed: sizes, time; %s measures bandwidth", chosen[0].Report.Test)
	}
	return kind, chosen, nil
}

// Write draws reports. With several of them, the first one is what the others are compared with.
func Write(w io.Writer, o Options, reports ...Named) error {
	if err := Check(reports...); err != nil {
		return err
	}
	kind, reports, err := o.choose(reports)
	if err != nil {
		return err
	}
	p := picture{title: title(reports)}
	switch {
	case kind == Time:
		p.timeline(reports)
	case kind == Latency:
		p.latencies(reports)
	default:
		p.sizes(reports)
	}
	return p.draw(w)
}

// title returns the test, and of each report the hosts with their devices, the date, and the options.
func title(reports []Named) (lines []string) {
	first := reports[0].Report
	what := map[string]string{perf.Lat: "latency", perf.BW: "bandwidth"}[first.Config.Metric]
	var tests []string
	for _, n := range reports {
		if !slices.Contains(tests, n.Report.Test) {
			tests = append(tests, n.Report.Test)
		}
	}
	lines = append(lines, fmt.Sprintf("verbs perf, %s: %s", strings.Join(tests, ", "), what))
	for _, n := range reports {
		r := n.Report
		line := fmt.Sprintf("%s to %s", side(r.Client), side(r.Server))
		if n.Name != "" {
			line = n.Name + ": " + line
		}
		if !r.Time.IsZero() {
			line += ", " + r.Time.UTC().Format("2006-01-02 15:04 UTC")
		}
		if len(reports) == 1 && len(r.Results) == 1 {
			line += fmt.Sprintf(", %d bytes", r.Results[0].Size)
		}
		for _, word := range strings.SplitAfter(svg.Short(line+", "+settings(&r.Config), 10*most), ", ") {
			if last := lines[len(lines)-1]; len(lines) > 1 && line == "" && utf8.RuneCountInString(last+word) <= most {
				lines[len(lines)-1] = last + word
			} else {
				lines = append(lines, word)
			}
			line = "" // the first word of a report begins a line
		}
	}
	return lines
}

// side returns a side's host and device.
func side(s perf.Side) string {
	host, _, err := net.SplitHostPort(s.Address)
	if err != nil {
		host = s.Address
	}
	if s.Device != "" {
		host += " " + s.Device + " (" + s.Driver + ")"
	}
	return cmp.Or(host, "unknown host")
}

// settings returns the options of a test that are not the defaults.
func settings(c *perf.Config) string {
	decode := func(c perf.Config) (m map[string]any) {
		b, _ := json.Marshal(c) // a Config from JSON
		_ = json.Unmarshal(b, &m)
		return m
	}
	words := []string{c.Type}
	usual, given := decode(perf.Default(c.Op, c.Metric)), decode(*c)
	delete(given, "sizes")
	delete(given, "all")
	delete(given, "type")
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if v := given[name]; fmt.Sprint(v) != fmt.Sprint(usual[name]) {
			if n, ok := v.(float64); ok {
				v = fmt.Sprintf("%.15g", n)
				if short, ok := strings.CutSuffix(name, "_ns"); ok {
					name, v = short, time.Duration(n)
				}
			}
			words = append(words, fmt.Sprintf("%s %v", strings.ReplaceAll(name, "_", " "), v))
		}
	}
	return strings.Join(words, ", ")
}

// label returns the name of a report's curves.
func (n Named) label(what string) string {
	l := fmt.Sprintf("%s %s %s", n.Report.Test, n.Report.Config.Type, what)
	if n.Name != "" {
		l += " (" + svg.Short(n.Name, maxName) + ")"
	}
	return l
}

// bySize calls a function for the results in the order of their sizes.
func (n Named) bySize(f func(perf.Size)) {
	var sorted []*perf.Size
	for i := range n.Report.Results {
		sorted = append(sorted, &n.Report.Results[i])
	}
	slices.SortFunc(sorted, func(a, b *perf.Size) int { return cmp.Compare(a.Size, b.Size) })
	for _, s := range sorted {
		f(*s)
	}
}

// figure is what is drawn of a size.
type figure struct {
	name string
	of   func(perf.Size) float64
}

// figures returns the figures of a test.
func figures(metric string) []figure {
	if metric == perf.BW {
		return []figure{{"MiB/s", func(s perf.Size) float64 { return s.Bandwidth.MiBPerSecond }}}
	}
	return []figure{
		{"median", func(s perf.Size) float64 { return s.Latency.Median }},
		{"99 %", func(s perf.Size) float64 { return s.Latency.P99 }},
		{"99.9 %", func(s perf.Size) float64 { return s.Latency.P999 }},
	}
}

// sizes draws figures over the size, and how much other reports differ from the first one.
func (p *picture) sizes(reports []Named) {
	metric := reports[0].Report.Config.Metric
	main := panel{x: "bytes in a message", y: "µs", height: 360}
	differ := panel{x: main.x, y: "% more than the first report", height: 160}
	for i, r := range reports {
		for nth, f := range figures(metric) {
			c := curve{name: r.label(f.name), hue: i, nth: nth}
			d := curve{hue: i, nth: nth}
			r.bySize(func(s perf.Size) {
				at, v := math.Log2(float64(s.Size)), f.of(s)
				c.x = append(c.x, at)
				if metric == perf.BW {
					c.y = append(c.y, v)
				} else {
					c.y = append(c.y, logOf(v))
				}
				for _, o := range reports[0].Report.Results {
					if o.Size == s.Size && f.of(o) > 0 {
						d.x, d.y = append(d.x, at), append(d.y, percent(v, f.of(o)))
						break
					}
				}
			})
			main.curves = append(main.curves, c)
			if i > 0 && len(d.x) > 0 {
				differ.curves = append(differ.curves, d)
			}
		}
	}
	low, high := ends(main.curves, true)
	main.xTicks = sizeTicks(main.curves)
	if metric == perf.BW {
		main.y, main.yTicks = "MiB/s", linearTicks(low, high, 0)
	} else {
		main.yTicks = logTicks(low, high)
	}
	p.panels = append(p.panels, main)
	if len(differ.curves) > 0 {
		low, high := ends(differ.curves, true)
		differ.xTicks, differ.yTicks = main.xTicks, linearTicks(low, high, 0)
		p.panels = append(p.panels, differ)
	}
}

// percent returns how much more a value is than another one. More than a million is as good as a million.
func percent(v, than float64) float64 {
	const all, most = 100, 1e6
	return min(all*(v/than-1), most)
}

// against returns a value, and how much it differs from that of the first report.
func against(v, first float64, i int, unit string) string {
	format := "%.4g %s"
	if v >= 1e4 {
		format = "%.0f %s"
	}
	text := fmt.Sprintf(format, v, unit)
	if i > 0 && first > 0 {
		text += fmt.Sprintf(" (%+.1f %%)", percent(v, first))
	}
	return text
}

// nines are the parts of messages that an axis is marked with.
var nines = []struct {
	part float64
	name string
}{{0, "0"}, {0.5, "50 %"}, {0.9, "90 %"}, {0.99, "99 %"}, {0.999, "99.9 %"}, {0.9999, "99.99 %"}, {0.99999, "99.999 %"}, {0.999999, "99.9999 %"}}

// latencies draws the latency of one size: how many messages had which, and how many had no more.
func (p *picture) latencies(reports []Named) {
	perDecade := resolution(reports)
	histogram := panel{x: "µs", y: fmt.Sprintf("%% of the messages, in bins of which each is %.0f %% wide", percent(math.Pow(10, 1/perDecade), 1)), height: 260}
	part := panel{x: "messages with no more", y: "µs", height: 300}
	last := 1.0
	first := reports[0].Report.Results[0].Latency
	for i, r := range reports {
		l := r.Report.Results[0].Latency
		c := curve{hue: i, name: r.label(fmt.Sprintf("median %s, 99 %% %s, 99.9 %% %s",
			against(l.Median, first.Median, i, "µs"), against(l.P99, first.P99, i, "µs"), against(l.P999, first.P999, i, "µs")))}
		c.x, c.y = []float64{0}, []float64{logOf(l.Min)}
		n := 0
		for _, b := range l.Histogram {
			n += b.Count
			// The last one has all messages up to it, which is not on the axis.
			part := (float64(n) - 0.5) / float64(l.Samples)
			c.x, c.y = append(c.x, -math.Log10(1-part)), append(c.y, logOf(min(b.To, l.Max)))
		}
		last = max(last, c.x[len(c.x)-1])
		part.curves = append(part.curves, c)
		histogram.curves = append(histogram.curves, steps(l, i, perDecade))
	}
	for _, n := range nines {
		if at := -math.Log10(1 - n.part); at <= last {
			part.xTicks = append(part.xTicks, tick{at, n.name})
		}
	}
	part.xTicks = append(part.xTicks, tick{at: last})
	part.yTicks = logTicks(ends(part.curves, true))
	histogram.xTicks = logTicks(ends(histogram.curves, false))
	_, high := ends(histogram.curves, true)
	histogram.yTicks = linearTicks(0, high, 0)
	p.panels = append(p.panels, histogram, part)
}

// resolution returns how many bins a decade of a histogram has, so that all of it has about fifty.
func resolution(reports []Named) float64 {
	low, high := math.Inf(1), math.Inf(-1)
	for _, r := range reports {
		l := r.Report.Results[0].Latency
		low, high = min(low, logOf(l.Min)), max(high, logOf(l.Max))
	}
	const bins = 50
	for _, n := range []float64{100, 50, 20} {
		if n*(high-low) <= bins {
			return n
		}
	}
	return 10
}

// steps returns the outline of a histogram.
func steps(l *perf.Latency, hue int, perDecade float64) curve {
	counts := map[int]int{}
	for _, b := range l.Histogram {
		counts[int(math.Floor(logOf((b.From+b.To)/2)*perDecade))] += b.Count
	}
	c := curve{hue: hue, bare: true}
	add := func(at int, y float64) { c.x, c.y = append(c.x, float64(at)/perDecade), append(c.y, y) }
	next := math.MinInt
	for _, i := range slices.Sorted(maps.Keys(counts)) {
		if i != next {
			if next != math.MinInt {
				add(next, 0)
			}
			add(i, 0)
		}
		part := 100 * float64(counts[i]) / float64(l.Samples)
		add(i, part)
		add(i+1, part)
		next = i + 1
	}
	add(next, 0)
	return c
}

// timeline draws what was done over the time, and marks when nothing was done and when the port was down.
func (p *picture) timeline(reports []Named) {
	main := panel{x: "seconds since the traffic began", y: "messages/s", height: 360}
	bw := reports[0].Report.Config.Metric == perf.BW
	if bw {
		main.y = "Gb/s"
	}
	rate := func(s *perf.Size, messages int64, seconds float64) float64 {
		v := float64(messages) / seconds
		if bw {
			v *= float64(s.Size) * 8 / 1e9
		}
		return v
	}
	var first float64
	for i, r := range reports {
		s := &r.Report.Results[0]
		c := curve{hue: i, bare: len(s.Timeline) > maxMarkers}
		before, total := 0.0, int64(0)
		for _, t := range s.Timeline {
			total += t.Messages
			c.x, c.y = append(c.x, (before+t.Seconds)/2), append(c.y, rate(s, t.Messages, t.Seconds-before))
			before = t.Seconds
		}
		mean := rate(s, total, before)
		if i == 0 {
			first = mean
		}
		c.name = r.label(against(mean, first, i, main.y) + " on average")
		main.curves = append(main.curves, c)
		main.spans = append(main.spans, r.interruptions(s)...)
	}
	_, high := ends(main.curves, true)
	longest := 0.0
	for _, r := range reports {
		t := r.Report.Results[0].Timeline
		longest = max(longest, t[len(t)-1].Seconds)
	}
	main.xTicks, main.yTicks = linearTicks(0, longest, 0), linearTicks(0, high, 0)
	p.panels = append(p.panels, main)
}

// interruptions returns the times without messages, and those with a port that was down.
func (n Named) interruptions(s *perf.Size) (all []span) {
	before := 0.0
	for _, t := range s.Timeline {
		if t.Messages == 0 || t.Down {
			if i := len(all) - 1; i >= 0 && all[i].to == before {
				all[i].to, all[i].down = t.Seconds, all[i].down || t.Down
			} else {
				all = append(all, span{from: before, to: t.Seconds, down: t.Down})
			}
		}
		before = t.Seconds
	}
	for i := range all {
		what := map[bool]string{true: "port down", false: "no messages"}[all[i].down]
		all[i].label = fmt.Sprintf("%s %.3g s", what, all[i].to-all[i].from)
		if n.Name != "" {
			all[i].label += " (" + svg.Short(n.Name, maxName) + ")"
		}
	}
	return all
}

// logOf returns the position of a value on a logarithmic axis.
func logOf(v float64) float64 { return math.Log10(max(v, 1e-3)) }
