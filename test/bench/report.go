package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Report is what a run prints as JSON; the help says what is in it.
type Report struct {
	Version  int    `json:"version"`
	Commit   string `json:"commit"`
	Date     string `json:"date"`
	Kernel   string `json:"kernel"`
	Arch     string `json:"arch"`
	CPUs     int    `json:"cpus"`
	CPU      string `json:"cpu"`
	Device   string `json:"device"`
	Perftest string `json:"perftest,omitempty"`
	Rounds   int    `json:"rounds"`
	Hung     int    `json:"perftest_hung,omitempty"`
	Counted  string `json:"counted,omitempty"` // the title of the run that counted instructions
	Rows     []Row  `json:"rows"`
}

// ReportVersion is the version of Report.
const ReportVersion = 1

// Row is a thing that both have done, a number of times in turn.
type Row struct {
	Name     string    `json:"name"`
	Unit     string    `json:"unit"`
	Better   string    `json:"better"`           // less or more
	Wanted   float64   `json:"wanted,omitempty"` // ratio; 0 if there is none
	Ours     []float64 `json:"goverbs"`
	RdmaCore []float64 `json:"rdma_core"`
	Error    string    `json:"error,omitempty"`

	// Calculated from the samples, also when a report is read.
	OursMedian     float64 `json:"goverbs_median,omitzero"`
	RdmaCoreMedian float64 `json:"rdma_core_median,omitzero"`
	Ratio          Spread  `json:"ratio,omitzero"`

	shown bool // by a table of README.md
}

// Directions in which a value is better.
const (
	less = "less"
	more = "more"
)

// Spread is how ratios are spread.
type Spread struct {
	Least  float64 `json:"least"`
	Q1     float64 `json:"q1"`
	Median float64 `json:"median"`
	Q3     float64 `json:"q3"`
	Most   float64 `json:"most"`
}

// quantile returns the value below which a part q of sorted values are, between two of them if need
// be.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

// median returns the middle value, 0 of none.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	return quantile(slices.Sorted(slices.Values(v)), 0.5)
}

// spread describes values.
func spread(v []float64) Spread {
	if len(v) == 0 {
		return Spread{}
	}
	s := slices.Sorted(slices.Values(v))
	return Spread{s[0], quantile(s, 0.25), quantile(s, 0.5), quantile(s, 0.75), s[len(s)-1]}
}

// sum fills in what is told of the samples.
func (r *Row) sum() {
	ratios := make([]float64, min(len(r.Ours), len(r.RdmaCore)))
	for i := range ratios {
		ratios[i] = r.Ours[i] / r.RdmaCore[i]
	}
	r.OursMedian, r.RdmaCoreMedian, r.Ratio = median(r.Ours), median(r.RdmaCore), spread(ratios)
}

// measured reports whether there is something to tell.
func (r *Row) measured() bool { return len(r.Ours) > 0 && len(r.RdmaCore) > 0 }

// missed reports whether the median ratio is not what is wanted.
func (r *Row) missed() bool {
	switch {
	case r.Wanted == 0 || !r.measured():
		return false
	case r.Better == more:
		return r.Ratio.Median < r.Wanted
	}
	return r.Ratio.Median > r.Wanted
}

// tooWide is a part of the median ratio. If the quartiles are further apart, the median says little.
const tooWide = 0.1

// wide reports whether the ratios of the rounds are spread widely.
func (r *Row) wide() bool {
	return r.measured() && r.Ratio.Q3-r.Ratio.Q1 > tooWide*r.Ratio.Median
}

// notice returns a line about the rows whose ratios are spread widely, or nothing.
func (r *Report) notice() string {
	var wide []string
	for i := range r.Rows {
		if r.Rows[i].wide() {
			wide = append(wide, r.Rows[i].Name)
		}
	}
	if len(wide) == 0 {
		return ""
	}
	return fmt.Sprintf("Notice: the quartiles of %d of %d rows are more than %.0f %% of the median apart, so these medians say little.\n"+
		"The machine may have been busy; measure them again, or take more -rounds: %s\n", len(wide), len(r.Rows), 100*tooWide, strings.Join(wide, " "))
}

// kept is what may stand in the name of a file.
var kept = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]*$`)

// check refuses a report that does not make sense.
func (r *Report) check() error {
	if r.Version != ReportVersion {
		return fmt.Errorf("version is %d, want %d", r.Version, ReportVersion)
	}
	for name, v := range map[string]string{"commit": r.Commit, "kernel": r.Kernel, "arch": r.Arch} {
		if !kept.MatchString(v) {
			return fmt.Errorf("%s is %q, want letters, digits and . _ + -", name, v)
		}
	}
	if len(r.Rows) == 0 {
		return errors.New("rows is empty, want at least one")
	}
	seen := map[string]bool{}
	for i, row := range r.Rows {
		switch {
		case row.Name == "" || seen[row.Name]:
			return fmt.Errorf("rows[%d].name is %q, want one that is there once", i, row.Name)
		case row.Better != less && row.Better != more:
			return fmt.Errorf("rows[%d].better is %q, want less or more", i, row.Better)
		case !slices.Contains([]string{nanoseconds, microseconds, milliseconds, rate, bandwidth}, row.Unit):
			return fmt.Errorf("rows[%d].unit is %q, want ns, µs, ms, msg/s or MiB/s", i, row.Unit)
		case row.Error == "" && (len(row.Ours) == 0 || len(row.Ours) != len(row.RdmaCore)):
			return fmt.Errorf("rows[%d] has %d samples of goverbs and %d of rdma_core, want as many, at least one", i, len(row.Ours), len(row.RdmaCore))
		}
		for _, v := range slices.Concat(row.Ours, row.RdmaCore) {
			if !(v > 0) || math.IsInf(v, 0) {
				return fmt.Errorf("rows[%d] has the sample %g, want more than 0", i, v)
			}
		}
		seen[row.Name] = true
	}
	return nil
}

// readReport reads a report, and calculates medians and ratios anew from the samples.
func readReport(file string) (*Report, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &Report{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s is no report: %w", file, err)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for i := range r.Rows {
		r.Rows[i].sum()
	}
	return r, nil
}

// writeJSON writes it as JSON.
func (r *Report) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// save writes a file by a function.
func save(file string, write func(io.Writer) error) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// keep puts a report where those of its architecture, kernel and commit are, as JSON, as a page
// and as text for benchstat, and returns the name of the first. Rows that the commit has there already
// stay, unless they are in the report.
func (r *Report) keep(dir string) (string, error) {
	dir = filepath.Join(dir, r.Arch+"-"+r.Kernel)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	file := filepath.Join(dir, r.Commit+".json")
	old, err := readReport(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if err == nil {
		r = old.with(r)
	}
	for _, f := range []struct {
		ending string
		write  func(io.Writer) error
	}{{".json", r.writeJSON}, {".html", r.writeHTML}, {".txt", r.writeBenchstat}} {
		if err := save(filepath.Join(dir, r.Commit+f.ending), f.write); err != nil {
			return "", err
		}
	}
	return file, nil
}

// with returns a report with the rows of another in place of its own of the same names. A run that counted
// instructions adds its title, and leaves the rest of a report by the clock as it is.
func (r *Report) with(other *Report) *Report {
	all := *other
	switch {
	case other.Counted != "" && r.clocked():
		all = *r
		all.Counted = other.Counted
	case other.Counted == "":
		all.Counted = r.Counted
	}
	all.Rows = slices.Clone(r.Rows)
	for _, row := range other.Rows {
		i := slices.IndexFunc(all.Rows, func(o Row) bool { return o.Name == row.Name })
		if i < 0 {
			all.Rows = append(all.Rows, row)
		} else {
			all.Rows[i] = row
		}
	}
	return &all
}

// clocked reports whether a row is by the clock.
func (r *Report) clocked() bool {
	return slices.ContainsFunc(r.Rows, func(row Row) bool { return !strings.HasPrefix(row.Name, counted) })
}
