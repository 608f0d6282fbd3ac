package liveness

import (
	"testing"
	"time"
)

// TestWatch: an answer is owed from the first look that finds it missing, until something completes.
func TestWatch(t *testing.T) {
	const every = time.Second
	var w Watch
	now := time.Unix(1000, 0)
	for i, s := range []struct {
		after time.Duration // since the look before
		owes  bool
		done  uint64
		want  time.Duration
	}{
		{0, false, 0, 0},
		{every, true, 0, 0},
		{every, true, 0, every},
		{every, true, 0, 2 * every},
		{every, true, 1, 0}, // something has completed
		{every, true, 1, 0},
		{every, true, 1, every},
		{20 * every, true, 1, 2 * every}, // the process was stopped, which does not count
		{every, true, 1, 3 * every},
		{every, true, 1, 4 * every},
		{every, false, 1, 0},
		{every, true, 1, 0},
	} {
		now = now.Add(s.after)
		if got := w.Look(now, s.owes, s.done); got != s.want {
			t.Errorf("look %d: owed for %v, want %v", i, got, s.want)
		}
		w.Next(now, every)
	}
}
