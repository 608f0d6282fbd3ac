package main

import (
	"strings"
	"testing"
)

// TestBounds: numbers that make no sense are refused, with their names.
func TestBounds(t *testing.T) {
	good := setup{device: "rxe0", size: 64, count: 64, rounds: 1}
	if err := good.check(1, 1, nil); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(s *setup, runs, procs *int, rest *[]string){
		"-size is 0":      func(s *setup, _, _ *int, _ *[]string) { s.size = 0 },
		"-size is 1025":   func(s *setup, _, _ *int, _ *[]string) { s.size = 1025 },
		"-count is 4097":  func(s *setup, _, _ *int, _ *[]string) { s.count = 4097 },
		"-rounds is -1":   func(s *setup, _, _ *int, _ *[]string) { s.rounds = -1 },
		"-runs is 0":      func(_ *setup, runs, _ *int, _ *[]string) { *runs = 0 },
		"-procs is 0":     func(_ *setup, _, procs *int, _ *[]string) { *procs = 0 },
		`["x"]: no argum`: func(_ *setup, _, _ *int, rest *[]string) { *rest = []string{"x"} },
	} {
		s, runs, procs, rest := good, 1, 1, []string(nil)
		change(&s, &runs, &procs, &rest)
		if err := s.check(runs, procs, rest); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRun: what programs print is understood, or refused with the program's name.
func TestRun(t *testing.T) {
	times, err := run([]string{"echo", "-e", "30 1\\n10 2\\n20 6"})
	if err != nil || times != [2]float64{20, 2} {
		t.Errorf("the medians are %v, want 20 and 2: %v", times, err)
	}
	for _, line := range [][]string{{"echo", "fast"}, {"true"}, {"false"}, {"sleep", "x"}, {"no-such-program"}} {
		if _, err := run(line); err == nil || !strings.Contains(err.Error(), line[0]) {
			t.Errorf("%q: %v", line, err)
		}
	}
}
