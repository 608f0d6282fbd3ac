package plot

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/goverbs/goverbs/tools/verbs/internal/svg"
)

// Sizes of a picture, in pixels.
const (
	width       = 1000
	left, right = 90, width - 30 // the ends of the x axes
	above       = 40             // of a panel, for the name of its y axis
	below       = 56             // for the names of its x axis and its ticks
	most        = 130            // characters of a line
	maxName     = 20             // characters of a report's name behind others
	maxMarkers  = 64             // points of a curve with markers
)

// curve is a line. Its points are in the order of x.
type curve struct {
	name string // in the legend; "" for none
	x, y []float64
	nth  int // of the report's curves; 0 is solid
	hue  int // curves of one report have one colour and one marker
	bare bool
}

// span is a marked part of a panel.
type span struct {
	from, to float64
	label    string
	down     bool
}

// panel is a pair of axes with curves.
type panel struct {
	x, y           string
	height         float64
	curves         []curve
	spans          []span
	xTicks, yTicks []tick
}

// picture is what is drawn: panels under each other, and under them the legend.
type picture struct {
	title  []string
	panels []panel
}

// tick is a mark of an axis. The first and the last one are the axis' ends.
type tick struct {
	at    float64
	label string // may be empty
}

// sizeTicks marks an axis of sizes, from the least to the largest.
func sizeTicks(curves []curve) (ticks []tick) {
	low, high := ends(curves, false)
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
	case n >= 1<<30:
		return fmt.Sprintf("%dG", n>>30)
	case n >= 1<<20:
		return fmt.Sprintf("%dM", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%dK", n>>10)
	}
	return fmt.Sprint(n)
}

// ends returns the least and the largest value of curves, of x or y.
func ends(curves []curve, y bool) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, c := range curves {
		values := c.x
		if y {
			values = c.y
		}
		for _, v := range values {
			low, high = min(low, v), max(high, v)
		}
	}
	return low, high
}

// logTicks marks a logarithmic axis by 1, 2 and 5, by fewer if it is long, and by more if it is short.
func logTicks(low, high float64) (ticks []tick) {
	steps := []float64{1, 2, 5}
	switch {
	case high-low > 5:
		steps = steps[:1]
	case high-low < 0.8:
		steps = []float64{1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8}
	}
	for decade := math.Floor(low); ; decade++ {
		for i, step := range steps {
			at, next := decade+math.Log10(step), decade+1
			if i+1 < len(steps) {
				next = decade + math.Log10(steps[i+1])
			}
			if next <= low {
				continue
			}
			ticks = append(ticks, tick{at, fmt.Sprintf("%g", step*math.Pow(10, decade))})
			if at >= high && len(ticks) > 1 {
				return ticks
			}
		}
	}
}

// linearTicks marks an axis that has two values, and one more.
func linearTicks(low, high, base float64) (ticks []tick) {
	low, high = min(low, base), max(high, base)
	if high-low < 1e-9 {
		high = low + 1
	}
	step := math.Pow(10, math.Floor(math.Log10(high-low)))
	for (high-low)/step < 4 {
		step /= 2
	}
	for i := math.Floor(low / step); ; i++ {
		ticks = append(ticks, tick{i * step, fmt.Sprintf("%.10g", i*step)})
		if i*step >= high {
			return ticks
		}
	}
}

// colours are the colours of the reports, in turn. They differ in grey, too.
var colours = []string{"#1769aa", "#d9691e", "#1d5c2b", "#b14fd0", "#a08000", "#333333"}

// place returns the pixel of a value between two ends of an axis, and of its pixels.
func place(v float64, ticks []tick, from, to float64) float64 {
	low, high := ticks[0].at, ticks[len(ticks)-1].at
	return from + (to-from)*(v-low)/(high-low)
}

// style returns the attributes of a curve's line. It is thin where the colours begin again.
func (c *curve) style() string {
	s := fmt.Sprintf(`stroke="%s" stroke-width="%d" fill="none"`, colours[c.hue%len(colours)], 2-c.hue/len(colours)%2)
	if c.nth > 0 {
		s += fmt.Sprintf(` stroke-dasharray="%d %d"`, 8/c.nth, 4*c.nth)
	}
	return s
}

// marker returns the mark of a point. Where the colours begin again, they have other marks.
func (c *curve) marker(x, y float64) string {
	shapes := []string{
		"m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0", "m-4 -4h8v8h-8z", "m0 -5l5 9h-10z", "m0 -5l5 5l-5 5l-5 -5z", "m0 5l5 -9h-10z", "m-4 -4l8 8m0 -8l-8 8",
	}
	colour := colours[c.hue%len(colours)]
	return fmt.Sprintf(`<path class="marker" d="M%.1f %.1f%s" fill="%s" stroke="%s"/>`, x, y, shapes[(c.hue+c.hue/len(colours))%len(shapes)], map[bool]string{true: colour, false: "#fff"}[c.nth == 0], colour)
}

// draw draws the panel with its top at y.
func (p *panel) draw(b *svg.Picture, y float64) {
	top, bottom := y+above, y+above+p.height
	b.Text(left-60, top-14, "", p.y, most)
	b.Text((left+right)/2, bottom+40, ` text-anchor="middle"`, p.x, most)
	line := func(x1, y1, x2, y2 float64) {
		b.Add(`<path d="M%.1f %.1fL%.1f %.1f" stroke="#ddd"/>`, x1, y1, x2, y2)
	}
	for _, s := range p.spans {
		from, to := place(s.from, p.xTicks, left, right), place(s.to, p.xTicks, left, right)
		b.Add(`<rect class="span" x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`, from, top, max(to-from, 2), p.height, map[bool]string{true: "#f4b6b6", false: "#fbe3b0"}[s.down])
	}
	free := math.Inf(-1) // from where on there is room for a label of the x axis
	for _, t := range p.xTicks {
		x := place(t.at, p.xTicks, left, right)
		line(x, top, x, bottom)
		if half := svg.Width(t.label, most) / 2; x-half > free && t.label != "" {
			b.Text(x, bottom+18, ` text-anchor="middle"`, t.label, most)
			free = x + half + 4
		}
	}
	for _, t := range p.yTicks {
		y := place(t.at, p.yTicks, bottom, top)
		line(left, y, right, y)
		if t.at == 0 && p.yTicks[0].at < 0 {
			b.Add(`<path d="M%d %.1fH%d" stroke="#777"/>`, left, y, right)
		}
		b.Text(left-8, y+4, ` text-anchor="end"`, t.label, most)
	}
	b.Add(`<rect class="axes" x="%d" y="%.1f" width="%d" height="%.1f" fill="none" stroke="#777"/>`, left, top, right-left, p.height)
	for i := range p.curves {
		c := &p.curves[i]
		points := make([]string, len(c.x))
		var marks strings.Builder
		for j := range c.x {
			x, y := place(c.x[j], p.xTicks, left, right), place(c.y[j], p.yTicks, bottom, top)
			points[j] = fmt.Sprintf("%.1f,%.1f", x, y)
			if len(c.x) <= maxMarkers && !c.bare {
				marks.WriteString(c.marker(x, y) + "\n")
			}
		}
		b.Add(`<polyline points="%s" %s stroke-linejoin="round"/>`, strings.Join(points, " "), c.style())
		b.WriteString(marks.String())
	}
	free = math.Inf(-1)
	for _, s := range p.spans { // a label where it overlaps no other one
		x, wide := place(s.from, p.xTicks, left, right), svg.Width(s.label, most)
		if at := min(x+3, width-wide); at > free {
			b.Add(`<path d="M%.1f %.1fv-6" stroke="#777"/>`, x, top)
			b.Text(at, top-3, "", s.label, most)
			free = at + wide + 10
		}
	}
}

// draw writes the picture as SVG. The legend is below all panels, so that it covers no data.
func (p *picture) draw(w io.Writer) error {
	var b svg.Picture
	y := 10.0
	for i, line := range p.title {
		y += svg.LineHeight
		b.Text(20, y, map[bool]string{true: ` font-size="16" font-weight="bold"`}[i == 0], line, most)
	}
	for i := range p.panels {
		p.panels[i].draw(&b, y)
		y += above + p.panels[i].height + below
	}
	b.Add(`<g class="legend">`)
	for _, panel := range p.panels {
		for i := range panel.curves {
			c := &panel.curves[i]
			if c.name == "" {
				continue
			}
			b.Add(`<path d="M%d %.1fh40" %s/>`, left, y, c.style())
			if !c.bare && len(c.x) <= maxMarkers {
				b.Add("%s", c.marker(left+20, y))
			}
			b.Text(left+50, y+4, "", c.name, most-14)
			y += svg.LineHeight
		}
	}
	b.Add("</g>")
	return b.Draw(w, width, y+10)
}
