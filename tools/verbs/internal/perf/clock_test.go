package perf

import (
	"testing"
	"time"
)

// TestClock: what the clock counts is worth what it says, whichever way it counts.
func TestClock(t *testing.T) {
	ways := map[string]bool{"Go's": false}
	if countable() {
		ways["the processor's"] = true
	}
	for name, raw := range ways {
		t.Run(name, func(t *testing.T) {
			c := newClock(raw)
			outside := time.Now()
			c.start()
			first := c.now()
			inside := time.Now()
			time.Sleep(50 * time.Millisecond)
			least := time.Since(inside)
			last := c.now()
			took, ns := c.stop()
			most := time.Since(outside)
			// The rate is of readings that were not interrupted, or little.
			got := time.Duration(float64(last-first) * ns)
			if got < least*99/100 || got > most*101/100 || took < least || took > most {
				t.Errorf("%d counts of %g ns are %s of %s, want from %s to %s", last-first, ns, got, took, least, most)
			}
		})
	}
}

func TestClockRate(t *testing.T) {
	for _, c := range []struct {
		a, b moment
		want float64
	}{
		{moment{100, 1000}, moment{300, 1400}, 0.5},
		{moment{100, 1000}, moment{300, 1000}, 1}, // a counter that stands, or goes back
		{moment{100, 1000}, moment{300, 900}, 1},
		{moment{100, 1000}, moment{100, 1100}, 1},
	} {
		if got := rate(c.a, c.b); got != c.want {
			t.Errorf("rate(%v, %v) = %g, want %g", c.a, c.b, got, c.want)
		}
	}
}
