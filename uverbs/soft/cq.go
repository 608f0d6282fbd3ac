package soft

import (
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/soft/internal/engine"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// cq is a completion queue.
type cq struct {
	object
	queue *engine.CQ

	channel   *eventFile // nil without completion events
	async     *eventFile // asynchronous events; nil for none
	completed eventCounter
	failed    eventCounter
}

// cqRequest is what CREATE_CQ asks for, in all its forms.
type cqRequest struct {
	entries    uint32
	vector     uint32
	flags      uint32
	userHandle uint64
	channel    *eventFile
	async      *eventFile
}

// createCQ creates a CQ for the reserved handle.
func (k *call) createCQ(r *cqRequest) (*cq, syscall.Errno) {
	d := k.ctx.dev
	switch {
	case len(k.drvOut) < len(ring.CQResponse(ring.Map{})):
		return nil, syscall.EINVAL
	case r.flags != 0:
		return nil, syscall.EOPNOTSUPP
	case r.entries > maxCQE:
		return nil, syscall.EINVAL
	}
	if errno := d.pools.cqs.take(); errno != 0 {
		return nil, errno
	}
	c := &cq{channel: r.channel, async: r.async}
	var errno syscall.Errno
	c.queue, errno = d.engine.CreateCQ(int(r.entries),
		func() { c.channel.completion(r.userHandle, &c.completed) },
		func(typ uint32) { c.async.async(typ, r.userHandle, &c.failed) })
	if errno != 0 {
		d.pools.cqs.give()
		return nil, errno
	}
	k.create(c)
	copy(k.drvOut, ring.CQResponse(k.ctx.maps.add(&d.offsets, c.queue.Ring())))
	return c, 0
}

// entries returns the number of completions that fit.
func (c *cq) entries() uint32 { return uint32(c.queue.Ring().Cap()) }

// createCQMethod is CREATE of the ioctl interface.
func createCQMethod(k *call) syscall.Errno {
	r := &cqRequest{
		entries: uint32(k.uint(abi.UVERBS_ATTR_CREATE_CQ_CQE)), vector: uint32(k.uint(abi.UVERBS_ATTR_CREATE_CQ_COMP_VECTOR)),
		userHandle: k.uint(abi.UVERBS_ATTR_CREATE_CQ_USER_HANDLE),
	}
	if r.entries == 0 {
		return syscall.EINVAL
	}
	var errno syscall.Errno
	if r.flags, errno = k.flags(abi.UVERBS_ATTR_CREATE_CQ_FLAGS, cqFlags); errno != 0 {
		return errno
	}
	if a := k.attr(abi.UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL); a != nil {
		r.channel, _ = k.channel(abi.UVERBS_OBJECT_COMP_CHANNEL, int64(a.Data))
	}
	r.async = k.asyncFile(abi.UVERBS_ATTR_CREATE_CQ_EVENT_FD)
	if r.vector >= uint32(k.ctx.dev.vectors) {
		return syscall.EINVAL
	}
	c, errno := k.createCQ(r)
	if errno != 0 {
		return errno
	}
	return k.putUint32(abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE, c.entries())
}

// cqFlags are the flags of CQs that the kernel knows (enum ib_uverbs_ex_create_cq_flags): time stamps,
// and no notice of overruns.
const cqFlags = 3

// createCQ is CREATE_CQ of the write() interface.
func createCQ(k *call, req *abi.CreateCQ, resp *abi.CreateCQResp) syscall.Errno {
	return legacyCreateCQ(k, &abi.ExCreateCQ{
		UserHandle: req.UserHandle, CQE: req.CQE, CompVector: req.CompVector, CompChannel: req.CompChannel,
	}, resp)
}

// exCreateCQ is the extended CREATE_CQ.
func exCreateCQ(k *call, req *abi.ExCreateCQ, resp *abi.ExCreateCQResp) syscall.Errno {
	if req.CompMask != 0 {
		return syscall.EINVAL
	}
	resp.ResponseLength = responseLength(k, resp)
	return legacyCreateCQ(k, req, &resp.Base)
}

func legacyCreateCQ(k *call, req *abi.ExCreateCQ, resp *abi.CreateCQResp) syscall.Errno {
	if req.CompVector >= uint32(k.ctx.dev.vectors) || req.CQE == 0 {
		return syscall.EINVAL
	}
	handle, errno := k.reserve(abi.UVERBS_OBJECT_CQ)
	if errno != 0 {
		return errno
	}
	r := &cqRequest{entries: req.CQE, vector: req.CompVector, flags: req.Flags, userHandle: req.UserHandle, async: k.ctx.files.first()}
	if req.CompChannel >= 0 {
		if r.channel, errno = k.channel(abi.UVERBS_OBJECT_COMP_CHANNEL, int64(req.CompChannel)); errno != 0 {
			return errno
		}
	}
	c, errno := k.createCQ(r)
	if errno != 0 {
		return errno
	}
	resp.CQHandle, resp.CQE = handle, c.entries()
	return 0
}

// resizeCQ is RESIZE_CQ.
func resizeCQ(k *call, req *abi.ResizeCQ, resp *abi.ResizeCQResp) syscall.Errno {
	if req.CQE == 0 {
		return syscall.EINVAL
	}
	c, errno := get[*cq](k, abi.UVERBS_OBJECT_CQ, req.CQHandle)
	if errno != 0 {
		return errno
	}
	if len(k.drvOut) < len(ring.CQResponse(ring.Map{})) || req.CQE > maxCQE {
		return syscall.EINVAL
	}
	old := c.queue.Ring()
	r, errno := c.queue.Resize(int(req.CQE))
	if errno != 0 {
		return errno
	}
	k.ctx.maps.drop(old)
	copy(k.drvOut, ring.CQResponse(k.ctx.maps.add(&k.ctx.dev.offsets, r)))
	resp.CQE = uint32(r.Cap())
	return 0
}

// reqNotifyCQ is REQ_NOTIFY_CQ.
func reqNotifyCQ(k *call, req *abi.ReqNotifyCQ) syscall.Errno {
	c, errno := get[*cq](k, abi.UVERBS_OBJECT_CQ, req.CQHandle)
	if errno != 0 {
		return errno
	}
	c.queue.Arm(req.SolicitedOnly != 0)
	k.ctx.dev.armed()
	return 0
}

// events returns how many events of a CQ that was destroyed the program has read.
func (c *cq) events() *abi.DestroyCQResp {
	return &abi.DestroyCQResp{CompEventsReported: c.completed.read, AsyncEventsReported: c.failed.read}
}

// destroyCQ is DESTROY of the ioctl interface, after the CQ was destroyed.
func destroyCQ(k *call) syscall.Errno {
	return k.put(abi.UVERBS_ATTR_DESTROY_CQ_RESP, kernel.Bytes(k.victim.self.(*cq).events()))
}

// legacyDestroyCQ is DESTROY_CQ of the write() interface.
func legacyDestroyCQ(k *call, req *abi.DestroyCQ, resp *abi.DestroyCQResp) syscall.Errno {
	o, errno := k.destroyHandle(abi.UVERBS_OBJECT_CQ, req.CQHandle)
	if errno != 0 {
		return errno
	}
	*resp = *o.self.(*cq).events()
	return 0
}

// destroy implements resource.
func (c *cq) destroy(removal) syscall.Errno {
	c.ctx.maps.drop(c.queue.Ring())
	c.queue.Close()
	c.channel.forget(&c.completed)
	c.async.forget(&c.failed)
	c.ctx.dev.pools.cqs.give()
	return 0
}
