package matrix

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
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
	Elsewhere   Outcome = "not tested" // not for this driver, or newer than the column; is not counted
)

// worse orders outcomes: what is further right wins over what is left of it.
var worse = []Outcome{Elsewhere, NotRun, Passed, Unsupported, Failed}

// worst returns the worse of two outcomes.
func worst(a, b Outcome) Outcome {
	if slices.Index(worse, b) > slices.Index(worse, a) {
		return b
	}
	return a
}

// Result is the result of a test or subtest.
type Result struct {
	Suite   string  `json:"suite"`          // the package's last name; empty if it does not use testenv
	Test    string  `json:"test"`           // with the names of subtests, as in TestX/auto
	Outcome Outcome `json:"outcome"`        // how it ended
	Note    string  `json:"note,omitempty"` // which features are missing
	Took    float64 `json:"took,omitempty"` // in seconds
}

// Run is what was run on one kernel with one driver.
type Run struct {
	Column        // the kernel and the driver
	Boots  []Boot // in the order of their names
}

// Boot is what was run in one boot, or on software devices in one go test. Each has a file of its own,
// since several run at once.
type Boot struct {
	Name    string    `json:"name"`              // unique among the boots of a column
	Path    string    `json:"path,omitempty"`    // auto, ioctl or write: the path of tests that do not choose one
	Release string    `json:"release,omitempty"` // release that the kernel reports
	Begin   time.Time `json:"begin"`             // when the boot started
	End     time.Time `json:"end"`               // when it ended
	Problem string    `json:"problem,omitempty"` // an error other than a failed test
	Results []Result  `json:"results"`           // in the order in which the tests started
}

// Collector reads the output of test binaries that run with -test.v=test2json, in which the lines
// that the testing package writes start with a SYN, and collects the results of their tests.
type Collector struct {
	Release string // Release is the kernel's, as the tests report it.

	// Started, if it is not nil, is called with the name of each test that starts or goes on.
	Started func(test string)
	// Ended, if it is not nil, is called with the result of each test when it ends, subtests first, and
	// with what the test printed. Unlike Results it gets the tests that another boot runs, as Elsewhere.
	Ended func(r Result, output string)

	w       io.Writer // gets the output of failed tests, and all output outside of tests
	suite   string    // the program that is running
	current *test     // the test that is running, or nil
	tests   []*test   // in the order in which they started
	byName  map[string]*test
}

// NewCollector returns a Collector that writes the output of failed tests to w.
func NewCollector(w io.Writer) *Collector {
	return &Collector{w: w, byName: map[string]*test{}}
}

// test is what is known of a test or subtest.
type test struct {
	suite  string
	name   string
	output strings.Builder
	lacks  []string // the features that it found missing
	other  bool     // another boot is for it
	never  bool     // it is not for the devices
	verb   string   // PASS, FAIL or SKIP; empty until it ends
	took   float64  // in seconds
}

const syn = "\x16"

// Line reads a line of output, including its newline.
func (c *Collector) Line(s string) {
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
		if c.Started != nil {
			c.Started(name)
		}
	case "---": // PASS: TEST (0.00s)
		verb, rest, _ := strings.Cut(rest, ": ")
		name, took, _ := strings.Cut(rest, " (")
		c.current = c.named(name)
		c.current.verb = verb
		c.current.took, _ = strconv.ParseFloat(strings.TrimSuffix(took, "s)"), 64)
		if verb == "FAIL" {
			c.print(c.current)
		}
		if c.Ended != nil {
			c.Ended(c.current.result(), c.current.output.String())
		}
	default: // PASS or FAIL: the end of a program
		c.next("")
	}
}

// text takes output of the current test, or of none.
func (c *Collector) text(s string) {
	_, start, ok := strings.Cut(strings.TrimSpace(s), testenv.StartMark)
	switch {
	case ok:
		suite, release, _ := strings.Cut(start, " on Linux ")
		c.next(suite)
		c.Release = release
	case c.current == nil:
		io.WriteString(c.w, s)
	default:
		c.current.output.WriteString(s)
		c.current.other = c.current.other || strings.Contains(s, testenv.ElsewhereMark)
		c.current.never = c.current.never || strings.Contains(s, testenv.NotSoftMark)
		_, feature, ok := strings.Cut(strings.TrimSpace(s), testenv.LackingMark)
		if ok && !slices.Contains(c.current.lacks, feature) {
			c.current.lacks = append(c.current.lacks, feature)
		}
	}
}

// next prepares for the output of another program, whose tests may have the same names.
func (c *Collector) next(suite string) {
	c.suite, c.current, c.byName = suite, nil, map[string]*test{}
}

// named returns the test of the current program with the given name.
func (c *Collector) named(name string) *test {
	if c.byName[name] == nil {
		t := &test{suite: c.suite, name: name}
		c.tests = append(c.tests, t)
		c.byName[name] = t
	}
	return c.byName[name]
}

// print prints what a failed test has said.
func (c *Collector) print(t *test) {
	fmt.Fprintf(c.w, "--- FAIL: %s\n%s", t.name, &t.output)
}

// Results returns the results. A test that has not ended has failed; its output is written to w. A
// test that another boot runs has no result.
func (c *Collector) Results() []Result {
	var all []Result
	for _, t := range c.tests {
		if t.verb == "SKIP" && t.other {
			continue
		}
		if t.verb == "" {
			c.print(t)
		}
		all = append(all, t.result())
	}
	return all
}

// result returns the result of a test.
func (t *test) result() Result {
	r := Result{Suite: t.suite, Test: t.name, Outcome: Failed, Note: strings.Join(t.lacks, ", "), Took: t.took}
	switch {
	case t.verb == "SKIP" && (t.never || t.other):
		r.Outcome = Elsewhere
	case t.verb == "PASS" && t.lacks == nil:
		r.Outcome = Passed
	case t.verb == "PASS" || t.verb == "SKIP":
		r.Outcome = Unsupported
	case t.verb == "":
		r.Note = "did not end"
	}
	return r
}

// Save keeps the results of a boot of the column's kernel in dir.
func Save(dir string, col Column, boot Boot) error {
	if boot.Path != "" && (boot.Path == anyPath || !slices.Contains(paths, boot.Path)) {
		return fmt.Errorf("path is %q, allowed: auto, ioctl, write", boot.Path)
	}
	b, err := json.MarshalIndent(boot, "", "\t")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	return os.WriteFile(bootFile(dir, col, boot.Name), b, 0o666)
}

// Remove removes the results of a boot, if there are any.
func Remove(dir string, col Column, boot string) error {
	if err := os.Remove(bootFile(dir, col, boot)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Clear removes the results of all boots of a column.
func Clear(dir string, col Column) error {
	files, err := filepath.Glob(bootFile(dir, col, "*"))
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	return err
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
