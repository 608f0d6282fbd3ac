package mesh

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/tools/verbs/internal/terminal"
)

// table is a matrix of one kind of value: from each host to each other one.
type table struct {
	rail, typ string
	label     int
	bandwidth bool
}

// tables returns the matrices of a report, in their order.
func (r *Report) tables() (all []table) {
	seen := map[table]bool{}
	for i := range r.Measurements {
		m := &r.Measurements[i]
		for _, bandwidth := range []bool{false, true} {
			t := table{m.Rail, m.Type, m.FlowLabel, bandwidth}
			if !seen[t] {
				seen[t] = true
				all = append(all, t)
			}
		}
	}
	return all
}

// title says what a matrix shows.
func (t table) title() string {
	what := "median latency in µs"
	if t.bandwidth {
		what = "bandwidth in Gb/s"
	}
	if t.label != 0 {
		what += fmt.Sprintf(", flow label %d", t.label)
	}
	return fmt.Sprintf("%s, %s: %s, from row to column", t.rail, t.typ, what)
}

// cells returns the measurements of a matrix by host.
func (r *Report) cells(t table) map[[2]int]*Measurement {
	all := map[[2]int]*Measurement{}
	for i := range r.Measurements {
		if m := &r.Measurements[i]; m.Rail == t.rail && m.Type == t.typ && m.FlowLabel == t.label {
			all[[2]int{m.from, m.to}] = m
		}
	}
	return all
}

// value returns the text of a cell, and whether it is bad.
func (t table) value(m *Measurement) (text string, bad bool) {
	switch {
	case m == nil:
		return "-", false
	case t.bandwidth && m.Bandwidth != nil:
		return fmt.Sprintf("%.3f", *m.Bandwidth), m.has("bandwidth", "loss")
	case !t.bandwidth && m.Latency != nil:
		return fmt.Sprintf("%.1f", m.Latency.Median), m.has("latency", "p99")
	}
	return "failed", true
}

// has reports whether the measurement has one of some problems.
func (m *Measurement) has(problems ...string) bool {
	return slices.ContainsFunc(problems, func(p string) bool { return slices.Contains(m.Problems, p) })
}

// Print prints the matrices and the findings. A bad value has an exclamation mark, and on a terminal a
// colour.
func (r *Report) Print(b *terminal.Text) error {
	for _, t := range r.tables() {
		fmt.Fprintf(b, "%s\n", t.title())
		cells := r.cells(t)
		width := len("failed!")
		for _, h := range r.Hosts {
			width = max(width, utf8.RuneCountInString(h.Name))
		}
		fmt.Fprintf(b, "  %-*s", width, "")
		for _, h := range r.Hosts {
			fmt.Fprintf(b, "  %*s", width, h.Name)
		}
		fmt.Fprintln(b)
		for i, from := range r.Hosts {
			fmt.Fprintf(b, "  %-*s", width, from.Name)
			for j := range r.Hosts {
				text, bad := t.value(cells[[2]int{i, j}])
				colour := terminal.Green
				if bad {
					colour, text = terminal.Red, text+"!"
				}
				fmt.Fprint(b, "  ")
				if text = fmt.Sprintf("%*s", width, text); cells[[2]int{i, j}] != nil {
					b.Paint(colour, text)
				} else {
					fmt.Fprint(b, text)
				}
			}
			fmt.Fprintln(b)
		}
		fmt.Fprintln(b)
	}
	for i := range r.Findings {
		f := &r.Findings[i]
		b.Paint(terminal.Red, f.String())
		fmt.Fprintln(b)
		for _, e := range f.Evidence {
			fmt.Fprintf(b, "    %s\n", e)
		}
	}
	if r.Interrupted {
		fmt.Fprintf(b, "interrupted after %d measurements\n", len(r.Measurements))
	}
	if r.OK {
		b.Paint(terminal.Green, fmt.Sprintf("%d hosts are well connected, by %d measurements", len(r.Hosts), len(r.Measurements)))
		fmt.Fprintln(b)
	}
	return b.Print()
}

// String words the finding without its evidence.
func (f *Finding) String() string {
	var where string
	switch f.Cause {
	case CauseFleet:
		where = "every link of the fleet"
	case CauseRail:
		where = "rail " + f.Rail + ", on every link"
	case CauseHost:
		where = "host " + peertext.Quote(f.Hosts[0])
	case CausePort:
		where = "device " + f.Rail + " of host " + peertext.Quote(f.Hosts[0])
	default:
		where = "link between " + peertext.Quote(f.Hosts[0]) + " and " + peertext.Quote(f.Hosts[1])
		if f.Rail != "" {
			where += " on " + f.Rail
		}
		if f.Direction != "both" {
			where += ", only " + f.Direction
		}
		if f.Cause == CausePath {
			where = fmt.Sprintf("path with flow labels %v of the %s", f.FlowLabels, where)
		}
	}
	return where + ": " + strings.Join(f.Problems, ", ")
}
