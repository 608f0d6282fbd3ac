package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// costsFile is the record of instructions for an architecture, below the root of the checkout.
func costsFile(root, arch string) string {
	return filepath.Join(root, "test/bench/results/costs-"+arch+".json")
}

// tolerated is how many more instructions than recorded a row may execute without a warning, and refused how
// many without an error. Rows of costs include the kernel's instructions, and those of what else runs meanwhile.
const tolerated, refused = 0.03, 1.0

// dialRefused is refused for connections by Dial and Listen, which vary by 3 % and once took a third more unnoticed.
const dialRefused = 0.2

// costsRecord is how the record is made anew.
const costsRecord = "go run ./test/run -suite costs/measure,costs/record"

// costs records how many instructions goverbs executes in each row of a run with vmrun -icount, or for each
// request on a hot path.
type costs struct {
	Kernel       string             `json:"kernel,omitempty"`
	Go           string             `json:"go"`
	Commit       string             `json:"commit,omitempty"`
	Instructions map[string]float64 `json:"instructions"` // by the row's name; the least of all rounds
}

// costsOf returns the instructions in a report, whose guest has executed one in each nanosecond.
func costsOf(r *Report) (*costs, error) {
	c := &costs{Kernel: r.Kernel, Go: runtime.Version(), Commit: r.Commit, Instructions: map[string]float64{}}
	for _, row := range r.Rows {
		each := map[string]float64{nanoseconds: 1, microseconds: 1e3, milliseconds: 1e6}[row.Unit]
		if row.Error != "" || each == 0 {
			return nil, fmt.Errorf("%s cannot be counted: it has unit %s and error %q", row.Name, row.Unit, row.Error)
		}
		c.Instructions[row.Name] = slices.Min(row.Ours) * each
	}
	return c, nil
}

// compareCosts prints the rows, and a warning for each that executes more instructions than recorded, with the
// command that records them. It fails if a recorded row was not measured or executes far more.
func compareCosts(out io.Writer, recorded, now *costs, refused float64, record string) error {
	var errs []error
	changed := false
	for _, name := range slices.Sorted(maps.Keys(recorded.Instructions)) {
		before, after := recorded.Instructions[name], now.Instructions[name]
		if after == 0 {
			errs = append(errs, fmt.Errorf("%s was recorded, but not measured", name))
			continue
		}
		change := after/before - 1
		fmt.Fprintf(out, "  %-34s %8.0f %8.0f  %+5.1f %%\n", name, before, after, 100*change)
		changed = changed || math.Abs(change) > tolerated
		more := fmt.Sprintf("row %s executes %.0f %% more instructions than recorded", name, 100*change)
		most := refused
		if strings.HasPrefix(name, "dial/") {
			most = min(most, dialRefused)
		}
		switch {
		case change > most:
			errs = append(errs, fmt.Errorf("%s, allowed: %.0f %%", more, 100*most))
		case change > tolerated:
			fmt.Fprintf(out, "warning: %s\n", more)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now.Instructions)) {
		if recorded.Instructions[name] == 0 {
			changed = true
			fmt.Fprintf(out, "row %s, with %.0f instructions, is not recorded\n", name, now.Instructions[name])
		}
	}
	if changed || errs != nil {
		fmt.Fprintf(out, "if this is as it should be, record it: %s\n", record)
	}
	return errors.Join(errs...)
}

// costsCommand compares a run with the record of its architecture, or makes it the record.
func costsCommand(args []string, stdout io.Writer) error {
	f := flag.NewFlagSet("costs", flag.ContinueOnError)
	root := f.String("root", ".", "the `directory` of the checkout")
	record := f.Bool("record", false, "make the run the record")
	r, err := one(f, args, "bench costs [flags] JSON: compares the instructions of a run in a guest of vmrun -icount with the recorded ones.\nIt warns of each row with more than 3 % more, and fails if there are over 100 % more, or 20 % of dial, or if a row is missing.\n", stdout)
	if err != nil {
		return err
	}
	now, err := costsOf(r)
	if err != nil {
		return err
	}
	file := costsFile(*root, r.Arch)
	if *record {
		return now.save(file)
	}
	recorded, err := readCosts(file)
	if errors.Is(err, os.ErrNotExist) {
		fmt.Fprintf(stdout, "no instructions are recorded for %s\n", r.Arch)
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "instructions, recorded at %s (Linux %s, %s) and now (Linux %s, %s):\n", recorded.Commit, recorded.Kernel, recorded.Go, now.Kernel, now.Go)
	return compareCosts(stdout, recorded, now, refused, costsRecord)
}

// save writes a record.
func (c *costs) save(file string) error {
	return save(file, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(c)
	})
}

// readCosts reads a record.
func readCosts(file string) (*costs, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parseCosts(file, b)
}

// parseCosts parses a record.
func parseCosts(file string, b []byte) (*costs, error) {
	c := &costs{}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for name, n := range c.Instructions {
		if !(n > 0) {
			return nil, fmt.Errorf("%s has %g instructions for %s, want more than 0", file, n, name)
		}
	}
	return c, nil
}
