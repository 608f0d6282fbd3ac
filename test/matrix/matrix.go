package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Matrix says what works where: rows are features, columns are kernels.
type Matrix struct {
	Columns []Column `json:"columns"`
	Rows    []Row    `json:"rows"`
}

// Column is a kernel on which the tests ran, with a driver's devices.
type Column struct {
	Kernel   string   `json:"kernel"` // as vmrun names it: 6.1, latest
	Release  string   `json:"release"`
	Arch     string   `json:"arch"`
	Driver   string   `json:"driver"`
	Seconds  int      `json:"seconds"`            // that its boots took
	Problems []string `json:"problems,omitempty"` // what went wrong besides tests that failed
}

// The drivers, and what ConnectX's ports are on.
const (
	rxe      = "rxe"
	mlx5RoCE = "mlx5-roce"
	mlx5IB   = "mlx5-ib"
	siw      = "siw"
)

// parseColumn reads a column's name, ARCH/KERNEL or ARCH/KERNEL/DRIVER. The kernel may be a path.
func parseColumn(name string) Column {
	c := Column{Driver: rxe}
	c.Arch, c.Kernel, _ = strings.Cut(name, "/")
	if i := strings.LastIndexByte(c.Kernel, '/'); i >= 0 && slices.Contains([]string{rxe, mlx5RoCE, mlx5IB, siw}, c.Kernel[i+1:]) {
		c.Kernel, c.Driver = c.Kernel[:i], c.Kernel[i+1:]
	}
	return c
}

// elsewhere are tests that boots of rxe's own are for, and that look at
// nothing in others.
var elsewhere = []string{"TestIproute2", "TestModuleNotLoaded", "TestNoModule"}

// mixed begins the names of tests of several drivers' devices at once, which siw has a boot for.
const mixed = "TestMixed"

// anyLink are tests of interop that the driver has no part in, and that are left out on siw.
var anyLink = []string{"TestRpingPersistent", "TestDoctorText", "TestDoctorClosedNode", "TestDoctorMissingNode", "TestPerfHugePages", "TestPerfProgress", "TestPerfCPU"}

// suitesOf are the suites of the drivers that have not all of them: InfiniBand has no connections
// here, and netlinkrdma's are about what rxe has.
var suitesOf = map[string][]string{
	mlx5RoCE: {"conformance", "cm", "classic", "interop"},
	mlx5IB:   {"conformance"},
	siw:      {"conformance", "cm", "interop"},
}

// has reports whether a test is for a column's driver.
func (c Column) has(t sourceTest) bool {
	some, ok := suitesOf[c.Driver]
	switch {
	case c.Driver != siw && strings.HasPrefix(t.name, mixed), c.Driver == siw && slices.Contains(anyLink, t.name):
		return false
	}
	return !ok || slices.Contains(some, t.suite) && !slices.Contains(elsewhere, t.name)
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
	Group   string `json:"group"`
	Feature string `json:"feature"`
	Test    string `json:"test"`
	Doc     string `json:"doc,omitempty"`
	Cells   []Cell `json:"cells"` // one for each column
}

// Cell is what became of a feature on a kernel.
type Cell struct {
	// Paths has the outcome for each way of giving commands to the kernel. A test that does
	// not tell them apart, in a boot that does not either, has one outcome, of path "any".
	Paths map[string]Outcome `json:"paths,omitempty"`
	Note  string             `json:"note,omitempty"`
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

// sourceTest is a kernel test as the source has it.
type sourceTest struct {
	suite, name, group, doc string
}

// suites are the packages with kernel tests. Those of test/conformance are all of that
// kind; elsewhere it is the tests that use testenv, themselves or by functions that they call.
var suites = []string{"test/conformance", "netlinkrdma", "cm", "test/classic", "test/interop", "tools/verbs/internal/perf"}

// titles name the groups whose file's name says too little, or too much.
var titles = map[string]string{
	"test/conformance/async_test.go":       "asynchronous events",
	"test/conformance/bad_test.go":         "errors and misuse",
	"test/conformance/buffer_test.go":      "buffers",
	"test/conformance/closed_test.go":      "errors and misuse",
	"test/conformance/conformance_test.go": "GID",
	"test/conformance/cq_test.go":          "CQ",
	"test/conformance/datagram_test.go":    "datagrams and multicast",
	"test/conformance/denied_test.go":      "errors and misuse",
	"test/conformance/event_test.go":       "completion events",
	"test/conformance/fault_test.go":       "faults of requests",
	"test/conformance/limit_test.go":       "limits",
	"test/conformance/many_test.go":        "CQ",
	"test/conformance/mr_kind_test.go":     "MR",
	"test/conformance/mw_fault_test.go":    "memory windows",
	"test/conformance/mw_test.go":          "memory windows",
	"test/conformance/netlink_test.go":     "resources over netlink",
	"test/conformance/notify_test.go":      "completion events",
	"test/conformance/objects_test.go":     "what rxe has not",
	"test/conformance/odp_test.go":         "on-demand paging",
	"test/conformance/odp_traffic_test.go": "on-demand paging",
	"test/conformance/operation_test.go":   "UC, atomics, flush",
	"test/conformance/overflow_test.go":    "CQ",
	"test/conformance/post_test.go":        "states of a QP",
	"test/conformance/pd_test.go":          "protection domains",
	"test/conformance/qp_event_test.go":    "asynchronous events",
	"test/conformance/removal_test.go":     "removal of a device",
	"test/conformance/srq_traffic_test.go": "SRQ",
	"test/conformance/state_test.go":       "states of a QP",
	"test/conformance/status_test.go":      "completion statuses",
	"test/conformance/threads_test.go":     "many goroutines",
	"test/conformance/transfer_test.go":    "transfer of data",
	"test/conformance/ud_test.go":          "datagrams and multicast",
	"test/conformance/walk_test.go":        "random walk",
	"test/conformance/window_test.go":      "memory windows",
	"netlinkrdma/kernel_test.go":           "netlink",
	"cm/conn_test.go":                      "connections",
	"cm/fault_test.go":                     "connections that break",
	"cm/group_test.go":                     "connection manager: multicast",
	"cm/kernel_test.go":                    "connection manager",
	"cm/load_test.go":                      "many connections",
	"cm/open_test.go":                      "connection manager: opening",
	"cm/packet_test.go":                    "datagrams of the connection manager",
	"cm/path_test.go":                      "connection manager: paths and port spaces",
	"cm/service_test.go":                   "connection manager: events and services",
	"cm/stream_test.go":                    "streams",
	"cm/wait_test.go":                      "connection manager: steps that wait",
	"netlinkrdma/resource_kernel_test.go":  "netlink",
	"test/interop/interop_test.go":         "with rdma-core",
	"test/classic/classic_test.go":         "classic programs",
	"test/interop/cm_test.go":              "with rdma-core",
	"test/interop/rping_test.go":           "with rdma-core",
	"test/interop/perf_test.go":            "verbs perf",
	"test/interop/perf_host_test.go":       "verbs perf",
	"test/interop/perftest_test.go":        "verbs perf with perftest",

	"tools/verbs/internal/perf/kernel_test.go": "verbs perf",
}

// group names the group of the tests in a file.
func group(path string) string {
	if t := titles[path]; t != "" {
		return t
	}
	base := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(path), "_test.go"), "_", " ")
	if len(base) <= 3 {
		return strings.ToUpper(base) // cq, mr, ah
	}
	return base
}

// kernelTests reads the kernel tests from the source, sorted by suite, group and place.
func kernelTests(root string) ([]sourceTest, error) {
	var all []sourceTest
	for _, suite := range suites {
		files, err := filepath.Glob(filepath.Join(root, suite, "*_test.go"))
		if err != nil {
			return nil, err
		}
		var tests []sourceTest
		parsed := map[string]*ast.File{}
		for _, file := range files {
			if parsed[file], err = parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution); err != nil {
				return nil, err
			}
		}
		guests := guestFuncs(slices.Collect(maps.Values(parsed)))
		for _, file := range files {
			for _, d := range parsed[file].Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || !isTest(fn) || suite != suites[0] && !guests[fn.Name.Name] {
					continue
				}
				tests = append(tests, sourceTest{
					suite: filepath.Base(suite),
					name:  fn.Name.Name,
					group: group(suite + "/" + filepath.Base(file)),
					doc:   new(doc.Package).Synopsis(fn.Doc.Text()),
				})
			}
		}
		slices.SortStableFunc(tests, func(a, b sourceTest) int {
			return strings.Compare(strings.ToLower(a.group), strings.ToLower(b.group))
		})
		all = append(all, tests...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no kernel tests below %s", root)
	}
	return all, nil
}

// guestFuncs finds the functions of a package's tests that use testenv, themselves or by
// others that they name.
func guestFuncs(files []*ast.File) map[string]bool {
	guests, names := map[string]bool{}, map[string][]string{}
	for _, f := range files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || fn.Body == nil {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					names[fn.Name.Name] = append(names[fn.Name.Name], id.Name)
				}
				return true
			})
		}
	}
	guests["testenv"] = true // the package
	for more := true; more; {
		more = false
		for fn, used := range names {
			if !guests[fn] && slices.ContainsFunc(used, func(name string) bool { return guests[name] }) {
				guests[fn], more = true, true
			}
		}
	}
	return guests
}

// isTest reports whether a function is a test.
func isTest(fn *ast.FuncDecl) bool {
	rest, ok := strings.CutPrefix(fn.Name.Name, "Test")
	return fn.Recv == nil && ok && rest != "Main" && rest != "" && unicode.IsUpper(rune(rest[0])) && fn.Type.Params.NumFields() == 1
}

var (
	plural    = regexp.MustCompile(`([A-Z]{2})s([A-Z]|$)`)
	wordBegin = regexp.MustCompile(`([a-z0-9_])([A-Z])`)
	acronym   = regexp.MustCompile(`([A-Z])([A-Z][a-z])`)
)

// feature spells a test's name in words: TestRegMRAt is "Reg MR at", TestManyQPs "Many QPs".
func feature(test string) string {
	s := strings.TrimPrefix(strings.TrimPrefix(test, "Test"), "Kernel") // all are tests of the kernel
	s = plural.ReplaceAllString(s, "${1}_${2}")
	s = wordBegin.ReplaceAllString(s, "$1 $2")
	s = acronym.ReplaceAllString(s, "$1 $2")
	words := strings.Fields(strings.ReplaceAll(s, "_", "s"))
	for i, w := range words {
		if i > 0 && len(w) > 1 && unicode.IsLower(rune(w[1])) && w[1:] != "s" {
			words[i] = strings.ToLower(w)
		}
	}
	return strings.Join(words, " ")
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
