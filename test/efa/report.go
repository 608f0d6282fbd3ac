package efa

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
)

// Report is what a card has done and seen since it was made.
type Report struct {
	Name        string            // Name of the card.
	Personality string            // Personality is its name.
	Host        string            // Host is the kernel that the driver has named (HOST_INFO).
	Commands    map[string]int    // Commands counts by name.
	Refused     []Refused         // Refused are commands that were answered with an error, the first ones.
	Refusals    int               // Refusals counts all of them.
	Resets      map[string]int    // Resets counts them by reason.
	Queues      map[string]uint64 // Queues counts work requests by operation, completions by status, doorbells and events.
	Broken      map[string]int    // Broken counts violations by rule.
	Violations  []Violation       // Violations are the first of them.
}

// Refused is a command that was answered with an error.
type Refused struct {
	Command string // Command is its name.
	Status  string // Status is the answer, in words.
	Why     string // Why says what was wrong.
}

// Violation is something that a driver must not do.
type Violation struct {
	Rule string // Rule is a short name of what was broken, the same for each case of it.
	Text string // Text says what happened.
}

// kept is how many refusals and violations are kept in words.
const kept = 100

func newReport(cfg Config) Report {
	return Report{
		Name: cfg.Name, Personality: cfg.Personality.Name, Commands: map[string]int{}, Resets: map[string]int{},
		Queues: map[string]uint64{}, Broken: map[string]int{},
	}
}

// violate records a violation.
func (d *Device) violate(rule, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	d.rep.Broken[rule]++
	if len(d.rep.Violations) < kept {
		d.rep.Violations = append(d.rep.Violations, Violation{Rule: rule, Text: text})
	}
	d.trace("VIOLATION of %s: %s", rule, text)
}

// gone records that a ring, whose memory was there when it was set up, is no longer: the guest has ended.
func (d *Device) gone(err error) {
	d.rep.Queues["rings of a guest that is gone"]++
	d.trace("%v", err)
}

// trace tells whoever listens what happens.
func (d *Device) trace(format string, args ...any) {
	if d.cfg.Trace != nil {
		d.cfg.Trace(d.cfg.Name + ": " + fmt.Sprintf(format, args...))
	}
}

// Report returns what has happened so far.
func (d *Device) Report() Report {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	r := d.rep
	r.Commands, r.Resets, r.Queues, r.Broken = maps.Clone(r.Commands), maps.Clone(r.Resets), maps.Clone(r.Queues), maps.Clone(r.Broken)
	r.Refused, r.Violations = slices.Clone(r.Refused), slices.Clone(r.Violations)
	return r
}

// Total is the number of violations.
func (r Report) Total() (n int) {
	for _, k := range r.Broken {
		n += k
	}
	return n
}

// Print writes the report for people.
func (r Report) Print(w io.Writer) {
	commands := 0
	for _, n := range r.Commands {
		commands += n
	}
	fmt.Fprintf(w, "%s (%s): %d commands, %d refused, %d violations\n", r.Name, r.Personality, commands, r.Refusals, r.Total())
	for _, f := range r.Refused {
		fmt.Fprintf(w, "  refused: %s: %s (%s)\n", f.Command, f.Why, f.Status)
	}
	printCounts(w, "queues", r.Queues)
	printCounts(w, "broken rules", r.Broken)
	for _, v := range r.Violations {
		fmt.Fprintf(w, "  VIOLATION of %s: %s\n", v.Rule, v.Text)
	}
}

// printCounts writes a line of counters, those that count most first.
func printCounts[N cmp.Ordered](w io.Writer, what string, m map[string]N) {
	keys := slices.SortedFunc(maps.Keys(m), func(a, b string) int { return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b)) })
	for i, k := range keys {
		if i == 0 {
			fmt.Fprintf(w, "  %s: %s %v", what, k, m[k])
		} else {
			fmt.Fprintf(w, ", %s %v", k, m[k])
		}
	}
	if len(keys) > 0 {
		fmt.Fprintln(w)
	}
}
