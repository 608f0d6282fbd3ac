package uverbs

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// CreateQP creates a queue pair in state [ib.QPReset] (ibv_create_qp, ibv_create_qp_ex). [QP.Caps]
// returns the sizes of its queues, which are at least the requested ones. To create a QP of type XRCRecv
// use [XRCD.CreateQP], and for types DCI and DCT package uverbs/mlx5.
func (p *PD) CreateQP(o QPOptions) (*QP, error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	s := &qpSpec{QPOptions: o, pd: p}
	s.Type = orDefault(s.Type, ib.RC)
	if s.hasSendQueue() {
		s.MaxSendWR = orDefault(s.MaxSendWR, defaultQueueSize)
		s.MaxSendSGE = orDefault(s.MaxSendSGE, 1)
	}
	if s.hasRecvQueue() {
		s.MaxRecvWR = orDefault(s.MaxRecvWR, defaultQueueSize)
		s.MaxRecvSGE = orDefault(s.MaxRecvSGE, 1)
	}
	if isDC(s.Type) {
		return nil, argErr("CreateQP", "Type", s.Type, "the other types; use mlx5.CreateDCI and mlx5.CreateDCT for DC")
	}
	if err := s.check(p.dev); err != nil {
		return nil, err
	}
	return newQP(p.dev, s)
}

// CreateQP creates the receiving end of an XRC connection, a QP of type [ib.XRCRecv] (ibv_create_qp_ex
// with IBV_QPT_XRC_RECV). It has no queues and no CQs: a message goes to the SRQ of the domain that
// its sender names.
func (x *XRCD) CreateQP(o XRCRecvOptions) (*QP, error) {
	if err := x.usable(); err != nil {
		return nil, err
	}
	return x.qp(o, 0)
}

// OpenQP opens an existing QP of type [ib.XRCRecv], for example of another process (ibv_open_qp). The
// QP exists until every process that has opened it has closed it.
func (x *XRCD) OpenQP(qpn uint32) (*QP, error) {
	if qpn == 0 || qpn > maxQPN {
		return nil, argErr("OpenQP", "QPN", qpn, "1 to %d", maxQPN)
	}
	q, err := x.qp(XRCRecvOptions{}, qpn)
	if err != nil {
		return nil, err
	}
	attr, err := q.Query() // for its state
	if err != nil {
		return nil, errors.Join(err, q.Close())
	}
	q.port.Store(uint32(attr.Port))
	q.pkey.Store(uint32(attr.PKeyIndex))
	return q, nil
}

func (x *XRCD) qp(o XRCRecvOptions, open uint32) (*QP, error) {
	if err := o.Path.check(x.dev); err != nil {
		return nil, err
	}
	return newQP(x.dev, &qpSpec{QPOptions: QPOptions{Type: ib.XRCRecv, Path: o.Path, OutOfOrder: o.OutOfOrder}, xrcd: x, open: open})
}

// newQP creates or opens a QP with options that were checked.
func newQP(d *Device, s *qpSpec) (*QP, error) {
	qp := &QP{typ: s.Type, sendCQ: s.SendCQ, recvCQ: s.RecvCQ, path: s.Path, srq: s.SRQ}
	if s.hasSendQueue() || s.hasRecvQueue() || s.SRQ != nil {
		qp.kind = d.driver.kind()
	}
	switch {
	case s.SRQ != nil:
		qp.noRecv = errSRQ
	case !s.hasRecvQueue():
		qp.noRecv = ErrNoRecvQueue
	}
	if i := s.Path.GIDIndex; i != nil {
		qp.path.GIDIndex = new(*i) // the caller may change its own
	}
	if s.SignalAll {
		qp.always = SendSignaled
	}
	ops, _ := d.driver.operations(s.Type)
	if d.attr.AtomicCap == ib.AtomicNone && ops[WRCompareSwap] {
		qp.lacking[WRCompareSwap], qp.lacking[WRFetchAdd] = true, true
	}
	d.lackingOps(&qp.lacking)
	for op := range ops {
		qp.lacking[op] = qp.lacking[op] && ops[op]
		ops[op] = ops[op] && !qp.lacking[op]
	}
	qp.setOps(ops)
	qp.state.Store(uint32(ib.QPReset))
	if s.pd != nil {
		qp.pd = s.pd.handle
	}
	var few [6]*object
	if err := qp.addParents(d, "QP", "DESTROY_QP", s.uses(few[:0])...); err != nil {
		return nil, err
	}
	if err := qp.create(s); err != nil {
		qp.removeParents()
		return nil, err
	}
	d.targets.created(qp.cookie, qp)
	return qp, qp.markCreated(qp)
}

// create creates or opens the kernel's QP and maps its rings.
func (q *QP) create(s *qpSpec) (err error) {
	d := q.dev
	q.cookie = d.targets.reserve()
	defer func() {
		if err != nil {
			d.targets.drop(q.cookie)
		}
	}()
	var u udata
	if s.prepare != nil {
		u, err = s.prepare(q, s)
	} else {
		u, err = d.driver.prepareQP(q, s)
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.driver.freeQP(q))
		}
	}()
	errno := syscall.EINVAL
	if s.MaxInline <= maxInline || d.driver.capabilities().inlineLimit {
		errno = q.createKernel(s, u)
	}
	if errno == syscall.EINVAL && s.MaxInline > 0 && !d.driver.capabilities().inlineLimit {
		if limit, ok := q.probeInline(s); ok {
			return argErr("CreateQP", "MaxInline", s.MaxInline, "0 to %d bytes (found by trying)", limit)
		}
	}
	if errno == syscall.EOPNOTSUPP && (s.Type == ib.RawPacket || s.dc != nil) {
		return &FeatureError{Feature: "QP type " + s.Type.String(), Driver: d.driver.name()}
	}
	if errno != 0 {
		return about(d.cmd.fail(s.verb(), errno, d.ringHint(errno, cmp.Or(s.hint(errno), d.fullHint(errno, "QPs", d.attr.MaxQP)), q.sqRegion, q.rqRegion)), "", s.given())
	}
	if err := d.driver.mapQP(q, u); err != nil {
		return errors.Join(err, q.destroyKernel())
	}
	if q.typ == ib.DCT { // dctReady does the rest
		return nil
	}
	var few [2]*CQ
	for _, cq := range q.cqs(few[:0]) {
		cq.qps.Store(q.qpn, q)
	}
	return nil
}

// verb returns the name of the command.
func (s *qpSpec) verb() string {
	if s.open != 0 {
		return "OPEN_QP"
	}
	return "CREATE_QP"
}

// hint explains a refused QP.
func (s *qpSpec) hint(errno syscall.Errno) string {
	switch {
	case errno == syscall.EPERM && s.Type == ib.RawPacket:
		return "a raw packet QP needs CAP_NET_RAW"
	case errno == syscall.EINVAL && s.open != 0:
		return "the domain has no QP of this number"
	case errno == syscall.EINVAL && s.Flags != 0 && s.Type != ib.RawPacket && s.Type != ib.UD:
		return "only raw packet and UD QPs take flags"
	}
	return ""
}

// given lists the requested values, for errors.
func (s *qpSpec) given() string {
	if s.open != 0 {
		return fmt.Sprintf("%s, number %d", s.Type, s.open)
	}
	return fmt.Sprintf("%s, MaxSendWR %d, MaxRecvWR %d, MaxSendSGE %d, MaxRecvSGE %d, MaxInline %d",
		s.Type, s.MaxSendWR, s.MaxRecvWR, s.MaxSendSGE, s.MaxRecvSGE, s.MaxInline)
}

// createKernel creates or opens the kernel's object by ioctl or, if the kernel does not support it,
// by a legacy command.
func (q *QP) createKernel(s *qpSpec, u udata) syscall.Errno {
	if s.open != 0 {
		return q.openLegacy(s, u)
	}
	errno := q.createIoctl(s, u)
	if !q.dev.cmd.older(errno) {
		return errno
	}
	if s.Flags != 0 || s.IndTable != nil {
		return q.createExtended(s, u)
	}
	return q.createLegacy(s, u)
}

// probeInline finds the largest MaxInline that the driver accepts, by creating QPs, because the
// driver does not report it. It reports false if the driver refuses the QP even without inline
// data.
func (q *QP) probeInline(s *qpSpec) (limit int, ok bool) {
	probe := *s
	try := func(n int) bool {
		probe.MaxInline = n
		u, err := q.dev.driver.prepareQP(q, &probe)
		if err != nil || q.createKernel(&probe, u) != 0 {
			return false
		}
		return q.destroyKernel() == nil
	}
	lo, hi := 0, min(s.MaxInline, maxInline+1)
	if !try(lo) {
		return 0, false
	}
	for hi-lo > 1 { // lo is accepted, hi is not
		if mid := (lo + hi) / 2; try(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo, true
}

// createIoctl uses UVERBS_METHOD_QP_CREATE.
func (q *QP) createIoctl(s *qpSpec, u udata) syscall.Errno {
	cmd := newIoctl(abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_CREATE)
	defer cmd.done()
	cmd.Brief = true
	handle := cmd.newObj(abi.UVERBS_ATTR_CREATE_QP_HANDLE)
	if s.xrcd != nil {
		cmd.obj(abi.UVERBS_ATTR_CREATE_QP_XRCD_HANDLE, s.xrcd.handle)
	} else {
		cmd.obj(abi.UVERBS_ATTR_CREATE_QP_PD_HANDLE, s.pd.handle)
	}
	if s.SendCQ != nil {
		cmd.obj(abi.UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, s.SendCQ.handle)
	}
	if s.RecvCQ != nil {
		cmd.obj(abi.UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, s.RecvCQ.handle)
	}
	if s.SRQ != nil {
		cmd.obj(abi.UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, s.SRQ.handle)
	}
	if s.IndTable != nil {
		cmd.obj(abi.UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE, s.IndTable.handle)
	}
	cmd.u64(abi.UVERBS_ATTR_CREATE_QP_TYPE, uint64(kernelQPType(s.Type)))
	cmd.u64(abi.UVERBS_ATTR_CREATE_QP_USER_HANDLE, q.cookie)
	q.dev.eventFDAttr(cmd, abi.UVERBS_ATTR_CREATE_QP_EVENT_FD)
	var mem struct {
		caps, got abi.QPCap
		qpn       [4]byte
	}
	mem.caps = abi.QPCap{
		MaxSendWR:     uint32(s.MaxSendWR),
		MaxRecvWR:     uint32(s.MaxRecvWR),
		MaxSendSGE:    uint32(s.MaxSendSGE),
		MaxRecvSGE:    uint32(s.MaxRecvSGE),
		MaxInlineData: uint32(s.MaxInline),
	}
	cmd.in(abi.UVERBS_ATTR_CREATE_QP_CAP, bytesOf(&mem.caps))
	flags := uint32(s.Flags)
	if s.SignalAll {
		flags |= abi.IB_UVERBS_QP_CREATE_SQ_SIG_ALL
	}
	if flags != 0 {
		cmd.u32(abi.UVERBS_ATTR_CREATE_QP_FLAGS, flags)
	}
	got := &mem.got
	cmd.out(abi.UVERBS_ATTR_CREATE_QP_RESP_CAP, bytesOf(got))
	cmd.out(abi.UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, mem.qpn[:])
	cmd.udata(u)
	errno := q.dev.cmd.ioctl(cmd)
	if errno == 0 {
		q.created(&abi.CreateQPResp{
			QPHandle: uint32(handle.Data), QPN: le32(mem.qpn[:]), MaxSendWR: got.MaxSendWR, MaxRecvWR: got.MaxRecvWR,
			MaxSendSGE: got.MaxSendSGE, MaxRecvSGE: got.MaxRecvSGE, MaxInlineData: got.MaxInlineData,
		})
	}
	return errno
}

// legacyRequest returns the request of CREATE_QP.
func (q *QP) legacyRequest(s *qpSpec) *abi.CreateQP {
	req := &abi.CreateQP{
		UserHandle:    q.cookie,
		MaxSendWR:     uint32(s.MaxSendWR),
		MaxRecvWR:     uint32(s.MaxRecvWR),
		MaxSendSGE:    uint32(s.MaxSendSGE),
		MaxRecvSGE:    uint32(s.MaxRecvSGE),
		MaxInlineData: uint32(s.MaxInline),
		QPType:        kernelQPType(s.Type),
	}
	if s.xrcd != nil {
		req.PDHandle = s.xrcd.handle
	} else {
		req.PDHandle = s.pd.handle
	}
	if s.SendCQ != nil {
		req.SendCQHandle = s.SendCQ.handle
	}
	if s.RecvCQ != nil {
		req.RecvCQHandle = s.RecvCQ.handle
	}
	if s.SRQ != nil {
		req.IsSRQ, req.SRQHandle = 1, s.SRQ.handle
	}
	if s.SignalAll {
		req.SQSigAll = 1
	}
	return req
}

// created stores the response of a command.
func (q *QP) created(r *abi.CreateQPResp) {
	q.handle, q.qpn = r.QPHandle, r.QPN
	q.caps = QPCaps{
		MaxSendWR:  int(r.MaxSendWR),
		MaxRecvWR:  int(r.MaxRecvWR),
		MaxSendSGE: int(r.MaxSendSGE),
		MaxRecvSGE: int(r.MaxRecvSGE),
		MaxInline:  int(r.MaxInlineData),
	}
}

// createLegacy uses IB_USER_VERBS_CMD_CREATE_QP.
func (q *QP) createLegacy(s *qpSpec, u udata) syscall.Errno {
	resp := &abi.CreateQPResp{}
	errno := q.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_CREATE_QP, bytesOf(q.legacyRequest(s)), bytesOf(resp), u)
	if errno == 0 {
		q.created(resp)
	}
	return errno
}

// createExtended uses IB_USER_VERBS_EX_CMD_CREATE_QP.
func (q *QP) createExtended(s *qpSpec, u udata) syscall.Errno {
	r := q.legacyRequest(s)
	req := &abi.ExCreateQP{
		UserHandle:    r.UserHandle,
		PDHandle:      r.PDHandle,
		SendCQHandle:  r.SendCQHandle,
		RecvCQHandle:  r.RecvCQHandle,
		SRQHandle:     r.SRQHandle,
		MaxSendWR:     r.MaxSendWR,
		MaxRecvWR:     r.MaxRecvWR,
		MaxSendSGE:    r.MaxSendSGE,
		MaxRecvSGE:    r.MaxRecvSGE,
		MaxInlineData: r.MaxInlineData,
		SQSigAll:      r.SQSigAll,
		QPType:        r.QPType,
		IsSRQ:         r.IsSRQ,
		CreateFlags:   uint32(s.Flags),
	}
	if s.IndTable != nil {
		req.CompMask, req.RWQIndTblHandle = abi.IB_UVERBS_CREATE_QP_MASK_IND_TABLE, s.IndTable.handle
	}
	resp := &abi.ExCreateQPResp{}
	errno := q.dev.cmd.legacy(exCommand|abi.IB_USER_VERBS_EX_CMD_CREATE_QP, bytesOf(req), bytesOf(resp), u)
	if errno == 0 {
		q.created(&resp.Base)
	}
	return errno
}

// openLegacy uses IB_USER_VERBS_CMD_OPEN_QP, for which there is no ioctl.
func (q *QP) openLegacy(s *qpSpec, u udata) syscall.Errno {
	req := &abi.OpenQP{UserHandle: q.cookie, PDHandle: s.xrcd.handle, QPN: s.open, QPType: uint8(s.Type)}
	resp := &abi.CreateQPResp{}
	errno := q.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_OPEN_QP, bytesOf(req), bytesOf(resp), u)
	if errno == 0 {
		q.created(resp)
	}
	return errno
}

// kernelQPType returns the kernel's number of a type.
func kernelQPType(t ib.QPType) uint8 {
	if isDC(t) || t == ib.SRD {
		return abi.IB_UVERBS_QPT_DRIVER
	}
	return uint8(t)
}
