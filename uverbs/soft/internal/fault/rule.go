package fault

import (
	"net/netip"
	"time"
)

// Direction says which packets a rule applies to, as seen from the device.
type Direction uint8

// Directions.
const (
	Both     Direction = iota // the zero value: packets sent and received
	Sent                      // packets that the device sends
	Received                  // packets that the device receives
)

// String returns the name that the text form uses.
func (d Direction) String() string { return nameOf(directions, d, "direction") }

var directions = []named[Direction]{{Both, "both"}, {Sent, "sent"}, {Received, "received"}}

// A Class is a set of kinds of packets. The zero value stands for all packets.
type Class uint32

// Classes of packets. A packet belongs to one class.
const (
	Send     Class = 1 << iota // SEND of RC, UC and UD
	Write                      // RDMA WRITE
	Read                       // READ requests
	Atomic                     // atomic requests and ATOMIC WRITE
	Flush                      // FLUSH requests
	Ack                        // ACK, RNR NAK and the NAK of a sequence error
	Response                   // responses to READ and to atomic requests
	MAD                        // packets to QP 1, as those of the connection manager
	Nak                        // other NAKs. The responder does not repeat one: if it is lost, the peer's retries end in vain
)

var classes = []named[Class]{
	{Send, "send"}, {Write, "write"}, {Read, "read"}, {Atomic, "atomic"}, {Flush, "flush"},
	{Ack, "ack"}, {Response, "response"}, {MAD, "mad"}, {Nak, "nak"},
}

// A Delay is a distribution of times: Min at least, and then either evenly spread up to Max, or
// exponentially distributed with a mean of Mean beyond Min. Max and Mean exclude each other; with
// neither, every delay is Min. An exponential delay ends at Min + 16*Mean.
type Delay struct {
	Min  time.Duration // the shortest delay
	Max  time.Duration // the longest delay of an even distribution, 0 for the others
	Mean time.Duration // the mean of the exponential part, 0 for the others
}

// MaxDelay is the longest time that a rule may delay or hold back a packet.
const MaxDelay = time.Hour

// Default values of fields of Rule, and the largest value of Rule.Behind.
const (
	DefaultBehind = 1
	DefaultHold   = 10 * time.Millisecond
	MaxBehind     = 64
)

// A Rule says what happens to packets that its first four fields select. A packet follows the first
// rule that selects it, and no other. A rule that only selects exempts its packets from later rules.
type Rule struct {
	Direction Direction    // packets sent, received, or both
	Peer      netip.Prefix // addresses of the peer; the zero Prefix selects all
	QPN       uint32       // destination QPN in the packet; 0 selects all
	Class     Class        // classes of packets; 0 selects all

	Loss      Chance // the packet is dropped
	Duplicate Chance // the packet is sent or received twice
	Corrupt   Chance // a bit of the packet is flipped behind the sender's ICRC, so that the receiver drops it
	Reorder   Chance // the packet is held back

	// Behind is the number of later packets of the stream that overtake a packet which is held back;
	// 0 means DefaultBehind. Packets that are lost, delayed or held back themselves do not count.
	Behind int
	// Hold is the longest time that a packet is held back, so that the last packet of a stream is
	// delivered too; 0 means DefaultHold.
	Hold time.Duration

	Delay   Delay  // how long packets are delayed
	Delayed Chance // the chance that a packet is delayed by Delay; 0 means Always

	// Rate is a limit in bits per second of UDP payload for all packets of the rule in one direction,
	// 0 for none. Packets beyond it are delayed.
	Rate uint64

	// Remove is the number of the packet of the rule with which the device is removed, counted from 1; 0
	// never removes it. This packet and the later ones of the rule are dropped.
	Remove uint64
}

// selects reports whether the rule applies to a packet.
func (r *Rule) selects(p *packet) bool {
	return (r.Direction == Both || r.Direction == p.dir) &&
		(r.QPN == 0 || r.QPN == p.qpn) &&
		(r.Class == 0 || r.Class&p.class != 0) &&
		(!r.Peer.IsValid() || r.Peer.Contains(plain(p.peer.Addr())))
}

// plain returns an address without a zone, and an IPv4 address as such.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// A Config is all faults of a device: rules for packets, and faults of queue pairs.
type Config struct {
	// Seed is the number on which all decisions depend.
	Seed uint64
	// Rules apply to packets; the first one that selects a packet decides.
	Rules []Rule
	// Plan lists faults that are not about packets.
	Plan Plan
}
