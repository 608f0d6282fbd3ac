package top

import (
	"fmt"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goverbs/goverbs/tools/internal/counter"
)

// Model is what a user sees, and has chosen to see.
type Model struct {
	State
	Interval time.Duration
	Replay   bool // Replay says that the readings come from a record.
	ASCII    bool // ASCII leaves out characters that an old terminal does not have.
	Colours  bool // Colours says that colours show what a mark shows otherwise.

	Paused bool // Paused stops reading.
	Ended  bool // Ended says that there are no more readings.
	cut    bool // the last reading of the record was cut off
	Quit   bool

	Waits time.Time // Waits is when a reading began that takes long; zero if none does.

	page   page
	help   bool // the help hides the page
	tables [tableCount]table
	focus  tableID // on the page overview
	filter string
	typing bool // the user types the filter
	open   map[string]bool
	port   Port // on the page port
	hidden bool // the owners did not fit
	text   bool // a text has no focus
}

type page int

const (
	pageOverview page = iota
	pagePort
	pageQP
)

type tableID int

const (
	tablePorts tableID = iota
	tableChanges
	tableOwners
	tableCounters // on the pages port and QP
	tableCount
)

// table is the choice of a user in a table.
type table struct {
	key     string // of the row that is selected
	num     uint32
	index   int // where it was
	top     int // the first row that is shown
	rows    int // that are shown
	sort    int
	reverse bool
}

// sorts are what tables can be sorted by.
var sorts = [tableCount][]string{
	{"port", "RX bytes", "TX bytes", "RX packets", "TX packets", "errors"}, {"time", "name", "total"}, {"QPs", "memory", "PID", "name"}, {"driver", "name", "value", "growth"},
}

// Wants says what has to be read for the screen.
func (m *Model) Wants() Wants {
	w := Wants{Objects: m.page == pageOverview && !m.hidden}
	if m.page == pageQP && !m.followed().Gone {
		w.QP = &m.followed().QP
	}
	return w
}

// followed is the latest reading of the QP of the page QP.
func (m *Model) followed() *QPDetail { return &m.qps[len(m.qps)-1] }

// Next adds a reading. A record has the QP that was followed when it was made; any other one is among the objects.
func (m *Model) Next(r *Reading) {
	if m.Replay && m.page == pageQP && r.Objects != nil && (r.QP == nil || r.QP.key() != m.followed().key()) {
		detail := QPDetail{QP: m.followed().QP, Gone: true}
		for i := range r.Objects.QPs {
			if q := &r.Objects.QPs[i]; q.key() == detail.key() {
				detail = QPDetail{QP: *q}
			}
		}
		r.QP = &detail
	}
	m.Add(r)
}

// Key does what a key is for: the character, or the name of a key without one.
func (m *Model) Key(key string) {
	if m.typing {
		m.edit(key)
		return
	}
	switch key {
	case "q":
		m.Quit = true
	case " ", "p":
		m.Paused = !m.Paused
	case "?", "h":
		m.help = true
	default:
		if !m.help {
			m.use(key)
		} else if key == "esc" || key == "left" || key == "backspace" {
			m.help = false
		}
	}
}

// use does what a key is for on a page other than the help.
func (m *Model) use(key string) {
	t := m.table()
	switch key {
	case "esc", "left", "backspace":
		m.back(key)
	case "tab":
		m.focus = (m.focus + 1) % tableCounters
	case "backtab":
		m.focus = (m.focus + tableCounters - 1) % tableCounters
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup":
		m.move(-max(1, t.rows))
	case "pgdn":
		m.move(max(1, t.rows))
	case "home", "g":
		m.move(-len(m.rows(m.current())))
	case "end", "G":
		m.move(len(m.rows(m.current())))
	case "enter", "right":
		m.enter()
	case "s":
		t.sort = (t.sort + 1) % len(sorts[m.current()])
	case "r":
		t.reverse = !t.reverse
	case "/":
		m.typing = true
	case "z":
		m.Forget()
	}
}

// edit changes the filter.
func (m *Model) edit(key string) {
	const most = 64
	switch {
	case key == "enter":
		m.typing = false
	case key == "esc":
		m.typing, m.filter = false, ""
	case key == "backspace":
		_, n := utf8.DecodeLastRuneInString(m.filter)
		m.filter = m.filter[:len(m.filter)-n]
	case len([]rune(key)) == 1 && len(m.filter) < most:
		m.filter += key
	}
}

// back leaves a page, closes an owner, or ends the filter.
func (m *Model) back(key string) {
	switch {
	case m.page != pageOverview:
		m.page = pageOverview
	case key == "esc":
		m.filter = ""
	case m.focus == tableOwners:
		if r := m.selected(); r != nil {
			delete(m.open, r.owner)
			m.tables[tableOwners].key, m.tables[tableOwners].num = r.owner, 0
		}
	}
}

// enter opens what is selected: the page of a port, the QPs of an owner, or the page of a QP.
func (m *Model) enter() {
	r := m.selected()
	if r == nil || m.page != pageOverview {
		return
	}
	m.tables[tableCounters] = table{}
	switch {
	case r.qp != nil:
		m.page, m.qps = pageQP, []QPDetail{{QP: *r.qp}}
	case r.port != nil:
		m.page, m.port = pagePort, r.port.Port
	case m.focus == tableOwners && m.open[r.owner]:
		delete(m.open, r.owner)
	case m.focus == tableOwners:
		if m.open == nil {
			m.open = map[string]bool{}
		}
		m.open[r.owner] = true
	}
}

// current is the table that keys are for.
func (m *Model) current() tableID {
	if m.page == pageOverview {
		return m.focus
	}
	return tableCounters
}

func (m *Model) table() *table { return &m.tables[m.current()] }

// move moves the selection.
func (m *Model) move(by int) {
	rows, t := m.rows(m.current()), m.table()
	if len(rows) > 0 {
		t.index = min(max(t.find(rows)+by, 0), len(rows)-1)
		t.key, t.num = rows[t.index].key, rows[t.index].num
	}
}

// find returns where the selected row is now. One that has gone leaves the selection where it was.
func (t *table) find(rows []row) int {
	for i := range rows {
		if rows[i].key == t.key && rows[i].num == t.num {
			t.index = i
		}
	}
	t.index = max(0, min(t.index, len(rows)-1))
	return t.index
}

// selected returns the row that is selected, or nil.
func (m *Model) selected() *row {
	rows := m.rows(m.current())
	if len(rows) == 0 {
		return nil
	}
	return &rows[m.table().find(rows)]
}

// row is a row of a table.
type row struct {
	key   string
	num   uint32 // of a QP, whose key is the device
	cells []cell // see qpRow
	by    []by   // for each of the table's sorts
	port  *PortState
	owner string // the key of an owner
	qp    *QP
	sub   []row // rows that stay below it
}

func (r *row) cell(style style, text string) { r.cells = append(r.cells, cell{clean(text), style}) }

func (r *row) sort(n float64, text string) { r.by = append(r.by, by{n, text}) }

// by is what a row is sorted by: the larger number is first, and then the smaller text.
type by struct {
	n    float64
	text string
}

// rows returns the rows of a table that the filter selects, in order.
func (m *Model) rows(id tableID) (rows []row) {
	switch id {
	case tablePorts:
		rows = m.portRows()
	case tableChanges:
		rows = m.changeRows()
	case tableOwners:
		rows = m.ownerRows()
	case tableCounters:
		rows = m.counterRows()
	}
	t := &m.tables[id]
	sort.SliceStable(rows, func(i, j int) bool {
		if t.reverse {
			i, j = j, i
		}
		a, b := &rows[i].by[t.sort], &rows[j].by[t.sort]
		return a.n > b.n || a.n == b.n && a.text < b.text
	})
	var all []row
	for i := range rows {
		all = append(append(all, rows[i]), rows[i].sub...)
	}
	return all
}

// matches reports whether the filter selects something with one of these texts.
func (m *Model) matches(texts ...string) bool {
	return strings.Contains(strings.ToLower(strings.Join(texts, "\n")), strings.ToLower(m.filter))
}

func (m *Model) portRows() (rows []row) {
	for i, p := range m.Ports {
		name := p.name()
		if !m.matches(name, p.Netdev) {
			continue
		}
		state, errs := styleBad, stylePlain
		if p.State == "ACTIVE" {
			state = styleGood
		}
		if p.errors > 0 {
			errs = styleBad
		}
		r := row{key: p.key(), port: p}
		r.cell(stylePlain, name)
		r.cell(state, p.State)
		r.cell(stylePlain, gbps(p.Rate))
		r.cell(stylePlain, p.Netdev)
		r.sort(float64(-i), "")
		for _, rate := range p.rates() {
			r.cell(stylePlain, rateText(*rate))
			v := 0.0
			if *rate != nil {
				v = **rate
			}
			r.sort(v, "")
		}
		r.cell(errs, short(float64(p.errors)))
		r.sort(float64(p.errors), "")
		r.cell(stylePlain, "") // see draw
		rows = append(rows, r)
	}
	return rows
}

func (m *Model) changeRows() (rows []row) {
	for i, c := range m.Changes {
		name := fmt.Sprintf("%s/%d", c.Device, c.Port)
		if !m.matches(name, c.Name) {
			continue
		}
		style, last := styleWarn, "-"
		if c.Kind == KindError {
			style = styleBad
		}
		if c.Growth > 0 {
			last = "+" + short(float64(c.Growth))
		}
		r := row{key: name + c.Name}
		r.cell(stylePlain, ago(m.Last.Time.Sub(c.Last)))
		r.cell(stylePlain, name)
		r.cell(style, strings.TrimSpace(c.Name+" "+c.Text))
		r.cell(stylePlain, string(c.Kind))
		r.cell(stylePlain, last)
		r.cell(stylePlain, "+"+short(float64(c.Total)))
		r.sort(float64(-i), "")
		r.sort(0, r.key)
		r.sort(float64(c.Total), "")
		rows = append(rows, r)
	}
	return rows
}

func (m *Model) ownerRows() (rows []row) {
	if m.Objects == nil {
		return nil
	}
	for i := range m.Objects.Owners {
		o := &m.Objects.Owners[i]
		pid, name := fmt.Sprint(o.PID), o.Process
		switch {
		case o.Kernel != "":
			pid, name = "-", "["+o.Kernel+"]"
		case o.PID == 0:
			pid, name = "-", "(its thread has ended)"
		}
		if !m.matches(pid, name, o.Container) {
			continue
		}
		r := row{key: o.key(), owner: o.key()}
		r.cell(stylePlain, pid)
		r.cell(stylePlain, name)
		r.cell(stylePlain, o.Container[:min(len(o.Container), 12)])
		r.cell(stylePlain, fmt.Sprint(o.QPs))
		r.cell(stylePlain, fmt.Sprint(o.MRs))
		r.cell(stylePlain, binary(o.Registered))
		r.sort(float64(o.QPs), "")
		r.sort(float64(o.Registered), "")
		r.sort(-float64(o.PID), "")
		r.sort(0, name)
		for i := 0; m.open[r.owner] && i < len(m.Objects.QPs); i++ {
			if q := &m.Objects.QPs[i]; q.PID == o.PID && q.Kernel == o.Kernel {
				r.sub = append(r.sub, row{key: q.Device, num: q.Num, owner: r.owner, qp: q})
			}
		}
		rows = append(rows, r)
	}
	return rows
}

// qpRow makes the cells of a row about a QP when it is drawn: there may be many.
func qpRow(r *row) {
	q, style := r.qp, stylePlain
	if q.State == "ERR" || q.State == "SQE" {
		style = styleBad
	}
	text := fmt.Sprintf("  QP %d  %s  %s  %s/%d", q.Num, q.Type, q.State, q.Device, q.Port)
	if q.Remote != 0 {
		text += fmt.Sprintf("  peer QP %d", q.Remote)
	}
	r.cell(stylePlain, "")
	r.cell(style, text)
}

// counterRows are the counters of the port, or of the QP, of the page.
func (m *Model) counterRows() (rows []row) {
	var all []Counter
	var growth []uint64
	seconds := m.Seconds
	if p := m.ports[m.port.key()]; m.page == pagePort && p != nil {
		all, growth, seconds = p.Counters, p.growth, p.seconds
	}
	if m.page == pageQP {
		all, growth = m.followed().Counters, grown(m.qps[0].Counters, m.followed().Counters)
	}
	for i, c := range all {
		if !m.matches(c.Name) {
			continue
		}
		style, rate := stylePlain, "-"
		if growth[i] > 0 {
			switch rate = short(float64(growth[i]) / seconds); {
			case counter.IsError(c.Name):
				style = styleBad
			case counter.IsCongestion(c.Name):
				style = styleWarn
			}
		}
		r := row{key: c.Name}
		r.cell(style, c.Name)
		r.cell(stylePlain, fmt.Sprint(c.Value))
		r.cell(stylePlain, rate)
		r.sort(float64(-i), "")
		r.sort(0, c.Name)
		r.sort(float64(c.Value), "")
		r.sort(float64(growth[i]), "")
		rows = append(rows, r)
	}
	return rows
}

// grown returns by how much counters grew.
func grown(before, now []Counter) []uint64 {
	old := map[string]uint64{}
	for _, c := range before {
		old[c.Name] = c.Value
	}
	all := make([]uint64, len(now))
	for i, c := range now {
		if was, ok := old[c.Name]; ok && c.Value > was {
			all[i] = c.Value - was
		}
	}
	return all
}
