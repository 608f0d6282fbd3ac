package soft

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/fault"
)

// Faults are the faults that a device injects, see "Faults" in the description of the package. The zero
// value injects none. [ParseFaults] reads them from a text, and String returns it.
type Faults struct {
	Seed  uint64    // Seed is the number on which all random decisions depend.
	Rules []Rule    // Rules are about packets. A packet follows the first rule that selects it, and no other.
	QPs   []QPFault // QPs are about queue pairs.
}

// A Rule says what happens to the packets that Direction, Peer, QPN and Class select. One that only selects
// exempts its packets from the later rules.
type Rule struct {
	Direction Direction    // Direction selects packets that the device sends or receives; without it, both.
	Peer      netip.Prefix // Peer selects packets to or from these addresses; without it, all.
	QPN       uint32       // QPN selects packets with this destination; 0 selects all.
	Class     Class        // Class selects kinds of packets; 0 selects all.

	Loss      Chance // Loss is the chance that a packet is dropped.
	Duplicate Chance // Duplicate is the chance that a packet is sent or received twice.
	Corrupt   Chance // Corrupt is the chance that a packet is damaged, so that its receiver drops it.
	Reorder   Chance // Reorder is the chance that a packet is held back.

	Behind int           // Behind is the number of packets that overtake one that is held back, 1 to 64; 0 means 1.
	Hold   time.Duration // Hold is the longest time that a packet is held back; 0 means 10 ms.

	Delay   Delay  // Delay is how long packets are delayed.
	Delayed Chance // Delayed is the part of the packets that is delayed; 0 means all.

	Rate   uint64 // Rate is a limit in bits per second, of UDP payload in one direction; 0 means none.
	Remove uint64 // Remove is the number of the packet, from 1, with which the device is removed; 0 means never.
}

// Delay is a distribution of times of up to an hour: evenly from Min to Max, or Min and beyond it
// exponentially with a mean of Mean. Max and Mean exclude each other.
type Delay struct {
	Min  time.Duration // Min is the shortest delay.
	Max  time.Duration // Max is the longest delay of an even distribution.
	Mean time.Duration // Mean is the mean of the exponential part.
}

// QPFault are faults of one queue pair, or of all.
type QPFault struct {
	QPN uint32 // QPN is the number of the queue pair; 0 stands for all.

	// NotReady of each OutOf receives that packets need are treated as missing.
	NotReady, OutOf int
	// Slow is how long a request waits before it is carried out and answered.
	Slow time.Duration
	// Fail makes a work request complete with an error, if its Status is not 0.
	Fail Fail
}

// Fail says which work request of a queue pair completes with which error. The [uverbs.WCError] says that it
// was injected, and by which fault.
//
// [uverbs.WCError]: https://pkg.go.dev/github.com/goverbs/goverbs/uverbs#WCError
type Fail struct {
	Recv bool // Recv means a receive, else it is a send.
	// Number counts the work requests of the queue: 0 is the first that completes after the faults were set,
	// or after the queue pair was created or reset if that was later. So no number is ever past when it is set.
	Number uint64
	Status uint32 // Status is the error, the number of a uverbs.WCStatus.
}

// A Chance is a probability in parts per million: 1 % is 1*Percent.
type Chance = fault.Chance

// Chances.
const (
	Percent = fault.Percent // one in a hundred
	Always  = fault.Always  // every time
)

// Direction is the direction of a packet, as seen from the device.
type Direction = fault.Direction

// Directions.
const (
	Both     = fault.Both     // sent and received
	Sent     = fault.Sent     // sent by the device
	Received = fault.Received // received by the device
)

// Class is a set of kinds of packets. A packet belongs to one.
type Class = fault.Class

// Classes of packets.
const (
	ClassSend     = fault.Send     // SEND of all types of queue pairs
	ClassWrite    = fault.Write    // RDMA WRITE
	ClassRead     = fault.Read     // requests of RDMA READ
	ClassAtomic   = fault.Atomic   // requests of atomics, and ATOMIC WRITE
	ClassFlush    = fault.Flush    // FLUSH
	ClassAck      = fault.Ack      // acknowledgements, and the NAKs that a responder repeats
	ClassNak      = fault.Nak      // NAKs that end a connection
	ClassResponse = fault.Response // responses to READ and to atomics
	ClassMAD      = fault.MAD      // messages to QP 1, as those of the connection manager
)

// ParseFaults reads the text form of faults, as in loss=1%,seed=7. An empty text is none.
func ParseFaults(text string) (Faults, error) {
	c, err := fault.Parse(text)
	if err != nil {
		return Faults{}, &OptionError{Field: "Faults", Value: text, Allowed: allowedFaults, Err: err}
	}
	f := faultsOf(c)
	if err := f.check(); err != nil {
		return Faults{}, err
	}
	return f, nil
}

// String returns the text form, for which ParseFaults returns equal faults if they are valid.
func (f Faults) String() string { return f.config().String() }

// allowedFaults describes the allowed values of Faults.
const allowedFaults = "a list of faults, such as loss=1%,reorder=1%,seed=7"

// check returns the error of a value that is out of its range.
func (f Faults) check() error {
	for i, r := range f.Rules {
		if r == (Rule{}) {
			return &OptionError{Field: fmt.Sprintf("Faults.Rules[%d]", i), Value: zeroValue("the zero value"), Allowed: "a rule with a field that is set"}
		}
	}
	for i, q := range f.QPs {
		if q == (QPFault{QPN: q.QPN}) {
			return &OptionError{Field: fmt.Sprintf("Faults.QPs[%d]", i), Value: zeroValue("the zero value"), Allowed: "a fault with a field besides QPN that is set"}
		}
	}
	if err := f.config().Validate(); err != nil {
		return &OptionError{Field: "Faults", Value: f.String(), Allowed: allowedFaults, Err: err}
	}
	return nil
}

// config returns the faults as the injector takes them.
func (f Faults) config() fault.Config {
	c := fault.Config{Seed: f.Seed}
	for _, r := range f.Rules {
		c.Rules = append(c.Rules, fault.Rule{
			Direction: r.Direction, Peer: r.Peer, QPN: r.QPN, Class: r.Class,
			Loss: r.Loss, Duplicate: r.Duplicate, Corrupt: r.Corrupt, Reorder: r.Reorder, Behind: r.Behind, Hold: r.Hold,
			Delay: fault.Delay(r.Delay), Delayed: r.Delayed, Rate: r.Rate, Remove: r.Remove,
		})
	}
	for _, q := range f.QPs {
		p := fault.QPFault{QPN: q.QPN, RNR: fault.RNR{Missing: q.NotReady, Of: q.OutOf}, Slow: q.Slow}
		p.Fail = fault.Fail{WR: q.Fail.Number, Status: fault.Status(q.Fail.Status)}
		if q.Fail.Recv {
			p.Fail.Queue = fault.RecvQueue
		}
		c.Plan = append(c.Plan, p)
	}
	return c
}

// faultsOf is the inverse of config.
func faultsOf(c fault.Config) Faults {
	f := Faults{Seed: c.Seed}
	for _, r := range c.Rules {
		f.Rules = append(f.Rules, Rule{
			Direction: r.Direction, Peer: r.Peer, QPN: r.QPN, Class: r.Class,
			Loss: r.Loss, Duplicate: r.Duplicate, Corrupt: r.Corrupt, Reorder: r.Reorder, Behind: r.Behind, Hold: r.Hold,
			Delay: Delay(r.Delay), Delayed: r.Delayed, Rate: r.Rate, Remove: r.Remove,
		})
	}
	for _, p := range c.Plan {
		f.QPs = append(f.QPs, QPFault{
			QPN: p.QPN, NotReady: p.RNR.Missing, OutOf: p.RNR.Of, Slow: p.Slow,
			Fail: Fail{Recv: p.Fail.Queue == fault.RecvQueue, Number: p.Fail.WR, Status: uint32(p.Fail.Status)},
		})
	}
	return f
}
