package ibcm

import (
	"syscall"
	"time"
)

// SIDRRequest has the parameters of a SIDR_REQ.
type SIDRRequest struct {
	Path       Path
	Service    uint64
	Timeout    time.Duration // time until the request is repeated
	MaxRetries uint8         // how often it is repeated
	Private    []byte
}

// SendSIDRREQ asks the peer for the QP of a service.
func (id *ID) SendSIDRREQ(r *SIDRRequest) syscall.Errno {
	m := &SIDRREQ{RequestID: id.local, PKey: r.Path.PKey, Service: r.Service}
	if len(r.Private) > len(m.Private) || id.state != Idle {
		return syscall.EINVAL
	}
	copy(m.Private[:], r.Private)
	id.path, id.service, id.responseTimeout, id.maxRetries = r.Path, r.Service, r.Timeout, r.MaxRetries
	id.tid = id.m.newTID()
	id.sendRepeated(id.tid, m, SIDRREQSent, id.allRetries())
	return 0
}

// receiveSIDRREQ handles a request for the QP of a service.
func (m *Manager) receiveSIDRREQ(from origin, msg *SIDRREQ) {
	peer := sidrPeer{from.src, msg.RequestID}
	if m.sidr[peer] != nil { // a duplicate
		return
	}
	id := m.NewID(nil)
	id.remote, id.service, id.tid = msg.RequestID, msg.Service, from.tid
	id.path = Path{Src: from.dst, Dst: from.src, PKey: msg.PKey}
	id.state, id.inSIDR = SIDRREQRcvd, true
	m.sidr[peer] = id
	if !m.c.Listening(msg.Service) {
		id.SendSIDRREP(&SIDRREP{Status: SIDRUnsupported})
		id.Destroy()
		return
	}
	if m.c.Request(id, Event{Type: EventSIDRREQ, Message: msg, Src: from.src, Dst: from.dst}) != Accept {
		id.Destroy()
	}
}

// forgetSIDR removes the ID from the table that recognizes duplicates.
func (id *ID) forgetSIDR() {
	if id.inSIDR {
		delete(id.m.sidr, sidrPeer{id.path.Dst, id.remote})
		id.inSIDR = false
	}
}

// SendSIDRREP answers the request of the peer. It sets the request ID and the service ID of the
// answer.
func (id *ID) SendSIDRREP(r *SIDRREP) syscall.Errno {
	if id.state != SIDRREQRcvd {
		return syscall.EINVAL
	}
	r.RequestID, r.Service = id.remote, id.service
	id.state = Idle
	id.forgetSIDR()
	id.sendOnce(id.tid, r)
	return 0
}

// receiveSIDRREP handles the answer to a request.
func (m *Manager) receiveSIDRREP(from origin, msg *SIDRREP) {
	id := m.find(from, msg.RequestID, 0)
	if id == nil || id.state != SIDRREQSent {
		return
	}
	id.stopTimer()
	id.state = Idle
	id.report(Event{Type: EventSIDRREP, Message: msg})
}
