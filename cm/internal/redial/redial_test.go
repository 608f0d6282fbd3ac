package redial

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
)

// TestRetry: a full listener is tried again, a rejection that is stale or silent four times in all, and nothing longer than the context.
func TestRetry(t *testing.T) {
	full, final := errors.New(Many), errors.New("go away")
	rejected := func(r rdmacm.Reason, data string) error {
		return fmt.Errorf("dial: %w", &rdmacm.EventError{Type: rdmacm.EventRejected, Status: int32(r), PrivateData: []byte(data)})
	}
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		ctx   context.Context
		err   error
		stays int // attempts that fail
		calls int
	}{
		"at once":         {t.Context(), full, 0, 1},
		"full":            {t.Context(), full, 5, 6},
		"full, too late":  {ended, full, 5, 1},
		"stale":           {t.Context(), rejected(rdmacm.ReasonStaleConn, ""), 2, 3},
		"stale, for ever": {t.Context(), rejected(rdmacm.ReasonStaleConn, ""), 9, 4},
		"stale, too late": {ended, rejected(rdmacm.ReasonStaleConn, ""), 9, 1},
		"silent":          {t.Context(), rejected(rdmacm.ReasonConsumer, "\x00"), 2, 3},
		"with a reason":   {t.Context(), rejected(rdmacm.ReasonConsumer, "no"), 9, 1},
		"nobody there":    {t.Context(), rejected(rdmacm.ReasonInvalidServiceID, ""), 9, 1},
		"final":           {t.Context(), final, 9, 1},
	} {
		calls := 0
		err := Retry(c.ctx, func(err error) bool { return err == full }, func() error {
			if calls++; calls <= c.stays {
				return c.err
			}
			return nil
		})
		if calls != c.calls || (err == nil) != (c.calls > c.stays) || err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: %d calls, %v, want %d calls", name, calls, err, c.calls)
		}
	}
}

// TestRetrySaysWhy: if the context ends during an attempt, the error is the refusal of the one before it.
func TestRetrySaysWhy(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	full, calls := errors.New(ManyWaiting), 0
	err := Retry(ctx, func(err error) bool { return err == full }, func() error {
		if calls++; calls < 3 {
			return full
		}
		cancel()
		return ctx.Err()
	})
	if !errors.Is(err, full) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "; at 3 attempts in ") {
		t.Error(err)
	}
}

// TestWithin: without a deadline an attempt ends after the timeout, as if the host did not answer. A deadline takes its place.
func TestWithin(t *testing.T) {
	wait := func(ctx context.Context) error {
		<-ctx.Done()
		return fmt.Errorf("connect: %w", ctx.Err())
	}
	if err := Within(t.Context(), time.Millisecond, wait); !errors.Is(err, syscall.ETIMEDOUT) || err.Error() != "no answer for 1ms: connection timed out; connect: context deadline exceeded" {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := Within(ctx, time.Hour, wait); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if err := Within(ctx, time.Hour, wait); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
