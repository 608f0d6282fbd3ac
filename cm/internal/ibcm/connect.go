package ibcm

import (
	"syscall"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// Request has the parameters of a REQ.
type Request struct {
	Path               Path
	Service            uint64
	QPType             ib.QPType
	QPN                uint32
	PSN                uint32
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        bool
	RetryCount         uint8
	RNRRetryCount      uint8
	RemoteTimeout      uint8 // how long the peer may take to answer
	LocalTimeout       uint8 // how long this side may take to answer
	MaxRetries         uint8 // how often messages are repeated
	SRQ                bool
	ECE                ECE
	Private            []byte
}

// SendREQ asks the peer for a connection.
func (id *ID) SendREQ(r *Request) syscall.Errno {
	if r.QPType != ib.RC && r.QPType != ib.UC || len(r.Private) > REQPrivateSize || id.state != Idle {
		return syscall.EINVAL
	}
	id.path, id.service, id.qpType = r.Path, r.Service, r.QPType
	id.ackTimeout = r.Path.Lifetime + 1
	id.responseTimeout = 2*milliseconds(r.Path.Lifetime) + milliseconds(r.RemoteTimeout)
	id.maxRetries = r.MaxRetries
	id.initiatorDepth, id.responderRes = r.InitiatorDepth, r.ResponderResources
	id.retryCount = r.RetryCount
	id.localQPN, id.rqPSN = r.QPN, r.PSN
	id.tid = id.m.newTID()
	id.sendRepeated(id.tid, id.req(r), REQSent, id.allRetries())
	return 0
}

// permissiveLID is a LID that the receiver does not look at.
const permissiveLID = 0xffff

// req returns the REQ of the ID.
func (id *ID) req(r *Request) *REQ {
	p := &r.Path
	m := &REQ{
		CommID:             id.local,
		Service:            r.Service,
		GUID:               id.m.c.GUID,
		QPN:                r.QPN,
		ResponderResources: r.ResponderResources,
		InitiatorDepth:     r.InitiatorDepth,
		RemoteTimeout:      r.RemoteTimeout,
		FlowControl:        r.FlowControl,
		PSN:                r.PSN,
		LocalTimeout:       r.LocalTimeout,
		RetryCount:         r.RetryCount,
		PKey:               p.PKey,
		MTU:                p.MTU,
		RNRRetryCount:      r.RNRRetryCount,
		MaxRetries:         r.MaxRetries,
		SRQ:                r.SRQ,
		ECE:                r.ECE,
		Primary: PathInfo{
			LocalGID:     p.Src.As16(),
			RemoteGID:    p.Dst.As16(),
			FlowLabel:    p.FlowLabel,
			Rate:         p.Rate,
			TrafficClass: p.TrafficClass,
			HopLimit:     p.HopLimit,
			SL:           p.SL,
			SubnetLocal:  p.HopLimit <= 1,
			AckTimeout:   ackTimeout(id.m.c.AckDelay, p.Lifetime),
		},
	}
	if r.QPType == ib.UC {
		m.Transport = TransportUC
	}
	if p.HopLimit > 1 {
		m.Primary.LocalLID, m.Primary.RemoteLID = permissiveLID, permissiveLID
	}
	copy(m.Private[:], r.Private)
	return m
}

// QPType returns the QP type that a REQ asks for, or 0 if it is not supported.
func (m *REQ) QPType() ib.QPType {
	switch m.Transport {
	case TransportRC:
		return ib.RC
	case TransportUC:
		return ib.UC
	}
	return 0
}

// receiveREQ handles a request for a connection.
func (m *Manager) receiveREQ(from origin, msg *REQ) {
	if !from.sent(msg) {
		rej := &REJ{IDs: IDs{0, msg.CommID}, Rejected: SubjectREQ, Reason: ReasonInvalidGID}
		gid := from.dst.As16()
		rej.InfoLength = uint8(copy(rej.Info[:], gid[:]))
		m.answer(from, rej)
		return
	}
	id := m.NewID(nil)
	id.unproven, id.credit = true, answersPerRequest
	id.remote, id.service, id.tid, id.qpType = msg.CommID, msg.Service, from.tid, msg.QPType()
	id.responseTimeout, id.maxRetries = min(milliseconds(msg.LocalTimeout), maxResponseTimeout), msg.MaxRetries
	id.remoteGUID, id.remoteQPN, id.sqPSN = msg.GUID, msg.QPN, msg.PSN
	id.initiatorDepth, id.responderRes = msg.ResponderResources, msg.InitiatorDepth
	id.retryCount, id.rnrRetryCount = msg.RetryCount, msg.RNRRetryCount
	id.setPath(from, msg)
	if !m.matchREQ(from, id, msg) {
		id.Destroy()
		return
	}
	id.state = REQRcvd
	switch m.c.Request(id, Event{Type: EventREQ, Message: msg, Src: from.src, Dst: from.dst}) {
	case Refuse:
		id.Destroy()
	case Ignore:
		id.Ignore()
	}
}

// sent reports whether a REQ asks for the path by which its datagram came, in the partition of the
// device. With RoCE v2 a GID is an IP address, so an honest peer asks for no other.
func (o origin) sent(msg *REQ) bool {
	p := &msg.Primary
	return p.LocalGID == o.src.As16() && p.RemoteGID == o.dst.As16() && msg.PKey&fullMember == fullMember
}

// matchREQ reports whether a request is a new one, for a service on which somebody listens. If it
// returns false, it has given the peer the answer that it needs.
func (m *Manager) matchREQ(from origin, id *ID, msg *REQ) bool {
	switch other, duplicate := id.rememberPeer(); {
	case duplicate:
		other.repeatedREQ(from)
		return false
	case other != nil:
		m.reject(from, SubjectREQ, IDs{0, msg.CommID}, ReasonStaleConn)
		other.SendDREQ()
		return false
	case !m.c.Listening(msg.Service):
		m.reject(from, SubjectREQ, IDs{0, msg.CommID}, ReasonInvalidServiceID)
		return false
	}
	return true
}

// reject rejects a message without changing the state of an ID.
func (m *Manager) reject(from origin, what Subject, ids IDs, reason Reason) {
	m.answer(from, &REJ{IDs: ids, Rejected: what, Reason: reason})
}

// repeatedREQ answers a REQ that comes again.
func (id *ID) repeatedREQ(from origin) {
	if id.path.Src != from.dst {
		return
	}
	id.credit = max(id.credit, 0) + answersPerRequest
	switch id.state {
	case MRAREQSent:
		id.sendOnce(id.tid, id.mra(SubjectREQ))
	case Timewait:
		from.tid = id.tid
		id.m.reject(from, SubjectOther, id.ids(), ReasonStaleConn)
	}
}

// hopLimitOfReply is the hop limit of packets to a peer that has sent a REQ.
const hopLimitOfReply = 255

// fullMember are the bits of a P_Key that have to match.
const fullMember = 0x7fff

// setPath sets the path to the peer that has sent a REQ. The alternate path of a REQ is not used.
func (id *ID) setPath(from origin, msg *REQ) {
	p := &msg.Primary
	id.path = Path{
		Src:          from.dst,
		Dst:          from.src,
		FlowLabel:    p.FlowLabel,
		TrafficClass: p.TrafficClass,
		HopLimit:     hopLimitOfReply,
		SL:           p.SL,
		Rate:         p.Rate,
		MTU:          msg.MTU,
		Lifetime:     min(p.AckTimeout, maxAckTimeout) - min(p.AckTimeout, 1),
		PKey:         msg.PKey,
	}
	id.ackTimeout = id.path.Lifetime + 1
}

// Reply has the parameters of a REP.
type Reply struct {
	QPN                uint32
	PSN                uint32
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        bool
	RNRRetryCount      uint8
	SRQ                bool
	ECE                ECE
	Private            []byte
}

// SendREP accepts the request of the peer.
func (id *ID) SendREP(r *Reply) syscall.Errno {
	if len(r.Private) > REPPrivateSize || id.state != REQRcvd && id.state != MRAREQSent {
		return syscall.EINVAL
	}
	m := &REP{
		CommID:             id.local,
		RemoteCommID:       id.remote,
		QPN:                r.QPN,
		PSN:                r.PSN,
		ResponderResources: r.ResponderResources,
		InitiatorDepth:     r.InitiatorDepth,
		AckDelay:           id.m.c.AckDelay,
		FlowControl:        r.FlowControl,
		RNRRetryCount:      r.RNRRetryCount,
		SRQ:                r.SRQ,
		GUID:               id.m.c.GUID,
		ECE:                r.ECE,
	}
	copy(m.Private[:], r.Private)
	id.initiatorDepth, id.responderRes = r.InitiatorDepth, r.ResponderResources
	id.localQPN, id.rqPSN = r.QPN, r.PSN
	id.sendRepeated(id.tid, m, REPSent, maxHalfOpen)
	return 0
}

// receiveREP handles the acceptance of a request.
func (m *Manager) receiveREP(from origin, msg *REP) {
	id := m.find(from, msg.RemoteCommID, 0)
	if id == nil {
		m.repeatedREP(from, msg)
		return
	}
	if id.state != REQSent && id.state != MRAREQRcvd {
		return
	}
	id.remote, id.remoteGUID, id.remoteQPN = msg.CommID, msg.GUID, msg.QPN
	if other, duplicate := id.rememberPeer(); other != nil {
		id.remote = 0
		if !duplicate {
			m.reject(from, SubjectREP, IDs{msg.RemoteCommID, msg.CommID}, ReasonStaleConn)
			other.SendDREQ()
		}
		return
	}
	id.stopTimer()
	id.state = REPRcvd
	id.initiatorDepth, id.responderRes = msg.ResponderResources, msg.InitiatorDepth
	id.sqPSN, id.rnrRetryCount = msg.PSN, msg.RNRRetryCount
	id.ackTimeout = max(id.ackTimeout, min(ackTimeout(msg.AckDelay, id.ackTimeout-1), maxAckTimeout))
	id.report(Event{Type: EventREP, Message: msg})
}

// repeatedREP answers a REP that comes again.
func (m *Manager) repeatedREP(from origin, msg *REP) {
	id := m.find(from, msg.RemoteCommID, msg.CommID)
	if id == nil {
		return
	}
	from.tid = id.tid
	switch id.state {
	case Established:
		m.answer(from, &RTU{IDs: id.ids()})
	case MRAREPSent:
		m.answer(from, id.mra(SubjectREP))
	}
}

// SendRTU tells the peer that this side is ready.
func (id *ID) SendRTU() syscall.Errno {
	if id.state != REPRcvd && id.state != MRAREPSent {
		return syscall.EINVAL
	}
	id.state = Established
	id.sendOnce(id.tid, &RTU{IDs: id.ids()})
	return 0
}

// receiveRTU handles the message that makes the connection usable.
func (m *Manager) receiveRTU(from origin, msg *RTU) {
	id := m.find(from, msg.RemoteCommID, msg.CommID)
	if id == nil || id.state != REPSent && id.state != MRAREPRcvd {
		return
	}
	id.stopTimer()
	id.state, id.unproven = Established, false
	id.report(Event{Type: EventRTU, Message: msg})
}

// Establish establishes the connection because data has arrived before the RTU.
func (id *ID) Establish() syscall.Errno {
	switch id.state {
	case REPSent, MRAREPRcvd:
		id.stopTimer()
		id.state, id.unproven = Established, false
		id.report(Event{Type: EventEstablished})
		return 0
	case Established:
		return syscall.EISCONN
	}
	return syscall.EINVAL
}
