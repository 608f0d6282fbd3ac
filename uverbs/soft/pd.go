package soft

import (
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/soft/internal/engine"
	"github.com/goverbs/goverbs/uverbs/soft/internal/memory"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// pd is a protection domain.
type pd struct {
	object
	num memory.PD
}

// allocPD is ALLOC_PD.
func allocPD(k *call, _ *abi.AllocPD, resp *abi.AllocPDResp) syscall.Errno {
	handle, errno := k.reserve(abi.UVERBS_OBJECT_PD)
	if errno != 0 {
		return errno
	}
	if errno := k.ctx.dev.pools.pds.take(); errno != 0 {
		return errno
	}
	k.create(&pd{num: memory.PD(k.ctx.dev.pds.Add(1))})
	resp.PDHandle = handle
	return 0
}

// destroy implements resource.
func (p *pd) destroy(removal) syscall.Errno {
	p.ctx.dev.pools.pds.give()
	return 0
}

// addressHandle is an address handle, for datagrams.
type addressHandle struct {
	object
	pd  *pd
	num uint32
}

// createAH is CREATE_AH.
func createAH(k *call, req *abi.CreateAH, resp *abi.CreateAHResp) syscall.Errno {
	handle, errno := k.reserve(abi.UVERBS_OBJECT_AH)
	if errno != 0 {
		return errno
	}
	if req.Attr.PortNum != 1 {
		return syscall.EINVAL
	}
	p, errno := get[*pd](k, abi.UVERBS_OBJECT_PD, req.PDHandle)
	if errno != 0 {
		return errno
	}
	grh := &req.Attr.GRH
	av := engine.AV{
		GRH: req.Attr.IsGlobal != 0, DGID: grh.DGID, SGIDIndex: grh.SGIDIndex, FlowLabel: grh.FlowLabel,
		HopLimit: grh.HopLimit, TrafficClass: grh.TrafficClass, Port: req.Attr.PortNum,
	}
	if errno := k.ctx.dev.pools.ahs.take(); errno != 0 {
		return errno
	}
	num, errno := k.ctx.dev.engine.CreateAH(p.num, av)
	if errno != 0 {
		k.ctx.dev.pools.ahs.give()
		return errno
	}
	p.users.Add(1)
	k.create(&addressHandle{pd: p, num: num})
	resp.AHHandle = handle
	if b := ring.AHResponse(num); len(k.drvOut) >= len(b) {
		copy(k.drvOut, b)
	}
	return 0
}

// destroy implements resource.
func (a *addressHandle) destroy(removal) syscall.Errno {
	a.ctx.dev.engine.DestroyAH(a.num)
	a.pd.users.Add(-1)
	a.ctx.dev.pools.ahs.give()
	return 0
}
