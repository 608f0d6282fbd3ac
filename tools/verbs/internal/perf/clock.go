package perf

import (
	"math"
	"os"
	"runtime"
	"strings"
	"time"
)

// clocksource names the clock that Linux keeps its time by.
const clocksource = "/sys/devices/system/clocksource/clocksource0/current_clocksource"

// counters are the names that Linux has for a clock which is nothing but the counter that cycles reads.
// Where it keeps its own time by that, it has found that the counter goes at one rate, whatever the
// processor does, and is the same on all of them.
var counters = map[string]string{"amd64": "tsc", "arm64": "arch_sys_counter"}

// countable reports whether Linux keeps the time of this machine by the processor's counter.
func countable() bool {
	name, ok := counters[runtime.GOARCH]
	if !ok {
		return false
	}
	b, err := os.ReadFile(clocksource)
	return err == nil && strings.TrimSpace(string(b)) == name
}

// A clock takes the times of a run. Reading the processor's counter takes a handful of instructions,
// and Go's clock more than a hundred, which for messages that take some ten thousand is a percent; so
// Go's is read only before and after, and says what the counts between are worth.
type clock struct {
	base time.Time
	raw  bool // count cycles, not nanoseconds
	made moment
	from time.Duration
}

// A moment is a time and what the counter was then.
type moment struct {
	at    time.Duration
	count int64
}

// newClock makes a clock that counts cycles or not.
func newClock(raw bool) clock {
	c := clock{base: time.Now(), raw: raw}
	if raw {
		c.made = c.moment()
	}
	return c
}

// now returns what the clock counts.
func (c *clock) now() int64 {
	if c.raw {
		return cycles()
	}
	return int64(time.Since(c.base))
}

// moment reads both clocks: of several times the one that took least, as anything may come between.
func (c *clock) moment() (m moment) {
	least := int64(math.MaxInt64)
	for range 5 {
		before := c.now()
		at := time.Since(c.base)
		after := c.now()
		if after-before < least {
			m, least = moment{at, before + (after-before)/2}, after-before
		}
	}
	return m
}

// start begins the time that stop returns. It does nothing else, as a message may be waiting.
func (c *clock) start() { c.from = time.Since(c.base) }

// stop returns how long it is since start, and how many nanoseconds one count is.
func (c *clock) stop() (took time.Duration, ns float64) {
	took = time.Since(c.base) - c.from
	if !c.raw {
		return took, 1
	}
	return took, rate(c.made, c.moment())
}

// rate returns how many nanoseconds a count is between two moments, or 1 if that cannot be.
func rate(a, b moment) float64 {
	if b.count <= a.count || b.at <= a.at {
		return 1
	}
	return float64(b.at-a.at) / float64(b.count-a.count)
}
