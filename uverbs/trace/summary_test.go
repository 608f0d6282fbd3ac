package trace

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSummary: a call that stands for many doorbells counts as many, and the longest is their average.
func TestSummary(t *testing.T) {
	var s Summary
	if rows := s.Rows(); rows == nil || len(rows) != 0 { // JSON has [] for it
		t.Errorf("rows of nothing: %#v", rows)
	}
	for _, e := range []*Event{
		{Verb: "run", Call: &Call{Call: CallExec, Duration: 9}},
		{Verb: "post send", Method: "POST_SEND", Call: &Call{Call: CallWrite, Duration: 6000, Count: 4}},
		{Verb: "post send", Method: "POST_SEND", Call: &Call{Call: CallWrite, Duration: 1800}},
		{Verb: "post send", Method: "POST_SEND", Call: &Call{Call: CallWrite, Duration: 200, Count: 2, Errno: "ENOMEM"}},
		{Verb: "query QP", Call: &Call{Call: CallIoctl, Duration: 8000, Errno: "EINVAL"}, Unknown: 2},
		{Verb: "close", Call: &Call{Call: CallClose, Duration: 500}, Unknown: 1},
		{Verb: "close", Call: &Call{Call: "doorbells", Duration: 9}},
		{Verb: "exit", Call: &Call{Call: CallExit, Duration: 9}},
	} {
		s.Add(e)
	}
	want := []*SummaryRow{
		{"post send", "POST_SEND", 7, 2, 8000, 1800},
		{"query QP", "", 1, 1, 8000, 8000}, // as much time: by name
		{"close", "", 1, 0, 500, 500},
	}
	if diff := cmp.Diff(want, s.Rows()); diff != "" {
		t.Error(diff)
	}
	if s.Unknown != 3 {
		t.Errorf("%d unknown, want 3", s.Unknown)
	}
	var b strings.Builder
	const table = `  calls  errors   time  longest  command
      7       2    8µs    1.8µs  post send
      1       1    8µs      8µs  query QP
      1       0  500ns    500ns  close
`
	if err := s.Print(&b); err != nil || b.String() != table {
		t.Errorf("%v\n%swant\n%s", err, b.String(), table)
	}
}
