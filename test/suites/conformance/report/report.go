// Package report makes a program of the conformance tests: it chooses devices, runs the tests in a process
// of its own, and reports what it saw as text, JSON, an HTML page or KTAP, the kernel's format for tests. A
// report can be compared with the published matrix and with another report.
//
// [Main] is the program. The test binary of test/suites/conformance calls it if it is started under another name
// than that of a test binary, and without flags of package testing.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/goverbs/test/internal/matrix"
	"github.com/goverbs/goverbs/test/testenv"
)

// schema is the present value of Report.Schema.
const schema = 1

// Report is what is known of a run.
type Report struct {
	Schema      int       `json:"schema"`                // raised when a key changes its meaning
	Version     string    `json:"version"`               // commit of the program
	Command     []string  `json:"command"`               // arguments of the program
	Begin       time.Time `json:"begin"`                 // when the tests started
	Seconds     float64   `json:"seconds"`               // how long they took
	Interrupted bool      `json:"interrupted,omitempty"` // by a signal, so that tests are missing
	Machine     Machine   `json:"machine"`               // the kernel and the architecture
	Devices     []Device  `json:"devices"`               // the devices of the tests, one or two
	Tests       []string  `json:"tests"`                 // every test of the program, whether it ran or not
	Results     []Result  `json:"results"`               // in the order in which the tests ended
	Problems    []string  `json:"problems,omitempty"`    // failures that are not of one test
	Notes       []string  `json:"notes,omitempty"`       // what a reader should know
	KnownBugs   []Bug     `json:"known_bugs,omitempty"`  // bugs of this kernel or driver that tests tolerated
	KernelLog   []string  `json:"kernel_log,omitempty"`  // warnings and errors in the kernel's log during the run

	earlier     *Report // what it is compared with, or nil
	earlierFile string  // where that is from
}

// other returns what the report is compared with.
func (r *Report) other() (*Report, string) { return r.earlier, r.earlierFile }

// Machine is where the tests ran.
type Machine struct {
	Release string `json:"release"`         // release of the kernel, such as 6.1.0-56-amd64
	Kernel  string `json:"kernel"`          // what /proc/version says
	Arch    string `json:"arch"`            // architecture, by Go's name
	CPUs    int    `json:"cpus"`            // number of processors
	Taint   string `json:"taint,omitempty"` // the kernel's taint flags in hexadecimal, before the tests
}

// Device is a device of the tests.
type Device struct {
	Device     string            `json:"device"`               // name
	Driver     string            `json:"driver"`               // name of the kernel's driver
	InProcess  bool              `json:"in_process,omitempty"` // a software device of the test process
	Protocol   string            `json:"protocol,omitempty"`   // "ib", "roce" or "iw"
	FwVer      string            `json:"fw_ver,omitempty"`     // version of the firmware
	NodeGUID   string            `json:"node_guid"`            // GUID
	LinkLayer  string            `json:"link_layer"`           // "Ethernet" or "InfiniBand"
	State      string            `json:"state"`                // state of port 1
	MTU        int               `json:"mtu"`                  // RDMA's MTU in bytes
	Rate       string            `json:"rate,omitempty"`       // speed of the port
	Netdev     string            `json:"netdev,omitempty"`     // network interface
	GIDs       []string          `json:"gids"`                 // GID table of port 1
	Attributes map[string]string `json:"attributes"`           // properties and limits, named like those of ibv_devinfo
	Sysfs      map[string]string `json:"sysfs,omitempty"`      // model and version of card and module, as sysfs has them
}

// Bug is a known bug of a kernel or driver.
type Bug struct {
	Name  string   `json:"name"`  // name in test/suites/conformance/BUGS.md
	Tests []string `json:"tests"` // tests that met it
}

// Result is the result of a test or subtest.
type Result struct {
	Test    string         `json:"test"`             // name, with those of subtests
	Outcome matrix.Outcome `json:"outcome"`          // how it ended
	Reason  string         `json:"reason,omitempty"` // why it was skipped, or what ended it
	Seconds float64        `json:"seconds"`          // how long it took
	Output  string         `json:"output,omitempty"` // what it printed, if it failed
	Alone   string         `json:"alone,omitempty"`  // how a failed test ended when it ran again by itself
	Trace   []string       `json:"trace,omitempty"`  // the commands that it gave the kernel then
}

// top returns the test that a subtest belongs to.
func top(name string) string {
	name, _, _ = strings.Cut(name, "/")
	return name
}

// counts counts outcomes of whole tests.
func (r *Report) counts() map[matrix.Outcome]int {
	n := map[matrix.Outcome]int{}
	for _, res := range r.Results {
		if res.Test == top(res.Test) {
			n[r.whole(res)]++
		}
	}
	return n
}

// whole returns the outcome of a test with subtests: that of all subtests, if none of them passed.
func (r *Report) whole(res Result) matrix.Outcome {
	if res.Outcome != matrix.Passed {
		return res.Outcome
	}
	sub := map[matrix.Outcome]bool{}
	for _, s := range r.Results {
		if strings.HasPrefix(s.Test, res.Test+"/") {
			sub[s.Outcome] = true
		}
	}
	for _, o := range []matrix.Outcome{matrix.Passed, matrix.Unsupported, matrix.Elsewhere} {
		if sub[o] {
			return o
		}
	}
	return res.Outcome
}

// met notes the known bugs that a test has met, as its output says.
func (r *Report) met(test, output string) {
	for l := range strings.Lines(output) {
		_, name, ok := strings.Cut(strings.TrimSpace(l), testenv.KnownBugMark)
		if !ok {
			continue
		}
		i := slices.IndexFunc(r.KnownBugs, func(b Bug) bool { return b.Name == name })
		if i < 0 {
			i, r.KnownBugs = len(r.KnownBugs), append(r.KnownBugs, Bug{Name: name})
		}
		if b := &r.KnownBugs[i]; !slices.Contains(b.Tests, top(test)) {
			b.Tests = append(b.Tests, top(test))
		}
	}
}

// bugs lists the known bugs, a line for each.
func (r *Report) bugs() (lines []string) {
	for _, b := range r.KnownBugs {
		lines = append(lines, fmt.Sprintf("%s (%s)", b.Name, several(b.Tests)))
	}
	return lines
}

// failures lists the failed tests, but not those that only failed because a subtest did.
func (r *Report) failures() []*Result {
	var all []*Result
	for i := range r.Results {
		res := &r.Results[i]
		if res.Outcome == matrix.Failed && !slices.ContainsFunc(r.Results, func(s Result) bool {
			return s.Outcome == matrix.Failed && strings.HasPrefix(s.Test, res.Test+"/")
		}) {
			all = append(all, res)
		}
	}
	return all
}

// ok reports whether all tests ran to their end and none failed.
func (r *Report) ok() bool {
	return !r.Interrupted && len(r.Problems) == 0 && len(r.failures()) == 0 && len(r.Results) > 0
}

// column is the report's column in a matrix.
func (r *Report) column() matrix.Column {
	release, _, _ := strings.Cut(r.Machine.Release, ",")
	parts := strings.SplitN(release, ".", 3)
	if len(parts) > 1 {
		release = parts[0] + "." + parts[1]
	}
	return matrix.Column{
		Kernel: release, Release: r.Machine.Release, Arch: r.Machine.Arch, Driver: r.matrixDriver(),
		Seconds: int(r.Seconds + 0.5), Date: r.Begin.UTC().Format(time.DateOnly), Commit: r.Version, Problems: r.Problems,
	}
}

// matrixDriver is what the matrix calls the driver of the devices.
func (r *Report) matrixDriver() string {
	d := r.Devices[0]
	switch {
	case d.InProcess:
		return "soft"
	case d.Driver == "mlx5" && d.LinkLayer == "InfiniBand":
		return "mlx5-ib"
	case d.Driver == "mlx5":
		return "mlx5-roce"
	}
	return d.Driver
}

// suite is the matrix's name of the tests.
const suite = "conformance"

// run returns the report in the matrix's form.
func (r *Report) run() *matrix.Run {
	b := matrix.Boot{Release: r.Machine.Release}
	for _, res := range r.Results {
		note := ""
		if res.Outcome == matrix.Unsupported {
			note = strings.TrimPrefix(res.Reason, notSupported)
		}
		b.Results = append(b.Results, matrix.Result{Suite: suite, Test: res.Test, Outcome: res.Outcome, Note: note, Took: res.Seconds})
	}
	return &matrix.Run{Column: r.column(), Boots: []matrix.Boot{b}}
}

// read reads a report that write has written.
func read(path string) (*Report, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := new(Report)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s is no report of conformance: %w", path, err)
	}
	if r.Schema != schema || len(r.Devices) == 0 {
		return nil, fmt.Errorf("%s is no report of conformance with schema %d", path, schema)
	}
	return r, nil
}

// encode returns the report as JSON.
func (r *Report) encode() ([]byte, error) {
	b, err := json.MarshalIndent(r, "", "\t")
	return append(b, '\n'), err
}
