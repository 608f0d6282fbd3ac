package mesh

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// style is the look of the page.
const style = `body{font:14px sans-serif;margin:2em}table{border-collapse:collapse;margin:1em 0}
th,td{padding:.4em .7em;text-align:right;border:1px solid #fff}th{background:#eee}
td.bad{outline:3px solid #b00;outline-offset:-3px;font-weight:bold}li{margin:.5em 0}`

// HTML writes the report as a page with a heat map of each matrix. The page refers to no other file.
func (r *Report) HTML(w io.Writer) error {
	var b strings.Builder
	esc := html.EscapeString
	fmt.Fprintf(&b, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>verbs mesh</title><style>%s</style></head><body>\n", style)
	fmt.Fprintf(&b, "<h1>verbs mesh: %d hosts, %d findings</h1>\n<ul>\n", len(r.Hosts), len(r.Findings))
	for i := range r.Findings {
		f := &r.Findings[i]
		fmt.Fprintf(&b, "<li><b>%s</b><br>%s</li>\n", esc(f.String()), strings.ReplaceAll(esc(strings.Join(f.Evidence, "\n")), "\n", "<br>"))
	}
	b.WriteString("</ul>\n")
	for _, t := range r.tables() {
		fmt.Fprintf(&b, "<h2>%s</h2>\n<table><tr><th></th>", esc(t.title()))
		for _, h := range r.Hosts {
			fmt.Fprintf(&b, "<th>%s</th>", esc(h.Name))
		}
		b.WriteString("</tr>\n")
		cells := r.cells(t)
		for i, from := range r.Hosts {
			fmt.Fprintf(&b, "<tr><th>%s</th>", esc(from.Name))
			for j := range r.Hosts {
				m := cells[[2]int{i, j}]
				text, bad := t.value(m)
				class := ""
				if bad {
					class = ` class="bad"`
				}
				fmt.Fprintf(&b, `<td%s style="background:%s" title="%s">%s</td>`, class, r.heat(t, m), esc(r.tip(m)), esc(text))
			}
			b.WriteString("</tr>\n")
		}
		b.WriteString("</table>\n")
	}
	b.WriteString("</body></html>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// heat returns the colour of a cell: green for the fleet's median and better, red for four times worse.
func (r *Report) heat(t table, m *Measurement) string {
	const hueGreen, octaves = 120, 2
	if m == nil {
		return "#f4f4f4"
	}
	usual, worse := r.usual(m.Type), math.Inf(1)
	if t.bandwidth && m.Bandwidth != nil && *m.Bandwidth > 0 {
		worse = usual.Bandwidth / *m.Bandwidth
	} else if !t.bandwidth && m.Latency != nil && usual.Latency > 0 {
		worse = m.Latency.Median / usual.Latency
	}
	cool := 1 - min(max(math.Log2(worse)/octaves, 0), 1)
	return fmt.Sprintf("hsl(%.0f,70%%,75%%)", cool*hueGreen)
}

// tip is the text that a cell shows under the pointer.
func (r *Report) tip(m *Measurement) string {
	if m == nil {
		return "not measured"
	}
	text := fmt.Sprintf("%s -> %s, round %d", m.From, m.To, m.Round)
	if l := m.Latency; l != nil {
		text += fmt.Sprintf("\nlatency: least %.1f, median %.1f, 99 %% %.1f, 99.9 %% %.1f, most %.1f µs", l.Min, l.Median, l.P99, l.P999, l.Max)
	}
	if m.Bandwidth != nil {
		text += fmt.Sprintf("\nbandwidth: %.3f Gb/s, %.2f %% lost", *m.Bandwidth, m.Loss)
	}
	for _, p := range r.problems(m) {
		text += "\n" + p.text
	}
	return text
}
