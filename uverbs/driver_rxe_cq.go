package uverbs

import (
	"errors"
	"fmt"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/rxe"
)

func (rxeDriver) prepareResize(*CQ, *int) (udata, bool, error) {
	return udata{out: make([]byte, rxe.ResizeCQRespSize)}, true, nil
}

// remapCQ maps the new ring, to which the kernel has moved the completions. The memory of the old
// ring exists until it is unmapped.
func (rxeDriver) remapCQ(c *CQ, cqe int, u udata) (old *mmio.Region, err error) {
	mi, err := rxe.DecodeResizeCQResp(u.out)
	if err != nil {
		return nil, err
	}
	region, err := c.dev.mapRing(mi)
	if err != nil {
		return nil, err
	}
	ring, err := rxe.NewCompQueue(region.Bytes(), cqe)
	if err != nil {
		return nil, errors.Join(err, region.Close())
	}
	old = c.region
	c.region, c.rxe.ring = region, ring
	c.cqe.Store(uint32(cqe))
	return old, nil
}

// pollRxe is Poll for rxe. It decodes completions in place, because each call counts and a WC made
// elsewhere would be copied.
func (c *CQ) pollRxe(wcs []WC) (int, error) {
	ring := c.rxe.ring
	n, err := ring.Avail()
	if n == 0 && err == nil && c.dev.poller != nil {
		c.dev.poller.Poll()
		n, err = ring.Avail()
	}
	if n = min(n, len(wcs)); n == 0 {
		return 0, c.idle(err)
	}
	done, failed := wcs[:n], WCSuccess
	for i := range done {
		wc := &done[i]
		r := wc.record()
		ring.Entry(i).CopyTo(r)
		wc.Flags &= WCWithGRH | WCWithImm | WCWithInv // the bits are the kernel's
		if wc.Flags&WCWithInv == 0 {
			wc.Imm, wc.InvalidatedRKey = r.Ex.ImmData().Get(), 0
		} else { // both are in the same field
			wc.Imm, wc.InvalidatedRKey = 0, *r.Ex.InvalidateRKey()
		}
		wc.VLAN, wc.FlowTag, wc.Timestamp = 0, 0, 0
		failed |= wc.Status
	}
	if failed != WCSuccess {
		c.failures(done)
	}
	ring.Release(n)
	if c.closed.Load() { // the ring may have been unmapped before it was read
		return 0, c.errClosed()
	}
	return n, nil
}

// idle returns why there was no completion, or nil if there is none yet.
func (c *CQ) idle(err error) error {
	switch {
	case c.closed.Load():
		return c.errClosed()
	case err != nil:
		return fmt.Errorf("%w: %w", ErrCQOverrun, err)
	}
	return nil
}

// armRxe arms the CQ.
func (c *CQ) armRxe(solicited bool) error {
	cmd := &c.rxe.arm[0]
	if solicited {
		cmd = &c.rxe.arm[1]
	}
	if errno := cmd.Issue(false); errno != 0 {
		return c.dev.cmd.fail("REQ_NOTIFY_CQ", errno, "")
	}
	return nil
}
