package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Units.
const (
	nanoseconds  = "ns"
	microseconds = "µs"
	milliseconds = "ms"
	rate         = "msg/s"
	bandwidth    = "MiB/s"
)

// figure writes a value with three or four digits that count.
func figure(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// title says what was measured where.
func (r *Report) title() string {
	with := ""
	if r.Perftest != "" {
		with = ", perftest " + r.Perftest
	}
	processors := "processors"
	if r.CPUs == 1 {
		processors = "processor"
	}
	return fmt.Sprintf("Linux %s, %s, %s with %d %s (%s)%s, %s, commit %s, %d rounds",
		r.Kernel, r.Device, r.Arch, r.CPUs, processors, r.CPU, with, r.Date, r.Commit, r.Rounds)
}

// heading is the first line of the table.
const heading = "row                                            goverbs    rdma-core  unit     ratio   quartiles     least-most    wanted"

// footing explains it.
const footing = `The ratio is goverbs' figure by rdma-core's of the same round, the median of all rounds; between the
quartiles are half of them. Times are better below 1, msg/s and MiB/s above. "!" marks what is not as wanted.`

// line writes a row of the table.
func (r *Row) line() string {
	if r.Error != "" {
		return fmt.Sprintf("%-42s %s", r.Name, strings.ReplaceAll(strings.TrimSpace(r.Error), "\n", "; "))
	}
	wanted, mark := "", ""
	if r.Wanted != 0 {
		sign := "<="
		if r.Better == more {
			sign = ">="
		}
		wanted = fmt.Sprintf("%s %.2f", sign, r.Wanted)
	}
	if r.missed() {
		mark = " !"
	}
	q := r.Ratio
	return strings.TrimRight(fmt.Sprintf("%-42s %11s %12s  %-6s %7.2f   %4.2f-%-6.2f   %4.2f-%-6.2f  %s%s",
		r.Name, figure(r.OursMedian), figure(r.RdmaCoreMedian), r.Unit, q.Median, q.Q1, q.Q3, q.Least, q.Most, wanted, mark), " ")
}

// writeText writes the table.
func (r *Report) writeText(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "%s\n%s\n", r.title(), heading)
	for i := range r.Rows {
		fmt.Fprintln(b, r.Rows[i].line())
	}
	fmt.Fprintf(b, "%s\n%s", footing, r.notice())
	return b.Flush()
}

// benchName returns the name that a row has as a benchmark of Go's: send-lat/size=2 is
// BenchmarkSendLat/size=2.
func benchName(name string) string {
	first, rest, _ := strings.Cut(name, "/")
	var b strings.Builder
	b.WriteString("Benchmark")
	for _, word := range strings.Split(first, "-") {
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	if rest != "" {
		b.WriteString("/" + rest)
	}
	return b.String()
}

// benchUnit returns the unit that benchstat knows, and how many of it one of ours is.
func benchUnit(unit string) (name string, each float64) {
	switch unit {
	case nanoseconds:
		return "ns/op", 1
	case microseconds:
		return "ns/op", 1e3
	case milliseconds:
		return "ns/op", 1e6
	case bandwidth:
		return "B/s", 1 << 20
	}
	return unit, 1
}

// writeBenchstat writes the samples as golang.org/x/perf/cmd/benchstat reads them. The commit is
// not in it: two commits are two files, and benchstat compares only what is otherwise alike.
func (r *Report) writeBenchstat(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "goos: linux\ngoarch: %s\nkernel: %s\ndevice: %s\ncpu: %s\n", r.Arch, r.Kernel, r.Device, r.CPU)
	fmt.Fprint(b, "Unit msg/s better=higher\nUnit B/s better=higher\n")
	for i := range r.Rows {
		row := &r.Rows[i]
		for _, side := range []struct {
			by      string
			samples []float64
		}{{"goverbs", row.Ours}, {"rdma-core", row.RdmaCore}} {
			unit, each := benchUnit(row.Unit)
			for _, v := range side.samples {
				fmt.Fprintf(b, "%s/by=%s 1 %.10g %s\n", benchName(row.Name), side.by, v*each, unit)
			}
		}
	}
	return b.Flush()
}

// verdict says what has become of a ratio: nothing, unless the halves in the middle are apart.
func verdict(a, b *Row) string {
	up := b.Ratio.Q1 > a.Ratio.Q3
	down := b.Ratio.Q3 < a.Ratio.Q1
	switch {
	case up && a.Better == more, down && a.Better == less:
		return "better"
	case up, down:
		return "worse"
	}
	return "~"
}

// compare writes how two reports differ in the rows that both have.
func compare(w io.Writer, a, b *Report) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "A: %s\nB: %s\n", a.title(), b.title())
	if a.Kernel != b.Kernel || a.Arch != b.Arch {
		fmt.Fprintln(out, "They are of different kernels or architectures: only the ratios can be compared.")
	}
	fmt.Fprintf(out, "%-34s %10s %10s %-6s %8s   %6s %6s  %s\n", "row", "A", "B", "unit", "change", "ratio A", "B", "ratio is")
	common := 0
	for i := range a.Rows {
		x := &a.Rows[i]
		j := slices.IndexFunc(b.Rows, func(r Row) bool { return r.Name == x.Name && r.Unit == x.Unit })
		if j < 0 || !x.measured() || !b.Rows[j].measured() {
			continue
		}
		y := &b.Rows[j]
		common++
		fmt.Fprintf(out, "%-34s %10s %10s %-6s %+7.1f%%   %6.2f %6.2f  %s\n", x.Name, figure(x.OursMedian), figure(y.OursMedian), x.Unit,
			100*(y.OursMedian/x.OursMedian-1), x.Ratio.Median, y.Ratio.Median, verdict(x, y))
	}
	if common == 0 {
		return errors.New("the reports have no row in common")
	}
	fmt.Fprintln(out, `"~": the quartiles of the ratios to rdma-core overlap.`)
	return out.Flush()
}
