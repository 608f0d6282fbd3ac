package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/test/internal/matrix"
)

// ktap prints results as KTAP (Documentation/dev-tools/ktap.rst in the kernel's source). Each test is a test
// case, whose subtests are nested. The last one is about the kernel's log and what else is of no one test.
type ktap struct {
	w     io.Writer
	count int
}

// begin implements sink.
func (k *ktap) begin(r *Report, total int) {
	fmt.Fprintf(k.w, "KTAP version 1\n1..%d\n", total+1)
	for _, d := range r.Devices {
		fmt.Fprintf(k.w, "# device %s, driver %s, Linux %s, %s\n", d.Device, d.Driver, r.Machine.Release, r.Machine.Arch)
	}
}

// node is a result with its subtests.
type node struct {
	Result
	subtests []*node
}

// tree finds the subtests of the last result in the results before it.
func tree(all []Result) *node {
	nodes := map[string]*node{}
	for _, r := range all {
		nodes[r.Test] = &node{Result: r}
	}
	for _, r := range all {
		for name := r.Test; strings.Contains(name, "/"); {
			name = name[:strings.LastIndexByte(name, '/')]
			if parent := nodes[name]; parent != nil {
				parent.subtests = append(parent.subtests, nodes[r.Test])
				break
			}
		}
	}
	return nodes[all[len(all)-1].Test]
}

// skipped reports whether a test, or all of its subtests, did not run.
func (n *node) skipped() bool {
	if n.Outcome != matrix.Passed || len(n.subtests) == 0 {
		return n.Outcome != matrix.Passed && n.Outcome != matrix.Failed
	}
	return !slices.ContainsFunc(n.subtests, func(s *node) bool { return !s.skipped() })
}

// test implements sink.
func (k *ktap) test(all []Result) {
	k.count++
	k.node(tree(all), "", "", k.count)
}

// node prints a test case.
func (k *ktap) node(n *node, parent, indent string, number int) {
	if len(n.subtests) > 0 {
		fmt.Fprintf(k.w, "%s  KTAP version 1\n%s  1..%d\n", indent, indent, len(n.subtests))
		for i, s := range n.subtests {
			k.node(s, n.Test, indent+"  ", i+1)
		}
	}
	name := strings.TrimPrefix(strings.TrimPrefix(n.Test, parent), "/")
	directive := ""
	switch {
	case n.skipped() && len(n.subtests) > 0:
		directive = " # SKIP all subtests"
	case n.Outcome == matrix.Failed:
		k.diagnose(indent, trimOutput(n.Output))
		if n.Reason != "" {
			directive = " # ERROR " + n.Reason
		}
	case n.Outcome != matrix.Passed:
		directive = " # SKIP " + n.Reason
	}
	k.result(indent, n.Outcome != matrix.Failed, number, name, directive)
}

// result prints a result line. A description must not have a "#".
func (k *ktap) result(indent string, ok bool, number int, name, directive string) {
	verdict := "ok"
	if !ok {
		verdict = "not ok"
	}
	directive = strings.Join(strings.Fields(directive), " ")
	if directive != "" {
		directive = " " + directive
	}
	fmt.Fprintf(k.w, "%s%s %d %s%s\n", indent, verdict, number, strings.ReplaceAll(name, "#", "_"), directive)
}

// diagnose prints diagnostic lines.
func (k *ktap) diagnose(indent string, lines []string) {
	for _, l := range lines {
		fmt.Fprintf(k.w, "%s# %s\n", indent, l)
	}
}

// end implements sink.
func (k *ktap) end(r *Report) {
	for _, f := range r.failures() {
		if f.Alone != "" {
			fmt.Fprintf(k.w, "# %s again by itself: %s, %d commands in its trace\n", f.Test, f.Alone, len(f.Trace))
		}
	}
	for _, b := range r.bugs() {
		fmt.Fprintf(k.w, "# known bug: %s\n", b)
	}
	k.diagnose("", r.Notes)
	k.diagnose("", r.KernelLog)
	k.diagnose("", r.Problems)
	if r.Interrupted {
		fmt.Fprintln(k.w, "Bail out! interrupted")
		return
	}
	k.count++
	k.result("", len(r.Problems) == 0, k.count, "kernel_log_and_objects", "")
}
