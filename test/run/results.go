package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/test/internal/matrix"
)

// counts are numbers of tests, subtests included. A step without tests counts as one.
type counts struct{ passed, failed, skipped int }

// add adds counts.
func (c *counts) add(o counts) {
	c.passed, c.failed, c.skipped = c.passed+o.passed, c.failed+o.failed, c.skipped+o.skipped
}

// String returns the counts in words.
func (c counts) String() string {
	s := fmt.Sprintf("%d passed", c.passed)
	if c.failed > 0 {
		s += fmt.Sprintf(", %d failed", c.failed)
	}
	if c.skipped > 0 {
		s += fmt.Sprintf(", %d skipped", c.skipped)
	}
	return s
}

// results reads the output of a command line by line and finds the results of tests in it.
type results struct {
	guests []*matrix.Collector // for each VM, or for a go test on this machine with results for the matrix
	goTest *goTest             // of another go test on this machine, or nil
	report bytes.Buffer        // what failed tests printed, and what no test printed
	head   []string            // the first lines that no collector or goTest reads
	tail   []string            // the last of them
	cut    int                 // how many lines were between them
	tests  bool                // the command runs tests, so that no result is a failure
}

// endLines is how many lines a report has of the beginning and of the end of output that belongs to no
// test: a panic begins with its reason, and the log of a kernel ends with it.
const endLines = 40

// syn begins the lines that the testing package writes with -test.v=test2json.
const syn = "\x16"

// newResults returns a reader for the output of a step, or of a build if the step is nil.
func newResults(s *step, args []string) *results {
	r := new(results)
	switch {
	case s != nil && (s.host == nil || s.driver != ""):
		for range s.hosts() {
			r.guests = append(r.guests, matrix.NewCollector(&r.report))
		}
	case s != nil && isGoTest(args):
		r.goTest = &goTest{report: &r.report, output: map[string]string{}}
	}
	r.tests = s != nil && runsTests(args)
	return r
}

// runsTests reports whether a command runs tests, and not benchmarks or another program.
func runsTests(args []string) bool {
	test := len(args) > 0 && isGoTest(args)
	for _, a := range args {
		if strings.HasPrefix(a, "-test.bench") || strings.HasPrefix(a, "-bench") {
			return false
		}
		test = test || strings.HasSuffix(a, ".test")
	}
	return test
}

// plain returns a line as a person reads it.
func (r *results) plain(line string) string {
	if r.goTest != nil {
		var e event
		if json.Unmarshal([]byte(line), &e) == nil {
			return e.Output
		}
	}
	return strings.ReplaceAll(line, syn, "")
}

// stdout reads a line of standard output. Lines of several hosts begin with "1: ", "2: " and so on.
func (r *results) stdout(line string) {
	switch {
	case r.goTest != nil:
		r.goTest.line(line)
	case len(r.guests) == 1:
		r.guests[0].Line(line)
	default:
		number, rest, _ := strings.Cut(line, ": ")
		if host, err := strconv.Atoi(number); err == nil && host >= 1 && host <= len(r.guests) {
			r.guests[host-1].Line(rest)
			return
		}
		r.stderr(line)
	}
}

// stderr reads a line of standard error. The reports of the modelled cards are in the log.
func (r *results) stderr(line string) {
	if strings.HasPrefix(line, "hca: ") {
		return
	}
	if len(r.head) < endLines {
		r.head = append(r.head, line)
		return
	}
	if r.tail = append(r.tail, line); len(r.tail) > endLines {
		r.tail = r.tail[1:]
		r.cut++
	}
}

// boot returns the kernel's release and the results of the tests that use testenv.
func (r *results) boot() (release string, all []matrix.Result) {
	for _, g := range r.guests {
		release = g.Release
		for _, res := range g.Results() {
			if res.Suite != "" {
				all = append(all, res)
			}
		}
	}
	return release, all
}

// finish puts the results into an outcome. err is the error of the command, and stopped says why it
// was stopped.
func (r *results) finish(o *outcome, err, stopped error) {
	for _, g := range r.guests {
		for _, res := range g.Results() {
			switch res.Outcome {
			case matrix.Passed:
				o.counts.passed++
			case matrix.Unsupported, matrix.Elsewhere:
				o.counts.skipped++
			default:
				o.counts.failed++
				o.failed = append(o.failed, strings.TrimPrefix(res.Suite+"."+res.Test, "."))
			}
		}
	}
	if r.goTest != nil {
		o.counts, o.failed = r.goTest.counts, r.goTest.failed
	}
	o.problem = problem(err, stopped, len(o.failed) > 0)
	if o.problem == "" && r.tests && o.counts == (counts{}) {
		o.problem = "no test ran"
	}
	switch {
	case o.problem != "" && len(o.failed) == 0:
		o.counts.failed++
	case o.counts == (counts{}):
		o.counts.passed = 1
	}
	if !o.ok() {
		o.report = r.report.String() + strings.Join(r.head, "")
		if r.cut > 0 {
			o.report += fmt.Sprintf("... %d lines, which the log has ...\n", r.cut)
		}
		o.report += strings.Join(r.tail, "")
	}
}

// problem says why a command failed, apart from tests that failed.
func problem(err, stopped error, tests bool) string {
	exit, ok := err.(*exec.ExitError)
	switch {
	case err == nil:
		return ""
	case stopped != nil:
		return "stopped"
	case !ok:
		return err.Error()
	}
	switch code := exit.ExitCode(); {
	case code == 123:
		return "a driver did to a modelled card what it must not"
	case code == 124:
		return "the time was up"
	case code == 126:
		return "the kernel complained"
	case tests && code < 123:
		return ""
	}
	return err.Error()
}

// event is a line of go test -json.
type event struct {
	Action, Package, ImportPath, Test, Output string
}

// goTest reads the output of go test -json.
type goTest struct {
	report *bytes.Buffer
	output map[string]string // of packages and of tests that have not ended
	counts counts
	failed []string
}

// line reads a line.
func (g *goTest) line(s string) {
	var e event
	if json.Unmarshal([]byte(s), &e) != nil {
		g.report.WriteString(s)
		return
	}
	key := strings.TrimSuffix(e.Package+"."+e.Test, ".")
	switch e.Action {
	case "output":
		g.output[key] += e.Output
		return
	case "build-output":
		g.report.WriteString(e.Output)
		return
	case "build-fail":
		g.failed = append(g.failed, e.ImportPath)
		g.counts.failed++
		return
	case "pass":
		g.counts.passed += pick(e.Test != "", 1, 0)
	case "skip":
		g.counts.skipped += pick(e.Test != "", 1, 0)
	case "fail":
		if e.Test == "" && slices.ContainsFunc(g.failed, func(f string) bool { return f == key || strings.HasPrefix(f, key+".") || strings.HasPrefix(f, key+" ") }) {
			break // because of its tests, or because it does not build
		}
		g.report.WriteString(g.output[key])
		g.failed = append(g.failed, key)
		g.counts.failed++
	default:
		return
	}
	delete(g.output, key)
}
