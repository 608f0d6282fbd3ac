package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/test/internal/matrix"
)

// comparison says how a report differs from an earlier one, or from a column of the published matrix.
type comparison struct {
	with        string // what it was compared with
	table       *matrix.Matrix
	differences []matrix.Difference
}

// compare compares a report with another one, or with the published matrix if there is no other. Without a
// column of the same driver in the matrix there are no differences.
func (r *Report) compare(other *Report, from string) (*comparison, error) {
	published, err := matrix.Published()
	if err != nil {
		return nil, err
	}
	runs := []*matrix.Run{r.run()}
	c := &comparison{}
	var columns []int
	for i, col := range published.Columns {
		if col.Driver == r.matrixDriver() {
			columns = append(columns, i)
		}
	}
	was := -1
	if other != nil {
		runs = append(runs, other.run())
		was, c.with = 1, fmt.Sprintf("the report in %s (Linux %s, %s)", from, other.column().Title(), other.Begin.UTC().Format("2006-01-02 15:04"))
	} else if i := published.Nearest(r.column()); i >= 0 {
		was = 1 + slices.Index(columns, i)
		col := published.Columns[i]
		c.with = fmt.Sprintf("the published matrix (Linux %s, %s)", col.Title(), col.Stamp())
	}
	c.table = published.With(suite, r.Tests, runs, columns...)
	if was >= 0 {
		c.differences = c.table.Differences(was, 0)
	}
	return c, nil
}

// kinds are the kinds of differences, in the order in which they are shown.
var kinds = []struct {
	title   string
	was, is []matrix.Outcome // empty for any
}{
	{"new failures", nil, []matrix.Outcome{matrix.Failed}},
	{"failures that are gone", []matrix.Outcome{matrix.Failed}, nil},
	{"not supported any more", []matrix.Outcome{matrix.Passed}, []matrix.Outcome{matrix.Unsupported}},
	{"newly supported", []matrix.Outcome{matrix.Unsupported}, []matrix.Outcome{matrix.Passed}},
}

// groups sorts the differences by their kind.
func (c *comparison) groups() (all []group) {
	left := slices.Clone(c.differences)
	for _, k := range kinds {
		g := group{Title: k.title}
		left = slices.DeleteFunc(left, func(d matrix.Difference) bool {
			ok := (k.was == nil || slices.Contains(k.was, d.Was)) && (k.is == nil || slices.Contains(k.is, d.Is))
			if ok {
				g.Tests = append(g.Tests, d.Test)
			}
			return ok
		})
		if len(g.Tests) > 0 {
			all = append(all, g)
		}
	}
	return all
}

// byTest lists tests, with one entry for several subtests of a test.
func byTest(names []string) (all []string) {
	subtests := map[string]int{}
	for _, n := range names {
		subtests[top(n)]++
	}
	for _, n := range names {
		switch count := subtests[top(n)]; {
		case count == 1:
			all = append(all, n)
		case count > 1:
			all = append(all, fmt.Sprintf("%s (%d subtests)", top(n), count))
			subtests[top(n)] = 0
		}
	}
	return all
}

// group is a title and tests.
type group struct {
	Title string
	Tests []string
}

// String returns the comparison in words.
func (c *comparison) String() string {
	if c.with == "" {
		return "The published matrix has no column of this driver.\n"
	}
	if len(c.differences) == 0 {
		return "Nothing differs from " + c.with + ".\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Compared with %s:\n", c.with)
	for _, g := range c.groups() {
		fmt.Fprintf(&b, "  %s: %s\n", g.Title, strings.Join(byTest(g.Tests), ", "))
	}
	return b.String()
}
