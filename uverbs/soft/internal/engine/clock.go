package engine

import "time"

// A Clock tells the time and runs functions later. The zero [Config] uses the system's clock; tests
// use one of their own.
type Clock interface {
	Now() time.Time

	// AfterFunc calls f in a goroutine of its own after a duration.
	AfterFunc(d time.Duration, f func()) Timer
}

// A Timer is what [Clock.AfterFunc] returns. A [time.Timer] is one.
type Timer interface {
	Reset(d time.Duration) bool
	Stop() bool
}

// systemClock is the clock of the operating system.
type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }
