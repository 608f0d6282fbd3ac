package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// knownMutants are mutants that behave like the original, by file, function and change.
type knownMutants map[string]string

// readKnown reads the list of equivalent mutants. Without a file there are none.
func readKnown(path string) (knownMutants, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	known, err := parseKnown(string(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return known, nil
}

// parseKnown reads entries that blank lines separate: a line FILE FUNCTION, a line BEFORE -> AFTER
// as the mutant is printed, and lines that say why no test can tell it from the original. The
// function is - outside of functions. Lines that begin with # are comments.
func parseKnown(text string) (knownMutants, error) {
	known := knownMutants{}
	var entry []string
	first, n := 0, 0
	end := func() error {
		defer func() { entry = nil }()
		if len(entry) == 0 {
			return nil
		}
		file, fn, ok := strings.Cut(entry[0], " ")
		if !ok || len(entry) < 3 || !strings.Contains(entry[1], " -> ") {
			return fmt.Errorf("line %d: an entry is FILE FUNCTION, BEFORE -> AFTER and a reason, on three lines or more", first)
		}
		if fn == "-" {
			fn = ""
		}
		key := file + " " + fn + "\n" + entry[1]
		if _, twice := known[key]; twice {
			return fmt.Errorf("line %d: the entry of %q is there already", first, entry[1])
		}
		known[key] = strings.Join(entry[2:], " ")
		return nil
	}
	for l := range strings.Lines(text) {
		n++
		switch l = strings.TrimSpace(l); {
		case strings.HasPrefix(l, "#"):
		case l == "":
			if err := end(); err != nil {
				return nil, err
			}
		default:
			if len(entry) == 0 {
				first = n
			}
			entry = append(entry, l)
		}
	}
	return known, end()
}

// reason returns why a mutant is equivalent, if it is in the list.
func (k knownMutants) reason(m *mutant) (string, bool) {
	r, ok := k[m.File+" "+m.Func+"\n"+m.Before+" -> "+m.After]
	return r, ok
}
