package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// summary prints what failed, then a line for each suite, and reports whether all passed.
func (r *runner) summary() bool {
	good, missing := true, r.total
	for _, o := range r.done {
		if o.step != nil {
			missing--
		}
		if o.ok() {
			continue
		}
		good = false
		fmt.Fprintf(r.out, "\n== %s failed%s\n%s", o.name, pick(o.problem != "", ": "+o.problem, ""), o.report)
		if !strings.HasSuffix(o.report, "\n") {
			fmt.Fprintln(r.out)
		}
	}
	fmt.Fprintf(r.out, "\n      %-12s %7s %7s %7s  %7s\n", "suite", "passed", "failed", "skipped", "time")
	for _, s := range r.suites() {
		fmt.Fprintf(r.out, "%-5s %-12s %7d %7d %7d  %7s\n", pick(s.good, "ok", "FAIL"), s.name, s.counts.passed, s.counts.failed, s.counts.skipped, clock(s.took))
	}
	for _, o := range r.done {
		if !o.ok() {
			fmt.Fprintf(r.out, "\n%s failed: %s\nfull log: %s\n", o.name, o.why(), o.log)
		}
	}
	good = good && missing == 0
	fmt.Fprintf(r.out, "\n%s after %s%s\n", pick(good, "passed", "FAILED"), clock(time.Since(r.begin)), pick(missing > 0, fmt.Sprintf(", %d steps did not run", missing), ""))
	return good
}

// mostNames is how many failed tests a line names.
const mostNames = 20

// why says in a line why a step failed.
func (o *outcome) why() string {
	names := o.failed
	if len(names) > mostNames {
		names = append(names[:mostNames:mostNames], fmt.Sprintf("and %d more", len(names)-mostNames))
	}
	if o.problem != "" {
		names = append([]string{o.problem}, names...)
	}
	return strings.Join(names, ", ")
}

// suiteSum is a suite's line of the summary.
type suiteSum struct {
	name   string
	good   bool
	counts counts
	took   time.Duration // while at least one of its steps ran
}

// suites sums up the outcomes of each suite, in the order of their ends.
func (r *runner) suites() (all []*suiteSum) {
	times := map[string][]*outcome{}
	for _, o := range r.done {
		name := pick(o.suite == "", o.name, o.suite)
		i := slices.IndexFunc(all, func(s *suiteSum) bool { return s.name == name })
		if i < 0 {
			i = len(all)
			all = append(all, &suiteSum{name: name, good: true})
		}
		s := all[i]
		s.good = s.good && o.ok()
		s.counts.add(o.counts)
		times[name] = append(times[name], o)
	}
	for _, s := range all {
		s.took = busy(times[s.name])
	}
	return all
}

// busy returns for how long at least one of the steps ran.
func busy(steps []*outcome) (sum time.Duration) {
	slices.SortFunc(steps, func(a, b *outcome) int { return a.begin.Compare(b.begin) })
	var until time.Time
	for _, o := range steps {
		if o.begin.After(until) {
			until = o.begin
		}
		if o.end.After(until) {
			sum += o.end.Sub(until)
			until = o.end
		}
	}
	return sum
}
