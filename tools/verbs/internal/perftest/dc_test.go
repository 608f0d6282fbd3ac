package perftest

import (
	"errors"
	"slices"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestTargets: a target of DC has no number when records are exchanged for the first time, and is not
// connected to before it has; the number of a queue pair of XRC does not change. With another type the same peer is
// refused, as it has an SRQ, and with DC and XRC a peer without one.
func TestTargets(t *testing.T) {
	r := recordings(t)["send_bw_s64"]
	want := r.records(t, false)
	n := 0
	for i, m := range r.all { // what perftest's server sends with -c DC
		if m.client || len(m.data) != textGIDLen {
			continue
		}
		rec, err := parseText(m.data)
		if err != nil {
			t.Fatal(err)
		}
		rec.SRQN = 5
		if n++; n == 1 {
			rec.QPN = 0
		}
		r.all[i].data = rec.text(true)
	}
	want[0].SRQN = 5
	withoutSRQ := recordings(t)["send_bw_s64"]
	for _, c := range []struct {
		typ     string
		r       recording
		refused error
	}{{"DC", r, nil}, {"RC", r, errSRQ}, {"DC", withoutSRQ, errNoSRQ}, {"XRC", withoutSRQ, errNoSRQ}} {
		r := c.r
		test, _ := r.test(t)
		test.Type = c.typ
		e := &fakeEngine{mine: r.records(t, true), reports: r.reports(true)}
		ours, theirs := pipe(t)
		peer := &replay{r: r, server: true}
		played := make(chan error, 1)
		go func() { played <- peer.serve(theirs) }()
		s := NewSession(ours, false, true)
		s.Test = test
		err := s.Hello(t.Context(), DefaultParams(ib.MTU1024))
		if err == nil {
			_, err = s.Play(t.Context(), e)
		}
		s.Close()
		if c.refused != nil {
			if <-played; !errors.Is(err, c.refused) {
				t.Errorf("on a side with %s: %v, want %v", c.typ, err, c.refused)
			}
			continue
		}
		if err := errors.Join(err, <-played); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(e.remote, want) {
			t.Errorf("connected to %+v, want %+v", e.remote, want)
		}
		if want := []string{"open", "connect", "prepare 64", "run 64"}; !slices.Equal(e.log, want) {
			t.Errorf("the engine got %q, expected %q", e.log, want)
		}
	}
}
