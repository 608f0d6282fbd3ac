package testenv

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
)

// A record is a test that notes what it is told.
type record struct {
	testing.TB
	said []string
}

func (r *record) Helper()           {}
func (r *record) Fatal(args ...any) { r.said = append(r.said, "fatal: "+fmt.Sprint(args...)) }
func (r *record) Errorf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func TestMust(t *testing.T) {
	for _, tt := range []struct {
		name string
		call func(tb testing.TB)
		want []string
	}{
		{"no error", func(tb testing.TB) { Must(tb); Must(tb, nil, nil) }, nil},
		{"an error behind none", func(tb testing.TB) { Must(tb, nil, io.EOF) }, []string{"fatal: EOF"}},
		{"the error", func(tb testing.TB) { ErrorIs(tb, fmt.Errorf("read: %w", io.EOF), io.EOF, "read") }, nil},
		{"another", func(tb testing.TB) { ErrorIs(tb, errors.New("x"), io.EOF, "read of %d", 3) }, []string{"read of 3: x, want EOF"}},
		{"none", func(tb testing.TB) { ErrorIs(tb, nil, io.EOF, "read") }, []string{"read: <nil>, want EOF"}},
	} {
		r := &record{TB: t}
		if tt.call(r); !slices.Equal(r.said, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, r.said, tt.want)
		}
	}
}
