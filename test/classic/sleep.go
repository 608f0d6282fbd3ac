package classic

import (
	"context"
	"net/netip"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/uverbs"
)

// Sleep waits for a completion without using a processor: it asks the CQ for an event, polls
// once more, as something may have come before that, and sleeps until the event.
func (e *End) Sleep(ctx context.Context) (uverbs.WC, error) {
	for {
		wc, ok, err := e.look()
		if ok || err != nil {
			return wc, err
		}
		if err := e.CQ.Notify(); err != nil {
			return wc, err
		}
		wc, ok, err = e.look()
		if ok || err != nil {
			return wc, err // the event, which comes all the same, makes a later wait short
		}
		if _, err := e.Comp.Wait(ctx); err != nil {
			return wc, err
		}
	}
}

// SleepServer is a [PingpongServer] that sleeps while there is nothing to do.
func SleepServer(ctx context.Context, l *cm.ID, size, count int) error {
	request, err := l.Request(ctx)
	if err != nil {
		return err
	}
	o := pingpong(size)
	o.Sleeps = true
	e, err := Accept(ctx, request, o)
	if err != nil {
		return err
	}
	defer e.Close()
	if err := pong(ctx, e, e.Sleep, count); err != nil {
		return err
	}
	return e.Gone(ctx)
}

// SleepClient is a [PingpongClient] that sleeps while there is nothing to do.
func SleepClient(ctx context.Context, c *cm.Channel, addr netip.AddrPort, size, count int) error {
	o := pingpong(size)
	o.Sleeps = true
	e, _, err := Dial(ctx, c, addr, o)
	if err != nil {
		return err
	}
	defer e.Close()
	if err := ping(ctx, e, e.Sleep, count); err != nil {
		return err
	}
	return e.Hangup(ctx)
}
