package classic

import (
	"context"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// source has a goroutine call next again and again, and gives what it returns to a Go channel.
// It ends with the context or an error.
func source[T any](ctx context.Context, next func(context.Context) (T, error), failed chan<- error) <-chan T {
	values := make(chan T)
	go func() {
		for {
			v, err := next(ctx)
			if err != nil {
				failed <- err
				return
			}
			select {
			case values <- v:
			case <-ctx.Done():
				failed <- ctx.Err()
				return
			}
		}
	}()
	return values
}

// loop has one goroutine deal with all that happens to an end, the events of its connection
// and the completions of its work requests, as they come: where a C program polls both file
// descriptors, a Go program selects. It returns when the connection has ended.
func (e *End) loop(ctx context.Context, established func() error, completed func(*uverbs.WC) error) error {
	ctx, cancel := context.WithCancel(ctx)
	failed := make(chan error, 2)
	events := source(ctx, e.ID.Next, failed)
	arrivals := source(ctx, e.Comp.Next, failed)
	defer func() {
		cancel() // and wait for both, as the caller closes what they use
		<-failed
		<-failed
	}()
	if err := e.rearm(completed); err != nil {
		return err
	}
	for {
		select {
		case event := <-events:
			if event.Err() != nil || event.Type == rdmacm.EventDisconnected {
				return event.Err()
			}
			if event.Type == rdmacm.EventEstablished {
				if err := established(); err != nil {
					return err
				}
			}
		case <-arrivals:
			if err := e.rearm(completed); err != nil {
				return err
			}
		case err := <-failed:
			failed <- err
			return err
		}
	}
}

// rearm asks for an event of the next completion, and deals with all that there are: only
// then, as what comes in between makes no event.
func (e *End) rearm(completed func(*uverbs.WC) error) error {
	if err := e.CQ.Notify(); err != nil {
		return err
	}
	for {
		wc, ok, err := e.look()
		if wc.Status == uverbs.WCWRFlushErr { // of receives that nothing has come for
			continue
		}
		if err != nil || !ok {
			return err
		}
		if err := completed(&wc); err != nil {
			return err
		}
	}
}
