package ibcm

import (
	"container/heap"
	"net/netip"
	"time"
)

// Transport sends MADs from QP 1 of a device to QP 1 of a peer. The MAD is valid during the call.
type Transport interface {
	SendMAD(src, dst netip.Addr, mad []byte)
}

// Config are the properties of a [Manager].
type Config struct {
	GUID      uint64           // GUID is the node GUID of the device.
	AckDelay  uint8            // AckDelay is how long the device may delay an ACK, as a power of two times 4.096 µs.
	Flush     bool             // Flush says whether the device supports FLUSH.
	Transport Transport        // Transport sends MADs.
	Now       func() time.Time // Now returns the time.
	Rand      func() uint32    // Rand returns a random number that nobody can guess.

	// Listening reports whether somebody listens on a service ID.
	Listening func(service uint64) bool
	// Request is called with an [EventREQ] or [EventSIDRREQ] for a service ID on which somebody
	// listens, and decides about the request. It sets [ID.Handler] if it accepts the request.
	Request func(*ID, Event) Verdict
}

// Verdict is the decision about a request.
type Verdict uint8

// Verdicts.
const (
	Accept Verdict = iota // the request has an owner, which answers it
	Refuse                // the peer is told that the request is rejected
	Ignore                // no answer, so that the peer asks again
)

// Manager is the communication manager of a device with one port. It is not safe for concurrent
// use.
type Manager struct {
	c Config

	ids     map[uint32]*ID   // by communication ID
	remotes map[remoteID]*ID // by the communication ID of the peer: recognizes duplicates of a REQ
	peerQPs map[remoteQP]*ID // by the QP of the peer: recognizes stale connections
	sidr    map[sidrPeer]*ID // by the request ID of the peer: recognizes duplicates of a SIDR_REQ
	timers  timers           // IDs that wait for a time
	message [MADSize]byte    // memory for a MAD that is not repeated
}

// remoteID identifies a request of a peer. The address is the source of its datagrams, so a peer
// cannot name the entry of another peer, whatever it says about itself.
type remoteID struct {
	addr netip.Addr
	guid uint64
	id   uint32
}

// remoteQP identifies the QP of a peer.
type remoteQP struct {
	addr netip.Addr
	guid uint64
	qpn  uint32
}

// sidrPeer identifies a request of a peer for the QP of a service.
type sidrPeer struct {
	addr netip.Addr
	id   uint32
}

// New makes a Manager.
func New(c Config) *Manager {
	return &Manager{
		c:       c,
		ids:     map[uint32]*ID{},
		remotes: map[remoteID]*ID{},
		peerQPs: map[remoteQP]*ID{},
		sidr:    map[sidrPeer]*ID{},
	}
}

// NewID makes an ID in state Idle. The handler is called with its events.
func (m *Manager) NewID(handler func(*ID, Event)) *ID {
	id := &ID{m: m, Handler: handler, timer: -1, local: m.c.Rand()}
	for id.local == 0 || m.ids[id.local] != nil {
		id.local = m.c.Rand()
	}
	m.ids[id.local] = id
	return id
}

// Len returns the number of IDs that are not destroyed.
func (m *Manager) Len() int { return len(m.ids) }

// find returns the ID with the given local and remote communication IDs, or nil. A message of any other host
// than the ID's peer is about no ID, whatever numbers it has.
func (m *Manager) find(from origin, local, remote uint32) *ID {
	return from.own(m.ids[local], remote)
}

// own returns the ID if the message comes from its peer, which has the given communication ID. Otherwise it
// returns nil. The ID may be nil.
func (o origin) own(id *ID, remote uint32) *ID {
	if id == nil || id.remote != remote || id.path.Dst != o.src || id.path.Src != o.dst {
		return nil
	}
	return id
}

// Receive handles a MAD from src to the address dst of the device. It ignores a MAD that is not a message
// of the communication manager, and one that does not come from the address of a host.
func (m *Manager) Receive(src, dst netip.Addr, mad []byte) {
	tid, message, err := Decode(mad)
	if err != nil || src.IsUnspecified() || src.IsMulticast() {
		return
	}
	from := origin{src: src, dst: dst, tid: tid}
	switch message := message.(type) {
	case *REQ:
		m.receiveREQ(from, message)
	case *REP:
		m.receiveREP(from, message)
	case *RTU:
		m.receiveRTU(from, message)
	case *REJ:
		m.receiveREJ(from, message)
	case *MRA:
		m.receiveMRA(from, message)
	case *DREQ:
		m.receiveDREQ(from, message)
	case *DREP:
		m.receiveDREP(from, message)
	case *SIDRREQ:
		m.receiveSIDRREQ(from, message)
	case *SIDRREP:
		m.receiveSIDRREP(from, message)
	}
}

// origin says where a MAD comes from.
type origin struct {
	src netip.Addr // address of the peer
	dst netip.Addr // address of this device
	tid uint64
}

// answer sends a message to the sender of a MAD, as the only answer to it.
func (m *Manager) answer(to origin, message Message) { m.send(to.dst, to.src, to.tid, message) }

// send sends a message once.
func (m *Manager) send(src, dst netip.Addr, tid uint64, message Message) {
	Encode(&m.message, tid, message)
	m.c.Transport.SendMAD(src, dst, m.message[:])
}

// newTID returns the transaction ID for a message that an ID sends on its own.
func (m *Manager) newTID() uint64 { return uint64(m.c.Rand())<<32 | uint64(m.c.Rand()) }

// Deadline returns the time at which [Manager.Advance] has something to do. It returns false if
// there is none.
func (m *Manager) Deadline() (time.Time, bool) {
	if len(m.timers) == 0 {
		return time.Time{}, false
	}
	return m.timers[0].deadline, true
}

// Advance handles the deadlines that have passed: it repeats messages that were not answered, reports those that were
// repeated often enough, and ends TIMEWAIT.
func (m *Manager) Advance() {
	now := m.c.Now()
	for len(m.timers) > 0 && !m.timers[0].deadline.After(now) {
		id := m.timers[0]
		id.stopTimer()
		id.expire()
	}
}

// timers is a heap of IDs by deadline.
type timers []*ID

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].deadline.Before(t[j].deadline) }
func (t timers) Swap(i, j int)      { t[i], t[j] = t[j], t[i]; t[i].timer, t[j].timer = i, j }

// Push implements heap.Interface.
func (t *timers) Push(x any) {
	id := x.(*ID)
	id.timer = len(*t)
	*t = append(*t, id)
}

// Pop implements heap.Interface.
func (t *timers) Pop() any {
	last := len(*t) - 1
	id := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	id.timer = -1
	return id
}

// startTimer makes the ID expire after d.
func (id *ID) startTimer(d time.Duration) {
	id.deadline = id.m.c.Now().Add(d)
	if id.timer < 0 {
		heap.Push(&id.m.timers, id)
	} else {
		heap.Fix(&id.m.timers, id.timer)
	}
}

// stopTimer stops the timer of the ID if it has one.
func (id *ID) stopTimer() {
	if id.timer >= 0 {
		heap.Remove(&id.m.timers, id.timer)
	}
}

// milliseconds returns the duration that a code of 5 bits stands for, as the kernel rounds it: 2^(t-8) ms
// instead of 4.096 µs * 2^t.
func milliseconds(t uint8) time.Duration {
	return time.Millisecond << max(int(t)-8, 0)
}

// ackTimeout returns the local ACK timeout for a device's ACK delay and the lifetime of a packet. It
// stands for the delay plus twice the lifetime, and is rounded up if both are within 50 %.
func ackTimeout(delay, lifetime uint8) uint8 {
	t := lifetime + 1
	switch {
	case t >= delay && delay >= t-1, t < delay && t >= delay-1:
		t = max(t, delay) + 1
	default:
		t = max(t, delay)
	}
	return min(t, 31)
}
