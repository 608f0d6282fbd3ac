package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// summary prints what failed, then a line for each suite, and reports whether all passed.
func (r *runner) summary() bool {
	good, missing := true, r.total-len(r.leftOut)
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
	fmt.Fprintf(r.out, "\n      %-12s %7s %7s %7s  %7s  %7s\n", "suite", "passed", "failed", "skipped", "time", "busy")
	for _, s := range r.suites() {
		fmt.Fprintf(r.out, "%-5s %-12s %7d %7d %7d  %7s  %7s\n", pick(s.good, "ok", "FAIL"), s.name, s.counts.passed, s.counts.failed, s.counts.skipped, clock(s.took), clock(s.busy))
	}
	if r.times {
		r.longest()
	}
	for _, o := range r.done {
		if !o.ok() {
			fmt.Fprintf(r.out, "\n%s failed: %s\nfull log: %s\n", o.name, o.why(), o.log)
		}
	}
	if len(r.leftOut) > 0 {
		fmt.Fprintf(r.out, "\nleft out, since %s is over: %s\n", clock(quickTime), strings.Join(r.leftOut, ", "))
	}
	good = good && missing == 0
	fmt.Fprintf(r.out, "\n%s after %s%s\n", pick(good, "passed", "FAILED"), clock(time.Since(r.begin)), pick(missing > 0, fmt.Sprintf(", %d steps did not run", missing), ""))
	return good
}

// testTime is how long a test took.
type testTime struct {
	name string // with its step
	took time.Duration
}

// testEnd matches the line with the result of a test that is no subtest.
var testEnd = regexp.MustCompile(`^--- (?:PASS|FAIL): ([^/\s]+) \((\d+\.\d+s)\)`)

// mostTimes is how many steps, and how many tests, -times prints.
const mostTimes = 30

// longest prints the steps with the most processor time, and the tests that took longest by the clock.
func (r *runner) longest() {
	steps := slices.SortedFunc(slices.Values(r.done), func(a, b *outcome) int { return cmp.Compare(b.busy, a.busy) })
	fmt.Fprintf(r.out, "\n%8s %8s  step\n", "busy", "time")
	for _, o := range steps[:min(len(steps), mostTimes)] {
		fmt.Fprintf(r.out, "%7.1fs %7.1fs  %s\n", o.busy.Seconds(), o.end.Sub(o.begin).Seconds(), o.name)
	}
	var tests []testTime
	for _, o := range r.done {
		tests = append(tests, o.tests...)
	}
	slices.SortFunc(tests, func(a, b testTime) int { return cmp.Compare(b.took, a.took) })
	fmt.Fprintf(r.out, "\n%8s  test\n", "time")
	for _, t := range tests[:min(len(tests), mostTimes)] {
		fmt.Fprintf(r.out, "%7.1fs  %s\n", t.took.Seconds(), t.name)
	}
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
	busy   time.Duration // processor time
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
		s.busy += o.busy
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
