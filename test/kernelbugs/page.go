package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// tested are the kernels that the tables of BUGS.md are about, oldest first, as they call them.
var tested = []string{"5.10", "6.1", "6.12", "7.2"}

// A finding is a line of one of the tables: where a bug is, or where it was looked for in vain.
type finding struct {
	has   []string // kernels with the bug
	lacks []string // kernels without it
}

// findings are the findings of BUGS.md, by the names of the bugs.
type findings map[string]*finding

// Lines of the two tables whose last column is the name of this program.
var (
	bugLine  = regexp.MustCompile(`(?m)^\| ([a-z0-9-]+) \| [a-z]+ \| ([^|]+) \|[^|]*\|.*\| kernelbugs \|$`)
	vainLine = regexp.MustCompile(`(?m)^\| ([a-z0-9-]+) \| [a-z]+ \| ([^|]+) \| [^|]* \| kernelbugs \|$`)
)

// parsePage reads BUGS.md.
func parsePage(text string) (findings, error) {
	all := findings{}
	at := func(name string) *finding {
		if all[name] == nil {
			all[name] = &finding{}
		}
		return all[name]
	}
	bugs, vain, ok := strings.Cut(text, "\n## Looked for and not found\n")
	if !ok {
		return nil, errors.New(`no heading "Looked for and not found"`)
	}
	for _, m := range bugLine.FindAllStringSubmatch(bugs, -1) {
		at(m[1]).has = strings.Split(m[2], ", ")
	}
	for _, m := range vainLine.FindAllStringSubmatch(vain, -1) {
		at(m[1]).lacks = strings.Split(m[2], ", ")
	}
	for name, f := range all {
		for _, k := range slices.Concat(f.has, f.lacks) {
			if !slices.Contains(tested, k) {
				return nil, fmt.Errorf("%s: kernel %q is none of %q", name, k, tested)
			}
			if slices.Contains(f.has, k) && slices.Contains(f.lacks, k) {
				return nil, fmt.Errorf("%s: kernel %s is in both tables", name, k)
			}
		}
		if !slices.ContainsFunc(attacks, func(a attack) bool { return a.name == name }) {
			return nil, fmt.Errorf("%s: there is no such attack", name)
		}
	}
	for i := range attacks {
		if all[attacks[i].name] == nil {
			return nil, fmt.Errorf("no line has the attack %s", attacks[i].name)
		}
	}
	return all, nil
}

// expected reports whether a kernel has a bug; known is false if the tables do not say.
func (all findings) expected(name, kernel string) (bug, known bool, err error) {
	if kernel == "latest" {
		kernel = tested[len(tested)-1]
	}
	if !slices.Contains(tested, kernel) {
		return false, false, fmt.Errorf("kernel %q is none of %q, nor latest", kernel, tested)
	}
	f := all[name]
	return slices.Contains(f.has, kernel), slices.Contains(f.has, kernel) || slices.Contains(f.lacks, kernel), nil
}
