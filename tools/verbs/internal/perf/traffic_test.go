package perf

import (
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
