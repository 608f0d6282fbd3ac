package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A plan is what a run does: builds first, then steps.
type plan struct {
	builds []planned
	steps  []planned
}

// planned is a build or a step of a plan.
type planned struct {
	suite, name string // name is the step's with its suite
	step        *step  // nil for a build
	command     command
}

// plan returns the plan of suites, steps and groups that are named.
func (c *config) plan(names []string) (*plan, error) {
	p := new(plan)
	built := map[string]bool{}
	for _, name := range names {
		of, in := c, []string{name}
		if g := groups[name]; g != nil {
			short := *c
			short.short = true
			of, in = &short, g
		}
		all := of.suites()
		for _, n := range in {
			if err := of.add(p, all, n, built); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

// add adds the steps of the suites that a name stands for, and what they need.
func (c *config) add(p *plan, all []suite, name string, built map[string]bool) error {
	found := false
	for _, s := range all {
		for _, st := range s.steps {
			if !st.matches(s.name, name) {
				continue
			}
			found = true
			for _, b := range c.needed(&st) {
				key := c.arch + " " + b
				if built[key] {
					continue
				}
				built[key] = true
				cmd, err := c.build(b)
				if err != nil {
					return err
				}
				p.builds = append(p.builds, planned{name: "build " + b, command: cmd})
			}
			full := st.full(s.name)
			if !slices.ContainsFunc(p.steps, func(old planned) bool { return old.name == full }) {
				p.steps = append(p.steps, planned{suite: s.name, name: full, step: &st, command: c.command(&st)})
			}
		}
	}
	if !found {
		return errSuite(name)
	}
	return nil
}

// print prints the commands of a plan, for a shell in the checkout's root.
func (p *plan) print(out io.Writer) {
	fmt.Fprintln(out, "export CGO_ENABLED=0")
	for _, b := range slices.Concat(p.builds, p.steps) {
		fmt.Fprintf(out, "# %s\n(%s)\n", b.name, b.command.String())
	}
}

// mostListed is how many steps of a suite are listed, unless the suite is named.
const mostListed = 8

// list prints the suites and their steps, and the groups. With names it prints those suites alone, with
// all of their steps.
func (c *config) list(out io.Writer, names []string) error {
	suites := c.suites()
	for _, name := range names {
		if !slices.ContainsFunc(suites, func(s suite) bool { return s.name == name }) {
			return fmt.Errorf("there is no suite %q; run -list without -suite lists all", name)
		}
	}
	for _, s := range suites {
		if len(names) > 0 && !slices.Contains(names, s.name) {
			continue
		}
		fmt.Fprintf(out, "%-14s %s\n", s.name, s.doc)
		var steps []string
		for _, st := range s.steps {
			if st.name != "" {
				steps = append(steps, st.name)
			}
		}
		if len(steps) > mostListed && len(names) == 0 {
			steps = append(steps[:mostListed], "...")
		}
		if len(steps) > 0 {
			fmt.Fprintf(out, "%-14s   steps: %s\n", "", strings.Join(steps, ", "))
		}
	}
	for _, g := range []string{"test", "testall", "testlong"} {
		if len(names) == 0 {
			fmt.Fprintf(out, "\n%-14s %s\n", g, strings.Join(groups[g], " "))
		}
	}
	return nil
}

// fuzzFunc is a fuzz test.
type fuzzFunc struct{ dir, name string }

// fuzzName finds the fuzz tests of a file.
var fuzzName = regexp.MustCompile(`(?m)^func (Fuzz\w*)\(`)

// fuzzFound has what fuzzFuncs found, by the root.
var fuzzFound = map[string][]fuzzFunc{}

// fuzzFuncs finds every fuzz test of the checkout, in all modules.
func fuzzFuncs(root string) (all []fuzzFunc) {
	if fuzzFound[root] != nil {
		return fuzzFound[root]
	}
	defer func() { fuzzFound[root] = all }()
	filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != root) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for _, m := range fuzzName.FindAllSubmatch(src, -1) {
			all = append(all, fuzzFunc{filepath.ToSlash(dir), string(m[1])})
		}
		return err
	})
	return all
}
