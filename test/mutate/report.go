package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// report is what a run found.
type report struct {
	Seed     uint64            `json:"seed"` // 0 if the mutants were not chosen at random
	Packages string            `json:"packages"`
	Mutants  []*mutant         `json:"mutants"`
	Counts   map[string]*count `json:"counts,omitempty"` // by package
	Total    count             `json:"total"`
}

// count counts mutants.
type count struct {
	Mutants    int `json:"mutants"`
	NotBuilt   int `json:"not_built"`
	Equivalent int `json:"equivalent"`
	Own        int `json:"killed_own"`   // by the tests of the package
	TimedOut   int `json:"timed_out"`    // of these
	Other      int `json:"killed_other"` // by tests of other packages
	Survived   int `json:"survived"`
}

// summarize counts.
func (r *report) summarize() {
	r.Counts, r.Total = map[string]*count{}, count{}
	for _, m := range r.Mutants {
		if m.Result == "" {
			continue
		}
		c := r.Counts[m.Package]
		if c == nil {
			c = &count{}
			r.Counts[m.Package] = c
		}
		c.add(m)
		r.Total.add(m)
	}
}

func (c *count) add(m *mutant) {
	c.Mutants++
	switch {
	case m.Result == notBuilt:
		c.NotBuilt++
	case m.Result == equivalent:
		c.Equivalent++
	case m.Result == survived:
		c.Survived++
	case m.other:
		c.Other++
	default:
		c.Own++
		if m.Result == timedOut {
			c.TimedOut++
		}
	}
}

// print prints the survivors and a table.
func (r *report) print(w io.Writer) {
	fmt.Fprintln(w)
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "package\tmutants\tnot built\tequivalent\tkilled\t(timed out)\tkilled elsewhere\tsurvived\tkilled of the others\twith elsewhere\t")
	for _, p := range slices.Sorted(maps.Keys(r.Counts)) {
		r.Counts[p].row(tw, p)
	}
	r.Total.row(tw, "all")
	tw.Flush()
	if r.Total.Survived > 0 {
		fmt.Fprintln(w, "\nSurvived:")
		for _, m := range r.Mutants {
			if m.Result == survived {
				first, _, _ := strings.Cut(m.String(), "\n")
				fmt.Fprintln(w, first)
			}
		}
	}
}

// row prints a line of the table.
func (c *count) row(w io.Writer, name string) {
	share, all := "-", "-"
	if n := c.Own + c.Other + c.Survived; n > 0 {
		share, all = fmt.Sprintf("%d %%", 100*c.Own/n), fmt.Sprintf("%d %%", 100*(c.Own+c.Other)/n)
	}
	fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t\n", name, c.Mutants, c.NotBuilt, c.Equivalent, c.Own, c.TimedOut, c.Other, c.Survived, share, all)
}
