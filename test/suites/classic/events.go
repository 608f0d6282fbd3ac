package classic

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
)

// EventsServer plays ping-pong as its client wants it, with messages of up to a size, while a
// goroutine has the connection manager's events. It has the channel for itself.
func EventsServer(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, largest int) (err error) {
	e := &End{}
	var t terms // what the client wants
	connected, gone := make(chan struct{}), make(chan struct{})
	h := handler{
		rdmacm.EventConnectRequest: func(event *rdmacm.Event) error {
			wants, err := decodeTerms(event.Param.PrivateData)
			if e.ID != nil || err != nil || !wants.fit(largest) {
				return reject(event, largest)
			}
			e.ID, t = event.ID, wants
			if err := e.Open(pingpong(int(t.size))); err != nil {
				return err
			}
			return e.ID.Accept(rdmacm.ConnParam{RNRRetryCount: connTries})
		},
		rdmacm.EventEstablished:  func(*rdmacm.Event) error { close(connected); return nil },
		rdmacm.EventDisconnected: func(*rdmacm.Event) error { close(gone); return e.ID.Disconnect() },
	}
	l, err := Listen(c, rdmacm.TCP, addr)
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
	if err := pong(ctx, e, e.Poll, int(t.count)); err != nil {
		return err
	}
	return await(ctx, gone)
}

// EventsClient is the same for a client: an event begins the step that follows it.
func EventsClient(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, size, count int) (err error) {
	id, err := c.NewID(rdmacm.TCP)
	if err != nil {
		return err
	}
	e := &End{ID: id}
	connected, gone := make(chan struct{}), make(chan struct{})
	h := handler{
		rdmacm.EventAddrResolved: func(*rdmacm.Event) error { return id.ResolveRoute(time.Second) },
		rdmacm.EventRouteResolved: func(*rdmacm.Event) error {
			if err := e.Open(pingpong(size)); err != nil {
				return err
			}
			wants := terms{uint32(size), uint32(count)}
			return id.Connect(rdmacm.ConnParam{RetryCount: connTries, RNRRetryCount: connTries, PrivateData: wants.encode()})
		},
		rdmacm.EventEstablished:  func(*rdmacm.Event) error { close(connected); return nil },
		rdmacm.EventDisconnected: func(*rdmacm.Event) error { close(gone); return nil },
	}
	ctx, stop := h.watch(ctx, c)
	defer func() { err = errors.Join(err, stop(), e.Close()) }()
	if err := id.ResolveAddr(rdmacm.Addr{}, rdmacm.AddrOf(addr), time.Second); err != nil {
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
