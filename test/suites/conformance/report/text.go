package report

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/internal/matrix"
)

// text prints progress, failures when they happen, and a summary.
type text struct {
	w        io.Writer // gets what is to stay
	progress io.Writer // gets lines about the progress
	terminal bool      // progress is a terminal, on which one line is written again and again
	verbose  bool      // a line for every test

	total, ended, failed int
	start, said          time.Time
}

// sayEvery is how often progress is printed that does not go to a terminal.
const sayEvery = 10 * time.Second

// isTerminal reports whether a file is a terminal.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// begin implements sink.
func (t *text) begin(r *Report, total int) {
	t.total, t.start = total, time.Now()
	t.said = t.start
	fmt.Fprint(t.w, head(r))
	fmt.Fprintf(t.w, "%d tests\n", total)
}

// head describes devices and machine.
func head(r *Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "goverbs conformance %s on Linux %s, %s, %d processors\n", r.Version, r.Machine.Release, r.Machine.Arch, r.Machine.CPUs)
	for _, d := range r.Devices {
		parts := []string{"driver " + d.Driver, d.LinkLayer, "port " + d.State}
		for _, p := range [][2]string{{"firmware ", d.FwVer}, {"board ", d.Sysfs["board_id"]}, {"", d.Rate}, {"on ", d.Netdev}} {
			if p[1] != "" {
				parts = append(parts, p[0]+p[1])
			}
		}
		if d.InProcess {
			parts = append(parts, "a software device in this process")
		}
		fmt.Fprintf(&b, "%s: %s\n", d.Device, strings.Join(parts, ", "))
	}
	return b.String()
}

// test implements sink.
func (t *text) test(all []Result) {
	t.ended++
	res := all[len(all)-1]
	if res.Outcome == matrix.Failed {
		t.failed++
	}
	part := Report{Results: all}
	if res.Outcome == matrix.Failed || t.verbose {
		t.clear()
	}
	if t.verbose {
		why := ""
		if res.Reason != "" {
			why = ": " + res.Reason
		}
		fmt.Fprintf(t.w, "%-11s %s (%.1f s)%s\n", part.whole(res), res.Test, res.Seconds, why)
	}
	for _, f := range part.failures() {
		fmt.Fprintf(t.w, "FAILED %s (%.1f s) %s\n", f.Test, f.Seconds, f.Reason)
		for _, l := range trimOutput(f.Output) {
			fmt.Fprintf(t.w, "    %s\n", l)
		}
	}
	t.say(res.Test)
}

// say says how far the run is.
func (t *text) say(test string) {
	now := time.Now()
	line := fmt.Sprintf("%3.0f s: %d of %d tests, %d failed", now.Sub(t.start).Seconds(), t.ended, t.total, t.failed)
	switch {
	case t.terminal:
		fmt.Fprintf(t.progress, "\r\x1b[K%s; %s", line, test)
	case now.Sub(t.said) >= sayEvery:
		t.said = now
		fmt.Fprintln(t.progress, line)
	}
}

// clear removes the line of progress from a terminal.
func (t *text) clear() {
	if t.terminal {
		fmt.Fprint(t.progress, "\r\x1b[K")
	}
}

// end implements sink.
func (t *text) end(r *Report) {
	t.clear()
	fmt.Fprint(t.w, summary(r))
}

// count writes the counts of outcomes.
func count(n map[matrix.Outcome]int) string {
	parts := []string{fmt.Sprintf("%d passed", n[matrix.Passed])}
	for _, o := range []struct {
		outcome matrix.Outcome
		words   string
	}{{matrix.Failed, "failed"}, {matrix.Unsupported, "not supported"}, {matrix.Elsewhere, "left out"}} {
		if n[o.outcome] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[o.outcome], o.words))
		}
	}
	return strings.Join(parts, ", ")
}

// skipped returns tests by the reason why they did not run.
func skipped(r *Report) (all []group) {
	tests := map[string][]string{}
	for _, res := range r.Results {
		if res.Outcome == matrix.Unsupported || res.Outcome == matrix.Elsewhere {
			why := res.Reason
			if features, ok := strings.CutPrefix(why, notSupported); ok {
				why = notSupported + several(slices.Sorted(slices.Values(strings.Split(features, ", "))))
			}
			if name := top(res.Test); !slices.Contains(tests[why], name) {
				tests[why] = append(tests[why], name)
			}
		}
	}
	for _, why := range slices.Sorted(maps.Keys(tests)) {
		if why != "" {
			all = append(all, group{why, tests[why]})
		}
	}
	return all
}

// several lists words, but of more than four the first three only.
func several(words []string) string {
	if len(words) > 4 {
		return fmt.Sprintf("%s and %d more", strings.Join(words[:3], ", "), len(words)-3)
	}
	return strings.Join(words, ", ")
}

// summary writes what a run comes to.
func summary(r *Report) string {
	var b strings.Builder
	if all := skipped(r); len(all) > 0 {
		b.WriteString("\nDid not run:\n")
		for _, g := range all {
			fmt.Fprintf(&b, "  %s: %s\n", g.Title, several(g.Tests))
		}
	}
	list := func(title string, lines []string) {
		if len(lines) > 0 {
			fmt.Fprintf(&b, "\n%s:\n", title)
		}
		for _, l := range lines {
			fmt.Fprintf(&b, "  %s\n", l)
		}
	}
	list("Known bugs of this kernel or driver, which tests tolerated (see test/suites/conformance/BUGS.md; -strict)", r.bugs())
	list("Notes", r.Notes)
	list("Warnings in the kernel's log", r.KernelLog)
	list("Problems", r.Problems)
	var failed []string
	for _, f := range r.failures() {
		l := f.Test
		if f.Alone != "" {
			l += fmt.Sprintf(" (again by itself: %s, %d commands in its trace)", f.Alone, len(f.Trace))
		}
		failed = append(failed, l)
	}
	list("Failed", failed)
	if c, err := r.compare(r.other()); err != nil {
		fmt.Fprintf(&b, "\n%v\n", err)
	} else {
		b.WriteString("\n" + c.String())
	}
	verdict := "PASS"
	if !r.ok() {
		verdict = "FAIL"
	}
	if r.Interrupted {
		verdict = "INTERRUPTED"
	}
	fmt.Fprintf(&b, "\n%s: %s of %d tests, in %.0f s\n", verdict, count(r.counts()), len(r.Tests), r.Seconds)
	return b.String()
}
