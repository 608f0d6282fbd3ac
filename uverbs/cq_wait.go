package uverbs

import "context"

// Wait moves completions into wcs, like [CQ.Poll], but sleeps until there is at least one. It
// polls, arms the CQ, polls again and waits for the event, so no completion is lost. How it waits is
// described at [CompChannel.Wait]. Repeated calls with one context do not allocate.
//
// The CQ must have a channel that no other CQ uses, as [CQOptions.Events] provides. For several CQs
// see [CompChannel.Wait].
//
// Wait returns completions even if ctx has ended. Otherwise it returns ctx.Err() wrapped once the
// context ends. It fails with [os.ErrClosed] after Close of a CQ with CQOptions.Events and after
// [CompChannel.Shutdown], and with EBUSY if another goroutine waits on the channel. Closing a CQ with
// CQOptions.Channel does not wake it.
func (c *CQ) Wait(ctx context.Context, wcs []WC) (int, error) {
	if c.ch != nil && c.ch.waiting.Load() && !c.ch.shared() && !c.closed.Load() {
		return 0, c.ch.errBusy() // the goroutine that waits polls, too
	}
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
