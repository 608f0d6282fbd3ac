package testenv

import (
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"
)

// entry is a line of the list of what kernels lack.
type entry struct {
	line    string
	op      string // "<", ">=", one of places, or card: and a word
	version [2]int
	test    string // a pattern, see path.Match
	feature string
}

// parseList reads the list of what kernels lack. Its lines are
//
//	KERNELS TEST: FEATURE
//
// where KERNELS is all, <6.2, >=6.2, ib for all with devices on InfiniBand, roce for all with
// devices on Ethernet, arm64, or card:WORD for modelled cards whose personality has that word (card:!WORD: does not have it), and
// TEST is a test's full name, in which * stands for anything between two slashes. Empty lines and
// those that start with # do not count.
func parseList(text string) ([]entry, error) {
	var list []entry
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		e := entry{line: line}
		kernels, rest, _ := strings.Cut(line, " ")
		var ok bool
		e.test, e.feature, ok = strings.Cut(strings.TrimSpace(rest), ": ")
		if !ok {
			return nil, fmt.Errorf("%q is not of the form KERNELS TEST: FEATURE", line)
		}
		if _, err := path.Match(e.test, ""); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		switch {
		case slices.Contains(places, kernels), strings.HasPrefix(kernels, onCard) && strings.TrimPrefix(kernels[len(onCard):], "!") != "":
			e.op = kernels
		case strings.HasPrefix(kernels, ">="):
			e.op = ">="
		case strings.HasPrefix(kernels, "<"):
			e.op = "<"
		default:
			return nil, fmt.Errorf("%q does not start with card:WORD, <X.Y, >=X.Y or one of %s", line, strings.Join(places, ", "))
		}
		if e.op == "<" || e.op == ">=" {
			if _, err := fmt.Sscanf(kernels[len(e.op):], "%d.%d", &e.version[0], &e.version[1]); err != nil {
				return nil, fmt.Errorf("%q: kernel version: %w", line, err)
			}
		}
		list = append(list, e)
	}
	return list, nil
}

// The words that a line may have in place of a kernel. They select all kernels, those with devices
// on InfiniBand, those with devices on Ethernet, and those on arm64. The prefix onCard precedes a
// word of a card's personality, and onCard with "!" one that it does not have.
const (
	everywhere = "all"
	onIB       = "ib"
	onRoCE     = "roce"
	onARM64    = "arm64"
	onCard     = "card:"
)

var places = []string{everywhere, onIB, onRoCE, onARM64}

// applies reports whether an entry is about a kernel.
func (e *entry) applies(kernel [2]int) bool {
	switch e.op {
	case "<":
		return slices.Compare(kernel[:], e.version[:]) < 0
	case ">=":
		return slices.Compare(kernel[:], e.version[:]) >= 0
	case onIB:
		return TheRig().InfiniBand()
	case onRoCE:
		return !TheRig().InfiniBand()
	case onARM64:
		return runtime.GOARCH == onARM64
	}
	if word, ok := strings.CutPrefix(e.op, onCard+"!"); ok {
		return Modelled() && !CardIs(word)
	}
	if word, ok := strings.CutPrefix(e.op, onCard); ok {
		return CardIs(word)
	}
	return true
}

// lacking is a feature that a test found missing.
type lacking struct{ test, feature string }

// matches reports whether an entry is about what a test found.
func (e *entry) matches(l lacking) bool {
	ok, _ := path.Match(e.test, l.test) // parseList has checked the pattern
	return ok && e.feature == l.feature
}

// expected reports whether the list has the feature that a test found missing on a kernel.
func expected(list []entry, kernel [2]int, l lacking) bool {
	return slices.ContainsFunc(list, func(e entry) bool { return e.applies(kernel) && e.matches(l) })
}

// goes reports whether an entry is about tests that go one of some ways, or that go none.
func (e *entry) goes(some []string) bool {
	return !slices.ContainsFunc(strings.Split(e.test, "/"), func(part string) bool {
		return slices.Contains(allWays, part) && !slices.Contains(some, part)
	})
}

// stale returns the lines about a kernel that no test of a whole run, which goes some ways, has
// confirmed.
func stale(list []entry, kernel [2]int, some []string, found []lacking) []string {
	var lines []string
	for _, e := range list {
		if e.applies(kernel) && e.goes(some) && !slices.ContainsFunc(found, e.matches) && !e.hidden(list, kernel, found) {
			lines = append(lines, e.line)
		}
	}
	return lines
}

// hidden reports whether a test that the entry names ended for another reason, before it could confirm
// the entry, and one of the two is a modelled card's personality. Cards lack things in any combination.
func (e *entry) hidden(list []entry, kernel [2]int, found []lacking) bool {
	return slices.ContainsFunc(list, func(other entry) bool {
		if other.feature == e.feature || !other.applies(kernel) || !other.onCard() && !e.onCard() {
			return false
		}
		return slices.ContainsFunc(found, func(l lacking) bool {
			ok, _ := path.Match(e.test, l.test)
			return ok && other.matches(l)
		})
	})
}

// onCard reports whether an entry is about a modelled card's personality.
func (e *entry) onCard() bool { return strings.HasPrefix(e.op, onCard) }
