package matrix

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
)

// must fails a test on an error.
var must = testenv.Must

// root is the checkout's root.
const root = "../../.."

func TestFeature(t *testing.T) {
	for test, want := range map[string]string{
		"TestSend":          "Send",
		"TestWriteRead":     "Write read",
		"TestRegMRAt":       "Reg MR at",
		"TestManyQPs":       "Many QPs",
		"TestManySGEs":      "Many SGEs",
		"TestSGERange":      "SGE range",
		"TestMRErrors":      "MR errors",
		"TestCQErrEvent":    "CQ err event",
		"TestSharedCQ":      "Shared CQ",
		"TestQPsOfOneCQ":    "QPs of one CQ",
		"TestUseAfterClose": "Use after close",
		"TestGIDIndex":      "GID index",
		"TestDatagramQKey":  "Datagram Q key",
		"TestKernelMove":    "Move",
		"TestIWARPInline":   "iWARP inline",
	} {
		if got := feature(test); got != want {
			t.Errorf("%s is %q, want %q", test, got, want)
		}
	}
}

// verbose is what two test programs in a row write, the first without -test.v and the
// last killed.
const verbose = `a line of a program without -test.v
PASS
` + testenv.StartMark + `one on Linux 6.1.0-56-amd64
` + syn + `=== RUN   TestA
` + syn + `=== RUN   TestA/auto
    a_test.go:7: testenv: this kernel or driver lacks ALLOC_MW
` + syn + `=== RUN   TestA/write
half a line` + syn + `=== NAME  TestA/auto
    a_test.go:8: said
` + syn + `--- FAIL: TestA/write (0.00s)
` + syn + `--- PASS: TestA/auto (0.00s)
` + syn + `--- FAIL: TestA (0.00s)
` + syn + `=== NAME  
` + syn + `=== RUN   TestB
` + syn + `--- PASS: TestB (1.50s)
` + syn + `=== RUN   TestC
` + syn + `--- SKIP: TestC (0.00s)
` + syn + `=== RUN   TestD
    d_test.go:7: ` + testenv.ElsewhereMark + `X is not 1
` + syn + `--- SKIP: TestD (0.00s)
` + syn + `=== RUN   TestE
    e_test.go:7: ` + testenv.NotSoftMark + `limits are the kernel's
` + syn + `--- SKIP: TestE (0.00s)
` + syn + `FAIL
in between
` + testenv.StartMark + `two on Linux 6.1.0-56-amd64
` + syn + `=== RUN   TestA
--- PASS: TestA (0.00s)
`

// collect takes the results of some output.
func collect(output string) (c *Collector, printed string) {
	var b bytes.Buffer
	c = NewCollector(&b)
	for line := range strings.Lines(output) {
		c.Line(line)
	}
	c.Results()
	return c, b.String()
}

func TestCollect(t *testing.T) {
	c, printed := collect(verbose)
	if c.Release != "6.1.0-56-amd64" {
		t.Errorf("release is %q", c.Release)
	}
	want := []Result{
		{"one", "TestA", Failed, "", 0}, {"one", "TestA/auto", Unsupported, "ALLOC_MW", 0}, {"one", "TestA/write", Failed, "", 0},
		{"one", "TestB", Passed, "", 1.5}, {"one", "TestC", Unsupported, "", 0}, {"one", "TestE", Elsewhere, "", 0},
		{"two", "TestA", Failed, "did not end", 0},
	}
	if got := c.Results(); !slices.Equal(got, want) {
		t.Errorf("results are\n%v, want\n%v", got, want)
	}
	for _, s := range []string{"a line of a program", "--- FAIL: TestA/write\nhalf a line", "in between", "--- FAIL: TestA\n--- PASS: TestA"} {
		if !strings.Contains(printed, s) {
			t.Errorf("%q is not printed:\n%s", s, printed)
		}
	}
	if strings.Contains(printed, "said") {
		t.Errorf("the output of a test that is well is printed:\n%s", printed)
	}
}

// someTests are tests of a source.
var someTests = []sourceTest{{"s", "TestA", "g", "", nil}, {"s", "TestB", "g", "", nil}, {"s", "TestC", "h", "", nil}}

// boots is one boot with some results.
func boots(r []Result) []Boot { return []Boot{{Results: r}} }

// someRuns are what ran of them on two kernels.
func someRuns() []*Run {
	return []*Run{
		{Column{Kernel: "6.1", Release: "6.1.0-56-amd64", Arch: "amd64"}, boots([]Result{
			{"s", "TestA", Passed, "", 0}, {"s", "TestA/auto", Passed, "", 0}, {"s", "TestA/ioctl", Passed, "", 0}, {"s", "TestA/write", Unsupported, "X", 0},
			{"s", "TestB", Failed, "", 0}, {"s", "TestB/auto", Failed, "", 0}, {"s", "TestB/auto/deep", Failed, "", 0}, {"s", "TestB/auto/deeper", Passed, "", 0},
			{"s", "TestC", Passed, "", 0},
		})},
		{Column{Kernel: "latest", Release: "7.2.13", Arch: "arm64"}, boots([]Result{
			{"s", "TestA", Passed, "", 0}, {"s", "TestA/auto", Passed, "", 0}, {"s", "TestA/ioctl", Passed, "", 0}, {"s", "TestA/write", Passed, "", 0},
			{"s", "TestB", Passed, "", 0}, {"s", "TestB/auto", Unsupported, "Y", 0},
			{"s", "TestUnknown", Passed, "", 0}, {"other", "TestC", Passed, "", 0},
		})},
	}
}

func TestMerge(t *testing.T) {
	m := merge(someTests, someRuns())
	var got []string
	for _, r := range m.Rows {
		line := r.Test
		for _, c := range r.Cells {
			line += " " + symbol(c)
		}
		got = append(got, line)
	}
	want := []string{"TestA ✓✓– ✓", "TestB/deep ✗ –", "TestB/deeper ✓ –", "TestC ✓ ?"}
	if !slices.Equal(got, want) {
		t.Errorf("rows are %q, want %q", got, want)
	}
	if m.Columns[0].Version() != "6.1" || m.Columns[1].Version() != "7.2" {
		t.Errorf("columns are %v", m.Columns)
	}
	if m.good() {
		t.Error("a matrix with a failure is good")
	}
}

// TestParseColumn: a kernel may be the path of an image, which has slashes itself.
func TestParseColumn(t *testing.T) {
	files := map[string]bool{}
	for name, want := range map[string]Column{
		"amd64/6.1":                    {Arch: "amd64", Kernel: "6.1", Driver: rxe},
		"amd64/6.1/rxe":                {Arch: "amd64", Kernel: "6.1", Driver: rxe},
		"amd64/6.1/mlx5-roce":          {Arch: "amd64", Kernel: "6.1", Driver: mlx5RoCE},
		"arm64/latest/mlx5-ib":         {Arch: "arm64", Kernel: "latest", Driver: mlx5IB},
		"amd64/6.1/siw":                {Arch: "amd64", Kernel: "6.1", Driver: siw},
		"amd64/6.12/efa":               {Arch: "amd64", Kernel: "6.12", Driver: efa},
		"amd64//boot/bzImage":          {Arch: "amd64", Kernel: "/boot/bzImage", Driver: rxe},
		"amd64//boot/bzImage/mlx5-ib":  {Arch: "amd64", Kernel: "/boot/bzImage", Driver: mlx5IB},
		"amd64//home/mlx5-ib/vmlinuz1": {Arch: "amd64", Kernel: "/home/mlx5-ib/vmlinuz1", Driver: rxe},
		"soft":                         {Arch: runtime.GOARCH, Kernel: "7.2", Driver: soft},
		"soft-sockets":                 {Arch: runtime.GOARCH, Kernel: "7.2", Driver: softSockets},
	} {
		got := ParseColumn(name)
		if got.Arch != want.Arch || got.Kernel != want.Kernel || got.Driver != want.Driver {
			t.Errorf("%s is %+v, want %+v", name, got, want)
		}
		files[bootFile("", got, "b")] = true
	}
	if len(files) != 10 { // the first two are the same
		t.Errorf("the results are in %v, want a file for each", files)
	}
}

// TestDrivers: a column of another driver than rxe has only what is for that driver, and
// nothing that failed is lost.
func TestDrivers(t *testing.T) {
	tests := []sourceTest{{"conformance", "TestA", "g", "", nil}, {"conformance", "TestBoot", "g", "", []string{"Boot"}}, {"cm", "TestB", "h", "", nil}}
	rxeRun := &Run{Column{Driver: rxe}, boots([]Result{
		{"conformance", "TestA", Passed, "", 0}, {"conformance", "TestBoot", Passed, "", 0}, {"cm", "TestB", Passed, "", 0},
	})}
	mlx5Run := &Run{Column{Driver: mlx5IB}, boots([]Result{{"conformance", "TestA", Passed, "", 0}, {"conformance", "TestBoot", Passed, "", 0}})}
	m := merge(tests, []*Run{rxeRun, mlx5Run})
	for i, want := range []string{"✓✓", "✓", "✓"} {
		if got := symbol(m.Rows[i].Cells[0]) + symbol(m.Rows[i].Cells[1]); got != want {
			t.Errorf("%s is %q, want %q", m.Rows[i].Test, got, want)
		}
	}
	siwRun := &Run{Column{Driver: siw}, boots([]Result{{"conformance", "TestA", Passed, "", 0}, {"cm", "TestB", Unsupported, "", 0}})}
	if m := merge(tests, []*Run{siwRun}); tally(m.counts(0, "")) != "✓ 1 – 1" || !m.good() {
		t.Errorf("the column of siw is %q and good is %t", tally(m.counts(0, "")), m.good())
	}
	ofInterop := []sourceTest{{"interop", "TestMixed", "g", "", []string{"Mixed"}}, {"interop", "TestAny", "g", "", []string{"AnyTransport"}}, {"interop", "TestC", "g", "", nil}}
	apart := merge(ofInterop, []*Run{
		{Column{Driver: rxe}, boots([]Result{{"interop", "TestMixed", Unsupported, "", 0}, {"interop", "TestAny", Passed, "", 0}, {"interop", "TestC", Passed, "", 0}})},
		{Column{Driver: siw}, boots([]Result{{"interop", "TestC", Unsupported, "", 0}, {"interop", "TestMixed", Passed, "", 0}})},
	})
	if a, b := tally(apart.counts(0, "")), tally(apart.counts(1, "")); a != "✓ 2" || b != "✓ 1 – 1" || !apart.good() {
		t.Errorf("of interop rxe has %q, siw %q, and good is %t", a, b, apart.good())
	}
	onlySoft := []sourceTest{{"rdmacm", "TestS", "g", "", []string{"NeedsSoft"}}, {"rdmacm", "TestD", "g", "", nil}}
	kept := merge(onlySoft, []*Run{
		{Column{Driver: soft}, boots([]Result{{"rdmacm", "TestS", Passed, "", 0}, {"rdmacm", "TestD", Passed, "", 0}})},
		{Column{Driver: siw}, boots([]Result{{"rdmacm", "TestD", Passed, "", 0}})},
	})
	if a, b := tally(kept.counts(0, "")), tally(kept.counts(1, "")); a != "✓ 2" || b != "✓ 1" || !kept.good() {
		t.Errorf("of rdmacm soft has %q, siw %q, and good is %t", a, b, kept.good())
	}
	if got := tally(m.counts(1, "")); got != "✓ 1" || !m.good() {
		t.Errorf("the second column is %q and good is %t", got, m.good())
	}
	if s := text(m); !strings.Contains(s, mlx5IB) {
		t.Errorf("nothing tells the columns apart:\n%s", s)
	}
	mlx5Run.Boots[0].Results[1].Outcome = Failed
	if merge(tests, []*Run{rxeRun, mlx5Run}).good() {
		t.Error("a test that failed and is not for the driver is lost")
	}
	mlx5Run.Boots[0].Results = mlx5Run.Boots[0].Results[1:]
	mlx5Run.Boots[0].Results[0].Outcome = Passed
	if merge(tests, []*Run{rxeRun, mlx5Run}).good() {
		t.Error("a test that is for the driver was not run, and the matrix is good")
	}
}

// TestSoft: on software devices a test that is about the kernel is not counted, in whole or in part, also
// if one way of giving commands does not come to it. One that did not run is missed.
func TestSoft(t *testing.T) {
	tests := []sourceTest{{"conformance", "TestA", "g", "", nil}, {"conformance", "TestB", "g", "", nil}, {"cm", "TestC", "h", "", nil}, {"interop", "TestD", "h", "", nil}}
	rxeRun := &Run{Column{Driver: rxe, Kernel: "7.2"}, boots([]Result{
		{"conformance", "TestA", Passed, "", 0}, {"conformance", "TestA/auto", Passed, "", 0}, {"conformance", "TestA/auto/x", Passed, "", 0}, {"conformance", "TestA/auto/y", Passed, "", 0},
		{"conformance", "TestB", Passed, "", 0}, {"conformance", "TestB/x", Passed, "", 0}, {"cm", "TestC", Passed, "", 0}, {"interop", "TestD", Passed, "", 0},
	})}
	softRun := &Run{Column{Driver: soft, Kernel: "7.2", Release: "7.2, played by a software device"}, []Boot{
		{Path: "auto", Results: []Result{
			{"conformance", "TestA", Passed, "", 0}, {"conformance", "TestA/auto", Passed, "", 0}, {"conformance", "TestA/auto/x", Elsewhere, "", 0}, {"conformance", "TestA/auto/y", Passed, "", 0},
			{"conformance", "TestB", Elsewhere, "", 0}, {"cm", "TestC", Passed, "", 0},
		}},
		{Path: "write", Results: []Result{
			{"conformance", "TestA", Passed, "", 0}, {"conformance", "TestA/write", Unsupported, "X", 0}, {"conformance", "TestB", Elsewhere, "", 0},
		}},
	}}
	m := merge(tests, []*Run{rxeRun, softRun})
	var got []string
	for _, r := range m.Rows {
		got = append(got, r.Test+" "+symbol(r.Cells[0])+" "+symbol(r.Cells[1]))
	}
	if want := []string{"TestA/x ✓ –", "TestA/y ✓ ✓–", "TestB/x ✓ ", "TestC ✓ ✓", "TestD ✓ "}; !slices.Equal(got, want) || !m.good() || m.Columns[1].Version() != "7.2" {
		t.Errorf("rows are %q, want %q; good is %t, the version %q", got, want, m.good(), m.Columns[1].Version())
	}
	for name, s := range map[string]string{"text": text(m), "Markdown": string(markdown(m))} {
		if !strings.Contains(s, softLegend) {
			t.Errorf("%s says nothing about soft:\n%s", name, s)
		}
	}
	if s := summary(m); !strings.Contains(s, "soft (software device), RoCE v2") {
		t.Errorf("the summary has no row of soft:\n%s", s)
	}
	softRun.Boots[0].Results = softRun.Boots[0].Results[:5]
	if merge(tests, []*Run{rxeRun, softRun}).good() {
		t.Error("a test did not run on software devices, and the matrix is good")
	}
}

// TestMarks: the marks that decide what a column has are found in the source.
func TestMarks(t *testing.T) {
	for mark, want := range map[string]string{"Boot": "test/suites/conformance TestIproute2", "Mixed": "test/suites/interop TestMixedLists", "AnyTransport": "test/suites/interop TestDoctorText"} {
		folder, name, _ := strings.Cut(want, " ")
		tests, err := Marked(filepath.Join(root, folder))
		if err != nil || !slices.Contains(tests[mark], name) {
			t.Errorf("%s has no test %s with the mark %s: %q, %v", folder, name, mark, tests[mark], err)
		}
	}
	tests, err := kernelTests(root)
	must(t, err)
	if !slices.ContainsFunc(tests, func(s sourceTest) bool { return slices.Contains(s.marks, "Boot") }) {
		t.Error("no kernel test has a mark")
	}
}

// TestMergePaths: what failed by one path before its subtests is not lost where by another they ran.
func TestMergePaths(t *testing.T) {
	r := &Run{Boots: []Boot{
		{Path: "auto", Results: []Result{{"s", "TestA", Passed, "", 0}, {"s", "TestA/x", Passed, "", 0}, {"s", "TestA/y", Passed, "", 0}}},
		{Path: "write", Results: []Result{{"s", "TestA", Failed, "why", 0}}},
	}}
	for _, row := range merge(someTests[:1], []*Run{r}).Rows {
		if c := row.Cells[0]; c.Outcome() != Failed || symbol(c) != "✓✗" || c.Note != "why" {
			t.Errorf("%s is %+v", row.Test, c)
		}
	}
}

// TestMergeDepth: subtests share the outcome of the one above them that ended before them.
func TestMergeDepth(t *testing.T) {
	deep := &Run{Column{}, boots([]Result{{"s", "TestA", Passed, "", 0}, {"s", "TestA/x", Passed, "", 0}, {"s", "TestA/x/1", Passed, "", 0}, {"s", "TestA/x/2", Passed, "", 0}, {"s", "TestA/y", Passed, "", 0}})}
	flat := &Run{Column{}, boots([]Result{{"s", "TestA", Passed, "", 0}, {"s", "TestA/x", Unsupported, "X", 0}, {"s", "TestA/y", Passed, "", 0}})}
	none := &Run{Column{}, boots([]Result{{"s", "TestA", Unsupported, "X", 0}})}
	m := merge(someTests[:1], []*Run{deep, flat, none})
	var got []string
	for _, r := range m.Rows {
		got = append(got, r.Test+" "+symbol(r.Cells[0])+symbol(r.Cells[1])+symbol(r.Cells[2]))
	}
	if want := []string{"TestA/x/1 ✓––", "TestA/x/2 ✓––", "TestA/y ✓✓–"}; !slices.Equal(got, want) {
		t.Errorf("rows are %q, want %q", got, want)
	}
}

// TestMatrixOutcome: a failure, a problem or a test that did not run makes the whole matrix bad.
func TestMatrixOutcome(t *testing.T) {
	tests := someTests[:1]
	run := func(o Outcome, problems ...string) *Run {
		return &Run{Column{Problems: problems}, boots([]Result{{"s", "TestA", o, "", 0}})}
	}
	for _, c := range []struct {
		name string
		runs []*Run
		good bool
	}{
		{"passed", []*Run{run(Passed)}, true},
		{"unsupported", []*Run{run(Passed), run(Unsupported)}, true},
		{"failed", []*Run{run(Failed), run(Passed)}, false},
		{"problem", []*Run{run(Passed), run(Passed, "exit status 126")}, false},
		{"not run", []*Run{run(Passed), {}}, false},
	} {
		if got := merge(tests, c.runs).good(); got != c.good {
			t.Errorf("%s: good is %t, want %t", c.name, got, c.good)
		}
	}
	unknown := run(Passed)
	unknown.Boots[0].Results = append(unknown.Boots[0].Results, Result{"s", "TestElsewhere", Failed, "", 0})
	if merge(tests, []*Run{unknown}).good() {
		t.Error("a test that failed and is none of the source's is lost")
	}
}

// TestPrograms: programs that do not use testenv may have tests of the same name.
func TestPrograms(t *testing.T) {
	program := func(verb string) string {
		return syn + "=== RUN   TestA\n" + syn + "--- " + verb + ": TestA (0.00s)\n" + syn + verb + "\n"
	}
	c, _ := collect(program("FAIL") + program("PASS"))
	want := []Result{{"", "TestA", Failed, "", 0}, {"", "TestA", Passed, "", 0}}
	if got := c.Results(); !slices.Equal(got, want) {
		t.Errorf("results are %v, want %v", got, want)
	}
}

// TestSave saves two boots of one kernel, one of them twice, and reads them.
func TestSave(t *testing.T) {
	dir := t.TempDir()
	col := Column{Kernel: "6.1", Arch: "amd64", Driver: rxe}
	if r, err := readRun(dir, col); err != nil || !slices.Equal(r.Problems, []string{"nothing was run"}) {
		t.Errorf("of no boot: %+v, %v", r, err)
	}
	text := testenv.StartMark + "one on Linux 6.1.0-56-amd64\n" + syn + "=== RUN   TestA\n" + syn + "--- PASS: TestA (0.00s)\n"
	c, _ := collect(text)
	for _, b := range []struct{ name, path, problem string }{
		{"first", "auto", "exit status 126"},
		{"first", "auto", ""}, // instead of the other
		{"second", "write", "exit status 126"},
		{"third", "", "exit status 1"},
	} {
		must(t, Save(dir, col, Boot{Name: b.name, Path: b.path, Release: c.Release, Problem: b.problem, Results: c.Results()}))
	}
	for range 2 {
		if err := Remove(dir, col, "third"); err != nil {
			t.Error(err)
		}
	}
	for _, path := range []string{"any", "netlink"} {
		if err := Save(dir, col, Boot{Name: "third", Path: path}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("path %s: %v", path, err)
		}
	}
	other := Column{Kernel: "6.12", Arch: "amd64", Driver: rxe}
	must(t, Save(dir, other, Boot{Name: "first", Results: c.Results()}))
	r, err := readRun(dir, col)
	must(t, err)
	if len(r.Boots) != 2 || r.Release != "6.1.0-56-amd64" || !slices.Equal(r.Problems, []string{"second: exit status 126"}) {
		t.Errorf("run is %+v", r)
	}
	want := map[string]Outcome{"auto": Passed, "write": Passed}
	m := merge([]sourceTest{{"one", "TestA", "g", "", nil}}, []*Run{r})
	if got := m.Rows[0].Cells[0].Paths; !maps.Equal(got, want) {
		t.Errorf("paths are %v, want %v", got, want)
	}
	if err := Clear(dir, col); err != nil {
		t.Error(err)
	}
	if r, err := readRun(dir, col); err != nil || len(r.Boots) != 0 {
		t.Errorf("after Clear the run is %+v, %v", r, err)
	}
	if r, err := readRun(dir, other); err != nil || len(r.Boots) != 1 {
		t.Errorf("after Clear of another kernel the run is %+v, %v", r, err)
	}
}

// TestSeconds: boots that run at once do not add up, and nor counts what is between them.
func TestSeconds(t *testing.T) {
	dir := t.TempDir()
	col := Column{Kernel: "6.1", Arch: "amd64", Driver: rxe}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, b := range map[string]Boot{
		"a": {Begin: at.Add(10 * time.Second), End: at.Add(40 * time.Second)},
		"b": {Begin: at, End: at.Add(30 * time.Second)},
		"c": {Begin: at.Add(15 * time.Second), End: at.Add(20 * time.Second)},
		"d": {Begin: at.Add(time.Hour), End: at.Add(time.Hour + 5*time.Second)},
	} {
		text, err := json.Marshal(b)
		must(t, err)
		must(t, os.WriteFile(bootFile(dir, col, name), text, 0o666))
	}
	if r, err := readRun(dir, col); err != nil || r.Seconds != 45 {
		t.Errorf("run took %d s, %v, want 45", r.Seconds, err)
	}
}

func TestRender(t *testing.T) {
	m := merge(someTests, someRuns())
	for i := range m.Columns {
		m.Columns[i].Date, m.Columns[i].Commit = "2026-01-02", "abc1234"
	}
	m.Columns[0].Problems = []string{"kernel: exit status 126"}
	page, err := html(m)
	must(t, err)
	for name, s := range map[string]string{"text": text(m), "HTML": string(page), "Markdown": string(markdown(m)), "summary": summary(m)} {
		words := []string{"6.1", "7.2", "arm64", "✗", "✓ 3", "–"}
		if name == "Markdown" || name == "summary" {
			words = append(words, "2026-01-02", "abc1234")
		}
		if name == "summary" {
			words = []string{"6.1", "7.2", "arm64", "2026-01-02", "abc1234", "| 3, 1 failed |"}
		} else {
			words = append(words, "✓✓–", "B: deep", "exit status 126")
		}
		for _, w := range words {
			if !strings.Contains(s, w) {
				t.Errorf("%s has no %q:\n%s", name, w, s)
			}
		}
	}
	for _, outside := range []string{"http:", "https:", "src=", "@import", "url("} {
		if bytes.Contains(page, []byte(outside)) {
			t.Errorf("the page needs something else: %s", outside)
		}
	}
	path := filepath.Join(t.TempDir(), "m.json")
	must(t, os.WriteFile(path, m.encode(), 0o666))
	back, err := readMatrix(path)
	must(t, err)
	if text(back) != text(m) {
		t.Errorf("read back, it is\n%swant\n%s", text(back), text(m))
	}
}

// TestWith: some columns are recorded again and one is new, and the others stay as they are.
func TestWith(t *testing.T) {
	runs := someRuns()
	runs[0].Date, runs[0].Commit = "2026-01-01", "old"
	runs[1].Date, runs[1].Commit = "2026-01-01", "old"
	runs[1].Problems = []string{"a boot failed"}
	m := merge(someTests, runs)
	if got := m.with(&Matrix{}, someTests); string(got.encode()) != string(m.encode()) {
		t.Errorf("with nothing new it is\n%swant\n%s", got.encode(), m.encode())
	}

	again := &Run{Column{Kernel: "6.1", Release: "6.1.0-57-amd64", Arch: "amd64", Date: "2026-01-02", Commit: "new"}, boots([]Result{
		{"s", "TestB", Passed, "", 0}, {"s", "TestC", Passed, "", 0}, {"s", "TestC/x", Passed, "", 0}, {"s", "TestD", Passed, "", 0},
	})}
	added := &Run{Column{Kernel: "7.2", Arch: "amd64", Driver: soft, Date: "2026-01-02", Commit: "new"}, boots([]Result{{"s", "TestB", Passed, "", 0}})}
	tests := append(slices.Clone(someTests[1:]), sourceTest{"s", "TestD", "h", "", nil}) // TestA has gone
	got := m.with(merge(tests, []*Run{added, again}), tests)
	var rows []string
	for _, r := range got.Rows {
		line := r.Test
		for _, c := range r.Cells {
			line += " " + symbol(c)
		}
		rows = append(rows, line)
	}
	// The old column did not run TestC, and TestD is newer than it; soft has no tests of this suite.
	if want := []string{"TestB/deep ✓ – ", "TestB/deeper ✓ – ", "TestC/x ✓ ? ", "TestD ✓  "}; !slices.Equal(rows, want) {
		t.Errorf("rows are %q, want %q", rows, want)
	}
	if c := got.Columns; len(c) != 3 || c[0].Release != "6.1.0-57-amd64" || !slices.Equal(c[1].Problems, []string{"a boot failed"}) {
		t.Errorf("columns are %+v", c)
	}
	if got, want := got.recorded(), "2026-01-01, commit old (7.2 arm64); 2026-01-02, commit new (the others)"; got != want {
		t.Errorf("recorded is %q, want %q", got, want)
	}
	if got, want := got.days(), "2026-01-01, 2026-01-02"; got != want {
		t.Errorf("in short it is %q, want %q", got, want)
	}
	one := &Matrix{Columns: got.Columns[:1]}
	if got, want := one.days(), one.recorded(); got != want {
		t.Errorf("of one commit it is %q, want %q", got, want)
	}
}

// TestGuestFuncs: a test is of the kernel if it uses testenv, whoever calls it for the test.
func TestGuestFuncs(t *testing.T) {
	var files []*ast.File
	for _, src := range []string{
		`package p; func TestA(t *testing.T) { open(t) }; func TestB(t *testing.T) { pure(t) }; func TestC(t *testing.T) { testenv.Guest(t) }`,
		`package p; func open(t *testing.T) { guest(t) }; func guest(t *testing.T) { testenv.Guest(t) }; func pure(t *testing.T) { pure(t) }`,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "p_test.go", src, parser.SkipObjectResolution)
		must(t, err)
		files = append(files, f)
	}
	guests := guestFuncs(files)
	for name, want := range map[string]bool{"TestA": true, "TestB": false, "TestC": true} {
		if guests[name] != want {
			t.Errorf("%s uses testenv: %t, want %t", name, guests[name], want)
		}
	}
}

// TestTitles: a title that is for no file is a mistake, and so are suites of one name, and tests of one name in a
// group, which would share a row.
func TestTitles(t *testing.T) {
	for path := range titles {
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			t.Errorf("a title for what is not there: %v", err)
		}
	}
	seen := map[string]bool{}
	for _, s := range suites {
		if seen[filepath.Base(s)] {
			t.Errorf("two suites are called %s", filepath.Base(s))
		}
		seen[filepath.Base(s)] = true
	}
	tests, err := kernelTests(root)
	must(t, err)
	for _, s := range tests {
		if seen[s.group+"/"+s.name] {
			t.Errorf("two tests of the group %q are called %s", s.group, s.name)
		}
		seen[s.group+"/"+s.name] = true
	}
}

// TestCheckedIn: the tables in the README and beside the data are rendered from the data.
func TestCheckedIn(t *testing.T) {
	m, err := readMatrix(filepath.Join(root, dataFile))
	must(t, err)
	page, err := os.ReadFile(filepath.Join(root, pageFile))
	must(t, err)
	cards, err := readCards(root)
	must(t, err)
	if !bytes.Equal(page, append(markdown(m), cardTable(cards)...)) {
		t.Errorf("%s is not what %s says: make readme", pageFile, dataFile)
	}
	readme, err := fs.ReadFile(os.DirFS(root), readmeFile)
	must(t, err)
	_, block, _, err := cutBlock(string(readme))
	must(t, err)
	if block != summary(m) {
		t.Errorf("the table in %s is not what %s says: make readme", readmeFile, dataFile)
	}
}

// TestSlow: a column of rxe that took too long comes with a warning, and is as good as before.
func TestSlow(t *testing.T) {
	for _, c := range []struct {
		driver  string
		seconds int
		want    bool
	}{{rxe, slowSeconds, true}, {rxe, slowSeconds - 1, false}, {mlx5IB, 1000, false}, {siw, 1000, false}} {
		m := &Matrix{Columns: []Column{{Kernel: "6.1", Arch: "amd64", Driver: c.driver, Seconds: c.seconds}},
			Rows: []Row{{Feature: "a", Cells: []Cell{{Paths: map[string]Outcome{anyPath: Passed}}}}}}
		if got := strings.Contains(text(m), fmt.Sprintf("it took %d s", c.seconds)); got != c.want || !m.good() {
			t.Errorf("%s after %d s: warned %t, good %t", c.driver, c.seconds, got, m.good())
		}
	}
}
