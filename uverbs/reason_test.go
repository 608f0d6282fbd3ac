package uverbs

import (
	"errors"
	"strings"
	"testing"
)

// TestReason: an error that matches another says so in its text.
func TestReason(t *testing.T) {
	for _, err := range []error{errABI, errDriver, errPoolClosed, errKind, errAwaitFirstRecv, errSRQ} {
		other := errors.Unwrap(err)
		if other == nil || !errors.Is(err, other) || !strings.Contains(err.Error(), other.Error()) {
			t.Errorf("%q does not mention %q, which it matches", err, other)
		}
	}
}
