package matrix

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPublished: programs contain the same part of the matrix as the checked-in data.
func TestPublished(t *testing.T) {
	m, err := readMatrix(filepath.Join(root, dataFile))
	must(t, err)
	tests, err := kernelTests(root)
	must(t, err)
	got, err := Published()
	must(t, err)
	if want := m.ofSuite("conformance", tests); !bytes.Equal(got.encode(), want.encode()) {
		t.Errorf("%s is not what %s says: make readme", publishedFile, dataFile)
	}
	if len(got.Rows) < 300 || len(got.Columns) < 8 {
		t.Errorf("it has %d rows and %d columns", len(got.Rows), len(got.Columns))
	}
	for _, c := range got.Columns {
		if c.Driver == mlx5IPoIB {
			t.Errorf("it has the column %s, in which none of the tests ran", c.title())
		}
	}
}

// TestWithRuns: a matrix with a run has the tests of the program, and columns in which newer tests are empty.
func TestWithRuns(t *testing.T) {
	runs := someRuns()
	m := merge(someTests, runs)
	own := &Run{Column{Kernel: "6.13", Release: "6.13.1", Arch: "amd64", Driver: rxe}, boots([]Result{
		{"s", "TestB/auto", Failed, "", 0}, {"s", "TestB/write", Passed, "", 0}, {"s", "TestNew", Passed, "", 0}, {"s", "TestC", Elsewhere, "", 0},
	})}
	got := m.With("s", []string{"TestB", "TestC", "TestNew"}, []*Run{own}, 0)
	var rows []string
	for _, r := range got.Rows {
		line := r.Group + ": " + r.Test
		for _, c := range r.Cells {
			line += " " + symbol(c)
		}
		rows = append(rows, line)
	}
	slices.Sort(rows)
	want := []string{"g: TestB/deep ✗✓ ✗", "g: TestB/deeper ✗✓ ✓", "h: TestC  ✓", newTests + ": TestNew ✓ "}
	if strings.Join(rows, "\n") != strings.Join(want, "\n") {
		t.Errorf("rows are\n%q\nwant\n%q", rows, want)
	}
	page, err := got.HTML("a title", "<p>an introduction</p>")
	if err != nil || !bytes.Contains(page, []byte("<h1>a title</h1>\n<p>an introduction</p>")) {
		t.Errorf("%v: the page is\n%s", err, page)
	}
}

func TestNearest(t *testing.T) {
	m := &Matrix{}
	for _, name := range []string{"amd64/5.10", "amd64/6.1", "arm64/6.12", "amd64/6.12", "amd64/6.12/siw"} {
		m.Columns = append(m.Columns, ParseColumn(name))
	}
	for name, want := range map[string]int{
		"amd64/6.1": 1, "amd64/6.8": 1, "amd64/7.9": 3, "amd64/6.12": 3, "arm64/6.13": 2, "amd64/4.19": 0, "riscv64/6.12": 2, "amd64/6.1/siw": 4, "amd64/6.1/mlx5-ib": -1,
	} {
		if got := m.Nearest(ParseColumn(name)); got != want {
			t.Errorf("of %s the nearest column is %d, want %d", name, got, want)
		}
	}
}

func TestDifferences(t *testing.T) {
	cell := func(o Outcome) Cell { return Cell{Paths: map[string]Outcome{anyPath: o}} }
	m := &Matrix{Columns: make([]Column, 2)}
	for _, r := range []struct {
		test    string
		was, is Outcome
	}{
		{"TestA", Passed, Passed}, {"TestB", Unsupported, Passed}, {"TestC", Passed, Failed}, {"TestD", Failed, Passed}, {"TestE", NotRun, Failed}, {"TestF", Passed, Elsewhere}, {"TestG", Passed, Unsupported},
	} {
		m.Rows = append(m.Rows, Row{Test: r.test, Cells: []Cell{cell(r.was), cell(r.is)}})
	}
	want := []Difference{{"TestC", Passed, Failed}, {"TestG", Passed, Unsupported}, {"TestB", Unsupported, Passed}, {"TestD", Failed, Passed}}
	if got := m.Differences(0, 1); !slices.Equal(got, want) {
		t.Errorf("differences are %v, want %v", got, want)
	}
}

// TestEnded: a Collector reports each test when it ends, with what it printed, and also those that another
// boot runs.
func TestEnded(t *testing.T) {
	var got []string
	c := NewCollector(os.Stderr)
	c.Started = func(test string) { got = append(got, "start "+test) }
	c.Ended = func(r Result, output string) {
		got = append(got, r.Test+" "+string(r.Outcome)+" "+r.Note+strings.TrimSpace(output))
	}
	for l := range strings.Lines(syn + "=== RUN   TestA\n" + syn + "=== RUN   TestA/x\n    said\n" + syn + "--- PASS: TestA/x (0.00s)\n" +
		syn + "=== NAME  TestA\n" + syn + "--- PASS: TestA (0.00s)\n" + syn + "=== RUN   TestB\n    testenv: this boot is not for the test: no\n" + syn + "--- SKIP: TestB (0.00s)\n") {
		c.Line(l)
	}
	want := []string{"start TestA", "start TestA/x", "TestA/x passed said", "start TestA", "TestA passed ", "start TestB", "TestB not tested testenv: this boot is not for the test: no"}
	if !slices.Equal(got, want) {
		t.Errorf("events are %q, want %q", got, want)
	}
	if all := c.Results(); len(all) != 2 {
		t.Errorf("results are %+v: the test that another boot runs is among them", all)
	}
}
