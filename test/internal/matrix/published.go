package matrix

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// publishedFile is the part of the matrix that is checked in which is about the verbs, compressed. Programs
// have it inside.
const publishedFile = "test/internal/matrix/published.json.gz"

//go:embed published.json.gz
var published []byte

// Published returns the rows of the matrix that is checked in which are about the verbs (test/suites/conformance).
func Published() (*Matrix, error) {
	m, err := unpack(published)
	if err != nil {
		return nil, fmt.Errorf("the published matrix: %w", err)
	}
	return m, nil
}

// unpack reads what pack has written.
func unpack(b []byte) (*Matrix, error) {
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	if b, err = io.ReadAll(r); err != nil {
		return nil, err
	}
	m := new(Matrix)
	return m, json.Unmarshal(b, m)
}

// pack writes a matrix as compressed JSON.
func (m *Matrix) pack() ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(m.encode()); err != nil {
		return nil, err
	}
	err = w.Close()
	return b.Bytes(), err
}

// ofSuite returns a matrix with the rows of one suite, and the columns in which one of them ran.
func (m *Matrix) ofSuite(suite string, tests []sourceTest) *Matrix {
	in := map[[2]string]bool{}
	for _, t := range tests {
		if t.suite == suite {
			in[[2]string{t.group, t.name}] = true
		}
	}
	part := &Matrix{Columns: slices.Clone(m.Columns)}
	for _, r := range m.Rows {
		if test, _, _ := split(r.Test); in[[2]string{r.Group, test}] {
			r.Cells = slices.Clone(r.Cells)
			part.Rows = append(part.Rows, r)
		}
	}
	for i := len(part.Columns) - 1; i >= 0; i-- {
		n := part.counts(i, "")
		if n[Passed]+n[Failed]+n[Unsupported] > 0 {
			part.Columns[i].Problems = nil // they may be about other suites
			continue
		}
		part.Columns = slices.Delete(part.Columns, i, i+1)
		for j := range part.Rows {
			part.Rows[j].Cells = slices.Delete(part.Rows[j].Cells, i, i+1)
		}
	}
	return part
}

// writePublished writes the part of a matrix that programs have inside.
func writePublished(root string, m *Matrix) error {
	tests, err := kernelTests(root)
	if err != nil {
		return err
	}
	b, err := m.ofSuite("conformance", tests).pack()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, publishedFile), b, 0o666)
}

// newTests is the group of the tests that a matrix does not have.
const newTests = "tests that are newer than the published matrix"

// With returns a matrix of one suite with the given runs as its first columns, in front of the columns of m
// with the given indices. Its tests are those that the names list; m says how they are grouped.
func (m *Matrix) With(suite string, names []string, runs []*Run, columns ...int) *Matrix {
	var tests []sourceTest
	known := map[string]bool{}
	for _, r := range m.Rows {
		test, _, _ := split(r.Test)
		if !known[test] && slices.Contains(names, test) {
			tests = append(tests, sourceTest{suite: suite, name: test, group: r.Group, doc: r.Doc})
		}
		known[test] = true
	}
	for _, name := range names {
		if !known[name] {
			tests = append(tests, sourceTest{suite: suite, name: name, group: newTests})
		}
	}
	all := slices.Clone(runs)
	for _, i := range columns {
		all = append(all, m.run(i, tests))
	}
	with := merge(tests, all)
	for _, r := range with.Rows {
		for i := len(runs); i < len(r.Cells); i++ {
			if r.Cells[i].Outcome() == NotRun { // it is newer than the column
				r.Cells[i] = Cell{Paths: map[string]Outcome{anyPath: Elsewhere}}
			}
		}
	}
	return with
}

// Nearest returns the column that a run on the given kernel and driver is compared with: of the same driver
// and, if there is one, architecture, of the newest kernel that is not newer than the given one, or else of
// the oldest. It returns -1 if there is no column of the driver.
func (m *Matrix) Nearest(of Column) int {
	best, bestRank := -1, [4]int{}
	want := versionNumbers(of.Version())
	for i, c := range m.Columns {
		if c.Driver != of.Driver {
			continue
		}
		v := versionNumbers(c.Version())
		rank := [4]int{0, 1, v[0], v[1]}
		if c.Arch == of.Arch {
			rank[0] = 1
		}
		if slices.Compare(v[:], want[:]) > 0 {
			rank[1], rank[2], rank[3] = 0, -v[0], -v[1]
		}
		if best < 0 || slices.Compare(rank[:], bestRank[:]) > 0 {
			best, bestRank = i, rank
		}
	}
	return best
}

// versionNumbers reads a version such as 6.12.
func versionNumbers(s string) (v [2]int) {
	fmt.Sscanf(s, "%d.%d", &v[0], &v[1])
	return v
}

// Title is a column's heading, such as "6.12 amd64 siw".
func (c Column) Title() string { return c.title() }

// Stamp says when and of which commit a column was recorded.
func (c Column) Stamp() string { return strings.TrimSuffix(c.Date+", commit "+c.Commit, ", commit ") }

// Difference is a test that ended differently in two columns.
type Difference struct {
	Test string  `json:"test"` // with the names of subtests that have a row of their own
	Was  Outcome `json:"was"`  // in the earlier column
	Is   Outcome `json:"is"`   // in the later one
}

// Differences lists the tests that ran in both of two columns and ended differently, those that fail first.
func (m *Matrix) Differences(was, is int) []Difference {
	ran := func(o Outcome) bool { return o == Passed || o == Unsupported || o == Failed }
	var all []Difference
	for _, r := range m.Rows {
		a, b := r.Cells[was].Outcome(), r.Cells[is].Outcome()
		if ran(a) && ran(b) && a != b {
			all = append(all, Difference{r.Test, a, b})
		}
	}
	slices.SortStableFunc(all, func(a, b Difference) int { return slices.Index(worse, b.Is) - slices.Index(worse, a.Is) })
	return all
}

// Counts counts the outcomes of a column.
func (m *Matrix) Counts(column int) map[Outcome]int { return m.counts(column, "") }
