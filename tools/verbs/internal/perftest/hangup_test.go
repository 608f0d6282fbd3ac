package perftest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// runEngine has a run of its own.
type runEngine struct {
	fakeEngine
	run func(ctx context.Context) error
}

func (e *runEngine) Run(ctx context.Context, _ int) (Report, error) { return Report{}, e.run(ctx) }

// TestHangUp: a peer that hangs up in mid-run ends the run, and says so before its patience does. What
// came before is not lost, and a run that has ended by then is a good one.
func TestHangUp(t *testing.T) {
	errOwn := errors.New("no answer")
	for _, c := range []struct {
		name string
		says string                                         // what the peer says before it hangs up
		run  func(ctx context.Context, hangUp func()) error // of this side
		want []error
	}{
		{"in mid-run", "", func(ctx context.Context, hangUp func()) error {
			hangUp()
			<-ctx.Done()
			return context.Cause(ctx)
		}, []error{errGone}},
		{"after its part", "0123456789", func(ctx context.Context, hangUp func()) error {
			hangUp()
			<-ctx.Done()
			return context.Cause(ctx)
		}, []error{errGone}},
		{"and a message fails", "", func(ctx context.Context, hangUp func()) error {
			hangUp()
			<-ctx.Done()
			return errOwn
		}, []error{errGone, errOwn}},
		{"at the end", "0123456789", func(ctx context.Context, hangUp func()) error {
			hangUp()
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(lastWords / 4): // the last messages are seen
				return nil
			}
		}, nil},
		{"not at all", "0123456789", func(ctx context.Context, _ func()) error { return nil }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			ours, theirs := pipe(t)
			s := NewSession(ours, true, true)
			p := play{s: s, e: &runEngine{run: func(ctx context.Context) error {
				return c.run(ctx, func() {
					if _, err := theirs.Write([]byte(c.says)); err != nil {
						t.Error(err)
					}
					theirs.Close()
				})
			}}}
			_, err := p.run(ctx, 2)
			if (err == nil) != (len(c.want) == 0) {
				t.Fatalf("error is %v, want %v", err, c.want)
			}
			for _, want := range c.want {
				if !errors.Is(err, want) {
					t.Errorf("error is %v, want %v", err, want)
				}
			}
			if c.name == "not at all" {
				if _, err := theirs.Write([]byte(c.says)); err != nil {
					t.Fatal(err)
				}
				theirs.Close()
			}
			for said := c.says; said != ""; said = said[min(len(said), 4):] { // in pieces
				b, err := s.link.read(ctx, min(len(said), 4))
				if err != nil || !strings.HasPrefix(said, string(b)) {
					t.Errorf("%q and %v, want %q", b, err, said)
				}
			}
			if b, err := s.link.read(ctx, 1); !errors.Is(err, errGone) {
				t.Errorf("%q and %v behind it", b, err)
			}
		})
	}
}
