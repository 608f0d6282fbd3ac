package uverbs

import (
	"math"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// RegImplicit registers all memory that the process has or will have, at its own addresses
// (ibv_reg_mr of address NULL and length SIZE_MAX with IBV_ACCESS_ON_DEMAND). The device takes
// pages when it needs them, so that nothing is pinned. [MR.SGE] takes addresses as offsets; the
// MR has no [MR.Bytes]. The error is a [FeatureError] if the device cannot, which
// IB_UVERBS_ODP_SUPPORT_IMPLICIT in [DeviceAttr.ODPGeneralCaps] tells; rxe never can.
//
// Memory of the Go heap must be pinned ([runtime.Pinner]) as long as the device uses it; buffers
// of [AllocBuffer] stay where they are.
func (p *PD) RegImplicit(access Access) (*MR, error) {
	const op = "RegImplicit"
	if err := p.usable(); err != nil {
		return nil, err
	}
	access |= AccessOnDemand
	if err := p.dev.checkAccess(op, access, accessPeer|AccessOnDemand|accessWishes); err != nil {
		return nil, err
	}
	if p.dev.attr.ODPGeneralCaps&abi.IB_UVERBS_ODP_SUPPORT_IMPLICIT == 0 {
		return nil, &FeatureError{Feature: "implicit on-demand paging", Driver: p.dev.driver.name()}
	}
	mr := &MR{}
	if err := mr.register(p, &region{access: access, length: math.MaxUint64}); err != nil {
		return nil, err
	}
	return mr, mr.markCreated(mr)
}
