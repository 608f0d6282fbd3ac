package protocol

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/internal/limits"
	"github.com/goverbs/goverbs/uverbs"
)

// Field is an option that is a number.
type Field struct {
	Name        string
	Value       *int
	Zero        int // Zero is what 0 stands for.
	Least, Most int
}

// Defaults fills in the defaults of options, and returns an error for the first one that is not valid.
func Defaults(pkg, op string, keepAlive, linger *time.Duration, isolation uint8, fields ...Field) error {
	for _, f := range fields {
		if *f.Value == 0 {
			*f.Value = f.Zero
		}
		if *f.Value < f.Least || *f.Value > f.Most {
			return ArgErr(pkg, op, f.Name, *f.Value, "%d to %d", f.Least, f.Most)
		}
	}
	switch {
	case isolation > 1:
		return ArgErr(pkg, op, "Isolation", IsolationName(isolation), "ConnPD or SharedPD")
	case *linger < 0:
		return ArgErr(pkg, op, "Linger", *linger, "at least 0")
	}
	if *keepAlive == 0 {
		*keepAlive = 15 * time.Second
	}
	if *linger == 0 {
		*linger = 5 * time.Second
	}
	return nil
}

// IsolationName returns the name of a level of isolation.
func IsolationName(i uint8) string {
	if i > 1 {
		return fmt.Sprintf("isolation %d", i)
	}
	return [...]string{"ConnPD", "SharedPD"}[i]
}

// Limits returns the limits of a listener, which may be not valid.
func Limits(pkg string, o limits.Options) (limits.Limits, error) {
	return o.Limits(func(field string, given any, allowed string) error {
		return ArgErr(pkg, "Listen", field, given, "%s", allowed)
	})
}

// ArgErr returns an error for an argument that is not valid.
func ArgErr(pkg, op, field string, given any, allowed string, args ...any) error {
	return &uverbs.ArgError{Package: pkg, Op: op, Field: field, Given: fmt.Sprint(given), Allowed: fmt.Sprintf(allowed, args...)}
}

// Violation returns the error of a peer that violates the protocol.
func Violation(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), syscall.EPROTO)
}

// Pages returns how much memory registrations of these sizes need, in bytes.
func Pages(sizes ...int) (n int64) {
	page := int64(os.Getpagesize())
	for _, size := range sizes {
		n += (int64(size) + page - 1) &^ (page - 1)
	}
	return n
}
