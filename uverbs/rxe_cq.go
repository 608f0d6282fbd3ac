package uverbs

import (
	"errors"
	"fmt"

	"github.com/goverbs/goverbs/mmio/rxe"
)

func (rxeDriver) resizeUdata() udata { return udata{out: make([]byte, rxe.ResizeCQRespSize)} }

// remapCQ maps the ring that the kernel has moved the completions to. The old ring's
// memory lives as long as its mapping.
func (rxeDriver) remapCQ(c *CQ, cqe int, u udata) error {
	mi, err := rxe.DecodeResizeCQResp(u.out)
	if err != nil {
		return err
	}
	region, err := c.dev.mapRing(mi)
	if err != nil {
		return err
	}
	ring, err := rxe.NewCompQueue(region.Bytes(), cqe)
	if err != nil {
		return errors.Join(err, region.Close())
	}
	old := c.region
	c.region, c.ring, c.cqe = region, ring, cqe
	if err := old.Close(); err != nil {
		return fmt.Errorf("uverbs: CQ: unmap ring: %w", err)
	}
	return nil
}
