package ibcm

import "syscall"

// dreq returns the DREQ of the ID.
func (id *ID) dreq() *DREQ { return &DREQ{IDs: id.ids(), QPN: id.remoteQPN} }

// SendDREQ asks the peer to disconnect.
func (id *ID) SendDREQ() syscall.Errno {
	if id.state != Established {
		return syscall.EINVAL
	}
	id.sendRepeated(id.m.newTID(), id.dreq(), DREQSent, id.allRetries())
	return 0
}

// receiveDREQ handles the wish of the peer to disconnect.
func (m *Manager) receiveDREQ(from origin, msg *DREQ) {
	id := m.find(from, msg.RemoteCommID, msg.CommID)
	if id == nil { // the connection has ended, but the peer does not know it yet
		m.answer(from, &DREP{IDs: IDs{msg.RemoteCommID, msg.CommID}})
		return
	}
	if id.localQPN != msg.QPN {
		return
	}
	switch id.state {
	case REPSent, MRAREPRcvd, DREQSent, Established:
		id.unproven = false
		id.stopTimer()
	case Timewait, Idle: // the DREP was lost. The kernel does not answer when TIMEWAIT is over.
		from.tid = id.tid
		m.answer(from, &DREP{IDs: id.ids()})
		return
	default:
		return
	}
	id.state = DREQRcvd
	id.tid = from.tid
	id.report(Event{Type: EventDREQ, Message: msg})
}

// SendDREP tells the peer that this side has disconnected.
func (id *ID) SendDREP() syscall.Errno {
	if id.state != DREQRcvd {
		return syscall.EINVAL
	}
	id.enterTimewait()
	id.sendOnce(id.tid, &DREP{IDs: id.ids()})
	return 0
}

// receiveDREP handles the answer to a DREQ.
func (m *Manager) receiveDREP(from origin, msg *DREP) {
	id := m.find(from, msg.RemoteCommID, msg.CommID)
	if id == nil || id.state != DREQSent && id.state != DREQRcvd {
		return
	}
	id.enterTimewait()
	id.report(Event{Type: EventDREP, Message: msg})
}
