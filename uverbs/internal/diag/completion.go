package diag

import (
	"fmt"
	"time"
)

// Status is the status of a completion (enum ib_wc_status, rdma/ib_verbs.h).
type Status uint32

// The statuses that have an explanation.
const (
	LocLenErr      Status = 1
	LocQPOpErr     Status = 2
	LocProtErr     Status = 4
	WRFlushErr     Status = 5
	MWBindErr      Status = 6
	LocAccessErr   Status = 8
	RemInvReqErr   Status = 9
	RemAccessErr   Status = 10
	RemOpErr       Status = 11
	RetryExcErr    Status = 12
	RNRRetryExcErr Status = 13
	RemAbortErr    Status = 16
	GeneralErr     Status = 21
)

// Queue is the queue that a completion belongs to.
type Queue uint8

// The queues of a QP.
const (
	UnknownQueue Queue = iota
	SendQueue
	RecvQueue
)

// Completion is a completion that failed.
type Completion struct {
	Status   Status
	Queue    Queue
	Request  *Request // the send request, nil if the ring does not have it any more or it is a receive
	SendInv  bool     // the request invalidates a key of the peer
	Inv      bool     // the request invalidates a key of this side
	Peer     *Peer    // nil if the QP was never connected
	IWARP    bool     // the connection is a TCP connection, and the kernel moves the QP when it ends
	NoRoute  bool     // a send that has no route to the peer fails with LocQPOpErr
	OldRoute bool     // it fails with LocProtErr
	MTU      int      // of the port, in bytes; 0 if it is not known
	Datagram bool     // the QP is a UD QP
	Cause    error    // why the QP is in state ERR, nil if that is not known
}

// Peer is how a QP was told to reach its peer; zero fields are not known.
type Peer struct {
	Attempts    int           // how often a packet is sent that is not acknowledged
	Timeout     time.Duration // of each attempt
	RNRAttempts int           // how often a message is sent that finds no receive
	MTU         int           // of the path, in bytes
	NoReads     bool          // the QP may send no READ or atomic
	InfiniBand  bool          // the port is known to be one of InfiniBand
}

const tooLongSend = "the message is longer than the device sends; a datagram may be as long as the port's MTU, another message as PortAttr.MaxMsgSize"

// refusedHere explains a receive that failed since the peer named memory that it may not use.
const refusedHere = "a request of the peer named memory that it may not use; its rkey, address range or access right is wrong"

// recvHints say what is wrong with a receive, or with the peer's request that arrived.
var recvHints = map[Status]string{
	LocLenErr:    "the message is longer than the receive",
	LocProtErr:   "the memory of the receive is not valid; an SGE is outside its MR, has a wrong lkey, or the MR does not have AccessLocalWrite",
	LocQPOpErr:   "the message is likely longer than the receive; or an SGE of the receive is outside its MR or has a wrong lkey",
	LocAccessErr: refusedHere,
	RemAccessErr: refusedHere,
	RemInvReqErr: "a request of the peer was refused here; the message is likely longer than the receive, or the QP does not permit the operation, or the peer has another path MTU",
	RemAbortErr:  "the peer ended the message before its end",
	GeneralErr:   "the connection broke while the message arrived",
}

// Hint says what is wrong or, if that is not known, what usually is wrong: at most three causes, the
// likeliest first.
func (c *Completion) Hint() string {
	switch {
	case c.Status == WRFlushErr:
		return c.flushHint()
	case c.Queue == RecvQueue:
		return c.recvHint()
	}
	switch c.Status {
	case RetryExcErr:
		return c.Peer.noAnswer(c.Request != nil && c.Request.Writes && c.Request.Length > minMTU)
	case RNRRetryExcErr:
		hint := "the peer had no receive posted"
		if c.Peer != nil {
			hint += fmt.Sprintf(" at %d attempts", c.Peer.RNRAttempts)
		}
		return hint + "; it must post receives before this side sends; RNRRetry allows more attempts, the peer's MinRNRTimer is the time between them"
	case RemAccessErr:
		return "the peer's memory does not permit it; likely the rkey, the range or the access right is wrong, or its MR or MW is gone: compare them with the MR's at the peer"
	case RemInvReqErr:
		return c.invalidRequest()
	case RemOpErr:
		return c.shortReceive() + "; or an SGE of it is wrong (lkey, range, LOCAL_WRITE, MR closed): the peer's completion of it says more"
	case LocProtErr, LocQPOpErr, MWBindErr:
		return c.localHint()
	case LocLenErr:
		if r := c.Request; c.Queue == SendQueue && c.Datagram && r != nil && c.MTU != 0 && int(r.Length) > c.MTU {
			return fmt.Sprintf("the datagram of %d bytes exceeds the port's MTU of %d bytes", r.Length, c.MTU)
		}
		if c.Queue == SendQueue {
			return tooLongSend
		}
		return "the message is longer than the receive; or, if it is a send, than the device sends"
	}
	return ""
}

// NoRoute is the hint of a send that has likely failed for its path.
const NoRoute = "the device likely has no route to the peer; nothing is wrong with the memory of the request"

// grhSize is the room that the GRH of a datagram takes in a receive, in bytes.
const grhSize = 40

// recvHint explains a failed receive.
func (c *Completion) recvHint() string {
	r := c.Request
	if r == nil || c.Status != LocLenErr && c.Status != LocProtErr && c.Status != LocQPOpErr {
		return recvHints[c.Status]
	}
	if fault := r.sgeFault(); fault != "" && c.Status != LocLenErr {
		return fault
	}
	if c.Status == LocProtErr {
		return recvHints[LocProtErr]
	}
	hint := fmt.Sprintf("the receive of %d bytes is too short", r.Length)
	if c.Datagram {
		hint += fmt.Sprintf("; a datagram needs %d bytes more than its data, at the beginning, for the GRH", grhSize)
	}
	return hint
}

// noAnswer says why the peer may not have acknowledged a request, or answered one that reads.
func (p *Peer) noAnswer(reads bool) string {
	wait, size, how := "", "", "RoCE uses UDP port 4791, a software device may have another"
	if p != nil && p.InfiniBand {
		how = "both ports must be in the QPs' partition, and one of them a full member"
	}
	if p != nil && p.Timeout != 0 {
		wait = fmt.Sprintf(" for %d attempts of %s each", p.Attempts, p.Timeout.Round(10*time.Microsecond))
	}
	if p != nil && p.MTU != 0 {
		size = fmt.Sprintf(", at least those of the path MTU, %d bytes", p.MTU)
		if reads {
			size += ", or the peer has another path MTU"
		}
	}
	return "no acknowledgement" + wait + "; likely the peer is gone, or its QP is not ready to receive, or packets do not get through (" + how + ")" + size +
		"; to tell: ping the peer, look at its QP's state (RTR or RTS is ready), run verbs rping to it"
}

// minMTU is the smallest path MTU: a message of so many bytes is one packet.
const minMTU = 256

// shortReceive says that a message did not fit, which is likely and not certain.
func (c *Completion) shortReceive() string {
	if c.Request == nil {
		return "the peer's receive is likely too short"
	}
	return fmt.Sprintf("the peer's receive is likely too short for the %d bytes", c.Request.Length)
}

// invalidRequest says why the peer may have refused a request as invalid.
func (c *Completion) invalidRequest() string {
	r, mtu := c.Request, ""
	if r == nil || r.Length > minMTU {
		mtu = ", or the peer has another path MTU"
	}
	switch {
	case c.SendInv:
		return "the key that it invalidates is likely not valid there; it must be one of an MR or MW that the peer's QP may invalidate; or the peer's receive is too short" + mtu
	case r == nil:
		return c.shortReceive() + "; or its QP does not permit the operation or so many READs and atomics at once" + mtu
	case r.Writes:
		return "the peer's QP likely does not permit " + r.Op + "; or not so many READs and atomics at once (MaxDestRdAtomic)"
	case r.Remote:
		return "the peer's QP likely does not permit " + r.Op + "; see PathOptions.Access or QPAttr.Access there" + mtu
	}
	return c.shortReceive() + "; the peer's completion of it says more" + mtu
}

// localHint explains a failure on this side.
func (c *Completion) localHint() string {
	fault := c.Request.localFault()
	switch {
	case fault != "":
		return fault
	case c.Status == LocProtErr && c.OldRoute && c.Request != nil && !c.Request.Writes:
		return NoRoute
	case c.Status == LocProtErr:
		return "an SGE is not valid; it is outside its MR, has a wrong lkey, or the MR does not have AccessLocalWrite"
	case c.Status != LocQPOpErr || c.Request == nil:
		return ""
	case c.IWARP && c.Inv:
		return "the key that it invalidates may not be one of the QP's protection domain"
	case c.IWARP:
		return "the connection has broken, as when the peer is gone; its memory is right"
	}
	if c.NoRoute {
		return NoRoute
	}
	if c.Request.Writes && c.Peer != nil && c.Peer.NoReads {
		return "the QP sends no READ or atomic, as its MaxRdAtomic is 0; set it in PathOptions or Modify"
	}
	return "the device does not accept the request; its memory is right, so likely the type or state of the QP forbids it"
}

// flushHint explains a flush that no failed completion explains.
func (c *Completion) flushHint() string {
	what := [...]string{UnknownQueue: "requests", SendQueue: "sends", RecvQueue: "receives"}[c.Queue]
	if c.Cause != nil {
		return fmt.Sprintf("%s; %s that were still posted are flushed", c.Cause, what)
	}
	if fault := c.Request.localFault(); fault != "" {
		return fault
	}
	const moved = "the device moved the QP to state ERR; no completion polled so far says why; an asynchronous event of the QP may (Device.NextEvent), or "
	switch {
	case c.IWARP:
		return "the connection has ended; the peer disconnected, closed its QP or is gone, or this side refused a message of the peer; " + what + " that were still posted are flushed"
	case c.Queue == RecvQueue:
		return moved + "the completion of a send that is not polled yet"
	}
	return moved + "a completion that is not polled yet; some kernels say no more of a send that they cannot execute"
}
