package soft

import (
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/soft/internal/engine"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// qp is a queue pair.
type qp struct {
	object
	pd             *pd
	sendCQ, recvCQ *cq
	srq            *srq // nil without
	typ            engine.QPType
	sigAll         bool
	queues         *engine.QP
	groups         groups

	async  *eventFile // asynchronous events; nil for none
	events eventCounter
}

// qpRequest is what CREATE_QP asks for, in all its forms.
type qpRequest struct {
	pd             *pd
	sendCQ, recvCQ *cq
	srq            *srq
	typ            uint32
	caps           abi.QPCap
	sigAll         bool
	flags          uint32
	userHandle     uint64
	async          *eventFile
}

// createQP creates a QP for the reserved handle. It sets the capabilities to those that the QP has.
func (k *call) createQP(r *qpRequest) (*qp, syscall.Errno) {
	d := k.ctx.dev
	switch {
	case len(k.drvIn) > 0 || len(k.drvOut) < len(ring.QPResponse(ring.Map{}, ring.Map{})):
		return nil, syscall.EINVAL
	case r.flags != 0:
		return nil, syscall.EOPNOTSUPP
	}
	switch r.typ {
	case abi.IB_UVERBS_QPT_RC, abi.IB_UVERBS_QPT_UC, abi.IB_UVERBS_QPT_UD:
	default:
		return nil, syscall.EOPNOTSUPP
	}
	if r.sendCQ == nil || r.recvCQ == nil {
		return nil, syscall.EINVAL
	}
	if errno := d.pools.qps.take(); errno != 0 {
		return nil, errno
	}
	q := &qp{
		pd: r.pd, sendCQ: r.sendCQ, recvCQ: r.recvCQ, srq: r.srq, typ: engine.QPType(r.typ), sigAll: r.sigAll, async: r.async,
	}
	init := engine.QPInit{
		Type: q.typ, PD: r.pd.num, SendCQ: r.sendCQ.queue, RecvCQ: r.recvCQ.queue, SigAll: r.sigAll,
		Caps: engine.Caps{
			MaxSendWR: int(r.caps.MaxSendWR), MaxRecvWR: int(r.caps.MaxRecvWR),
			MaxSendSGE: int(r.caps.MaxSendSGE), MaxRecvSGE: int(r.caps.MaxRecvSGE), MaxInline: int(r.caps.MaxInlineData),
		},
		Event: func(typ uint32) { q.async.async(typ, r.userHandle, &q.events) },
	}
	if r.srq != nil {
		init.SRQ = r.srq.queue
	}
	var errno syscall.Errno
	if q.queues, errno = d.engine.CreateQP(init); errno != 0 {
		d.pools.qps.give()
		return nil, errno
	}
	q.use(1)
	k.create(q)
	maps := &k.ctx.maps
	copy(k.drvOut, ring.QPResponse(maps.add(&d.offsets, q.queues.RecvRing()), maps.add(&d.offsets, q.queues.SendRing())))
	q.grant(&r.caps)
	return q, 0
}

// use adds to the numbers of users of the objects that the QP refers to.
func (q *qp) use(n int32) {
	q.pd.users.Add(n)
	q.sendCQ.users.Add(n)
	q.recvCQ.users.Add(n)
	if q.srq != nil {
		q.srq.users.Add(n)
	}
}

// grant sets capabilities to those of the QP. With an SRQ, those of receives stay what they are.
func (q *qp) grant(c *abi.QPCap) {
	caps := q.queues.Caps()
	c.MaxSendWR, c.MaxSendSGE, c.MaxInlineData = uint32(caps.MaxSendWR), uint32(caps.MaxSendSGE), uint32(caps.MaxInline)
	if q.srq == nil {
		c.MaxRecvWR, c.MaxRecvSGE = uint32(caps.MaxRecvWR), uint32(caps.MaxRecvSGE)
	}
}

// Flags of CREATE of the ioctl interface, and the types of QPs that may have any but SQ_SIG_ALL.
const (
	qpFlags = abi.IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK | abi.IB_UVERBS_QP_CREATE_SCATTER_FCS |
		abi.IB_UVERBS_QP_CREATE_CVLAN_STRIPPING | abi.IB_UVERBS_QP_CREATE_PCI_WRITE_END_PADDING | abi.IB_UVERBS_QP_CREATE_SQ_SIG_ALL
	qpFlagsRaw = abi.IB_UVERBS_QP_CREATE_SCATTER_FCS | abi.IB_UVERBS_QP_CREATE_CVLAN_STRIPPING

	// qpSourceQPN says that the request names a source QPN (IB_QP_CREATE_SOURCE_QPN).
	qpSourceQPN = 1 << 10
)

// createQPMethod is CREATE of the ioctl interface.
func createQPMethod(k *call) syscall.Errno {
	r := &qpRequest{userHandle: k.uint(abi.UVERBS_ATTR_CREATE_QP_USER_HANDLE)}
	copy(kernel.Bytes(&r.caps), k.bytes(abi.UVERBS_ATTR_CREATE_QP_CAP))
	typ, errno := k.constant(abi.UVERBS_ATTR_CREATE_QP_TYPE, 1<<32-1)
	if errno != 0 {
		return errno
	}
	r.typ = uint32(typ)
	if errno := k.qpObjects(r); errno != 0 {
		return errno
	}
	flags, errno := k.flags(abi.UVERBS_ATTR_CREATE_QP_FLAGS, qpFlags)
	if errno != 0 {
		return errno
	}
	r.sigAll, r.flags = flags&abi.IB_UVERBS_QP_CREATE_SQ_SIG_ALL != 0, flags&^abi.IB_UVERBS_QP_CREATE_SQ_SIG_ALL
	if errno := checkQPFlags(r.typ, r.flags); errno != 0 {
		return errno
	}
	if k.has(abi.UVERBS_ATTR_CREATE_QP_SOURCE_QPN) {
		r.flags |= qpSourceQPN
	}
	r.srq, _ = attrObject[*srq](k, abi.UVERBS_ATTR_CREATE_QP_SRQ_HANDLE)
	r.async = k.asyncFile(abi.UVERBS_ATTR_CREATE_QP_EVENT_FD)
	q, errno := k.createQP(r)
	if errno != 0 {
		return errno
	}
	k.putStruct(abi.UVERBS_ATTR_CREATE_QP_RESP_CAP, kernel.Bytes(&r.caps))
	return k.putUint32(abi.UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, q.queues.Num())
}

// qpObjects collects the objects of a QP of the ioctl interface.
func (k *call) qpObjects(r *qpRequest) (errno syscall.Errno) {
	switch r.typ {
	case abi.IB_UVERBS_QPT_XRC_TGT: // there is no XRC domain to name
		return syscall.ENOENT
	case abi.IB_UVERBS_QPT_RC, abi.IB_UVERBS_QPT_UC, abi.IB_UVERBS_QPT_UD, abi.IB_UVERBS_QPT_RAW_PACKET, abi.IB_UVERBS_QPT_DRIVER:
	case abi.IB_UVERBS_QPT_XRC_INI:
		if k.has(abi.UVERBS_ATTR_CREATE_QP_SRQ_HANDLE) {
			return syscall.EINVAL
		}
	default:
		return syscall.EINVAL
	}
	if r.pd, errno = attrObject[*pd](k, abi.UVERBS_ATTR_CREATE_QP_PD_HANDLE); errno != 0 {
		return errno
	}
	if r.sendCQ, errno = attrCQ(k, abi.UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE); errno != 0 {
		return errno
	}
	if r.typ != abi.IB_UVERBS_QPT_XRC_INI {
		r.recvCQ, errno = attrCQ(k, abi.UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE)
	}
	return errno
}

// attrCQ returns the CQ of an attribute.
func attrCQ(k *call, id uint16) (*cq, syscall.Errno) { return attrObject[*cq](k, id) }

// checkQPFlags checks the flags that a type of QP may have (check_creation_flags).
func checkQPFlags(typ, flags uint32) syscall.Errno {
	switch {
	case flags == 0 || typ == abi.IB_UVERBS_QPT_DRIVER || typ == abi.IB_UVERBS_QPT_RAW_PACKET:
	case typ != abi.IB_UVERBS_QPT_UD || flags&qpFlagsRaw != 0:
		return syscall.EINVAL
	}
	return 0
}

// createQP is CREATE_QP of the write() interface.
func createQP(k *call, req *abi.CreateQP, resp *abi.CreateQPResp) syscall.Errno {
	return legacyCreateQP(k, &abi.ExCreateQP{
		UserHandle: req.UserHandle, PDHandle: req.PDHandle, SendCQHandle: req.SendCQHandle, RecvCQHandle: req.RecvCQHandle,
		SRQHandle: req.SRQHandle, MaxSendWR: req.MaxSendWR, MaxRecvWR: req.MaxRecvWR, MaxSendSGE: req.MaxSendSGE,
		MaxRecvSGE: req.MaxRecvSGE, MaxInlineData: req.MaxInlineData, SQSigAll: req.SQSigAll, QPType: req.QPType, IsSRQ: req.IsSRQ,
	}, resp)
}

// Parts of the extended CREATE_QP (IB_UVERBS_CREATE_QP_MASK_IND_TABLE), and the flags that the kernel
// knows in it.
const (
	qpIndTable = 1
	exQPFlags  = 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<8 | 1<<9 | qpSourceQPN | 1<<11
)

// exCreateQP is the extended CREATE_QP.
func exCreateQP(k *call, req *abi.ExCreateQP, resp *abi.ExCreateQPResp) syscall.Errno {
	if req.CompMask&^qpIndTable != 0 {
		return syscall.EINVAL
	}
	resp.ResponseLength = responseLength(k, resp)
	return legacyCreateQP(k, req, &resp.Base)
}

// legacyCreateQP is CREATE_QP of the write() interface in both forms.
func legacyCreateQP(k *call, req *abi.ExCreateQP, resp *abi.CreateQPResp) syscall.Errno {
	switch uint32(req.QPType) {
	case abi.IB_UVERBS_QPT_RC, abi.IB_UVERBS_QPT_UC, abi.IB_UVERBS_QPT_UD, abi.IB_UVERBS_QPT_RAW_PACKET,
		abi.IB_UVERBS_QPT_XRC_INI, abi.IB_UVERBS_QPT_XRC_TGT, abi.IB_UVERBS_QPT_DRIVER:
	default:
		return syscall.EINVAL
	}
	handle, errno := k.reserve(abi.UVERBS_OBJECT_QP)
	if errno != 0 {
		return errno
	}
	if req.CompMask&qpIndTable != 0 {
		return syscall.EINVAL // there are no such tables
	}
	r := &qpRequest{
		typ: uint32(req.QPType), sigAll: req.SQSigAll != 0, flags: req.CreateFlags, userHandle: req.UserHandle, async: k.ctx.files.first(),
		caps: abi.QPCap{
			MaxSendWR: req.MaxSendWR, MaxRecvWR: req.MaxRecvWR, MaxSendSGE: req.MaxSendSGE,
			MaxRecvSGE: req.MaxRecvSGE, MaxInlineData: req.MaxInlineData,
		},
	}
	if errno := k.legacyQPObjects(r, req); errno != 0 {
		return errno
	}
	if r.flags&^exQPFlags != 0 {
		return syscall.EINVAL
	}
	q, errno := k.createQP(r)
	if errno != 0 {
		return errno
	}
	*resp = abi.CreateQPResp{
		QPHandle: handle, QPN: q.queues.Num(), MaxSendWR: r.caps.MaxSendWR, MaxRecvWR: r.caps.MaxRecvWR,
		MaxSendSGE: r.caps.MaxSendSGE, MaxRecvSGE: r.caps.MaxRecvSGE, MaxInlineData: r.caps.MaxInlineData,
	}
	return 0
}

// legacyQPObjects looks up the objects of a QP of the write() interface.
func (k *call) legacyQPObjects(r *qpRequest, req *abi.ExCreateQP) (errno syscall.Errno) {
	if r.typ == abi.IB_UVERBS_QPT_XRC_TGT { // there is no XRC domain
		return syscall.EINVAL
	}
	connected := r.typ != abi.IB_UVERBS_QPT_XRC_INI
	if connected && req.IsSRQ != 0 {
		if r.srq, errno = get[*srq](k, abi.UVERBS_OBJECT_SRQ, req.SRQHandle); errno != 0 {
			return errno
		}
	}
	if connected && req.RecvCQHandle != req.SendCQHandle {
		if r.recvCQ, errno = get[*cq](k, abi.UVERBS_OBJECT_CQ, req.RecvCQHandle); errno != 0 {
			return errno
		}
	}
	if r.sendCQ, errno = get[*cq](k, abi.UVERBS_OBJECT_CQ, req.SendCQHandle); errno != 0 {
		return errno
	}
	if connected && r.recvCQ == nil {
		r.recvCQ = r.sendCQ
	}
	r.pd, errno = get[*pd](k, abi.UVERBS_OBJECT_PD, req.PDHandle)
	return errno
}

// destroyQP is DESTROY of the ioctl interface, after the QP was destroyed.
func destroyQP(k *call) syscall.Errno {
	resp := &abi.DestroyQPResp{EventsReported: k.victim.self.(*qp).events.read}
	return k.put(abi.UVERBS_ATTR_DESTROY_QP_RESP, kernel.Bytes(resp))
}

// legacyDestroyQP is DESTROY_QP of the write() interface.
func legacyDestroyQP(k *call, req *abi.DestroyQP, resp *abi.DestroyQPResp) syscall.Errno {
	o, errno := k.destroyHandle(abi.UVERBS_OBJECT_QP, req.QPHandle)
	if errno != 0 {
		return errno
	}
	resp.EventsReported = o.self.(*qp).events.read
	return 0
}

// destroy implements resource. The program must take the QP out of its multicast groups before.
func (q *qp) destroy(why removal) syscall.Errno {
	if why == byCommand && q.groups.any() {
		return syscall.EBUSY
	}
	q.groups.leaveAll(q)
	if errno := q.queues.Close(); errno != 0 {
		return errno
	}
	q.async.forget(&q.events)
	q.ctx.maps.drop(q.queues.SendRing(), q.queues.RecvRing())
	q.use(-1)
	q.ctx.dev.pools.qps.give()
	return 0
}
