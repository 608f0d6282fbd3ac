package mesh

import (
	"fmt"
	"html"
	"io"
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
	title := r.title()
	fmt.Fprintf(&b, "<h1>%s</h1>\n<p>%s</p>\n<ul>\n", esc(title[0]), esc(strings.Join(title[1:], "; ")))
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
				h := heats[r.heat(t, m)]
				fmt.Fprintf(&b, `<td%s style="background:%s;color:%s" title="%s">%s</td>`, class, h.colour, h.text, esc(r.tip(m)), esc(text))
			}
			b.WriteString("</tr>\n")
		}
		b.WriteString("</table>\n<p>")
		for h, label := range r.scale(t) {
			fmt.Fprintf(&b, `<span style="padding:.4em .7em;background:%s;color:%s">%s</span>`, heats[h].colour, heats[h].text, esc(label))
		}
		b.WriteString("</p>\n")
	}
	b.WriteString("</body></html>\n")
	_, err := io.WriteString(w, b.String())
	return err
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
