package matrix

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"
)

// symbols stand for the outcomes, so that nothing hangs on colour alone. Tests that are not for a
// driver have no symbol.
var symbols = map[Outcome]string{Passed: "✓", Unsupported: "–", Failed: "✗", NotRun: "?"}

// outcomes are all of them, in the order in which they are counted.
var outcomes = []Outcome{Passed, Unsupported, Failed, NotRun}

// symbol shows a cell: one symbol if all paths agree, else one for each path.
func symbol(c Cell) string {
	var b strings.Builder
	alike := true
	for _, p := range paths {
		if o, ok := c.Paths[p]; ok {
			b.WriteString(symbols[o])
			alike = alike && o == c.Outcome()
		}
	}
	if alike {
		return symbols[c.Outcome()]
	}
	return b.String()
}

// legend explains the symbols.
const legend = "✓ passed   – not supported by this kernel or driver, as expected   ✗ failed   ? not run"

// pathLegend explains cells with several symbols.
const pathLegend = "A test of commands runs three times: with the kernel interface that the library chooses, with\n" +
	"ioctl only, and with write() only. With rxe on amd64 the other tests of verbs run twice: with the\n" +
	"interface that the library chooses, and with write() only. On arm64, which is emulated, they run\n" +
	"once. If the results differ, the cell has a symbol for each run, in this order."

// softLegend explains the columns of software devices.
const softLegend = "\"soft\" and \"soft-sockets\" are software devices (package uverbs/soft), which play rxe of the kernel in\n" +
	"their heading. Packets of \"soft\" stay within the process, those of \"soft-sockets\" go through UDP sockets of\n" +
	"the kernel. The other tests run three times there, too, like those of commands. On \"soft\" the tests of verbs\n" +
	"also run with lost packets; on \"soft-sockets\" packets are lost with ioctl only and with write() only."

// legends explain the columns and the cells.
func (m *Matrix) legends() string {
	if slices.ContainsFunc(m.Columns, func(c Column) bool { return c.Driver == soft || c.Driver == softSockets }) {
		return pathLegend + "\n" + softLegend
	}
	return pathLegend
}

// title is a column's heading.
func (c Column) title() string {
	if c.Driver != "" && c.Driver != rxe {
		return c.Version() + " " + c.Arch + " " + c.Driver
	}
	return c.Version() + " " + c.Arch
}

// slowSeconds is how long a column of rxe should take at most. No more than a warning comes of it,
// since it says as much of the machine as of the tests.
const slowSeconds = 240

// slow reports whether a column took too long.
func (c Column) slow() bool { return c.Driver == rxe && c.Seconds >= slowSeconds }

// tally writes what a column's outcomes come to, leaving out those that did not occur.
func tally(n map[Outcome]int) string {
	var parts []string
	for _, o := range outcomes {
		if n[o] != 0 {
			parts = append(parts, fmt.Sprintf("%s %d", symbols[o], n[o]))
		}
	}
	return strings.Join(parts, " ")
}

// inWords counts results for readers of the README: how many tests passed, and in words how many did not. It
// leaves out tests of what the kernel or the driver does not support.
func inWords(n map[Outcome]int) string {
	s := strconv.Itoa(n[Passed])
	for _, o := range []Outcome{Failed, NotRun} {
		if n[o] != 0 {
			s += fmt.Sprintf(", %d %s", n[o], o)
		}
	}
	return s
}

// text renders a matrix for a terminal.
func text(m *Matrix) string {
	var b strings.Builder
	first, width := 0, 0
	for _, r := range m.Rows {
		first = max(first, len([]rune(r.Feature))+2)
	}
	for i, c := range m.Columns {
		width = max(width, len(c.title()), len([]rune(tally(m.counts(i, "")))))
	}
	line := func(head string, cell func(i int) string) {
		l := fmt.Sprintf("%-*s", first, head)
		for i := range m.Columns {
			l += fmt.Sprintf("  %-*s", width, cell(i))
		}
		b.WriteString(strings.TrimRight(l, " ") + "\n")
	}
	line("", func(i int) string { return m.Columns[i].title() })
	last := ""
	for _, r := range m.Rows {
		if r.Group != last {
			b.WriteString(r.Group + "\n")
			last = r.Group
		}
		line("  "+r.Feature, func(i int) string { return symbol(r.Cells[i]) })
	}
	b.WriteString("\n")
	line("all", func(i int) string { return tally(m.counts(i, "")) })
	line("time", func(i int) string { return fmt.Sprintf("%d s", m.Columns[i].Seconds) })
	b.WriteString("\n" + legend + "\n" + m.legends() + "\n")
	for _, c := range m.Columns {
		for _, p := range c.Problems {
			fmt.Fprintf(&b, "✗ Linux %s: %s\n", c.title(), p)
		}
		if c.slow() {
			fmt.Fprintf(&b, "! Linux %s: it took %d s, which should be less than %d on a machine that does nothing else\n", c.title(), c.Seconds, slowSeconds)
		}
	}
	return b.String()
}

// row writes a row of a Markdown table.
func row(b *strings.Builder, cells ...string) {
	fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
}

// heads writes the heading of a Markdown table.
func heads(b *strings.Builder, m *Matrix, first string) {
	cells, lines := []string{first}, []string{"---"}
	for _, c := range m.Columns {
		cells = append(cells, fmt.Sprintf("Linux %s, %s, %s", c.Version(), c.Arch, c.Driver))
		lines = append(lines, "---")
	}
	row(b, cells...)
	row(b, lines...)
}

// byGroup renders a table with a row for each group of tests.
func byGroup(b *strings.Builder, m *Matrix) {
	heads(b, m, "tests of")
	for _, g := range append(m.groups(), "") {
		name := g
		if g == "" {
			name = "**all**"
		}
		cells := []string{name}
		for i := range m.Columns {
			cells = append(cells, tally(m.counts(i, g)))
		}
		row(b, cells...)
	}
}

// driverTitles describe the drivers in the README, with their transports.
var driverTitles = map[string]string{
	rxe:       "rxe (Soft-RoCE), RoCE v2",
	mlx5RoCE:  "mlx5 (ConnectX, modelled), RoCE",
	mlx5IB:    "mlx5 (ConnectX, modelled), InfiniBand",
	mlx5IPoIB: "mlx5 (ConnectX, modelled), IP over InfiniBand",
	siw:       "siw (soft iWARP), iWARP",
	efa:       "efa (modelled), SRD",
	soft:      "soft (software device), RoCE v2",

	softSockets: "soft, through UDP sockets",
}

// summary renders the README's table, which has a row for each driver and architecture and a column
// for each kernel.
func summary(m *Matrix) string {
	var kernels, rows []string
	cells := map[[2]string]string{}
	for i, c := range m.Columns {
		title := driverTitles[c.Driver] + ", " + c.Arch
		if !slices.Contains(kernels, c.Version()) {
			kernels = append(kernels, c.Version())
		}
		if !slices.Contains(rows, title) {
			rows = append(rows, title)
		}
		cells[[2]string{title, c.Version()}] = inWords(m.counts(i, ""))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "How many tests passed, of those for what the kernel and the driver support (%s). An empty cell was not tested.\n\n", m.days())
	head, line := []string{"driver and transport"}, []string{"---"}
	for _, k := range kernels {
		head, line = append(head, "Linux "+k), append(line, "---")
	}
	row(&b, head...)
	row(&b, line...)
	for _, title := range rows {
		all := []string{title}
		for _, k := range kernels {
			all = append(all, cells[[2]string{title, k}])
		}
		row(&b, all...)
	}
	return b.String()
}

// markdown renders a page with all rows.
func markdown(m *Matrix) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# What works where\n\nGenerated by test/run from the test results of %s.\n\n%s\n\n%s\n\n",
		m.recorded(), legend, m.legends())
	b.WriteString("A test is counted for a driver if it applies to its devices; on InfiniBand only the conformance tests are run, and with IP over InfiniBand only the others.\n" +
		"\"mlx5\" is the modelled ConnectX of test/hca.\n\n## Groups of tests\n\n")
	byGroup(&b, m)
	b.WriteString("\n## Single tests\n")
	last := ""
	for _, r := range m.Rows {
		if r.Group != last {
			b.WriteString("\n")
			heads(&b, m, "**"+r.Group+"**")
			last = r.Group
		}
		cells := []string{strings.ReplaceAll(r.Feature, "|", `\|`)}
		for _, c := range r.Cells {
			cells = append(cells, symbol(c))
		}
		row(&b, cells...)
	}
	b.WriteString("\n")
	heads(&b, m, "kernel")
	release, all := []string{"release"}, []string{"all"}
	for i, c := range m.Columns {
		release = append(release, c.Release)
		all = append(all, tally(m.counts(i, "")))
	}
	row(&b, release...)
	row(&b, all...)
	for _, c := range m.Columns {
		for _, p := range c.Problems {
			fmt.Fprintf(&b, "\n✗ Linux %s: %s\n", c.title(), p)
		}
	}
	return []byte(b.String())
}

//go:embed matrix.html
var page string

// html renders the page with the matrix.
func html(m *Matrix) ([]byte, error) {
	return m.HTML("goverbs: what works where", "<p>Each row is a test on a real kernel, each column is a kernel and the driver of its RDMA devices.\n"+
		"Point at a row or a symbol for more.</p>\n<p>"+template.HTML(template.HTMLEscapeString(m.legends()))+"</p>")
}

// HTML renders a page that needs nothing else: a title, an introduction and the table.
func (m *Matrix) HTML(title string, intro template.HTML) ([]byte, error) {
	t, err := template.New("matrix").Funcs(template.FuncMap{
		"symbol": symbol,
		"sign":   func(o Outcome) string { return symbols[o] },
		"class":  func(o Outcome) string { return strings.ReplaceAll(string(o), " ", "") },
		"tally":  func(i int, group string) string { return tally(m.counts(i, group)) },
		"name":   func(c Column) string { return c.Version() },
		"rows": func(group string) []Row {
			return slices.DeleteFunc(slices.Clone(m.Rows), func(r Row) bool { return r.Group != group })
		},
		"details": func(c Cell) string {
			var parts []string
			for _, p := range paths {
				if o, ok := c.Paths[p]; ok {
					parts = append(parts, p+": "+string(o))
				}
			}
			if c.Note != "" {
				parts = append(parts, "not supported: "+c.Note)
			}
			return strings.Join(parts, "\n")
		},
	}).Parse(page)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, struct {
		*Matrix
		Groups   []string
		Outcomes []Outcome
		Title    string
		Intro    template.HTML
		Meaning  map[Outcome]string
		Good     bool
	}{m, m.groups(), outcomes, title, intro, map[Outcome]string{
		Passed: "passed", Unsupported: "not supported by this kernel or driver, as expected", Failed: "failed", NotRun: "not run",
	}, m.good()})
	return b.Bytes(), err
}
