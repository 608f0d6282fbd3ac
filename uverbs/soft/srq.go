package soft

import (
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/soft/internal/engine"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// srq is a shared receive queue.
type srq struct {
	object
	pd    *pd
	queue *engine.SRQ

	async  *eventFile // asynchronous events; nil for none
	events eventCounter
}

// srqRequest is what CREATE_SRQ asks for, in all its forms.
type srqRequest struct {
	pd                   *pd
	typ                  uint32
	maxWR, maxSGE, limit uint32
	userHandle           uint64
	async                *eventFile
}

// createSRQ creates an SRQ for the reserved handle.
func (k *call) createSRQ(r *srqRequest) (*srq, syscall.Errno) {
	d := k.ctx.dev
	switch {
	case len(k.drvOut) < len(ring.SRQResponse(ring.Map{}, 0)):
		return nil, syscall.EINVAL
	case r.typ != abi.IB_UVERBS_SRQT_BASIC:
		return nil, syscall.EOPNOTSUPP
	case r.maxWR == 0 || r.maxWR > maxSRQWR || r.maxSGE > maxSRQSGE:
		return nil, syscall.EINVAL
	}
	if errno := d.pools.srqs.take(); errno != 0 {
		return nil, errno
	}
	s := &srq{pd: r.pd, async: r.async}
	var errno syscall.Errno
	s.queue, errno = d.engine.CreateSRQ(engine.SRQInit{
		PD: r.pd.num, MaxWR: int(r.maxWR), MaxSGE: int(r.maxSGE), Limit: int(r.limit),
		Event: func(typ uint32) { s.async.async(typ, r.userHandle, &s.events) },
	})
	if errno != 0 {
		d.pools.srqs.give()
		return nil, errno
	}
	r.pd.users.Add(1)
	k.create(s)
	copy(k.drvOut, ring.SRQResponse(k.ctx.maps.add(&d.offsets, s.queue.Ring()), s.queue.Num()))
	return s, 0
}

// createSRQMethod is CREATE of the ioctl interface.
func createSRQMethod(k *call) syscall.Errno {
	typ, errno := k.constant(abi.UVERBS_ATTR_CREATE_SRQ_TYPE, 1<<32-1)
	if errno != 0 {
		return errno
	}
	switch typ {
	case abi.IB_UVERBS_SRQT_TM: // it needs a CQ, too
		if _, errno := attrObject[*cq](k, abi.UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE); errno != 0 {
			return errno
		}
		if !k.has(abi.UVERBS_ATTR_CREATE_SRQ_MAX_NUM_TAGS) {
			return syscall.ENOENT
		}
	case abi.IB_UVERBS_SRQT_XRC: // there is no XRC domain to name
		return syscall.ENOENT
	case abi.IB_UVERBS_SRQT_BASIC:
	default:
		return syscall.EINVAL
	}
	p, errno := attrObject[*pd](k, abi.UVERBS_ATTR_CREATE_SRQ_PD_HANDLE)
	if errno != 0 {
		return errno
	}
	s, errno := k.createSRQ(&srqRequest{
		pd: p, typ: uint32(typ), userHandle: k.uint(abi.UVERBS_ATTR_CREATE_SRQ_USER_HANDLE),
		maxWR: uint32(k.uint(abi.UVERBS_ATTR_CREATE_SRQ_MAX_WR)), maxSGE: uint32(k.uint(abi.UVERBS_ATTR_CREATE_SRQ_MAX_SGE)),
		limit: uint32(k.uint(abi.UVERBS_ATTR_CREATE_SRQ_LIMIT)), async: k.asyncFile(abi.UVERBS_ATTR_CREATE_SRQ_EVENT_FD),
	})
	if errno != 0 {
		return errno
	}
	attr := s.queue.Query()
	k.putUint32(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, uint32(attr.MaxWR))
	return k.putUint32(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, uint32(attr.MaxSGE))
}

// createSRQ is CREATE_SRQ of the write() interface.
func createSRQ(k *call, req *abi.CreateSRQ, resp *abi.CreateSRQResp) syscall.Errno {
	return createXSRQ(k, &abi.CreateXSRQ{
		UserHandle: req.UserHandle, SRQType: abi.IB_UVERBS_SRQT_BASIC, PDHandle: req.PDHandle,
		MaxWR: req.MaxWR, MaxSGE: req.MaxSGE, SRQLimit: req.SRQLimit,
	}, resp)
}

// createXSRQ is CREATE_XSRQ of the write() interface.
func createXSRQ(k *call, req *abi.CreateXSRQ, resp *abi.CreateSRQResp) syscall.Errno {
	handle, errno := k.reserve(abi.UVERBS_OBJECT_SRQ)
	if errno != 0 {
		return errno
	}
	switch req.SRQType {
	case abi.IB_UVERBS_SRQT_XRC:
		return syscall.EINVAL // there is no XRC domain
	case abi.IB_UVERBS_SRQT_TM:
		if _, errno := get[*cq](k, abi.UVERBS_OBJECT_CQ, req.CQHandle); errno != 0 {
			return errno
		}
	}
	p, errno := get[*pd](k, abi.UVERBS_OBJECT_PD, req.PDHandle)
	if errno != 0 {
		return errno
	}
	s, errno := k.createSRQ(&srqRequest{
		pd: p, typ: req.SRQType, userHandle: req.UserHandle, maxWR: req.MaxWR, maxSGE: req.MaxSGE, limit: req.SRQLimit,
		async: k.ctx.files.first(),
	})
	if errno != 0 {
		return errno
	}
	attr := s.queue.Query()
	*resp = abi.CreateSRQResp{SRQHandle: handle, MaxWR: uint32(attr.MaxWR), MaxSGE: uint32(attr.MaxSGE)}
	return 0
}

// What MODIFY_SRQ changes (enum ib_srq_attr_mask).
const (
	srqMaxWR = 1
	srqLimit = 2
)

// modifySRQ is MODIFY_SRQ. After a resize, the driver's part of the request has the address in the
// program's memory to which the location of the new ring is written.
func modifySRQ(k *call, req *abi.ModifySRQ) syscall.Errno {
	s, errno := get[*srq](k, abi.UVERBS_OBJECT_SRQ, req.SRQHandle)
	if errno != 0 {
		return errno
	}
	addr, ok := ring.ModifySRQ(k.drvIn)
	if !ok {
		return syscall.EINVAL
	}
	if len(k.drvIn) > 8 && !isZero(k.drvIn[8:]) {
		return syscall.EOPNOTSUPP
	}
	var maxWR, limit *int
	if req.AttrMask&srqMaxWR != 0 {
		n := int(req.MaxWR)
		maxWR = &n
		if errno := store(addr, make([]byte, len(ring.EncodeMap(ring.Map{})))); errno != 0 {
			return errno
		}
	}
	if req.AttrMask&srqLimit != 0 {
		n := int(req.SRQLimit)
		limit = &n
	}
	old := s.queue.Ring()
	r, errno := s.queue.Modify(maxWR, limit)
	if errno != 0 || r == nil {
		return errno
	}
	k.ctx.maps.drop(old)
	return store(addr, ring.EncodeMap(k.ctx.maps.add(&k.ctx.dev.offsets, r)))
}

// querySRQ is QUERY_SRQ.
func querySRQ(k *call, req *abi.QuerySRQ, resp *abi.QuerySRQResp) syscall.Errno {
	s, errno := get[*srq](k, abi.UVERBS_OBJECT_SRQ, req.SRQHandle)
	if errno != 0 {
		return errno
	}
	attr := s.queue.Query()
	*resp = abi.QuerySRQResp{MaxWR: uint32(attr.MaxWR), MaxSGE: uint32(attr.MaxSGE), SRQLimit: uint32(attr.Limit)}
	return 0
}

// destroySRQ is DESTROY of the ioctl interface, after the SRQ was destroyed.
func destroySRQ(k *call) syscall.Errno {
	resp := &abi.DestroySRQResp{EventsReported: k.victim.self.(*srq).events.read}
	return k.put(abi.UVERBS_ATTR_DESTROY_SRQ_RESP, kernel.Bytes(resp))
}

// legacyDestroySRQ is DESTROY_SRQ of the write() interface.
func legacyDestroySRQ(k *call, req *abi.DestroySRQ, resp *abi.DestroySRQResp) syscall.Errno {
	o, errno := k.destroyHandle(abi.UVERBS_OBJECT_SRQ, req.SRQHandle)
	if errno != 0 {
		return errno
	}
	resp.EventsReported = o.self.(*srq).events.read
	return 0
}

// destroy implements resource.
func (s *srq) destroy(removal) syscall.Errno {
	s.ctx.maps.drop(s.queue.Ring())
	s.queue.Close()
	s.async.forget(&s.events)
	s.pd.users.Add(-1)
	s.ctx.dev.pools.srqs.give()
	return 0
}
