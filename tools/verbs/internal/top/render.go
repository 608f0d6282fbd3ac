package top

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/goverbs/goverbs/tools/internal/counter"
	"github.com/goverbs/goverbs/tools/verbs/internal/terminal"
)

type style int

const (
	stylePlain style = iota
	styleTitle
	styleGood
	styleWarn
	styleBad
	styleSelected
)

var colours = [...]terminal.Colour{styleTitle: terminal.Bold, styleGood: terminal.Green, styleWarn: terminal.Yellow, styleBad: terminal.Red, styleSelected: terminal.Reverse}

// cell is a text of one style.
type cell struct {
	text  string
	style style
}

// Line is a line of the screen.
type Line []cell

// Paint adds the line to a text.
func (l Line) Paint(x *terminal.Text) {
	for _, c := range l {
		if c.style == stylePlain {
			fmt.Fprint(x, c.text)
		} else {
			x.Paint(colours[c.style], c.text)
		}
	}
}

// line returns a line of one style, as wide as the screen.
func line(text string, width int, style style) Line {
	return Line{{fit(text, width, false), style}}
}

// column is a column of a table.
type column struct {
	title string
	width int
	right bool
	drop  int // columns with larger numbers are left out first; 0 is never left out
	flex  bool
}

var columns = [tableCount][]column{
	tablePorts: {{"PORT", 10, false, 0, false}, {"STATE", 6, false, 0, false}, {"RATE", 8, true, 5, false}, {"NETDEV", 10, false, 7, false},
		{"RX B/s", 7, true, 0, false}, {"TX B/s", 7, true, 0, false}, {"RX pkt/s", 8, true, 4, false}, {"TX pkt/s", 8, true, 3, false},
		{"ERRORS", 6, true, 1, false}, {"", 8, false, 6, true}},
	tableChanges: {{"SEEN", 7, true, 2, false}, {"PORT", 10, false, 0, false}, {"CHANGED", 12, false, 0, true}, {"KIND", 10, false, 3, false},
		{"NOW", 7, true, 1, false}, {"TOTAL", 7, true, 0, false}},
	tableOwners: {{"PID", 7, true, 0, false}, {"PROCESS", 15, false, 0, true}, {"CONTAINER", 12, false, 2, false}, {"QPs", 6, true, 0, false},
		{"MRs", 6, true, 1, false}, {"REGISTERED", 10, true, 0, false}},
	tableCounters: {{"COUNTER", 20, false, 0, true}, {"VALUE", 20, true, 0, false}, {"PER SECOND", 10, true, 0, false}},
}

// Limits of the screen; wider ones stay empty on the right.
const (
	MinWidth, MinHeight = 20, 4
	maxWidth            = 250
)

// Render returns the lines of the screen. A height of 0 is as many as there are.
func (m *Model) Render(width, height int) []Line {
	width = min(max(width, MinWidth), maxWidth)
	room := math.MaxInt32
	if m.text = height == 0; !m.text {
		room = max(height, MinHeight) - 2 // the first and the last line
	}
	lines := []Line{line(m.header(), width, styleTitle)}
	if text, style := m.status(); text != "" {
		lines = append(lines, line(clean(text), width, style))
		room--
	}
	switch {
	case m.help:
		for _, l := range strings.Split(helpText, "\n")[:min(room, strings.Count(helpText, "\n"))] {
			lines = append(lines, line(l, width, stylePlain))
		}
	case m.page == pageOverview:
		var rows [tableCounters][]row
		for id := range rows {
			rows[id] = m.rows(tableID(id))
		}
		for id, h := range m.heights(&rows, room) {
			lines = append(lines, m.draw(tableID(id), rows[id], width, h)...)
		}
	default:
		detail := m.detail(width)
		detail = detail[:min(len(detail), room)]
		lines = append(lines, detail...)
		lines = append(lines, m.draw(tableCounters, m.rows(tableCounters), width, room-len(detail))...)
	}
	if height == 0 {
		return lines
	}
	for len(lines) < height-1 {
		lines = append(lines, nil)
	}
	return append(lines, line(m.footer(), width, styleTitle))
}

// heights divides the room between the tables of the overview. Each gets a third; what it does not need goes to the one
// that has the focus, and then to the others.
func (m *Model) heights(rows *[tableCounters][]row, room int) (h [tableCounters]int) {
	need := h
	for id := range rows {
		need[id] = 1 + max(1, len(rows[id]))
	}
	if m.hidden = room < 6; m.hidden {
		h[m.focus] = room
		m.hidden = m.focus != tableOwners
		return h
	}
	rest := room
	for id := range h {
		h[id] = min(need[id], room/len(h))
		rest -= h[id]
	}
	for _, id := range []tableID{m.focus, tablePorts, tableChanges, tableOwners} {
		more := min(rest, need[id]-h[id])
		h[id] += more
		rest -= more
	}
	return h
}

// draw returns the lines of a table.
func (m *Model) draw(id tableID, rows []row, width, height int) (lines []Line) {
	if height <= 0 {
		return nil
	}
	t := &m.tables[id]
	cols := slices.Clone(columns[id])
	for i := range cols { // as wide as the names are, within reason
		const most = 16
		if c := &cols[i]; c.title == "PORT" || c.title == "STATE" || c.title == "NETDEV" {
			for _, r := range rows {
				if r.qp != nil {
					continue
				}
				c.width = min(max(c.width, utf8.RuneCountInString(r.cells[i].text)), most)
			}
		}
	}
	cols, used := choose(cols, width-2)
	if last := &cols[len(cols)-1]; id == tablePorts {
		last.title = span(time.Duration(m.each(last.width)*last.width) * m.interval())
		if both := "RX+TX " + last.title; len(both) <= last.width {
			last.title = both
		}
	}
	t.rows = height - 1
	selected := t.find(rows)
	t.top = min(max(min(t.top, selected, len(rows)-t.rows), selected-t.rows+1, 0), len(rows))
	last := min(len(rows), t.top+t.rows)
	title, mark, focus := "", " ", m.current() == id && !m.text
	if focus {
		mark = "*"
	}
	for i, c := range cols {
		if used[i] {
			title += fit(c.title, c.width, c.right) + " "
		}
	}
	lines = append(lines, line(mark+title, width, styleTitle))
	if len(rows) == 0 && height > 1 {
		lines = append(lines, line(" "+m.none(id), width, stylePlain))
	}
	for i, r := range rows[t.top:last] {
		mark, chosen := " ", focus && t.top+i == selected
		switch {
		case chosen:
			mark = ">"
		case i == 0 && t.top > 0: // more above
			mark = "^"
		case t.top+i == last-1 && last < len(rows): // more below
			mark = "v"
		}
		if r.qp != nil {
			qpRow(&r)
		}
		out, room := line(mark, 1, stylePlain), width-1
		for n, c := range cols {
			if !used[n] {
				continue
			}
			if r.qp != nil && n > 1 { // a line about a QP goes on to the end
				break
			}
			part := r.cells[n]
			if id == tablePorts && n == len(cols)-1 {
				part.text = m.spark(r.port, c.width)
			}
			if c.title == "PORT" {
				part.text = fitPort(part.text, c.width)
			}
			if r.qp != nil && c.flex {
				part.text = fit(part.text, width-2-cols[0].width-1, false)
			} else {
				part.text = fit(part.text, c.width, c.right)
			}
			part.text = fit(part.text+" ", min(room, utf8.RuneCountInString(part.text)+1), false)
			room -= utf8.RuneCountInString(part.text)
			out = append(out, part)
		}
		if chosen {
			var text string
			for _, c := range out {
				text += c.text
			}
			out = line(text, width, styleSelected)
		}
		lines = append(lines, out)
	}
	return lines
}

// choose leaves out columns that do not fit into the width, and gives what is left to one.
func choose(cols []column, width int) ([]column, []bool) {
	used := make([]bool, len(cols))
	sum, flex := 0, -1
	for i, c := range cols {
		used[i] = true
		sum += c.width + 1
		if c.flex {
			flex = i
		}
	}
	for sum-1 > width {
		worst := -1
		for i, c := range cols {
			if used[i] && c.drop > 0 && (worst < 0 || c.drop > cols[worst].drop) {
				worst = i
			}
		}
		for i := len(cols) - 1; worst < 0 && i > 0; i-- { // none is left: the last one
			if used[i] {
				worst = i
			}
		}
		if worst < 0 {
			break
		}
		used[worst] = false
		sum -= cols[worst].width + 1
	}
	if flex >= 0 && used[flex] {
		cols[flex].width = max(1, cols[flex].width+width-sum+1)
	}
	return cols, used
}

// header is the first line.
func (m *Model) header() string {
	if m.Last == nil {
		return "verbs top"
	}
	what := "every " + m.Interval.String()
	if m.Replay {
		what = span(time.Duration(m.Last.Elapsed)*time.Microsecond) + " into the record"
	}
	text := fmt.Sprintf("verbs top  %s  %s  ", m.Last.Time.Format(time.TimeOnly), what) + plural(len(m.Ports), "port")
	down := 0
	for _, p := range m.Ports {
		if p.State != "ACTIVE" {
			down++
		}
	}
	if down > 0 {
		text += fmt.Sprintf(" (%d not ACTIVE)", down)
	}
	if o := m.Objects; o != nil {
		text += "  " + plural(len(o.Owners), "owner") + "  " + plural(len(o.QPs), "QP")
	}
	return text
}

// status is the second line, if there is something to say.
func (m *Model) status() (text string, style style) {
	style = styleWarn
	switch {
	case m.Ended && m.cut:
		text = "the end of the record, whose last reading was cut off"
	case m.Ended:
		text = "the end of the record"
	case !m.Waits.IsZero():
		text, style = "waiting for a reading since "+m.Waits.Format(time.TimeOnly), styleBad
	case m.Paused && m.Replay:
		text = "paused; space: go on, n: the next reading"
	case m.Paused:
		text = "paused; space: go on"
	case m.Last != nil && len(m.Last.Missing) > 0:
		text, style = m.Last.Missing[0], styleBad
		if n := len(m.Last.Missing); n > 1 {
			text = fmt.Sprintf("%d failures, such as %s", n, text)
		}
	}
	switch {
	case m.typing:
		text = "filter: " + m.filter + "_  (enter: keep, esc: none)"
	case m.filter != "":
		text = strings.TrimSpace("filter: " + m.filter + "  " + text)
	}
	return text, style
}

// footer is the last line.
func (m *Model) footer() string {
	t := m.table()
	by := sorts[m.current()][t.sort]
	if t.reverse {
		by += ", reversed"
	}
	switch text := " s sort (" + by + ")  r reverse  / filter  ? help  q quit"; {
	case m.help:
		return " esc back  q quit"
	case m.page == pageOverview:
		return " tab table  enter open " + text
	default:
		return " esc back " + text
	}
}

// none is the text of a table without rows.
func (m *Model) none(id tableID) string {
	switch {
	case m.filter != "":
		return "nothing matches the filter"
	case m.Last == nil:
		return "no reading yet"
	case id == tablePorts:
		return "no port"
	case id == tableChanges:
		return "no counter of errors or congestion and no link has changed since " + m.Since.Format(time.TimeOnly)
	case id == tableCounters && m.page == pageQP:
		return "no counter is bound to it; verbs stat bind binds one"
	case id == tableCounters:
		return "the driver has no counters"
	case !slices.ContainsFunc(m.Ports, func(p *PortState) bool { return !p.InProcess }):
		return "the kernel knows no objects of software devices"
	}
	return "no objects"
}

// detail returns the lines above the counters of a port or a QP.
func (m *Model) detail(width int) (lines []Line) {
	style, text := stylePlain, ""
	if p := m.ports[m.port.key()]; m.page == pagePort && p == nil {
		style, text = styleBad, fmt.Sprintf("%s/%d has gone", m.port.Device, m.port.Port)
	} else if m.page == pagePort {
		text = fmt.Sprintf("port %s  %s  link %s  netdev %s", p.name(), p.State, gbps(p.Rate), cmp.Or(p.Netdev, "-"))
	} else if q, old := m.followed(), &m.qps[0]; q.Gone {
		style, text = styleBad, fmt.Sprintf("QP %d of %s was destroyed", q.Num, q.Device)
	} else {
		owner := "[" + q.Kernel + "]"
		if q.Kernel == "" {
			owner = fmt.Sprintf("process %d", q.PID)
			for i := 0; m.Objects != nil && i < len(m.Objects.Owners); i++ {
				if o := &m.Objects.Owners[i]; o.PID == q.PID {
					owner += " " + o.Process
				}
			}
		}
		if q.State == "ERR" || q.State == "SQE" {
			style = styleBad
		}
		const psns = 1 << 24
		text = fmt.Sprintf("QP %d of %s/%d\nstate    %s\ntype     %s\npeer     QP %d\nowner    %s\nSQ PSN   %d, +%d since the reading before\nRQ PSN   %d, +%d", q.Num, q.Device, q.Port,
			q.State, q.Type, q.Remote, owner, q.SQPSN, (q.SQPSN-old.SQPSN)%psns, q.RQPSN, (q.RQPSN-old.RQPSN)%psns)
		if q.Others > 0 {
			text += fmt.Sprintf("\nThe counter below counts %d other QPs, too.", q.Others)
		}
	}
	for _, l := range strings.Split(text, "\n") {
		lines = append(lines, line(" "+clean(l), width, style))
	}
	if p := m.ports[m.port.key()]; m.page == pagePort && p != nil {
		for kind, rate := range p.rates() {
			head := fmt.Sprintf(" %-8s %7s ", rateNames[kind], rateText(*rate))
			lines = append(lines, line(head+m.sparkOf(p, width-len(head), counter.Traffic(kind)), width, stylePlain))
		}
	}
	return lines
}

var rateNames = [counter.Kinds]string{"RX B/s", "TX B/s", "RX pkt/s", "TX pkt/s"}

// spark draws the traffic of a port in both directions: bytes, or packets if bytes are not counted.
func (m *Model) spark(p *PortState, width int) string {
	if p.RxBytes != nil || p.TxBytes != nil {
		return m.sparkOf(p, width, counter.RxBytes, counter.TxBytes)
	}
	return m.sparkOf(p, width, counter.RxPackets, counter.TxPackets)
}

// each is the number of readings for which a column of a spark line stands: as few as there is room for.
func (m *Model) each(width int) int { return (min(m.Count, historyLength) + width - 1) / width }

// interval is the time between readings, on average.
func (m *Model) interval() time.Duration {
	if m.Replay && m.Count > 1 {
		return time.Duration(m.Last.Elapsed) * time.Microsecond / time.Duration(m.Count-1)
	}
	return m.Interval
}

// sparkOf draws the sum of some kinds of traffic: for each column the largest of several readings.
func (m *Model) sparkOf(p *PortState, width int, kinds ...counter.Traffic) string {
	levels := []rune("▁▂▃▄▅▆▇█")
	if m.ASCII {
		levels = []rune("_.:-=+*#")
	}
	each := m.each(width)
	values := make([]float32, width)
	var most float32
	newest := m.Count - 1
	for j := range values {
		bucket := newest/each - (width - 1 - j)
		values[j] = -1
		for n := max(bucket*each, newest-historyLength+1, 1); n < (bucket+1)*each && n <= newest; n++ {
			var sum float32
			for _, k := range kinds {
				sum += p.history[historyLength-1-(newest-n)][k]
			}
			values[j] = max(values[j], sum)
		}
		most = max(most, values[j])
	}
	text := make([]rune, width)
	for j, v := range values {
		switch {
		case v < 0:
			text[j] = ' '
		case v == 0:
			text[j] = levels[0]
		default:
			text[j] = levels[min(1+int(v/most*float32(len(levels)-1)), len(levels)-1)]
		}
	}
	return string(text)
}

// fit makes a text as long as a column.
func fit(text string, width int, right bool) string {
	n := utf8.RuneCountInString(text)
	switch {
	case width <= 0:
		return ""
	case n > width:
		return string([]rune(text)[:width-1]) + "~"
	case right:
		return strings.Repeat(" ", width-n) + text
	}
	return text + strings.Repeat(" ", max(0, width-n))
}

// fitPort makes the name of a port as long as a column. It shortens the name of the device: the number stays.
func fitPort(name string, width int) string {
	i := strings.LastIndexByte(name, '/')
	if room := width - (len(name) - i); i >= 0 && room > 1 && utf8.RuneCountInString(name) > width {
		return fit(name[:i], room, false) + name[i:]
	}
	return fit(name, width, false)
}

// clean replaces what could control a terminal, or is not one column wide.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 0x300 || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// rateText returns a rate, or "-" if it is not known.
func rateText(rate *float64) string {
	if rate == nil {
		return "-"
	}
	return short(*rate)
}

// short returns a number with three digits and a decimal prefix.
func short(v float64) string { return prefixed(v, 1000) }

// binary returns a number of bytes with a binary prefix.
func binary(n uint64) string {
	text := prefixed(float64(n), 1024)
	if last := text[len(text)-1]; last <= '9' {
		return text + " B"
	}
	return text[:len(text)-1] + " " + strings.ToUpper(text[len(text)-1:]) + "iB"
}

// prefixed divides a number by a base until it has three digits.
func prefixed(v, base float64) string {
	i := 0
	for ; v >= 999.5; i++ {
		v /= base
	}
	digits := 0
	if i > 0 && v < 9.995 {
		digits = 2
	} else if i > 0 && v < 99.95 {
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + "kMGTPEZYRQ"[max(i-1, 0):i]
}

func gbps(rate float64) string {
	if rate == 0 {
		return "-"
	}
	return fmt.Sprintf("%gGb/s", rate)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// span returns a time in its largest unit, and the next one.
func span(d time.Duration) string {
	d = d.Round(time.Second)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dmin", d/time.Minute)
	}
	return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
}

// ago returns how long ago something was.
func ago(d time.Duration) string {
	if d < time.Second {
		return "now"
	}
	return span(d)
}

const helpText = `
 tab, shift-tab     the next or the previous table; * marks it, > the row
 up, down, j, k     select a row; page up, page down, home, end, g, G
 enter, right       the page of a port; the QPs of a process; the page of a QP
 esc, left          back; end the filter; close a process
 s, r               sort by something else, reverse the order
 /                  show only what has a text in its name, PID or container
 z                  forget the changes so far
 space              pause, go on
 n                  the next reading of a record
 q                  quit

 B/s are bytes, pkt/s packets in a second, k is 1000; - is not counted.
 RATE is the speed of the link in bits. ERRORS have grown since the start, or since z.
 RX+TX draws the bytes of both directions, or the packets if bytes are not
 counted; the highest column is the most that the port had in that time.
 REGISTERED is the memory of MRs. It is pinned, except with ODP.
`
