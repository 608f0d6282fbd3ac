package perftest

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// runEngine has a run of its own.
type runEngine struct {
	fakeEngine
	run func(ctx context.Context) error
}

func (e *runEngine) Run(ctx context.Context, _ int) (Report, error) { return Report{}, e.run(ctx) }

// TestHangUp: a peer that hangs up in mid-run ends the run, and says so before its timeout does.
// Messages that came before are not lost, and a run that has ended by then succeeds.
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

// TestTimeout: a peer that goes on when this side has sent and received all is waited for as long as
// Timeout says.
func TestTimeout(t *testing.T) {
	for name, r := range recordings(t) {
		test, cm := r.test(t)
		if test.Op != Send || cm || test.Sweep {
			continue
		}
		t.Run(name, func(t *testing.T) {
			ours, theirs := pipe(t)
			s := NewSession(ours, true, true)
			s.Test, s.Timeout, s.step, s.run = test, 300*time.Millisecond, time.Minute, time.Minute
			end := len(r.all) - 1
			for !r.all[end].client || len(r.all[end].data) < textLen { // its last record, at the end of its run
				end--
			}
			go func() {
				for _, m := range r.all[:end] {
					if m.client {
						theirs.Write(m.data)
					} else {
						io.ReadFull(theirs, make([]byte, len(m.data)))
					}
				}
			}()
			err := s.Hello(t.Context(), DefaultParams(ib.MTU1024))
			if err == nil {
				_, err = s.Play(t.Context(), &fakeEngine{mine: r.records(t, false), reports: r.reports(false)})
			}
			if !errors.Is(err, errSilent) || !strings.Contains(err.Error(), "nothing came for 300ms") {
				t.Errorf("error is %v", err)
			}
		})
	}
}
