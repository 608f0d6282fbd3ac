package mesh

import (
	"fmt"
	"io"
	"strings"

	"github.com/goverbs/goverbs/tools/verbs/internal/svg"
)

// Sizes in a picture, in pixels.
const (
	margin    = 20
	smallCell = 14   // of a cell without a value
	widest    = 1500 // of maps in a row
	valuesFor = 24   // hosts, up to which cells show values
	longest   = 28   // of a host's name, in characters
	mostLines = 16   // of findings
)

// SVG writes the report as a picture with a heat map of each matrix.
func (r *Report) SVG(w io.Writer) error {
	p, wide := &svg.Picture{}, 0.0
	y := float64(margin)
	for i, line := range r.title() {
		size := map[bool]string{true: ` font-size="18" font-weight="bold"`}[i == 0]
		p.Text(margin, y+svg.TextSize, size, line, 200)
		wide = max(wide, 1.5*svg.Width(line, 200))
		y += svg.LineHeight + 6
	}
	x, below := float64(margin), y
	for _, t := range r.tables() {
		width, height := r.mapSize(t)
		if x > margin && x+width > widest {
			x, y = margin, below
		}
		r.drawMap(p, t, x, y+margin)
		x += width + 2*margin
		wide = max(wide, x)
		below = max(below, y+height+2*margin)
	}
	y = below + svg.LineHeight
	for i := range r.Findings {
		line := r.Findings[i].String()
		if rest := len(r.Findings) - i; i == mostLines-1 && rest > 1 {
			line = fmt.Sprintf("and %d other findings", rest)
		} else if i >= mostLines {
			break
		}
		p.Text(margin, y, "", line, 160)
		wide = max(wide, svg.Width(line, 160))
		y += svg.LineHeight
	}
	return p.Draw(w, wide+2*margin, y+margin)
}

// cell returns the size of a cell, and whether it shows its value.
func (r *Report) cell(t table) (width, height float64, values bool) {
	n := len(r.Hosts)
	if n > valuesFor {
		const large = 14 * 1024 / 4 // pixels of a map with more hosts than that
		side := min(smallCell, max(large/float64(n), 2))
		return side, side, false
	}
	most := 1
	for _, m := range r.cells(t) {
		text, _ := t.value(m)
		most = max(most, len(text)+1)
	}
	return max(float64(most)*svg.CharWidth+14, 30), 24, true
}

// labelWidth returns the length of the longest host's name.
func (r *Report) labelWidth() float64 {
	most := 0.0
	for i := range r.Hosts {
		most = max(most, svg.Width(r.Hosts[i].Name, longest))
	}
	return most + 2*svg.CharWidth
}

// Sizes of a legend.
const (
	swatch      = 16
	legendWidth = 360
	legendLines = 8
)

// mapSize returns the size of a map with its title and legend.
func (r *Report) mapSize(t table) (width, height float64) {
	cw, ch, _ := r.cell(t)
	n, label := float64(len(r.Hosts)), r.labelWidth()
	title := 1.2 * svg.Width(t.title(), 120)
	return max(title, label+n*cw+2*margin, legendWidth), 2*svg.LineHeight + label + n*ch + legendLines*svg.LineHeight
}

// drawMap draws a map, and below it the legend.
func (r *Report) drawMap(p *svg.Picture, t table, x, y float64) {
	p.Text(x, y, ` font-size="14" font-weight="bold"`, t.title(), 120)
	cw, ch, values := r.cell(t)
	label := r.labelWidth()
	left, top := x+margin+label, y+svg.LineHeight+label
	name := func(i int) string {
		mark := map[bool]string{true: "× "}[r.Hosts[i].Error != ""]
		return mark + r.Hosts[i].Name
	}
	every := max(1, int((smallCell-1)/ch+1)) // names, which must not overlap
	for i := 0; i < len(r.Hosts); i += every {
		at := float64(i)
		p.Text(left-6, top+at*ch+ch/2+4, ` text-anchor="end"`, name(i), longest+2)
		cx, cy := left+at*cw+cw/2+4, top-6
		p.Text(cx, cy, fmt.Sprintf(` transform="rotate(-90 %.0f %.0f)"`, cx, cy), name(i), longest+2)
	}
	cells := r.cells(t)
	var fill [noHeat + 1]strings.Builder
	var marks strings.Builder
	for i := range r.Hosts {
		for j := range r.Hosts {
			m := cells[[2]int{i, j}]
			heat := r.heat(t, m)
			cx, cy := left+float64(j)*cw, top+float64(i)*ch
			fmt.Fprintf(&fill[heat], "M%.1f %.1fh%.1fv%.1fh%.1fz", cx, cy, cw, ch, -cw)
			text, bad := t.value(m)
			r.mark(&marks, m, heat, bad, cx, cy, cw, ch, values)
			if values && m != nil && heat != noHeat {
				if bad {
					text += "!"
				}
				fmt.Fprintf(&marks, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" fill=\"%s\"%s>%s</text>\n", cx+cw/2, cy+ch/2+4, heats[heat].text, map[bool]string{true: ` font-weight="bold"`}[bad], text)
			}
		}
	}
	for heat := range fill {
		if d := fill[heat].String(); d != "" {
			p.Add("<path d=\"%s\" fill=\"%s\" stroke=\"#ddd\" stroke-width=\"%g\"/>", d, heats[heat].colour, min(0.5, cw/20))
		}
	}
	p.WriteString(marks.String())
	n := float64(len(r.Hosts))
	p.Add("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" stroke=\"#000\"/>", left, top, n*cw, n*ch)
	r.drawLegend(p, t, left, top+n*ch+svg.LineHeight)
}

// mark marks a cell: a cross is a failed test, a frame (or without values a dot) is a threshold that is crossed, and a
// grey line is a pair that was not tested.
func (r *Report) mark(b *strings.Builder, m *Measurement, heat int, bad bool, x, y, w, h float64, values bool) {
	side := min(w, h) * 0.3
	cx, cy := x+w/2, y+h/2
	switch {
	case m == nil:
		fmt.Fprintf(b, "<path d=\"M%.1f %.1fh%.1f\" stroke=\"#bbb\"/>\n", cx-side/2, cy, side)
	case heat == noHeat:
		fmt.Fprintf(b, "<path d=\"M%.1f %.1fl%.1f %.1fm%.1f 0l%.1f %.1f\" stroke=\"#000\" stroke-width=\"%.1f\"/>\n", cx-side, cy-side, 2*side, 2*side, -2*side, 2*side, -2*side, max(side/3, 1))
	case bad && values:
		fmt.Fprintf(b, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" stroke=\"#000\" stroke-width=\"2\"/>\n", x+1, y+1, w-2, h-2)
	case bad:
		fmt.Fprintf(b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\"/>\n", cx, cy, side*0.7, heats[heat].text)
	}
}

// drawLegend draws what the colours and marks mean.
func (r *Report) drawLegend(p *svg.Picture, t table, x, y float64) {
	usual := r.usual(t.typ)
	title := fmt.Sprintf("median of all %s: %.1f µs", t.typ, usual.Latency)
	if t.bandwidth {
		title = fmt.Sprintf("median of all %s: %.3f Gb/s", t.typ, usual.Bandwidth)
	}
	p.Text(x, y, "", title, longest*2)
	_, _, values := r.cell(t)
	row := func(heat int, m *Measurement, bad bool, label string) {
		y += svg.LineHeight
		p.Add("<rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill=\"%s\" stroke=\"#ddd\"/>", x, y-svg.TextSize, swatch, swatch, heats[heat].colour)
		r.mark(&p.Builder, m, heat, bad, x, y-svg.TextSize, swatch, swatch, values)
		p.Text(x+swatch+8, y, "", label, longest*2)
	}
	for heat, label := range r.scale(t) {
		row(heat, &Measurement{}, false, label)
	}
	row(0, &Measurement{}, true, map[bool]string{true: "! ", false: ""}[values]+"crosses a threshold")
	row(noHeat, &Measurement{}, true, "failed; at a name: the host takes no part")
	row(noHeat, nil, false, "not tested")
}
