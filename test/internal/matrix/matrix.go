// Package matrix keeps the results of kernel tests and makes a table of them: what works with which
// kernel and driver. It collects results from the output of test binaries, merges those of several
// kernels, and renders them for the terminal, as HTML, and for the README. Command test/run uses it.
package matrix

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/test/testenv"
)

// Matrix says what works where: rows are features, columns are kernels.
type Matrix struct {
	Columns []Column `json:"columns"` // one for each kernel and driver
	Rows    []Row    `json:"rows"`    // in the order in which they are shown
}

// Column is a kernel on which the tests ran, with a driver's devices.
type Column struct {
	Kernel   string   `json:"kernel"`             // name that vmrun accepts: 6.1, latest
	Release  string   `json:"release"`            // release that the kernel reports
	Arch     string   `json:"arch"`               // architecture, by Go's name
	Driver   string   `json:"driver"`             // one of the drivers below
	Seconds  int      `json:"seconds"`            // how long the boots took
	Date     string   `json:"date"`               // when they ran
	Commit   string   `json:"commit"`             // the source that they ran on
	Problems []string `json:"problems,omitempty"` // errors other than failed tests
}

// The drivers, and what ConnectX's ports are on.
const (
	rxe       = "rxe"
	mlx5RoCE  = "mlx5-roce"
	mlx5IB    = "mlx5-ib"
	mlx5IPoIB = "mlx5-ipoib" // the same with IP over InfiniBand
	siw       = "siw"
	efa       = "efa"
	soft      = "soft" // software devices on this machine

	softSockets = "soft-sockets" // the same, with all packets through UDP sockets
)

// ParseColumn reads a column's name: ARCH/KERNEL or ARCH/KERNEL/DRIVER, where the kernel may be a path, or
// soft or soft-sockets, for software devices on this machine, which play one kernel.
func ParseColumn(name string) Column {
	if name == soft || name == softSockets {
		return Column{Kernel: testenv.SoftKernel(), Arch: runtime.GOARCH, Driver: name}
	}
	c := Column{Driver: rxe}
	c.Arch, c.Kernel, _ = strings.Cut(name, "/")
	if i := strings.LastIndexByte(c.Kernel, '/'); i >= 0 && slices.Contains([]string{rxe, mlx5RoCE, mlx5IB, mlx5IPoIB, siw, efa}, c.Kernel[i+1:]) {
		c.Kernel, c.Driver = c.Kernel[:i], c.Kernel[i+1:]
	}
	return c
}

// suitesOf are the suites of the drivers that have not all of them: InfiniBand has connections with IP
// only, netlinkrdma's are about what rxe has, and the programs run in VMs.
var suitesOf = map[string][]string{
	mlx5RoCE:  {"conformance", "cm", "rdmacm", "classic", "interop"},
	mlx5IB:    {"conformance"},
	mlx5IPoIB: {"cm", "rdmacm", "classic", "interop"},
	siw:       {"conformance", "cm", "rdmacm", "interop"},
	efa:       {"conformance"},
	soft:      {"conformance", "cm", "rdmacm"},

	softSockets: {"conformance", "cm", "rdmacm"},
}

// has reports whether a test is for a column's driver. Tests that have a boot of their own, on rxe, look
// at nothing of other drivers.
func (c Column) has(t sourceTest) bool {
	some, ok := suitesOf[c.Driver]
	leftOut := "Mixed" // tests of several drivers' devices at once, for which siw has a boot
	if c.Driver == siw {
		leftOut = "AnyTransport"
	}
	if slices.Contains(t.marks, leftOut) || slices.Contains(t.marks, "NeedsSoft") && c.Driver != soft && c.Driver != softSockets {
		return false
	}
	return !ok || slices.Contains(some, t.suite) && !slices.Contains(t.marks, "Boot")
}

// Version is what the table calls a kernel: the first two numbers of its release.
func (c Column) Version() string {
	if parts := strings.SplitN(c.Release, ".", 3); len(parts) == 3 {
		return parts[0] + "." + parts[1]
	}
	return c.Kernel
}

// Row is a feature: a test, or a subtest of it that is none of a path.
type Row struct {
	Group   string `json:"group"`         // heading above the row
	Feature string `json:"feature"`       // the test's name in words
	Test    string `json:"test"`          // with the names of subtests
	Doc     string `json:"doc,omitempty"` // first sentence of the test's comment
	Cells   []Cell `json:"cells"`         // one for each column
}

// Cell is what became of a feature on a kernel.
type Cell struct {
	// Paths has the outcome for each way of giving commands to the kernel. A test that does
	// not tell them apart, in a boot that does not either, has one outcome, of path "any".
	Paths map[string]Outcome `json:"paths,omitempty"`
	Note  string             `json:"note,omitempty"` // features that are missing
}

// paths are the ways of giving commands to the kernel, which are the names of subtests, in
// the order in which they are shown.
var paths = []string{"auto", "ioctl", "write", anyPath}

const anyPath = "any"

// Outcome sums a cell up: what works one way works.
func (c Cell) Outcome() Outcome {
	seen := map[Outcome]bool{}
	for _, o := range c.Paths {
		seen[o] = true
	}
	for _, o := range []Outcome{Failed, Passed, Unsupported, Elsewhere} {
		if seen[o] {
			return o
		}
	}
	return NotRun
}

// set sets the outcome of a path, and adds to what is missing.
func (c *Cell) set(path string, o Outcome, note string) {
	if c.Paths == nil {
		c.Paths = map[string]Outcome{}
	}
	c.Paths[path] = o
	if note != "" && !strings.Contains(c.Note, note) {
		c.Note = strings.TrimPrefix(c.Note+", "+note, ", ")
	}
}

// good reports whether all ran and nothing failed.
func (m *Matrix) good() bool {
	for i, c := range m.Columns {
		n := m.counts(i, "")
		if len(c.Problems) != 0 || n[Failed] != 0 || n[NotRun] != 0 {
			return false
		}
	}
	return len(m.Rows) != 0
}

// counts counts a column's outcomes, in one group or in all.
func (m *Matrix) counts(column int, group string) map[Outcome]int {
	n := map[Outcome]int{}
	for _, r := range m.Rows {
		if group == "" || r.Group == group {
			n[r.Cells[column].Outcome()]++
		}
	}
	return n
}

// groups lists the groups in the order of the rows.
func (m *Matrix) groups() []string {
	var all []string
	for _, r := range m.Rows {
		if !slices.Contains(all, r.Group) {
			all = append(all, r.Group)
		}
	}
	return all
}

// encode writes a matrix as JSON with a row to a line, so that a change is seen in a diff.
func (m *Matrix) encode() []byte {
	var b bytes.Buffer
	b.WriteString("{\"columns\": [\n")
	list(&b, m.Columns)
	b.WriteString("], \"rows\": [\n")
	list(&b, m.Rows)
	b.WriteString("]}\n")
	return b.Bytes()
}

// list writes values as JSON, one to a line.
func list[T any](b *bytes.Buffer, values []T) {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	for i, v := range values {
		if i > 0 {
			b.Truncate(b.Len() - 1) // before the newline
			b.WriteString(",\n")
		}
		if err := e.Encode(v); err != nil {
			panic(err) // strings and numbers only
		}
	}
}

// readMatrix reads what encode wrote.
func readMatrix(path string) (*Matrix, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m := new(Matrix)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, r := range m.Rows {
		if len(r.Cells) != len(m.Columns) {
			return nil, fmt.Errorf("%s: %s has %d cells for %d columns", path, r.Test, len(r.Cells), len(m.Columns))
		}
	}
	return m, nil
}

// split divides a test's full name into the test, the path, and what subtest it is besides.
func split(full string) (test, path, sub string) {
	parts := strings.Split(full, "/")
	path = anyPath
	if len(parts) > 1 && slices.Contains(paths, parts[1]) {
		path = parts[1]
		parts = slices.Delete(parts, 1, 2)
	}
	return parts[0], path, strings.Join(parts[1:], "/")
}

// key names a test or subtest.
type key struct{ suite, test, sub string }

// cells are what became of tests on one kernel.
type cells map[key]Cell

// of returns what became of a subtest. By some paths, or all, a test may have ended before it.
func (m cells) of(k key) Cell {
	var c Cell
	for {
		above := m[k]
		for p, o := range above.Paths {
			if _, ok := c.Paths[p]; !ok {
				c.set(p, o, above.Note)
			}
		}
		if k.sub == "" {
			return c
		}
		k.sub = k.sub[:max(strings.LastIndexByte(k.sub, '/'), 0)]
	}
}

// merge makes a matrix of the tests in the source and of what ran.
func merge(tests []sourceTest, runs []*Run) *Matrix {
	m := new(Matrix)
	known := map[key]sourceTest{}
	for _, t := range tests {
		known[key{t.suite, t.name, ""}] = t
	}
	// For each test the subtests that become rows.
	subs := map[key][]string{}
	all := make([]cells, len(runs))
	for i, r := range runs {
		col := r.Column
		col.Problems = slices.Clone(col.Problems)
		all[i] = cells{}
		for _, b := range r.Boots {
			for _, res := range leaves(b.Results) {
				test, path, sub := split(res.Test)
				if path == anyPath && b.Path != "" {
					path = b.Path
				}
				of := key{res.Suite, test, ""}
				if t, ok := known[of]; !ok || !col.has(t) {
					if res.Outcome == Failed {
						col.Problems = append(col.Problems, res.Suite+": "+res.Test+" failed")
					}
					continue
				}
				if !slices.Contains(subs[of], sub) {
					subs[of] = append(subs[of], sub)
				}
				of.sub = sub
				c := all[i][of]
				c.set(path, worst(c.Paths[path], res.Outcome), res.Note)
				all[i][of] = c
			}
		}
		m.Columns = append(m.Columns, col)
	}
	for _, t := range tests {
		of := key{t.suite, t.name, ""}
		list := subs[of]
		// Where a test ended before its subtests, they share its outcome.
		list = slices.DeleteFunc(slices.Clone(list), func(sub string) bool {
			return slices.ContainsFunc(list, func(other string) bool { return other != sub && within(other, sub) })
		})
		if list == nil {
			list = []string{""}
		}
		slices.Sort(list) // some tests range over a map
		for _, sub := range list {
			row := Row{Group: t.group, Feature: feature(t.name), Test: t.name, Doc: t.doc}
			if sub != "" {
				row.Feature += ": " + strings.ReplaceAll(sub, "_", " ")
				row.Test += "/" + sub
			}
			for i := range runs {
				if !m.Columns[i].has(t) {
					row.Cells = append(row.Cells, Cell{Paths: map[string]Outcome{anyPath: Elsewhere}})
					continue
				}
				row.Cells = append(row.Cells, all[i].of(key{t.suite, t.name, sub}))
			}
			m.Rows = append(m.Rows, row)
		}
	}
	return m
}

// run turns a column into what ran, from which merge makes the same column again. Results of tests
// that are no longer in the source are left out.
func (m *Matrix) run(column int, tests []sourceTest) *Run {
	suites := map[[2]string]string{}
	for _, t := range tests {
		suites[[2]string{t.group, t.name}] = t.suite
	}
	b := Boot{Release: m.Columns[column].Release}
	for _, r := range m.Rows {
		test, _, sub := split(r.Test)
		suite, ok := suites[[2]string{r.Group, test}]
		if !ok {
			continue
		}
		for path, o := range r.Cells[column].Paths {
			name := test
			if path != anyPath {
				name += "/" + path
			}
			if sub != "" {
				name += "/" + sub
			}
			b.Results = append(b.Results, Result{Suite: suite, Test: name, Outcome: o, Note: r.Cells[column].Note})
		}
	}
	return &Run{Column: m.Columns[column], Boots: []Boot{b}}
}

// same reports whether two columns are of the same kernel and driver.
func (c Column) same(other Column) bool {
	return c.Kernel == other.Kernel && c.Arch == other.Arch && c.Driver == other.Driver
}

// with returns a matrix with the columns of newer in place of its own. Those that it does not have come
// last. A test that a column has no row for, or a subtest of one that it ran, is newer
// than the column.
func (m *Matrix) with(newer *Matrix, tests []sourceTest) *Matrix {
	var runs []*Run
	used := map[int]bool{}
	for i, c := range m.Columns {
		of, at := m, i
		if j := slices.IndexFunc(newer.Columns, c.same); j >= 0 {
			of, at, used[j] = newer, j, true
		}
		runs = append(runs, of.run(at, tests))
	}
	for j := range newer.Columns {
		if !used[j] {
			runs = append(runs, newer.run(j, tests))
		}
	}
	all := merge(tests, runs)
	for i := range m.Columns { // which all has in the same places
		if slices.ContainsFunc(newer.Columns, m.Columns[i].same) {
			continue
		}
		missed := map[string]bool{}
		for _, r := range m.Rows {
			test, _, _ := strings.Cut(r.Test, "/")
			missed[r.Group+"/"+test] = missed[r.Group+"/"+test] || r.Cells[i].Outcome() == NotRun || r.Cells[i].Outcome() == Elsewhere
		}
		for _, r := range all.Rows {
			test, _, _ := strings.Cut(r.Test, "/")
			if r.Cells[i].Outcome() == NotRun && !missed[r.Group+"/"+test] {
				r.Cells[i].set(anyPath, Elsewhere, "")
			}
		}
	}
	return all
}

// within reports whether a subtest is one of another's, or that itself; "" is the test.
func within(sub, of string) bool {
	return of == "" || sub == of || strings.HasPrefix(sub, of+"/")
}

// leaves leaves out the tests whose subtests tell all: those that passed, and those that
// failed because a subtest did.
func leaves(all []Result) []Result {
	parents, failed := map[string]bool{}, map[string]bool{}
	for _, r := range all {
		for name := r.Suite + " " + r.Test; strings.Contains(name, "/"); {
			name = name[:strings.LastIndex(name, "/")]
			parents[name] = true
			if r.Outcome == Failed {
				failed[name] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(r Result) bool {
		name := r.Suite + " " + r.Test
		return parents[name] && (r.Outcome == Passed || r.Outcome == Failed && failed[name])
	})
}
