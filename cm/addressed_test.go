package cm

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

// TestErrorsNameOnce: errors of Dial and Listen name the package and the address once.
func TestErrorsNameOnce(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{})
	taken := l.Addr().String()
	for what, try := range map[string]func() (address string, want, err error){
		"a port that nobody listens on": func() (address string, want, err error) {
			_, err = Dial(ctx, firstBad, DialOptions{})
			return firstBad, syscall.ECONNREFUSED, err
		},
		"a port that is taken": func() (address string, want, err error) {
			_, err = Listen(ctx, taken, ListenOptions{})
			return taken, syscall.EADDRINUSE, err
		},
	} {
		address, is, err := try()
		if !errors.Is(err, is) || strings.Count(err.Error(), "cm: ") != 1 || strings.Count(err.Error(), address) != 1 {
			t.Errorf("%s: %v, want each once: cm, %s", what, err, address)
		}
	}
}
