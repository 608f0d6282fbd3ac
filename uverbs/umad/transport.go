package umad

import (
	"fmt"
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// Transport carries the MADs of a port. [Open] uses that of the kernel; [NewPort] takes any other, such
// as a simulated fabric. Its methods are called concurrently, except Receive.
type Transport interface {
	// Register registers an agent and returns its number.
	Register(r Registration) (agent uint32, err error)

	// Unregister ends an agent. Messages that have come for it before may still arrive. It fails with EINVAL
	// if there is no such agent, as after the device was removed.
	Unregister(agent uint32) error

	// Send sends a message and does not wait for an answer. It may replace the upper half of the
	// transaction ID of a request. It fails with EINVAL if a request with the same lower half is
	// still outstanding.
	Send(m *Message) error

	// Receive waits for the next message of any agent, for up to the given time. It returns nil if none
	// has come, and may do so too early. An error means that nothing arrives any more.
	Receive(wait time.Duration) (*Message, error)

	// Interrupt makes the call of Receive that waits return, or else the next one. It can be called at any
	// time, also after Close.
	Interrupt()

	// Close ends all agents. It is called once, when no Receive waits, and no Receive follows.
	Close() error
}

// Registration describes an agent to a [Transport].
type Registration struct {
	QPN     uint32       // QPN is 0 for subnet management, and otherwise 1.
	Class   mad.Class    // Class is the class to serve, 0 if Methods is empty.
	Version uint8        // Version is the version of the class.
	Methods []mad.Method // Methods are the methods of the requests to serve.
	OUI     uint32       // OUI identifies the vendor of a vendor class.
	RMPP    bool         // RMPP says that the transport assembles messages of several packets.
}

// Message is a MAD as a [Transport] sends or receives it.
type Message struct {
	Agent uint32 // Agent is the agent that sends it, or that it is for.
	Addr  Addr   // Addr is where it goes, or where it comes from.
	MAD   []byte // MAD is the datagram, or the header of the request if TimedOut.

	// Timeout is set for a request, and limits the time until its answer. If no answer comes, the
	// transport may report that by a message with TimedOut, but need not.
	Timeout  time.Duration
	TimedOut bool // TimedOut says that a request was not answered.
}

// LIDPermissive is the LID of the port at the other end of the link, whichever it is. MADs with a
// directed route go there.
const LIDPermissive = 0xffff

// qkeyQP1 is the Q_Key of QP1.
const qkeyQP1 = 0x80010000

// Addr is the address of a MAD. On InfiniBand only LID must be set, and a directed route needs nothing at
// all. It is a comparable value.
type Addr struct {
	LID       uint16 // LID is the LID of the port.
	QPN       uint32 // QPN is the number of the QP; 0 means QP0 for subnet management, and otherwise QP1.
	QKey      uint32 // QKey is the Q_Key to send with; 0 means that of QP1.
	SL        uint8  // SL is the service level.
	PathBits  uint8  // PathBits are the low bits of the own LID, if the port has several.
	PKeyIndex uint16 // PKeyIndex is the index of the P_Key in the own port's table.

	GRH          bool   // GRH says that the packet has a global routing header; the fields below are for it.
	GID          ib.GID // GID is the destination GID, or the source GID of a received MAD.
	GIDIndex     uint8  // GIDIndex selects the source GID in the local table.
	HopLimit     uint8  // HopLimit is the number of routers that the packet may cross.
	TrafficClass uint8  // TrafficClass is the traffic class for routers.
	FlowLabel    uint32 // FlowLabel is the flow label for routers, 20 bits.
}

// String returns the LID, and the GID if there is one.
func (a Addr) String() string {
	if a.GRH {
		return fmt.Sprintf("LID %d (GID %v)", a.LID, a.GID)
	}
	if a.LID == LIDPermissive {
		return "the end of the route"
	}
	return fmt.Sprintf("LID %d", a.LID)
}

// forClass sets what a MAD of the class needs and what is not set.
func (a Addr) forClass(c mad.Class) Addr {
	if c == mad.ClassSubnDirected && a.LID == 0 {
		a.LID = LIDPermissive
	}
	if !c.SMP() && a.QPN == 0 {
		a.QPN = 1
	}
	if !c.SMP() && a.QKey == 0 {
		a.QKey = qkeyQP1
	}
	return a
}
