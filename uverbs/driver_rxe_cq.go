package uverbs

import (
	"errors"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/rxe"
)

func (rxeDriver) prepareResize(*CQ, *int) (udata, bool, error) {
	return udata{out: make([]byte, rxe.ResizeCQRespSize)}, true, nil
}

// remapCQ maps the ring that the kernel has moved the completions to. The old ring's
// memory lives as long as its mapping.
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
	c.region, c.rxe.ring, c.cqe = region, ring, cqe
	return old, nil
}
