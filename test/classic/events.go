package classic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/cm"
)

// handler is what to do about events, by their type.
type handler map[cm.EventType]func(*cm.Event) error

// handle reads a channel's events, in a goroutine of its own, and deals with each. It ends
// with the context, or with the first event that nobody wants or that fails.
func (h handler) handle(ctx context.Context, c *cm.Channel) error {
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
func (h handler) watch(ctx context.Context, c *cm.Channel) (_ context.Context, stop func() error) {
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

// EventsServer plays ping-pong with a client while a goroutine has the connection manager's
// events. It has the channel for itself.
func EventsServer(ctx context.Context, c *cm.Channel, addr netip.AddrPort, size, count int) (err error) {
	e := &End{}
	connected, gone := make(chan struct{}), make(chan struct{})
	h := handler{
		cm.EventConnectRequest: func(event *cm.Event) error {
			if e.ID != nil {
				return errors.Join(event.ID.Reject(nil, cm.ReasonConsumer), event.ID.Close())
			}
			e.ID = event.ID
			if err := e.Open(pingpong(size)); err != nil {
				return err
			}
			return e.ID.Accept(cm.ConnParam{RNRRetryCount: connTries})
		},
		cm.EventEstablished:  func(*cm.Event) error { close(connected); return nil },
		cm.EventDisconnected: func(*cm.Event) error { close(gone); return e.ID.Disconnect() },
	}
	l, err := Listen(c, cm.TCP, addr)
	if err != nil {
		return err
	}
	ctx, stop := h.watch(ctx, c)
	defer func() {
		err = errors.Join(err, stop(), l.Close())
		if e.ID != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if err := await(ctx, connected); err != nil {
		return err
	}
	if err := pong(ctx, e, e.Poll, count); err != nil {
		return err
	}
	return await(ctx, gone)
}

// EventsClient is the same for a client: an event begins the step that follows it.
func EventsClient(ctx context.Context, c *cm.Channel, addr netip.AddrPort, size, count int) (err error) {
	id, err := c.NewID(cm.TCP)
	if err != nil {
		return err
	}
	e := &End{ID: id}
	connected, gone := make(chan struct{}), make(chan struct{})
	h := handler{
		cm.EventAddrResolved: func(*cm.Event) error { return id.ResolveRoute(time.Second) },
		cm.EventRouteResolved: func(*cm.Event) error {
			if err := e.Open(pingpong(size)); err != nil {
				return err
			}
			return id.Connect(cm.ConnParam{RetryCount: connTries, RNRRetryCount: connTries})
		},
		cm.EventEstablished:  func(*cm.Event) error { close(connected); return nil },
		cm.EventDisconnected: func(*cm.Event) error { close(gone); return nil },
	}
	ctx, stop := h.watch(ctx, c)
	defer func() { err = errors.Join(err, stop(), e.Close()) }()
	if err := id.ResolveAddr(cm.Addr{}, cm.AddrOf(addr), time.Second); err != nil {
		return err
	}
	if err := await(ctx, connected); err != nil {
		return err
	}
	if err := ping(ctx, e, e.Poll, count); err != nil {
		return err
	}
	if err := id.Disconnect(); err != nil {
		return err
	}
	return await(ctx, gone)
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
