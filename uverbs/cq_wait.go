package uverbs

import "context"

// Wait moves completions into wcs, as [CQ.Poll] does, but sleeps until there is at least one. It does
// all that a program needs to lose no completion: it polls, arms the CQ, polls once more and parks the
// goroutine in Go's netpoller. No call allocates, if calls have the same context.
//
// The CQ must have a channel that no other CQ uses, which [CQOptions.Events] makes; for a channel of
// several CQs see [CompChannel.Wait]. As with the other methods, one goroutine at a time may call Wait.
//
// Completions that are there are returned even if ctx has ended. Otherwise Wait returns the error of
// the context, wrapped, once it ends. It fails with [os.ErrClosed] when a CQ with CQOptions.Events is
// closed, and after [CompChannel.Shutdown]; closing a CQ with a channel of the program's does not wake it.
func (c *CQ) Wait(ctx context.Context, wcs []WC) (int, error) {
	for {
		n, err := c.Poll(wcs)
		switch {
		case n > 0 || err != nil:
			return n, err
		case len(wcs) == 0:
			return 0, argErr("Wait", "wcs", "an empty slice", "room for at least one completion")
		case c.ch == nil || c.ch.shared():
			return 0, argErr("Wait", "Channel of the CQ", "nil or shared", "a channel for this CQ alone, see CQOptions.Events")
		case c.armed.Load():
			// The CQ is still armed, or there is an event that nobody has read.
			if _, err := c.ch.Wait(ctx); err != nil {
				return 0, err
			}
		default:
			c.armed.Store(true) // before an event can clear it
			if err := c.Notify(); err != nil {
				c.armed.Store(false)
				return 0, err
			}
		}
	}
}
