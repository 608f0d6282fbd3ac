// Package plot draws the reports of package perf, as SVG.
package plot

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
)

// Named is a report with the name that its curves have.
type Named struct {
	Name   string // Name may be empty.
	Report *perf.Report
}

// Size of a picture, in pixels, and where its axes are.
const (
	width, height = 1250, 620
	left, right   = 340, width - 20 // names of curves are left of it
	top, bottom   = 50, height - 50
)

// CheckFile refuses a file whose name does not end in .svg.
func CheckFile(file string) error {
	if !strings.EqualFold(filepath.Ext(file), ".svg") {
		return fmt.Errorf("--plot is %q, allowed: a file whose name ends in .svg", file)
	}
	return nil
}

// Check reports whether reports can be drawn together.
func Check(reports ...Named) error {
	if len(reports) == 0 {
		return errors.New("there is nothing to draw")
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
		for _, s := range r.Report.Results {
			if c.Metric == perf.Lat && (s.Latency == nil || len(s.Latency.Histogram) == 0) || c.Metric == perf.BW && s.Bandwidth == nil || s.Size < 1 {
				return fmt.Errorf("%s: the result of size %d has no %s in it", r.Name, s.Size, c.Metric)
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
	const most = 1e15 // of µs and of MiB/s
	figures := map[string]float64{}
	if s.Bandwidth != nil {
		figures["mib_per_s"] = s.Bandwidth.MiBPerSecond
	}
	if l := s.Latency; l != nil {
		figures = map[string]float64{"min_us": l.Min, "median_us": l.Median, "p99_us": l.P99, "p99_9_us": l.P999, "max_us": l.Max}
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
	return nil
}

// Write draws reports: bandwidth over the size of messages, or latency (median, 99 % and 99.9 %); and,
// if there is but one size, latency over the part of the messages that had no more.
func Write(w io.Writer, reports ...Named) error {
	if err := Check(reports...); err != nil {
		return err
	}
	var p picture
	switch {
	case reports[0].Report.Config.Metric == perf.BW:
		p = bandwidth(reports)
	case oneSize(reports):
		p = distribution(reports)
	default:
		p = latency(reports)
	}
	_, err := w.Write(p.draw())
	return err
}

// oneSize reports whether all results are of one size.
func oneSize(reports []Named) bool {
	for _, r := range reports {
		for _, s := range r.Report.Results {
			if s.Size != reports[0].Report.Results[0].Size {
				return false
			}
		}
	}
	return true
}

// curve is a line. Its points are in the order of x.
type curve struct {
	name string
	x, y []float64
	dash bool
	hue  int // curves of one report have one colour
}

// picture is what is drawn.
type picture struct {
	title, x, y    string
	curves         []curve
	xTicks, yTicks []tick
}

// tick is a mark of an axis. The first and the last one are the axis' ends.
type tick struct {
	at    float64
	label string // may be empty
}

// label returns the name of a report's curves.
func (n Named) label(what string) string {
	c := n.Report.Config
	l := fmt.Sprintf("%s %s %s", n.Report.Test, c.Type, what)
	if n.Name != "" {
		l += " (" + n.Name + ")"
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

// bandwidth draws it over the size.
func bandwidth(reports []Named) picture {
	p := picture{title: "Bandwidth", x: "bytes in a message", y: "MiB/s"}
	most := 0.0
	for i, r := range reports {
		c := curve{name: r.label("MiB/s"), hue: i}
		r.bySize(func(s perf.Size) {
			c.x, c.y = append(c.x, math.Log2(float64(s.Size))), append(c.y, s.Bandwidth.MiBPerSecond)
			most = max(most, s.Bandwidth.MiBPerSecond)
		})
		p.curves = append(p.curves, c)
	}
	p.xTicks, p.yTicks = sizeTicks(p.curves), linearTicks(most)
	return p
}

// latency draws percentiles over the size.
func latency(reports []Named) picture {
	p := picture{title: "Latency", x: "bytes in a message", y: "µs"}
	for i, r := range reports {
		for _, q := range []struct {
			name string
			of   func(*perf.Latency) float64
		}{
			{"median", func(l *perf.Latency) float64 { return l.Median }},
			{"99 %", func(l *perf.Latency) float64 { return l.P99 }},
			{"99.9 %", func(l *perf.Latency) float64 { return l.P999 }},
		} {
			c := curve{name: r.label(q.name), hue: i, dash: q.name != "median"}
			r.bySize(func(s perf.Size) {
				c.x, c.y = append(c.x, math.Log2(float64(s.Size))), append(c.y, logOf(q.of(s.Latency)))
			})
			p.curves = append(p.curves, c)
		}
	}
	p.xTicks, p.yTicks = sizeTicks(p.curves), logTicks(p.curves)
	return p
}

// nines are the parts of messages that an axis is marked with.
var nines = []struct {
	part float64
	name string
}{{0, "0"}, {0.5, "50 %"}, {0.9, "90 %"}, {0.99, "99 %"}, {0.999, "99.9 %"}, {0.9999, "99.99 %"}, {0.99999, "99.999 %"}}

// distribution draws the latency of one size.
func distribution(reports []Named) picture {
	p := picture{title: fmt.Sprintf("Latency of %d bytes", reports[0].Report.Results[0].Size), x: "messages with no more", y: "µs"}
	last := 1.0
	for i, r := range reports {
		for _, s := range r.Report.Results {
			c := curve{name: r.label("latency"), hue: i}
			l, n := s.Latency, 0
			c.x, c.y = []float64{0}, []float64{logOf(l.Min)}
			for _, b := range l.Histogram {
				n += b.Count
				// The last one has all messages up to it, which is not on the axis.
				part := (float64(n) - 0.5) / float64(l.Samples)
				c.x, c.y = append(c.x, -math.Log10(1-part)), append(c.y, logOf(min(b.To, l.Max)))
			}
			last = max(last, c.x[len(c.x)-1])
			p.curves = append(p.curves, c)
		}
	}
	for _, n := range nines {
		if at := -math.Log10(1 - n.part); at <= last {
			p.xTicks = append(p.xTicks, tick{at, n.name})
		}
	}
	p.xTicks = append(p.xTicks, tick{at: last})
	p.yTicks = logTicks(p.curves)
	return p
}

// logOf returns the position of a value on a logarithmic axis.
func logOf(v float64) float64 { return math.Log10(max(v, 1e-3)) }

// sizeTicks marks an axis of sizes, from the least to the largest.
func sizeTicks(curves []curve) (ticks []tick) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, c := range curves {
		low, high = min(low, slices.Min(c.x)), max(high, slices.Max(c.x))
	}
	from, to := int(math.Floor(low)), int(math.Ceil(high))
	if from == to {
		from, to = from-1, to+1
	}
	for i := from; i <= to; i++ {
		label := ""
		if i >= 0 {
			label = sizeName(1 << i)
		}
		ticks = append(ticks, tick{float64(i), label})
	}
	return ticks
}

// sizeName writes a power of 2.
func sizeName(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%dM", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%dK", n>>10)
	}
	return fmt.Sprint(n)
}

// logTicks marks a logarithmic axis by 1, 2 and 5.
func logTicks(curves []curve) (ticks []tick) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, c := range curves {
		low, high = min(low, slices.Min(c.y)), max(high, slices.Max(c.y))
	}
	for decade := math.Floor(low); ; decade++ {
		for _, step := range []float64{1, 2, 5} {
			at := decade + math.Log10(step)
			if next := at + math.Log10(2.5); next < low {
				continue
			}
			ticks = append(ticks, tick{at, fmt.Sprintf("%g", step*math.Pow(10, decade))})
			if at >= high && len(ticks) > 1 {
				return ticks
			}
		}
	}
}

// linearTicks marks an axis from 0.
func linearTicks(most float64) (ticks []tick) {
	step := math.Pow(10, math.Floor(math.Log10(max(most, 1e-9))))
	for most/step < 4 {
		step /= 2
	}
	for i := 0; ; i++ {
		at := float64(i) * step
		ticks = append(ticks, tick{at, fmt.Sprintf("%.4g", at)})
		if at >= most {
			return ticks
		}
	}
}

// colours are the colours of the reports, in turn.
var colours = []string{"#1769aa", "#c4551d", "#2e8540", "#7b3fa0", "#b8860b", "#555555"}

// place returns the pixel of a value between two ends of an axis, and of its pixels.
func place(v float64, ticks []tick, from, to float64) float64 {
	low, high := ticks[0].at, ticks[len(ticks)-1].at
	return from + (to-from)*(v-low)/(high-low)
}

// draw returns the picture as SVG.
func (p picture) draw() []byte {
	var b bytes.Buffer
	text := func(x, y float64, anchor, s string) {
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, html.EscapeString(s))
	}
	line := func(x1, y1, x2, y2 float64, style string) {
		fmt.Fprintf(&b, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2, style)
	}
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n", width, height)
	fmt.Fprintln(&b, `<rect width="100%" height="100%" fill="white"/>`)
	text((left+right)/2, top/2, "middle", p.title)
	text((left+right)/2, height-10, "middle", p.x)
	text(left-8, top-12, "end", p.y)
	const grid = `stroke="#dddddd"`
	for _, t := range p.xTicks {
		x := place(t.at, p.xTicks, left, right)
		line(x, top, x, bottom, grid)
		text(x, bottom+18, "middle", t.label)
	}
	for _, t := range p.yTicks {
		y := place(t.at, p.yTicks, bottom, top)
		line(left, y, right, y, grid)
		text(left-8, y+4, "end", t.label)
	}
	nth := map[int]int{} // curves of a report so far
	for i, c := range p.curves {
		style := fmt.Sprintf(`stroke="%s" stroke-width="2" fill="none"`, colours[c.hue%len(colours)])
		if n := nth[c.hue]; c.dash {
			style += fmt.Sprintf(` stroke-dasharray="%d %d"`, 8/n, 4*n)
		}
		nth[c.hue]++
		y := float64(top + 20*i)
		line(10, y, 40, y, style)
		text(48, y+4, "start", c.name)
		points := make([]string, len(c.x))
		for i := range c.x {
			points[i] = fmt.Sprintf("%.1f,%.1f", place(c.x[i], p.xTicks, left, right), place(c.y[i], p.yTicks, bottom, top))
		}
		// A curve of one point is seen by its mark.
		fmt.Fprintf(&b, "<polyline points=\"%s\" %s stroke-linecap=\"round\"/>\n", strings.Join(points, " "), style)
		if len(points) == 1 {
			x, y, _ := strings.Cut(points[0], ",")
			fmt.Fprintf(&b, "<circle cx=\"%s\" cy=\"%s\" r=\"3\" %s/>\n", x, y, style)
		}
	}
	fmt.Fprintln(&b, "</svg>")
	return b.Bytes()
}
