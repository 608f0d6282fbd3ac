package testenv

import (
	"os"
	"strconv"
	"testing"
)

// Limit fails a benchmark whose ratio is beyond what an environment variable says: more if sign is 1, less
// if it is -1. Limits are for a clock that counts instructions, by which a ratio is the same on a busy
// machine as on a quiet one. Without the variable there is no limit.
func Limit(b *testing.B, variable string, ratio, sign float64) {
	b.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	bound, err := strconv.ParseFloat(text, 64)
	if err != nil || sign*ratio > sign*bound {
		b.Errorf("the ratio is %.3f, which is beyond %s=%s", ratio, variable, text)
	}
}
