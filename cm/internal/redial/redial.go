// Package redial has what the Dial functions of packages cm, rsocket and valkey have in common: how long
// they wait for a host, and which failures pass, so that they try again.
package redial

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
)

// Timeout is how long an attempt takes at most if neither a context nor an option says so.
const Timeout = 10 * time.Second

// Reasons of a listener that has no place, which it sends to the peer. They may pass.
const (
	Many        = "too many connections"
	ManyWaiting = Many + " are waiting to be accepted"
)

// Passes reports whether a reason that a listener has sent may pass.
func Passes(reason string) bool { return strings.HasPrefix(reason, Many) }

// Within calls dial with ctx, or if that has no deadline, with one that ends after timeout.
func Within(ctx context.Context, timeout time.Duration, dial func(context.Context) error) error {
	if _, ok := ctx.Deadline(); ok {
		return dial(ctx)
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := dial(limited)
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, syscall.ECONNREFUSED) && ctx.Err() == nil {
		err = fmt.Errorf("no answer for %v: %w; %w", timeout, syscall.ETIMEDOUT, err)
	}
	return err
}

// longestPause is the longest of the growing pauses between two attempts while the listener has no place.
const longestPause = 250 * time.Millisecond

// Retry calls try until it succeeds, or fails for a reason that does not pass. While the listener has no place, as
// full reports, it tries until ctx ends. After a rejection as stale, or without any reason, it tries up to three
// times more within half a second:
//   - The peer of a host that has crashed still has its connections. When the host counts its QPs from the start
//     again, the peer rejects those that it knows. With the rejection it ends the old connection (cm_match_req),
//     which takes one message and its answer.
//   - A listener gives the place of a request that its peer has not completed to another one. The kernel sends no
//     reason then (cm_destroy_id).
func Retry(ctx context.Context, full func(error) bool, try func() error) error {
	begin := time.Now()
	pause, quick := 10*time.Millisecond, 5*time.Millisecond
	var refused error // why the attempts before this one have failed
	for tries := 1; ; tries++ {
		err := try()
		var next time.Duration
		switch {
		case err == nil:
			return nil
		case full(err):
			next = pause/2 + rand.N(pause) // so that those who were refused at once do not come back at once
			pause = min(2*pause, longestPause)
			refused = err
		case refused != nil && ctx.Err() != nil: // the end of ctx does not say why
			return tried(ctx, refused, tries, begin)
		case passes(err) && quick <= 500*time.Millisecond:
			next, quick = quick, 10*quick
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return tried(ctx, err, tries, begin)
		case <-time.After(next):
		}
	}
}

// tried adds to an error how often it was tried, and why it is not tried again.
func tried(ctx context.Context, err error, tries int, begin time.Time) error {
	return fmt.Errorf("%w; at %d attempts in %v: %w", err, tries, time.Since(begin).Round(time.Millisecond), ctx.Err())
}

// passes reports whether err is a rejection as stale, or without any reason.
func passes(err error) bool {
	e, ok := errors.AsType[*rdmacm.EventError](err)
	if !ok || e.Type != rdmacm.EventRejected {
		return false
	}
	silent := rdmacm.Reason(e.Status) == rdmacm.ReasonConsumer && strings.Trim(string(e.PrivateData), "\x00") == ""
	return silent || rdmacm.Reason(e.Status) == rdmacm.ReasonStaleConn
}
