package objects

import (
	"errors"
	"io"
	"slices"
	"testing"
)

// closer is an object that notes that it was closed.
type closer struct {
	name   string
	err    error
	closed *[]string
}

func (c *closer) Close() error {
	*c.closed = append(*c.closed, c.name)
	return c.err
}

// TestStack: objects are closed last first, also if closing one fails, and once.
func TestStack(t *testing.T) {
	var s Stack
	var closed []string
	busy := errors.New("busy")
	for _, c := range []*closer{{"device", nil, &closed}, {"PD", busy, &closed}} {
		if got := Open(&s, func() (*closer, error) { return c, nil }); got != c {
			t.Errorf("Open returns %v", got)
		}
	}
	s.Keep(&closer{"MR", nil, &closed})
	for _, want := range []error{busy, nil} {
		if err := s.Close(); !errors.Is(err, want) {
			t.Errorf("Close: %v, want %v", err, want)
		}
	}
	if want := []string{"MR", "PD", "device"}; !slices.Equal(closed, want) {
		t.Errorf("closed %q, want %q", closed, want)
	}
}

// TestStackError: after the first error nothing is opened, and what was opened is closed.
func TestStackError(t *testing.T) {
	var s Stack
	var closed []string
	s.Keep(&closer{"device", nil, &closed})
	first := errors.New("out of memory")
	if got := Open(&s, func() (io.Closer, error) { return &closer{"PD", nil, &closed}, first }); got != nil {
		t.Errorf("an object was returned beside an error: %v", got)
	}
	if pd, mr, cq := s.PD(nil), s.MR(nil, 1, 0), s.Channel(nil); pd != nil || mr != nil || cq != nil {
		t.Errorf("opened %v, %v, %v after an error", pd, mr, cq)
	}
	if s.Err() != first {
		t.Errorf("Err: %v, want %v", s.Err(), first)
	}
	if err := s.Close(); err != nil || !slices.Equal(closed, []string{"device"}) {
		t.Errorf("Close: %v, closed %q", err, closed)
	}
}
