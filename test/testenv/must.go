package testenv

import (
	"errors"
	"testing"
)

// Must fails a test on an error.
func Must(tb testing.TB, errs ...error) {
	tb.Helper()
	for _, err := range errs {
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// ErrorIs reports an error of the test if err is not target. The format and args say what returned err.
func ErrorIs(tb testing.TB, err, target error, format string, args ...any) {
	tb.Helper()
	if !errors.Is(err, target) {
		tb.Errorf(format+": %v, want %v", append(args, err, target)...)
	}
}
