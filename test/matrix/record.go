package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
)

// Outcome is how a test ended.
type Outcome string

// The outcomes of a test.
const (
	Passed      Outcome = "passed"
	Unsupported Outcome = "unsupported" // by this kernel or driver, as is expected
	Failed      Outcome = "failed"
	NotRun      Outcome = "not run"
	Elsewhere   Outcome = "not for this driver" // is not counted
)

// worse orders outcomes: what is further right wins over what is left of it.
var worse = []Outcome{NotRun, Passed, Unsupported, Failed}

// worst returns the worse of two outcomes.
func worst(a, b Outcome) Outcome {
	if slices.Index(worse, b) > slices.Index(worse, a) {
		return b
	}
	return a
}

// Result is the result of a test or subtest.
type Result struct {
	Suite   string  `json:"suite"` // the package's last name
	Test    string  `json:"test"`  // with the names of subtests, as in TestX/auto
	Outcome Outcome `json:"outcome"`
	Note    string  `json:"note,omitempty"` // which features are missing
	Took    float64 `json:"took,omitempty"` // in seconds
}

// Run is what was run on one kernel with one driver.
type Run struct {
	Column
	Boots []Boot
}

// Boot is what was run in one boot. Each has a file of its own, since several run at once.
type Boot struct {
	Name    string    `json:"name"`
	Path    string    `json:"path,omitempty"` // by which the tests that choose none gave commands, where not "auto"
	Release string    `json:"release,omitempty"`
	Begin   time.Time `json:"begin"`
	End     time.Time `json:"end"`
	Problem string    `json:"problem,omitempty"` // besides tests that failed
	Results []Result  `json:"results"`
}

// collector takes results out of the output of test binaries that run with
// -test.v=test2json: the lines that the testing package writes start with a SYN.
type collector struct {
	w       io.Writer // for the output of failed tests, and for what is no test's
	release string    // of the kernel
	suite   string    // whose output comes
	current *test     // the test whose output comes, or nil
	tests   []*test   // in the order of their start
	byName  map[[2]string]*test
}

// test is what is known of a test or subtest.
type test struct {
	suite  string
	name   string
	output strings.Builder
	lacks  []string // the features that it found missing
	other  bool     // another boot is for it
	verb   string   // PASS, FAIL or SKIP; empty until it ends
	took   float64  // in seconds
}

const syn = "\x16"

// line takes a line of output, with its end.
func (c *collector) line(s string) {
	out, event, ok := strings.Cut(s, syn)
	if out != "" {
		c.text(out)
	}
	if !ok {
		return
	}
	event = strings.TrimRight(event, "\r\n")
	kind, rest, _ := strings.Cut(event, " ")
	switch kind {
	case "===": // RUN, PAUSE, CONT or NAME, and a test
		_, name, _ := strings.Cut(rest, " ")
		if name = strings.TrimSpace(name); name == "" { // NAME of none
			c.current = nil
			return
		}
		c.current = c.named(name)
	case "---": // PASS: TEST (0.00s)
		verb, rest, _ := strings.Cut(rest, ": ")
		name, took, _ := strings.Cut(rest, " (")
		c.current = c.named(name)
		c.current.verb = verb
		c.current.took, _ = strconv.ParseFloat(strings.TrimSuffix(took, "s)"), 64)
		if verb == "FAIL" {
			c.print(c.current)
		}
	default: // PASS or FAIL: the end of a program
		c.current = nil
	}
}

// text takes output of the current test, or of none.
func (c *collector) text(s string) {
	_, start, ok := strings.Cut(strings.TrimSpace(s), testenv.StartMark)
	switch {
	case ok:
		c.suite, c.release, _ = strings.Cut(start, " on Linux ")
		c.current = nil
	case c.current == nil:
		io.WriteString(c.w, s)
	default:
		c.current.output.WriteString(s)
		c.current.other = c.current.other || strings.Contains(s, testenv.ElsewhereMark)
		_, feature, ok := strings.Cut(strings.TrimSpace(s), testenv.LackingMark)
		if ok && !slices.Contains(c.current.lacks, feature) {
			c.current.lacks = append(c.current.lacks, feature)
		}
	}
}

// named returns the test of the current suite with a name.
func (c *collector) named(name string) *test {
	key := [2]string{c.suite, name}
	if c.byName[key] == nil {
		t := &test{suite: c.suite, name: name}
		c.tests = append(c.tests, t)
		c.byName[key] = t
	}
	return c.byName[key]
}

// print prints what a failed test has said.
func (c *collector) print(t *test) {
	fmt.Fprintf(c.w, "--- FAIL: %s\n%s", t.name, &t.output)
}

// results returns the results. A test that has not ended has failed. One that another boot is for has
// none.
func (c *collector) results() []Result {
	var all []Result
	for _, t := range c.tests {
		if t.verb == "SKIP" && t.other {
			continue
		}
		r := Result{Suite: t.suite, Test: t.name, Outcome: Failed, Note: strings.Join(t.lacks, ", "), Took: t.took}
		switch {
		case t.verb == "PASS" && t.lacks == nil:
			r.Outcome = Passed
		case t.verb == "PASS" || t.verb == "SKIP":
			r.Outcome = Unsupported
		case t.verb == "":
			r.Note = "did not end"
			c.print(t)
		}
		all = append(all, r)
	}
	return all
}

// read takes all output until its end.
func (c *collector) read(r io.Reader) error {
	b := bufio.NewReader(r)
	for {
		s, err := b.ReadString('\n')
		if s != "" {
			c.line(s)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// record runs a command and keeps its tests' results as a boot of the kernel. It returns the
// command's exit status.
func record(col Column, boot Boot, dir string, args []string) (code int, err error) {
	if len(args) == 0 || dir == "" || col.Kernel == "" || col.Arch == "" || boot.Name == "" {
		return 0, errUsage
	}
	if boot.Path != "" && (boot.Path == anyPath || !slices.Contains(paths, boot.Path)) {
		return 0, fmt.Errorf("path is %q, allowed: auto, ioctl, write", boot.Path)
	}
	boot.Begin = time.Now()
	c := &collector{w: os.Stdout, byName: map[[2]string]*test{}}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	if err := errors.Join(c.read(out), cmd.Wait()); err != nil {
		if code = cmd.ProcessState.ExitCode(); code <= 0 {
			return 0, err
		}
	}
	boot.Results, boot.Release, boot.End = c.results(), c.release, time.Now()
	counts := map[Outcome]int{}
	for _, res := range boot.Results {
		counts[res.Outcome]++
	}
	if code != 0 && (code >= 124 || counts[Failed] == 0) {
		boot.Problem = fmt.Sprintf("exit status %d", code)
	}
	fmt.Printf("Linux %s %s, %s, %s: %d passed, %d unsupported, %d failed, exit status %d, %.0f s\n",
		col.Kernel, col.Arch, col.Driver, boot.Name, counts[Passed], counts[Unsupported], counts[Failed], code, boot.End.Sub(boot.Begin).Seconds())
	b, err := json.MarshalIndent(boot, "", "\t")
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return 0, err
	}
	return code, os.WriteFile(bootFile(dir, col, boot.Name), b, 0o666)
}

// bootFile is where a boot of a kernel with a driver's devices is kept.
func bootFile(dir string, c Column, boot string) string {
	name := c.Arch + "-" + strings.ReplaceAll(c.Kernel, "/", "_")
	if c.Driver != rxe {
		name += "-" + c.Driver
	}
	return filepath.Join(dir, name+"."+boot+".json")
}

// readRun reads the boots of a kernel. Where there is none, that is the run's problem.
func readRun(dir string, col Column) (*Run, error) {
	files, err := filepath.Glob(bootFile(dir, col, "*"))
	if err != nil {
		return nil, err
	}
	r := &Run{Column: col}
	if len(files) == 0 {
		r.Problems = []string{"nothing was run"}
		return r, nil
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var boot Boot
		if err := json.Unmarshal(b, &boot); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if boot.Release != "" {
			r.Release = boot.Release
		}
		if boot.Problem != "" {
			r.Problems = append(r.Problems, boot.Name+": "+boot.Problem)
		}
		r.Boots = append(r.Boots, boot)
	}
	r.Seconds = int(busy(r.Boots).Round(time.Second).Seconds())
	return r, nil
}

// busy returns for how long at least one of the boots ran.
func busy(boots []Boot) (sum time.Duration) {
	var until time.Time
	for _, b := range slices.SortedFunc(slices.Values(boots), func(a, b Boot) int { return a.Begin.Compare(b.Begin) }) {
		if b.Begin.After(until) {
			until = b.Begin
		}
		if b.End.After(until) {
			sum += b.End.Sub(until)
			until = b.End
		}
	}
	return sum
}
