package softrxe

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// verbsCase is a use of the verbs by two ends.
type verbsCase struct {
	name string
	a, b uverbs.QPOptions
	run  func(x *exchange)
	want string // record, lines separated by "; "; if empty, everything succeeds

	// wantSpec is want if the end that detects an error follows the specification: end b, or end a with ownError.
	// Software devices and ConnectX cards do; rxe has other statuses. Memory may differ, too.
	wantSpec string
	ownError bool

	noCard bool // a ConnectX card does not support it, or fails otherwise

	// The kernels from which rxe behaves as end a or b like that of the newest kernel, which the software
	// device plays.
	sinceA, sinceB [2]int
}

// exchange is one run of a case.
type exchange struct {
	t    *testing.T
	a, b *end
	record
}

// pairings are the kinds of the ends a and b. The first is the kernel's device with itself. All others must
// behave like it, unless a case has wantSpec.
func pairings(rxe, software host) [][2]host {
	return [][2]host{{rxe, rxe}, {rxe, software}, {software, rxe}, {software, software}}
}

// old reports whether a kernel's device behaves otherwise, because the kernel is older.
func (c *verbsCase) old(hosts [2]host, kernel [2]int) bool {
	for i, since := range [2][2]int{c.sinceA, c.sinceB} {
		if !hosts[i].soft && slices.Compare(kernel[:], since[:]) < 0 {
			return true
		}
	}
	return false
}

// wanted returns the lines of want, or those of wantSpec and true.
func (c *verbsCase) wanted(hosts [2]host) (lines []string, spec bool) {
	h := hosts[1]
	if c.ownError {
		h = hosts[0]
	}
	if spec = c.wantSpec != "" && (h.soft || h.card()); spec {
		return strings.Split(c.wantSpec, "; "), true
	}
	return strings.Split(c.want, "; "), false
}

// play runs a case once with ends on the given hosts, and returns the record and the sums of both ends'
// memory.
func (c *verbsCase) play(t *testing.T, hosts [2]host) (r record, sums [2]uint32) {
	x := &exchange{t: t}
	x.a, x.b = newEnd(t, "a", hosts[0], c.a, &x.record), newEnd(t, "b", hosts[1], c.b, &x.record)
	if c.a.Type != ib.UD {
		connect(t, x.a, x.b)
	}
	c.run(x)
	return x.record, [2]uint32{x.a.sum(), x.b.sum()}
}

// runCases runs cases on all pairings and compares the records.
func runCases(t *testing.T, rxe, software host, cases []verbsCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var first record
			var sums [2]uint32
			for _, hosts := range slices.DeleteFunc(pairings(rxe, software), func(hosts [2]host) bool {
				return c.old(hosts, testenv.Kernel(t)) || c.noCard && (hosts[0].card() || hosts[1].card())
			}) {
				t.Run(fmt.Sprintf("%s to %s", hosts[0], hosts[1]), func(t *testing.T) {
					r, s := c.play(t, hosts)
					want, spec := c.wanted(hosts)
					if c.want == "" {
						want = r.lines
						if r.failures > 0 {
							t.Errorf("%d failures:\n%s", r.failures, &r)
						}
					}
					if diff := cmp.Diff(want, r.lines); diff != "" {
						t.Errorf("differs from what is expected:\n%s", diff)
					}
					if spec {
						return
					}
					if first.lines == nil {
						first, sums = r, s
						return
					}
					if diff := cmp.Diff(first.lines, r.lines); diff != "" {
						t.Errorf("differs from what the first pairing does:\n%s", diff)
					}
					if s != sums {
						t.Errorf("the memory of a and b has sums %#x, and with the first pairing %#x", s, sums)
					}
				})
			}
		})
	}
}
