package soft

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/fault"
)

// NewViaSocket is New with ViaSocket.
func NewViaSocket(o Options) (*Device, error) {
	o.ViaSocket = true
	return New(o)
}

// A TestClock stands still until Step.
type TestClock struct {
	mu     sync.Mutex
	now    time.Time
	timers []*testTimer
}

// testTimer belongs to a TestClock.
type testTimer struct {
	clock *TestClock
	at    time.Time // zero: stopped
	f     func()
}

// New makes a device with the clock.
func (c *TestClock) New(o Options) (*Device, error) { return newWith(c, o) }

// Now implements [fault.Clock].
func (c *TestClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// AfterFunc implements [fault.Clock].
func (c *TestClock) AfterFunc(d time.Duration, f func()) fault.Timer {
	t := &testTimer{clock: c, f: f}
	c.mu.Lock()
	c.timers = append(c.timers, t)
	c.mu.Unlock()
	t.Reset(d)
	return t
}

// Reset implements [fault.Timer].
func (t *testTimer) Reset(d time.Duration) bool { return t.set(d, true) }

// Stop implements [fault.Timer].
func (t *testTimer) Stop() bool { return t.set(0, false) }

func (t *testTimer) set(d time.Duration, on bool) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	was := !t.at.IsZero()
	t.at = time.Time{}
	if on {
		t.at = t.clock.now.Add(d)
	}
	return was
}

// Step moves the clock to the next timer and runs it in this goroutine. It reports whether there was one.
func (c *TestClock) Step() bool {
	c.mu.Lock()
	set := slices.DeleteFunc(slices.Clone(c.timers), func(t *testTimer) bool { return t.at.IsZero() })
	if len(set) == 0 {
		c.mu.Unlock()
		return false
	}
	first := slices.MinFunc(set, func(a, b *testTimer) int { return a.at.Compare(b.at) })
	c.now, first.at = first.at, time.Time{}
	c.mu.Unlock()
	first.f()
	return true
}

// SetLeftPatience changes how long NewT waits, until the test ends.
func SetLeftPatience(t *testing.T, d time.Duration) {
	before := leftPatience
	leftPatience = d
	t.Cleanup(func() { leftPatience = before })
}
