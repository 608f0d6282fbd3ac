package perf

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"
)

// TestStride: the next look is after as many steps as take about the time that there shall be between
// two, but not after many more than were seen to.
func TestStride(t *testing.T) {
	for _, c := range []struct {
		n    int
		took time.Duration
		want int
	}{
		{0, math.MaxInt64, 1},
		{1, often, 1},
		{1, often / 2, 2},
		{1, often / 10, 2},
		{1, 10 * often, 1},
		{10, 2 * often, 5},
		{10, often * 10 / 13, 13},
		{100, often / 100, seldom},
		{seldom, often, seldom},
		{seldom, 4 * often, seldom / 4},
		{seldom, math.MaxInt64, 1},
		{7, 0, 14},
		{7, -1, 14},
	} {
		if got := stride(c.n, c.took); got != c.want {
			t.Errorf("after %d steps in %s the next are %d, want %d", c.n, c.took, got, c.want)
		}
	}
}

// TestTurn: a loop that turns again and again tells how many messages it has done, and finds that its context
// has ended, at the latest after so many turns as there are between two looks.
func TestTurn(t *testing.T) {
	for name, step := range map[string]func(*End) error{
		"turn": (*End).turn,
		"idle": func(e *End) error { e.empty += spins - 1; return e.idle(nil, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			e := &End{ctx: ctx}
			turns := func(until func(err error) bool) {
				for range 2 * seldom {
					e.done++
					if until(step(e)) {
						return
					}
				}
				t.Errorf("not after %d turns", 2*seldom)
			}
			for range 3 {
				before := e.done
				turns(func(error) bool { return e.Count() > before })
			}
			over := errors.New("over")
			cancel(over)
			turns(func(err error) bool { return errors.Is(err, over) })
		})
	}
}
