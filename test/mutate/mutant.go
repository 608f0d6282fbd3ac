package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// kind is a kind of change.
type kind string

const (
	compareKind   kind = "compare"
	operatorKind  kind = "operator"
	numberKind    kind = "number"
	constantKind  kind = "constant"
	statementKind kind = "statement"
	conditionKind kind = "condition"
	errorKind     kind = "error"
	lockKind      kind = "lock"
	barrierKind   kind = "barrier"
)

// result is what became of a mutant.
type result string

const (
	killed     result = "killed"
	timedOut   result = "timed out"
	survived   result = "survived"
	equivalent result = "equivalent"
	notBuilt   result = "not built"
)

// edit replaces the bytes from one offset to another.
type edit struct {
	from, to int
	by       string
}

// mutant is a change of the source.
type mutant struct {
	N       int     `json:"n"` // its number in the run, from 1
	Package string  `json:"package"`
	File    string  `json:"file"` // relative to the module, with slashes
	Line    int     `json:"line"`
	Func    string  `json:"func,omitempty"` // Type.Method or Function
	Kind    kind    `json:"kind"`
	Before  string  `json:"before"` // the lines that change, with single spaces
	After   string  `json:"after"`
	Result  result  `json:"result,omitempty"`
	By      string  `json:"by,omitempty"`     // the test that failed, with its package if it is another
	Reason  string  `json:"reason,omitempty"` // of an equivalent mutant
	Seconds float64 `json:"seconds,omitempty"`

	path   string // of the file
	src    []byte
	edits  []edit // in the order of the offsets
	other  bool   // killed by another package's tests
	output string // of the tests, or of the compiler
}

// dropped stands for a line of which nothing is left.
const dropped = "(dropped)"

// longest is the length of a description's half; what is longer is cut.
const longest = 160

// describe sets Before and After.
func (m *mutant) describe(src []byte) {
	var before, after []string
	for i := 0; i < len(m.edits); i++ {
		from, to := lines(src, m.edits[i])
		b := []byte(src[from:to])
		before = append(before, shorten(string(b)))
		after = append(after, shorten(string(apply(src, m.edits[i:i+1])[from:to-(m.edits[i].to-m.edits[i].from)+len(m.edits[i].by)])))
	}
	after = slices.DeleteFunc(after, func(s string) bool { return s == "" })
	m.Before, m.After = strings.Join(before, "; "), strings.Join(after, "; ")
	if m.After == "" {
		m.After = dropped
	}
}

// shorten replaces each run of white space by a space, and cuts what is too long.
func shorten(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > longest {
		s = string(r[:longest]) + "..."
	}
	return s
}

// lines returns the offsets of the lines that an edit touches.
func lines(src []byte, e edit) (from, to int) {
	for from = e.from; from > 0 && src[from-1] != '\n'; {
		from--
	}
	for to = e.to; to < len(src) && src[to] != '\n'; {
		to++
	}
	return from, to
}

// apply returns the source after some edits.
func apply(src []byte, edits []edit) []byte {
	var out []byte
	at := 0
	for _, e := range edits {
		out = append(append(out, src[at:e.from]...), e.by...)
		at = e.to
	}
	return append(out, src[at:]...)
}

// String is a line that tells of the mutant.
func (m *mutant) String() string {
	s := fmt.Sprintf("%3d %s:%d: %s: %s -> %s", m.N, m.File, m.Line, m.Kind, m.Before, m.After)
	switch {
	case m.Result == "":
		return s
	case m.By != "":
		return fmt.Sprintf("%s\n    %s by %s", s, m.Result, m.By)
	}
	return fmt.Sprintf("%s\n    %s", s, strings.ToUpper(string(m.Result)))
}

// neighbours returns the integers beside one, as they are written.
func neighbours(lit string) []string {
	n, err := strconv.ParseUint(lit, 0, 64)
	if err != nil {
		return nil
	}
	format := "%d"
	if strings.HasPrefix(strings.ToLower(lit), "0x") {
		format = "%#x"
	}
	var all []string
	if n+1 != 0 {
		all = append(all, fmt.Sprintf(format, n+1))
	}
	if n > 0 {
		all = append(all, fmt.Sprintf(format, n-1))
	}
	return all
}

// choose returns n of the mutants, or all if there are fewer. Each is of a line that was chosen at
// random; no place and change is chosen twice.
func choose(all []*mutant, n int, rng *rand.Rand) []*mutant {
	type line struct {
		file string
		n    int
	}
	var order []line
	byLine := map[line][]*mutant{}
	for _, m := range all {
		l := line{m.File, m.Line}
		if byLine[l] == nil {
			order = append(order, l)
		}
		byLine[l] = append(byLine[l], m)
	}
	var chosen []*mutant
	for len(chosen) < n && len(order) > 0 {
		i := rng.IntN(len(order))
		rest := byLine[order[i]]
		kinds := []kind{}
		for _, m := range rest {
			if !slices.Contains(kinds, m.Kind) {
				kinds = append(kinds, m.Kind)
			}
		}
		k := kinds[rng.IntN(len(kinds))]
		var of []int
		for j, m := range rest {
			if m.Kind == k {
				of = append(of, j)
			}
		}
		j := of[rng.IntN(len(of))]
		chosen = append(chosen, rest[j])
		if rest = slices.Delete(slices.Clone(rest), j, j+1); len(rest) == 0 {
			order = slices.Delete(order, i, i+1)
		} else {
			byLine[order[i]] = rest
		}
	}
	return chosen
}

// at returns the mutants of a FILE or FILE:LINE.
func at(all []*mutant, place string) ([]*mutant, error) {
	file, number, hasLine := strings.Cut(place, ":")
	n, err := strconv.Atoi(number)
	if hasLine && (err != nil || n < 1) {
		return nil, usageError{fmt.Errorf("-at %s: %q is not the number of a line", place, number)}
	}
	file = strings.TrimPrefix(file, "./")
	var some []*mutant
	for _, m := range all {
		if m.File == file && (!hasLine || m.Line == n) {
			some = append(some, m)
		}
	}
	if len(some) == 0 {
		return nil, fmt.Errorf("-at %s: there is nothing to change", place)
	}
	return some, nil
}
