package classic

import (
	"context"
	"net/netip"

	"github.com/goverbs/goverbs/cm/rdmacm"
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
		if _, err := e.Comp.Next(ctx); err != nil {
			return wc, err
		}
	}
}

// Next waits for a completion by sleeping, if the end has a completion channel, and otherwise by
// polling.
func (e *End) Next(ctx context.Context) (uverbs.WC, error) {
	if e.Comp != nil {
		return e.Sleep(ctx)
	}
	return e.Poll(ctx)
}

// sleepy is an end of ping-pong that sleeps while there is nothing to do.
func sleepy(size int) Options {
	o := pingpong(size)
	o.Sleeps = true
	return o
}

// SleepServer is a [TermsServer] that sleeps while there is nothing to do.
func SleepServer(ctx context.Context, l *rdmacm.ID, largest int) error {
	return termsServer(ctx, l, largest, sleepy(0))
}

// SleepClient is a [TermsClient] that sleeps while there is nothing to do.
func SleepClient(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, size, count int) (int, error) {
	return termsClient(ctx, c, addr, count, sleepy(size))
}
