package ucm

import (
	"math"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/internal/ibcm"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Times of the protocol.
const (
	responseTimeout = 20 // of both sides, as a power of two times 4.096 µs (CMA_CM_RESPONSE_TIMEOUT)
	maxRetries      = 15 // CMA_MAX_CM_RETRIES
	sidrTimeout     = (1 << (responseTimeout - 8)) * time.Millisecond
)

// maxRetryCount is the greatest retry count of a QP.
const maxRetryCount = 7

// Sizes of requests without the options for enhanced connections, which older programs do not send.
const (
	connectMin = 288 - 8
	acceptMin  = 296 - 8
)

// load copies a request of which older programs send only min bytes.
func load[T any](in []byte, min int) (t T, ok bool) {
	if len(in) < min {
		return t, false
	}
	copy(bytesOf(&t), in)
	return t, true
}

// setECE keeps the options for enhanced connections.
func (x *id) setECE(e abi.Ece) { x.ece = ibcm.ECE{VendorID: e.VendorID, Options: e.AttrMod} }

// setQP keeps the QP of the program.
func (x *id) setQP(p *abi.ConnParam) { x.qpn, x.srq = p.QPNum&0xffffff, p.SRQ != 0 }

// private returns the private data of a request, behind n bytes of space.
func private(p *abi.ConnParam, n int) []byte {
	b := make([]byte, n, n+int(p.PrivateDataLen))
	return append(b, p.PrivateData[:p.PrivateDataLen]...)
}

func (f *File) connect(in, _ []byte) syscall.Errno {
	req, ok := load[abi.Connect](in, connectMin)
	if !ok || req.ConnParam.Valid == 0 {
		return syscall.EINVAL
	}
	x, errno := f.findBound(req.ID)
	if errno != 0 {
		return errno
	}
	p := &req.ConnParam
	x.setECE(req.Ece)
	if x.state != stateRouteResolved {
		return syscall.EINVAL
	}
	x.setQP(p)
	if int(p.PrivateDataLen)+headerSize > math.MaxUint8 {
		return syscall.EINVAL
	}
	data := private(p, headerSize)
	x.putHeader(data)
	cm := x.dev.cm.NewID(x.cmEvent)
	if x.qpType == ib.UD {
		errno = cm.SendSIDRREQ(&ibcm.SIDRRequest{
			Path: cmPath(x.path), Service: serviceID(x.space, &x.dst), Timeout: sidrTimeout, MaxRetries: maxRetries, Private: data,
		})
	} else {
		errno = cm.SendREQ(x.request(p, data))
	}
	if errno != 0 {
		cm.Destroy()
		return errno
	}
	x.cm, x.state = cm, stateConnect
	return 0
}

// request returns the parameters of the request for a connection.
func (x *id) request(p *abi.ConnParam, data []byte) *ibcm.Request {
	return &ibcm.Request{
		Path:               cmPath(x.path),
		Service:            serviceID(x.space, &x.dst),
		QPType:             x.qpType,
		QPN:                x.qpn,
		PSN:                x.psn,
		ResponderResources: p.ResponderResources,
		InitiatorDepth:     p.InitiatorDepth,
		FlowControl:        p.FlowControl != 0,
		RetryCount:         min(p.RetryCount, maxRetryCount),
		RNRRetryCount:      min(p.RNRRetryCount, maxRetryCount),
		RemoteTimeout:      responseTimeout,
		LocalTimeout:       responseTimeout,
		MaxRetries:         maxRetries,
		SRQ:                x.srq,
		ECE:                x.ece,
		Private:            data,
	}
}

func (f *File) accept(in, _ []byte) syscall.Errno {
	req, ok := load[abi.Accept](in, acceptMin)
	if !ok {
		return syscall.EINVAL
	}
	x, errno := f.findBound(req.ID)
	if errno != 0 {
		return errno
	}
	x.setECE(req.Ece)
	if x.state != stateConnect {
		return syscall.EINVAL
	}
	p := &req.ConnParam
	valid := p.Valid != 0
	if valid {
		x.setQP(p)
	}
	switch {
	case x.qpType == ib.UD && !valid:
		errno = x.sendSIDR(ibcm.SIDRSuccess, nil)
	case x.qpType == ib.UD:
		errno = x.sendSIDR(ibcm.SIDRSuccess, private(p, 0))
	case valid:
		errno = x.cm.SendREP(x.reply(p))
	default:
		errno = x.establish()
	}
	switch {
	case errno != 0:
		x.refuse(nil, ibcm.ReasonConsumer)
	case valid:
		x.uid = req.Uid
	}
	return errno
}

// reply returns the parameters of the answer to a request.
func (x *id) reply(p *abi.ConnParam) *ibcm.Reply {
	return &ibcm.Reply{
		QPN:                x.qpn,
		PSN:                x.psn,
		ResponderResources: p.ResponderResources,
		InitiatorDepth:     p.InitiatorDepth,
		FlowControl:        p.FlowControl != 0,
		RNRRetryCount:      min(p.RNRRetryCount, maxRetryCount),
		SRQ:                x.srq,
		ECE:                x.ece,
		Private:            private(p, 0),
	}
}

// establish tells the peer that has accepted that this side is ready.
func (x *id) establish() syscall.Errno {
	errno := x.cm.SendRTU()
	if errno != 0 {
		x.cm.SendREJ(ibcm.ReasonConsumer, nil, nil)
	}
	return errno
}

// sendSIDR answers a request for the QP of the program.
func (x *id) sendSIDR(status ibcm.SIDRStatus, data []byte) syscall.Errno {
	m := &ibcm.SIDRREP{Status: status}
	if len(data) > len(m.Private) {
		return syscall.EINVAL
	}
	copy(m.Private[:], data)
	if status == ibcm.SIDRSuccess {
		if errno := x.setDefaultQKey(); errno != 0 {
			return errno
		}
		m.QPN, m.QKey, m.ECE = x.qpn, x.qkey, x.ece
	}
	return x.cm.SendSIDRREP(m)
}

// defaultQKey is the Q_Key of the port spaces for datagrams (RDMA_UDP_QKEY).
const defaultQKey = 0x01234567

// setDefaultQKey sets the Q_Key of the port space. That of IPoIB is known to InfiniBand's subnet
// administrator only.
func (x *id) setDefaultQKey() syscall.Errno {
	switch x.space {
	case spaceUDP, spaceIB:
		x.qkey = defaultQKey
	case spaceIPoIB:
		return syscall.EADDRNOTAVAIL
	}
	return 0
}

func (f *File) reject(in, _ []byte) syscall.Errno {
	req := view[abi.Reject](in)
	if req == nil {
		return syscall.EINVAL
	}
	const vendorOption = 35
	reason := ibcm.Reason(req.Reason)
	if reason == 0 {
		reason = ibcm.ReasonConsumer
	}
	if reason != ibcm.ReasonConsumer && reason != vendorOption {
		return syscall.EINVAL
	}
	x, errno := f.findBound(req.ID)
	if errno != 0 {
		return errno
	}
	return x.refuse(req.PrivateData[:req.PrivateDataLen], reason)
}

// refuse rejects a request or an answer of the peer.
func (x *id) refuse(data []byte, reason ibcm.Reason) syscall.Errno {
	switch {
	case x.cm == nil:
		return syscall.EINVAL
	case x.qpType == ib.UD:
		return x.sendSIDR(ibcm.SIDRReject, data)
	}
	return x.cm.SendREJ(reason, nil, data)
}

func (f *File) disconnect(in, _ []byte) syscall.Errno {
	req := view[abi.Disconnect](in)
	if req == nil {
		return syscall.EINVAL
	}
	x, errno := f.findBound(req.ID)
	switch {
	case errno != 0:
		return errno
	case x.cm == nil:
		return syscall.EINVAL
	}
	if x.cm.SendDREQ() != 0 {
		x.cm.SendDREP() // the kernel does not report that there is nothing to answer
	}
	return 0
}

// Asynchronous events of a QP (enum ib_event_type).
const (
	qpEventCommEst = 4
)

func (f *File) notify(in, _ []byte) syscall.Errno {
	req := view[abi.Notify](in)
	if req == nil {
		return syscall.EINVAL
	}
	x, errno := f.find(req.ID)
	switch {
	case errno != 0:
		return errno
	case x.dev == nil || x.cm == nil || req.Event != qpEventCommEst: // there is no path to migrate to
		return syscall.EINVAL
	}
	return x.cm.Establish()
}

// cmEvent handles an event of the protocol.
func (x *id) cmEvent(_ *ibcm.ID, e ibcm.Event) {
	want := stateConnect
	if e.Type == ibcm.EventTimewaitExit {
		want = stateDisconnect
	}
	if x.state != want {
		return
	}
	timedOut := -int32(syscall.ETIMEDOUT)
	switch e.Type {
	case ibcm.EventREQError, ibcm.EventREPError, ibcm.EventSIDRREQError:
		x.pushEvent(eventUnreachable, timedOut, nil)
	case ibcm.EventREP:
		x.cm.PrepareMRA()
		x.pushEvent(eventConnectResponse, 0, fillREP(e.Message.(*ibcm.REP)))
	case ibcm.EventRTU, ibcm.EventEstablished:
		x.pushEvent(eventEstablished, 0, nil)
	case ibcm.EventDREQ, ibcm.EventDREP:
		x.state = stateDisconnect
		x.pushEvent(eventDisconnected, 0, nil)
	case ibcm.EventDREQError:
		x.state = stateDisconnect
		x.pushEvent(eventDisconnected, timedOut, nil)
	case ibcm.EventTimewaitExit:
		x.pushEvent(eventTimewaitExit, 0, nil)
	case ibcm.EventREJ:
		m := e.Message.(*ibcm.REJ)
		x.pushEvent(eventRejected, int32(m.Reason), func(r *abi.EventResp) {
			p := r.Param.Conn()
			p.PrivateDataLen = uint8(copy(p.PrivateData[:], m.Private[:]))
		})
	case ibcm.EventSIDRREP:
		x.sidrReply(e.Message.(*ibcm.SIDRREP))
	}
}

// fillREP returns a function that puts a REP into an event. The peer's resources are this side's
// depth, and the other way round.
func fillREP(m *ibcm.REP) func(*abi.EventResp) {
	return func(r *abi.EventResp) {
		p := r.Param.Conn()
		p.PrivateDataLen = uint8(copy(p.PrivateData[:], m.Private[:]))
		p.ResponderResources, p.InitiatorDepth = m.InitiatorDepth, m.ResponderResources
		p.FlowControl, p.RNRRetryCount = uint8(number(m.FlowControl)), m.RNRRetryCount
		p.SRQ, p.QPNum = uint8(number(m.SRQ)), m.QPN
		r.Ece = abi.Ece{VendorID: m.ECE.VendorID, AttrMod: m.ECE.Options}
	}
}

// sidrReply handles the answer to a request for the QP of a peer.
func (x *id) sidrReply(m *ibcm.SIDRREP) {
	data := func(r *abi.EventResp) *abi.UDParam {
		p := r.Param.UD()
		p.PrivateDataLen = uint8(copy(p.PrivateData[:], m.Private[:]))
		return p
	}
	switch {
	case m.Status != ibcm.SIDRSuccess:
		x.pushEvent(eventUnreachable, int32(m.Status), func(r *abi.EventResp) { data(r) })
	case m.QKey == 0 || x.qkey != 0 && x.qkey != m.QKey:
		x.pushEvent(eventAddrError, -int32(syscall.EINVAL), func(r *abi.EventResp) { data(r) })
	default:
		x.qkey = m.QKey
		x.pushEvent(eventEstablished, 0, func(r *abi.EventResp) {
			p := data(r)
			p.QPNum, p.QKey, p.AHAttr = m.QPN, m.QKey, x.ahAttr(cmPath(x.path))
		})
	}
}
