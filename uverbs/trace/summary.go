package trace

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Summary adds up events by what they do.
type Summary struct {
	rows    map[string]*SummaryRow
	Unknown int // Unknown counts what the kernel's headers do not name.
}

// SummaryRow is what there is to say of a command.
type SummaryRow struct {
	Verb    string `json:"verb"`             // Verb says what the calls do.
	Method  string `json:"method,omitempty"` // Method is the C name of the command.
	Calls   int    `json:"calls"`            // Calls is the number of calls.
	Errors  int    `json:"errors"`           // Errors is the number of calls that failed.
	Time    int64  `json:"time_ns"`          // in all calls
	Longest int64  `json:"longest_ns"`       // Longest is the longest of them, in nanoseconds.
}

// Add adds an event.
func (s *Summary) Add(e *Event) {
	s.Unknown += e.Unknown
	switch e.Call.Call {
	case CallExec, CallExit, "doorbells":
		return
	}
	if s.rows == nil {
		s.rows = map[string]*SummaryRow{}
	}
	r := s.rows[e.Verb]
	if r == nil {
		r = &SummaryRow{Verb: e.Verb, Method: e.Method}
		s.rows[e.Verb] = r
	}
	n := max(1, e.Call.Count)
	r.Calls += n
	if e.Call.Errno != "" {
		r.Errors += n
	}
	r.Time += e.Call.Duration
	r.Longest = max(r.Longest, e.Call.Duration/int64(n))
}

// Rows returns the rows, that with the most time first.
func (s *Summary) Rows() []*SummaryRow {
	all := []*SummaryRow{}
	for _, r := range s.rows {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *SummaryRow) int { return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(a.Verb, b.Verb)) })
	return all
}

// Print prints a table.
func (s *Summary) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "calls\terrors\ttime\tlongest\t\tcommand")
	for _, r := range s.Rows() {
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t\t%s\n", r.Calls, r.Errors, duration(r.Time), duration(r.Longest), printable(r.Verb))
	}
	return t.Flush()
}
