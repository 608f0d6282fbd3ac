package ibcm

import (
	"encoding/binary"
	"math"
	"net/netip"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// State is the state of an [ID].
type State uint8

// States (IBTA 12.9). The states of MRA follow the kernel: an MRA is sent only when the message
// comes again.
const (
	Idle        State = iota
	REQSent           // waits for the REP
	MRAREQRcvd        // waits for the REP longer, because the peer has asked for time
	REQRcvd           // a request was received
	MRAREQSent        // a request was received, and its owner needs time to answer
	REPSent           // waits for the RTU
	MRAREPRcvd        // waits for the RTU longer, because the peer has asked for time
	REPRcvd           // a reply was received
	MRAREPSent        // a reply was received, and its owner needs time to answer
	Established       // connected
	DREQSent          // waits for the DREP
	DREQRcvd          // the peer wants to disconnect
	Timewait          // packets of the ended connection may still be under way
	SIDRREQSent       // waits for the SIDR_REP
	SIDRREQRcvd       // a request for the QP of a service was received
)

var stateNames = [...]string{"Idle", "REQSent", "MRAREQRcvd", "REQRcvd", "MRAREQSent", "REPSent", "MRAREPRcvd", "REPRcvd", "MRAREPSent",
	"Established", "DREQSent", "DREQRcvd", "Timewait", "SIDRREQSent", "SIDRREQRcvd"}

// String returns the name of the state.
func (s State) String() string { return stateNames[s] }

// EventType is the type of an [Event].
type EventType uint8

// Event types. Those that report a message have it in Event.Message.
const (
	EventREQ          EventType = iota // a request was received
	EventREP                           // a reply was received
	EventRTU                           // the peer is ready
	EventREJ                           // the peer has rejected a message
	EventDREQ                          // the peer wants to disconnect
	EventDREP                          // the peer has disconnected
	EventSIDRREQ                       // a request for the QP of a service was received
	EventSIDRREP                       // the peer has answered such a request
	EventREQError                      // there was no answer to the REQ
	EventREPError                      // there was no answer to the REP
	EventDREQError                     // there was no answer to the DREQ
	EventSIDRREQError                  // there was no answer to the SIDR_REQ
	EventEstablished                   // the user has called Establish
	EventTimewaitExit                  // the QP may be used again
)

// Event is an event of an [ID].
type Event struct {
	Type    EventType
	Message Message // a pointer to the message; nil if there is none
	Src     netip.Addr
	Dst     netip.Addr // addresses of a request: the peer's and this device's
}

// Path is the path to a peer.
type Path struct {
	Src          netip.Addr // GID of this side, as an address
	Dst          netip.Addr // GID of the peer, as an address
	FlowLabel    uint32
	TrafficClass uint8
	HopLimit     uint8
	SL           uint8
	Rate         uint8
	MTU          uint8
	Lifetime     uint8 // time that a packet needs, as a power of two times 4.096 µs
	PKey         uint16
}

// ID is one end of a connection, or of a request for the QP of a service.
type ID struct {
	Handler func(*ID, Event) // Handler is called with the events of the ID.

	m       *Manager
	local   uint32 // communication ID
	remote  uint32 // communication ID of the peer; 0 if it is not known
	service uint64
	state   State
	qpType  ib.QPType
	tid     uint64 // of the REQ, or of the DREQ that was received
	path    Path

	remoteGUID      uint64
	localQPN        uint32
	remoteQPN       uint32
	sqPSN           uint32 // the first that the peer expects
	rqPSN           uint32 // the first that this side expects
	ackTimeout      uint8
	responderRes    uint8
	initiatorDepth  uint8
	retryCount      uint8
	rnrRetryCount   uint8
	inRemotes       bool // the ID is in Manager.remotes
	inPeerQPs       bool // the ID is in Manager.peerQPs
	inSIDR          bool // the ID is in Manager.sidr
	responseTimeout time.Duration
	maxRetries      uint8

	// unproven says that the peer has sent requests, but nothing that shows that it receives the answers: their
	// source address may be forged. Until then the peer gets at most credit more messages.
	unproven bool
	credit   int

	pending  [MADSize]byte // the message that is repeated until it is answered
	retries  uint8         // how often it will be repeated
	interval time.Duration // time between the repetitions
	giveUp   time.Time     // when it is not repeated any more, whatever the peer asks for
	deadline time.Time     // when it is repeated, or when TIMEWAIT ends
	timer    int           // index in Manager.timers; -1 if there is no deadline
}

// State returns the state of the ID.
func (id *ID) State() State { return id.state }

// Path returns the path of the ID.
func (id *ID) Path() Path { return id.path }

// report calls the handler.
func (id *ID) report(e Event) {
	if id.Handler != nil {
		id.Handler(id, e)
	}
}

// Limits of what a peer may cause, whatever its messages ask for.
const (
	// answersPerRequest is how many messages each REQ pays for until the peer has proven its address. All
	// messages have the same size.
	answersPerRequest = 3

	// requestInterval is how often a REQ is sent that nobody answers, if not more often: the peer may be about to start,
	// and says nothing until its port is open.
	requestInterval = time.Second
	// maxHalfOpen is how long a REP waits for its RTU.
	maxHalfOpen = 30 * time.Second

	// maxResponseTimeout is the longest time between two messages that the REQ of a peer can ask for. It is what
	// the kernel's requests ask for (CMA_CM_RESPONSE_TIMEOUT).
	maxResponseTimeout = 4096 * time.Millisecond

	// maxMRA is the longest time that an MRA delays the repetition of a message. A repetition costs little and is
	// what helps if the answer was lost.
	maxMRA = 10 * time.Second

	// maxAckTimeout is the longest local ACK timeout that a peer can cause, about 17 s. TIMEWAIT takes as long.
	maxAckTimeout = 22
)

// pay pays for a message to the peer, and keeps credit for some others. It returns false if the peer must not get
// the message, because it has sent too little and has not proven its address.
func (id *ID) pay(keep int) bool {
	if !id.unproven {
		return true
	}
	if id.credit <= keep {
		return false
	}
	id.credit--
	return true
}

// sendOnce sends a message that is not repeated.
func (id *ID) sendOnce(tid uint64, message Message) {
	if id.pay(0) {
		id.m.send(id.path.Src, id.path.Dst, tid, message)
	}
}

// sendRepeated sends a message that is repeated until it is answered, at most for the given time, and changes
// the state.
func (id *ID) sendRepeated(tid uint64, message Message, state State, longest time.Duration) {
	Encode(&id.pending, tid, message)
	id.retries, id.interval = id.maxRetries, id.responseTimeout
	if state == REQSent && id.interval > requestInterval {
		id.interval = requestInterval
		id.retries = uint8(min(longest/id.interval-1, math.MaxUint8))
	}
	id.giveUp = id.m.c.Now().Add(longest)
	id.state = state
	id.repeat()
}

// allRetries is how long a message and all its repetitions take.
func (id *ID) allRetries() time.Duration { return time.Duration(id.maxRetries+1) * id.responseTimeout }

// repeat sends the pending message and starts its timer.
func (id *ID) repeat() {
	id.await()
	if id.pay(1) { // the last one is for the REJ, if there is no connection
		id.m.c.Transport.SendMAD(id.path.Src, id.path.Dst, id.pending[:])
	}
}

// await starts the timer of the pending message.
func (id *ID) await() { id.startTimer(min(id.interval, id.giveUp.Sub(id.m.c.Now()))) }

// expire is called when the deadline has passed.
func (id *ID) expire() {
	if id.state == Timewait {
		id.state = Idle
		id.report(Event{Type: EventTimewaitExit})
		return
	}
	if id.retries > 0 && id.m.c.Now().Before(id.giveUp) {
		id.retries--
		id.repeat()
		return
	}
	switch id.state {
	case REQSent, MRAREQRcvd:
		id.reset()
		id.report(Event{Type: EventREQError})
	case REPSent, MRAREPRcvd:
		id.reset()
		id.report(Event{Type: EventREPError})
	case DREQSent:
		id.enterTimewait()
		id.report(Event{Type: EventDREQError})
	case SIDRREQSent:
		id.state = Idle
		id.report(Event{Type: EventSIDRREQError})
	}
}

// reset makes the ID idle, as if it had never had a peer.
func (id *ID) reset() {
	id.stopTimer()
	id.state = Idle
	id.forgetPeer()
}

// enterTimewait ends the connection. The QP must not be used again until packets that are under way
// have arrived.
func (id *ID) enterTimewait() {
	id.forgetPeer()
	id.state = Timewait
	id.startTimer(milliseconds(min(id.ackTimeout, maxAckTimeout)))
}

// remoteKeys returns the keys of the ID in the tables that recognize duplicates and stale connections.
func (id *ID) remoteKeys() (remoteID, remoteQP) {
	return remoteID{id.path.Dst, id.remoteGUID, id.remote}, remoteQP{id.path.Dst, id.remoteGUID, id.remoteQPN}
}

// rememberPeer enters the ID into the tables that recognize duplicates and stale connections. It
// returns the ID that has an entry already, and whether that is a duplicate or has the same QP.
func (id *ID) rememberPeer() (other *ID, duplicate bool) {
	remote, qp := id.remoteKeys()
	if other = id.m.remotes[remote]; other != nil {
		return other, true
	}
	if other = id.m.peerQPs[qp]; other != nil {
		return other, false
	}
	id.m.remotes[remote], id.m.peerQPs[qp] = id, id
	id.inRemotes, id.inPeerQPs = true, true
	return nil, false
}

// forgetPeer undoes rememberPeer.
func (id *ID) forgetPeer() {
	remote, qp := id.remoteKeys()
	if id.inRemotes {
		delete(id.m.remotes, remote)
	}
	if id.inPeerQPs {
		delete(id.m.peerQPs, qp)
	}
	id.inRemotes, id.inPeerQPs = false, false
}

// Ignore removes the ID of a request without an answer, as if the request had been lost. The peer may repeat it.
func (id *ID) Ignore() {
	id.reset()
	id.Destroy()
}

// Destroy ends the activity of the ID and removes it. The handler is not called any more.
func (id *ID) Destroy() {
	id.Handler = nil
	for id.state != Idle {
		id.leave()
	}
	id.stopTimer()
	id.forgetPeer()
	id.forgetSIDR()
	delete(id.m.ids, id.local)
}

// leave tells the peer that the ID is being destroyed, and brings it a step closer to Idle.
func (id *ID) leave() {
	switch id.state {
	case REQSent, MRAREQRcvd:
		id.SendREJ(ReasonTimeout, binary.BigEndian.AppendUint64(nil, id.m.c.GUID), nil)
	case REQRcvd, MRAREQSent, REPSent, MRAREPRcvd, REPRcvd, MRAREPSent:
		id.SendREJ(ReasonConsumer, nil, nil)
	case Established:
		id.sendOnce(id.m.newTID(), id.dreq())
		id.enterTimewait()
	case DREQSent:
		id.enterTimewait()
	case DREQRcvd:
		id.SendDREP()
	case SIDRREQRcvd:
		id.SendSIDRREP(&SIDRREP{Status: SIDRReject})
	default: // SIDRREQSent, Timewait
		id.state = Idle
	}
}

// ids returns the communication IDs for a message of this ID.
func (id *ID) ids() IDs { return IDs{id.local, id.remote} }

// SendREJ rejects the message that was received, or withdraws the one that was sent.
func (id *ID) SendREJ(reason Reason, info, private []byte) syscall.Errno {
	m := &REJ{IDs: id.ids(), Rejected: SubjectOther, Reason: reason, InfoLength: uint8(len(info))}
	if len(info) > len(m.Info) || len(private) > len(m.Private) {
		return syscall.EINVAL
	}
	copy(m.Info[:], info)
	copy(m.Private[:], private)
	switch id.state {
	case REQRcvd:
		m.CommID, m.Rejected = 0, SubjectREQ
	case MRAREQSent:
		m.Rejected = SubjectREQ
	case REPRcvd, MRAREPSent:
		m.Rejected = SubjectREP
	case REQSent, MRAREQRcvd, REPSent, MRAREPRcvd:
	default:
		return syscall.EINVAL
	}
	if id.state == REPSent || id.state == MRAREPRcvd {
		id.enterTimewait()
	} else {
		id.reset()
	}
	id.sendOnce(id.tid, m)
	return 0
}

// receiveREJ handles a rejection.
func (m *Manager) receiveREJ(from origin, msg *REJ) {
	var id *ID
	switch {
	case msg.Reason == ReasonTimeout:
		id = from.own(m.remotes[remoteID{from.src, binary.BigEndian.Uint64(msg.Info[:]), msg.CommID}], msg.CommID)
	case msg.Rejected == SubjectREQ:
		id = m.find(from, msg.RemoteCommID, 0)
	default:
		id = m.find(from, msg.RemoteCommID, msg.CommID)
	}
	if id == nil {
		return
	}
	if msg.Reason == ReasonTimeout && (id.state < REQRcvd || id.state > MRAREPRcvd) { // only the side that has sent the REQ gives up, before the RTU
		return
	}
	switch id.state {
	case REQSent, MRAREQRcvd, REPSent, MRAREPRcvd, REQRcvd, MRAREQSent:
		if msg.Reason == ReasonStaleConn {
			id.enterTimewait()
		} else {
			id.reset()
		}
	case DREQSent, REPRcvd, MRAREPSent, Established:
		id.enterTimewait()
	default:
		return
	}
	id.report(Event{Type: EventREJ, Message: msg})
}

// PrepareMRA makes the ID answer with an MRA when the message that was received comes again.
func (id *ID) PrepareMRA() {
	switch id.state {
	case REQRcvd:
		id.state = MRAREQSent
	case REPRcvd:
		id.state = MRAREPSent
	}
}

// mraTimeout is the time that an MRA asks for, about 69 s.
const mraTimeout = 24

// mra returns the MRA of the ID.
func (id *ID) mra(about Subject) *MRA {
	return &MRA{IDs: id.ids(), Acknowledged: about, Timeout: mraTimeout}
}

// receiveMRA handles an MRA: the pending message is repeated later. The whole time stays the same.
func (m *Manager) receiveMRA(from origin, msg *MRA) {
	remote := msg.CommID
	if msg.Acknowledged == SubjectREQ {
		remote = 0
	}
	id := m.find(from, msg.RemoteCommID, remote)
	if id == nil {
		return
	}
	switch {
	case id.state == REQSent && msg.Acknowledged == SubjectREQ:
		id.state = MRAREQRcvd
	case id.state == REPSent && msg.Acknowledged == SubjectREP:
		id.state, id.unproven = MRAREPRcvd, false
	default:
		return
	}
	id.interval = min(milliseconds(msg.Timeout)+milliseconds(id.ackTimeout), maxMRA)
	id.await()
}
