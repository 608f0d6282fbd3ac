package klog

import (
	_ "embed" // for the list
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Bug is an entry of the list of known kernel bugs.
type Bug struct {
	From, To Version        // From and To are the first and the last kernel that has the bug; zero is any.
	Message  *regexp.Regexp // Message matches the headline of the report.
	After    *regexp.Regexp // After matches the headline of a known report before it; nil if there need not be one.
	Cause    string         // Cause says what is behind it.
}

// Version is the part of a kernel's version that the list goes by.
type Version struct{ Major, Minor int }

//go:embed known.txt
var knownText string

// KnownBugs gives the checked-in list.
func KnownBugs() []Bug {
	bugs, err := ParseBugs(knownText)
	if err != nil {
		panic(err) // the list is part of the program, and a test parses it
	}
	return bugs
}

// ParseBugs parses a list: paragraphs of the fields kernel, message and cause,
// and lines that begin with '#'.
func ParseBugs(text string) ([]Bug, error) {
	var bugs []Bug
	fields := map[string]string{}
	last := ""
	flush := func() error {
		if len(fields) == 0 {
			return nil
		}
		b, err := newBug(fields)
		if err != nil {
			return err
		}
		bugs = append(bugs, b)
		clear(fields)
		return nil
	}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			if err := flush(); err != nil {
				return nil, fmt.Errorf("line %d: %w", n, err)
			}
		case line[0] == ' ' && last != "":
			fields[last] += " " + strings.TrimSpace(line)
		default:
			key, value, ok := strings.Cut(line, ":")
			if !ok {
				return nil, fmt.Errorf("line %d: no field name in %q", n, line)
			}
			last = key
			fields[key] = strings.TrimSpace(value)
		}
	}
	if err := flush(); err != nil {
		return nil, fmt.Errorf("line %d: %w", n, err)
	}
	return bugs, nil
}

func newBug(fields map[string]string) (Bug, error) {
	b := Bug{Cause: fields["cause"]}
	for key := range fields {
		if key != "kernel" && key != "message" && key != "after" && key != "cause" {
			return b, fmt.Errorf("field %q; the fields are kernel, message, after, cause", key)
		}
	}
	if fields["message"] == "" || b.Cause == "" {
		return b, fmt.Errorf("entry for kernel %q has no message or no cause", fields["kernel"])
	}
	var err error
	if b.Message, err = regexp.Compile(fields["message"]); err != nil {
		return b, err
	}
	if after := fields["after"]; after != "" {
		if b.After, err = regexp.Compile(after); err != nil {
			return b, err
		}
	}
	from, to, isRange := strings.Cut(fields["kernel"], "-")
	if !isRange {
		to = from
	}
	for _, v := range []struct {
		text string
		dst  *Version
	}{{from, &b.From}, {to, &b.To}} {
		if v.text == "" && isRange {
			continue
		}
		var ok bool
		if *v.dst, ok = ParseVersion(v.text); !ok {
			return b, fmt.Errorf("kernel %q: want a version (5.10), a range (5.10-6.1) or an open one (6.12-)", fields["kernel"])
		}
	}
	return b, nil
}

// ParseVersion reads the version from a release such as 6.1.0-50-amd64.
func ParseVersion(release string) (Version, bool) {
	major, rest, ok := strings.Cut(release, ".")
	if !ok {
		return Version{}, false
	}
	if end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		rest = rest[:end]
	}
	a, err := strconv.Atoi(major)
	if err != nil {
		return Version{}, false
	}
	b, err := strconv.Atoi(rest)
	if err != nil {
		return Version{}, false
	}
	return Version{a, b}, true
}

func (v Version) less(w Version) bool {
	return v.Major < w.Major || v.Major == w.Major && v.Minor < w.Minor
}

func (b *Bug) applies(v Version) bool {
	return !v.less(b.From) && (b.To == Version{} || !b.To.less(v))
}

// match finds the known bug that a report behind others is. Only the headline counts: a trace
// names functions that have nothing to do with the cause.
func match(bugs []Bug, release string, earlier []*Report, r *Report) *Bug {
	v, ok := ParseVersion(release)
	if !ok {
		return nil
	}
	for i := range bugs {
		if !bugs[i].applies(v) {
			continue
		}
		follows := func(e *Report) bool { return e.Known != nil && bugs[i].After.MatchString(e.Headline) }
		if bugs[i].Message.MatchString(r.Headline) && (bugs[i].After == nil || slices.ContainsFunc(earlier, follows)) {
			return &bugs[i]
		}
	}
	return nil
}
