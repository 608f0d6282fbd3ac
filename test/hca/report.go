package hca

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// Report is what came of a card's work.
type Report struct {
	Name        string         // Name of the card.
	Mode        Mode           // Mode of its port.
	Personality string         // Personality in words.
	Commands    map[string]int // Commands counts by name.
	NoEffect    map[string]int // NoEffect counts commands that were answered and do nothing in this model.
	Refused     []Refused      // Refused are commands that were not done, the first ones.
	Refusals    int            // Refusals counts all of them.
	Unknown     map[string]int // Unknown counts opcodes and registers that are not modelled.
	Resets      int            // Resets counts resets of the PCI function.
	Violations  uint64         // Violations is how often the driver did what it must not.
	Engine      engine.Report  // Engine is the data path's report, and has the violations in words.
}

// Refused is a command that was answered with an error.
type Refused struct {
	Command  string // Command is its name.
	Status   string // Status is the firmware's, in words.
	Syndrome string // Syndrome is the number that goes with it.
	Why      string // Why says what was wrong.
}

// kept is how many refusals are kept in words.
const kept = 64

// report is what a card writes down while it works.
type report struct {
	Report
}

func (r *report) init(cfg Config) {
	r.Report = Report{Name: cfg.Name, Mode: cfg.Mode, Personality: cfg.Personality.String(), Commands: map[string]int{}, NoEffect: map[string]int{}, Unknown: map[string]int{}}
}

// count writes a command down.
func (r *report) count(c *call, status prm.Status) {
	r.Commands[c.op.String()]++
	cmd, known := commands[c.op]
	if !known {
		r.Unknown[c.op.String()]++
	} else if status == prm.OK && cmd.noEffect != "" {
		r.NoEffect[c.op.String()]++
	}
}

// refused writes down why a command failed.
func (r *report) refused(c *call, f *failure) {
	r.Refusals++
	if len(r.Refused) < kept {
		r.Refused = append(r.Refused, Refused{Command: c.op.String(), Status: f.status.String(), Syndrome: fmt.Sprintf("%#x", f.syndrome), Why: f.why})
	}
}

// violation writes down what a driver must not do.
func (d *Device) violation(format string, args ...any) {
	d.eng.Violate("command interface", format, args...)
}

// Report says what has happened so far.
func (d *Device) Report() Report {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.rep.Report
	// By value: the card goes on counting.
	r.Commands, r.NoEffect, r.Unknown = maps.Clone(r.Commands), maps.Clone(r.NoEffect), maps.Clone(r.Unknown)
	r.Refused = slices.Clone(r.Refused)
	r.Engine = d.eng.Report()
	r.Violations = r.Engine.Total()
	return r
}

// Print writes the report for people.
func (r Report) Print(w io.Writer) {
	total := 0
	for _, n := range r.Commands {
		total += n
	}
	fmt.Fprintf(w, "%s (%s): %d commands, %d refused, %d violations\n", r.Name, r.Mode, total, r.Refusals, r.Violations)
	for _, name := range sorted(r.Unknown) {
		fmt.Fprintf(w, "  not modelled: %s, %d times\n", name, r.Unknown[name])
	}
	for _, f := range r.Refused {
		fmt.Fprintf(w, "  refused: %s: %s (%s, syndrome %s)\n", f.Command, f.Why, f.Status, f.Syndrome)
	}
	for _, group := range []struct {
		what string
		m    map[string]uint64
	}{{"WQEs", r.Engine.Opcodes}, {"doorbells", r.Engine.Doorbells}, {"CQEs", r.Engine.CQEs}, {"events", r.Engine.Events}, {"packets", r.Engine.Packets}, {"broken rules", r.Engine.Broken}, {"broken on purpose", r.Engine.Forgiven}} {
		if len(group.m) == 0 {
			continue
		}
		fmt.Fprintf(w, "  %s:", group.what)
		sep := " "
		for _, k := range sorted(group.m) {
			fmt.Fprintf(w, "%s%s %d", sep, k, group.m[k])
			sep = ", "
		}
		fmt.Fprintln(w)
	}
	for _, v := range r.Engine.Violations {
		fmt.Fprintf(w, "  VIOLATION of %s: %s\n", v.Rule, v.Text)
	}
}

// sorted gives a map's keys in order, those that count most first.
func sorted[N cmp.Ordered](m map[string]N) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b)) })
	return keys
}
