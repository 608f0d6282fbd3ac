package uverbs

import (
	"math"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// RegImplicit registers the whole address space of the process, including memory that is mapped
// later (ibv_reg_mr of address NULL and length SIZE_MAX with IBV_ACCESS_ON_DEMAND). The device
// pages memory in on demand, so nothing is pinned. The offset in [MR.SGE] is an address, and
// [MR.Bytes] returns nil.
//
// The error is a [FeatureError] if the device does not support it, as
// IB_UVERBS_ODP_SUPPORT_IMPLICIT in [DeviceAttr].ODPGeneralCaps tells. rxe does not.
//
// Memory of the Go heap must be pinned with a [runtime.Pinner] while the device uses it. Buffers of
// [AllocBuffer] do not move.
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
