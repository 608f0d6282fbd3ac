package fault

import "time"

// A Clock tells the time and calls functions later.
type Clock interface {
	Now() time.Time

	// AfterFunc calls f in a goroutine of its own after a duration.
	AfterFunc(d time.Duration, f func()) Timer
}

// A Timer is what [Clock.AfterFunc] returns. A [time.Timer] is one.
type Timer interface {
	// Reset makes the timer call its function after a duration from now.
	Reset(d time.Duration) bool
	Stop() bool
}

// SystemClock is the clock of the operating system.
type SystemClock struct{}

func (SystemClock) Now() time.Time { return time.Now() }

func (SystemClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }
