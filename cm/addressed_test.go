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
	for what, try := range map[string]func() (error, error, string){
		"a port that nobody listens on": func() (error, error, string) {
			_, err := Dial(ctx, firstBad, DialOptions{})
			return err, syscall.ECONNREFUSED, firstBad
		},
		"a port that is taken": func() (error, error, string) {
			_, err := Listen(ctx, taken, ListenOptions{})
			return err, syscall.EADDRINUSE, taken
		},
	} {
		err, is, address := try()
		if !errors.Is(err, is) || strings.Count(err.Error(), "cm: ") != 1 || strings.Count(err.Error(), address) != 1 {
			t.Errorf("%s: %v, want each once: cm, %s", what, err, address)
		}
	}
}
