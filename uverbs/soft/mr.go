package soft

import (
	"encoding/binary"
	"math"
	"os"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/soft/internal/memory"
)

// accessKnown are the access rights that the kernel knows (IB_ACCESS_SUPPORTED).
const accessKnown = 0x3ff | abi.IB_UVERBS_ACCESS_OPTIONAL_RANGE

// mr is a memory region.
type mr struct {
	object
	pd     *pd // changed by REREG_MR, which locks the object exclusively
	region *memory.MR
}

// pageOffset returns the part of an address below the page.
func pageOffset(addr uint64) uint64 { return addr & uint64(os.Getpagesize()-1) }

// register registers memory for the reserved handle.
func (k *call) register(p *pd, start, length, iova uint64, access uint32) (*mr, syscall.Errno) {
	d := k.ctx.dev
	if errno := d.pools.mrs.take(); errno != 0 {
		return nil, errno
	}
	region, errno := d.memory.RegMR(p.num, start, length, iova, memory.Access(access))
	if errno != 0 {
		d.pools.mrs.give()
		return nil, errno
	}
	m := &mr{pd: p, region: region}
	p.users.Add(1)
	k.create(m)
	return m, 0
}

// regMR is REG_MR of the write() interface.
func regMR(k *call, req *abi.RegMR, resp *abi.RegMRResp) syscall.Errno {
	if pageOffset(req.Start) != pageOffset(req.HCAVA) {
		return syscall.EINVAL
	}
	handle, errno := k.reserve(abi.UVERBS_OBJECT_MR)
	if errno != 0 {
		return errno
	}
	p, errno := get[*pd](k, abi.UVERBS_OBJECT_PD, req.PDHandle)
	if errno != 0 {
		return errno
	}
	m, errno := k.register(p, req.Start, req.Length, req.HCAVA, req.AccessFlags)
	if errno != 0 {
		return errno
	}
	*resp = abi.RegMRResp{MRHandle: handle, LKey: m.region.LKey(), RKey: m.region.RKey()}
	return 0
}

// regMRMethod is REG_MR of the ioctl interface.
func regMRMethod(k *call) syscall.Errno {
	p, errno := attrObject[*pd](k, abi.UVERBS_ATTR_REG_MR_PD_HANDLE)
	if errno != 0 {
		return errno
	}
	start, iova := k.uint(abi.UVERBS_ATTR_REG_MR_ADDR), k.uint(abi.UVERBS_ATTR_REG_MR_IOVA)
	switch {
	case k.has(abi.UVERBS_ATTR_REG_MR_FD): // a dma-buf
		return syscall.EOPNOTSUPP
	case !k.has(abi.UVERBS_ATTR_REG_MR_ADDR) || k.has(abi.UVERBS_ATTR_REG_MR_FD_OFFSET):
		return syscall.EINVAL
	case pageOffset(start) != pageOffset(iova):
		return syscall.EINVAL
	}
	access, errno := k.flags(abi.UVERBS_ATTR_REG_MR_ACCESS_FLAGS, accessKnown)
	if errno != 0 {
		return errno
	}
	m, errno := k.register(p, start, k.uint(abi.UVERBS_ATTR_REG_MR_LENGTH), iova, access)
	if errno != 0 {
		return errno
	}
	k.putUint32(abi.UVERBS_ATTR_REG_MR_RESP_LKEY, m.region.LKey())
	return k.putUint32(abi.UVERBS_ATTR_REG_MR_RESP_RKEY, m.region.RKey())
}

// reregMR is REREG_MR. Like rxe it changes the PD and the rights, but not the memory.
func reregMR(k *call, req *abi.ReregMR, resp *abi.ReregMRResp) syscall.Errno {
	o, errno := k.find(abi.UVERBS_OBJECT_MR, uint64(req.MRHandle))
	if errno != 0 {
		return errno
	}
	if errno := k.ctx.usable(); errno != 0 {
		return errno
	}
	if !o.acquireExclusive() {
		return syscall.EBUSY
	}
	defer o.releaseExclusive()
	m := o.self.(*mr)
	to := m.pd
	if req.Flags&memory.ReregPD != 0 {
		if to, errno = get[*pd](k, abi.UVERBS_OBJECT_PD, req.PDHandle); errno != 0 {
			return errno
		}
	}
	errno = m.region.Rereg(req.Flags, req.Start, req.HCAVA, to.num, memory.Access(req.AccessFlags))
	if errno != 0 {
		return errno
	}
	m.pd.users.Add(-1)
	to.users.Add(1)
	m.pd = to
	*resp = abi.ReregMRResp{LKey: m.region.LKey(), RKey: m.region.RKey()}
	return 0
}

// queryMR is QUERY_MR.
func queryMR(k *call) syscall.Errno {
	m, errno := attrObject[*mr](k, abi.UVERBS_ATTR_QUERY_MR_HANDLE)
	if errno != 0 {
		return errno
	}
	k.putUint32(abi.UVERBS_ATTR_QUERY_MR_RESP_LKEY, m.region.LKey())
	k.putUint32(abi.UVERBS_ATTR_QUERY_MR_RESP_RKEY, m.region.RKey())
	k.putUint64(abi.UVERBS_ATTR_QUERY_MR_RESP_LENGTH, m.region.Length())
	k.putUint64(abi.UVERBS_ATTR_QUERY_MR_RESP_IOVA, m.region.IOVA()) // optional
	return 0
}

// destroy implements resource.
func (m *mr) destroy(removal) syscall.Errno {
	if errno := m.region.Dereg(); errno != 0 {
		return errno
	}
	m.ctx.dev.pools.mrs.give()
	m.pd.users.Add(-1)
	return 0
}

// adviseMR is ADVISE_MR: the memory of parts of regions is paged in.
func adviseMR(k *call) syscall.Errno {
	p, errno := attrObject[*pd](k, abi.UVERBS_ATTR_ADVISE_MR_PD_HANDLE)
	if errno != 0 {
		return errno
	}
	advice, errno := k.constant(abi.UVERBS_ATTR_ADVISE_MR_ADVICE, math.MaxUint32)
	if errno != 0 {
		return errno
	}
	flags, errno := k.flags(abi.UVERBS_ATTR_ADVISE_MR_FLAGS, abi.IB_UVERBS_ADVISE_MR_FLAG_FLUSH)
	if errno != 0 {
		return errno
	}
	list := k.bytes(abi.UVERBS_ATTR_ADVISE_MR_SGE_LIST)
	size := len(kernel.Bytes(new(abi.SGE)))
	if len(list)%size != 0 {
		return syscall.EINVAL
	}
	var ranges []memory.Range
	for ; len(list) > 0; list = list[size:] {
		ranges = append(ranges, memory.Range{
			Addr:   binary.LittleEndian.Uint64(list),
			Length: uint64(binary.LittleEndian.Uint32(list[8:])),
			LKey:   binary.LittleEndian.Uint32(list[12:]),
		})
	}
	return k.ctx.dev.memory.Advise(p.num, uint32(advice), flags, ranges)
}

// mw is a memory window.
type mw struct {
	object
	pd     *pd
	window *memory.MW
}

// allocMW is ALLOC_MW.
func allocMW(k *call, req *abi.AllocMW, resp *abi.AllocMWResp) syscall.Errno {
	handle, errno := k.reserve(abi.UVERBS_OBJECT_MW)
	if errno != 0 {
		return errno
	}
	p, errno := get[*pd](k, abi.UVERBS_OBJECT_PD, req.PDHandle)
	if errno != 0 {
		return errno
	}
	d := k.ctx.dev
	if errno := d.pools.mws.take(); errno != 0 {
		return errno
	}
	window, errno := d.memory.AllocMW(p.num, req.MWType)
	if errno != 0 {
		d.pools.mws.give()
		return errno
	}
	p.users.Add(1)
	k.create(&mw{pd: p, window: window})
	*resp = abi.AllocMWResp{MWHandle: handle, RKey: window.RKey()}
	return 0
}

// destroy implements resource.
func (w *mw) destroy(removal) syscall.Errno {
	w.window.Dealloc()
	w.ctx.dev.pools.mws.give()
	w.pd.users.Add(-1)
	return 0
}
