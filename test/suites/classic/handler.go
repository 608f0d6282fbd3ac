package classic

import (
	"context"
	"fmt"

	"github.com/goverbs/goverbs/cm/rdmacm"
)

// handler is what to do about events, by their type.
type handler map[rdmacm.EventType]func(*rdmacm.Event) error

// handle reads a channel's events, in a goroutine of its own, and deals with each. It ends
// with the context, or with the first event that nobody wants or that fails.
func (h handler) handle(ctx context.Context, c *rdmacm.Channel) error {
	for {
		event, err := c.Next(ctx)
		if err != nil {
			return err
		}
		if err := event.Err(); err != nil {
			return err
		}
		do := h[event.Type]
		if do == nil {
			return fmt.Errorf("event %s was not to be expected", event.Type)
		}
		if err := do(event); err != nil {
			return fmt.Errorf("event %s: %w", event.Type, err)
		}
	}
}

// watch runs handle until stop is called, which returns what has failed. A failure ends the
// context that is returned.
func (h handler) watch(ctx context.Context, c *rdmacm.Channel) (_ context.Context, stop func() error) {
	ctx, cancel := context.WithCancelCause(ctx)
	enough, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		err := h.handle(enough, c)
		if enough.Err() != nil {
			err = nil
		} else {
			cancel(err)
		}
		done <- err
	}()
	return ctx, func() error {
		end()
		err := <-done
		cancel(nil)
		return err
	}
}

// await waits for a channel to be closed.
func await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
