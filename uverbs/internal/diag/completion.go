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
	Status  Status
	Queue   Queue
	Request *Request // the send request, nil if the ring does not have it any more or it is a receive
	SendInv bool     // the request invalidates a key of the peer
	Inv     bool     // the request invalidates a key of this side
	Peer    *Peer    // nil if the QP was never connected
	IWARP   bool     // the connection is a TCP connection, and the kernel moves the QP when it ends
	NoRoute bool     // a send that has no route to the peer fails with LocQPOpErr
	Cause   error    // why the QP is in state ERR, nil if that is not known
}

// Peer is how a QP was told to reach its peer; zero fields are not known.
type Peer struct {
	Attempts    int           // how often a packet is sent that is not acknowledged
	Timeout     time.Duration // of each attempt
	RNRAttempts int           // how often a message is sent that finds no receive
	MTU         int           // of the path, in bytes
	InfiniBand  bool          // the port is known to be one of InfiniBand
}

const (
	tooLong     = "the message is longer than the buffers of the receive"
	tooLongSend = "the message is longer than the device sends: a datagram may be as long as the port's MTU, another message as PortAttr.MaxMsgSize"
)

// recvHints say what is wrong with a receive, or with the peer's request that arrived.
var recvHints = map[Status]string{
	LocLenErr:    tooLong,
	LocProtErr:   "an SGE of the receive is outside its MR, has a wrong lkey, or the MR does not have AccessLocalWrite",
	LocQPOpErr:   tooLong + " (a datagram needs 40 bytes more), or an SGE of the receive is outside its MR or has a wrong lkey",
	LocAccessErr: "a request of the peer named memory of this side that its rkey, address range or access rights do not permit",
	RemAccessErr: "a request of the peer named memory of this side that its rkey, address range or access rights do not permit",
	RemInvReqErr: "a request of the peer was refused here: the message is longer than the buffers of the receive, the QP does not permit the operation, or the peer has another path MTU",
	RemAbortErr:  "the peer ended the message before its end",
	GeneralErr:   "the connection broke while the message arrived",
}

// Hint says what is wrong or, if that is not known, what usually is wrong.
func (c *Completion) Hint() string {
	switch {
	case c.Status == WRFlushErr:
		return c.flushHint()
	case c.Queue == RecvQueue:
		return recvHints[c.Status]
	}
	switch c.Status {
	case RetryExcErr:
		return c.Peer.noAnswer(c.Request != nil && c.Request.Writes && c.Request.Length > minMTU)
	case RNRRetryExcErr:
		hint := "it had no receive posted"
		if c.Peer != nil {
			hint += fmt.Sprintf(" at %d attempts; the time between them is its MinRNRTimer", c.Peer.RNRAttempts)
		}
		return hint
	case RemAccessErr:
		return "the rkey, the address range or the access rights of the peer's MR or MW do not permit it, or the MR or MW is gone, as when the peer ends"
	case RemInvReqErr:
		return c.invalidRequest()
	case RemOpErr:
		return "the peer's receive may be too short for the message, or not valid: the peer's completion of it says more"
	case LocProtErr, LocQPOpErr, MWBindErr:
		return c.localHint()
	case LocLenErr:
		if c.Queue == SendQueue {
			return tooLongSend
		}
		return tooLong + ", or, if it is a send, than the device sends"
	}
	return ""
}

// noAnswer says why the peer may not have acknowledged a request, or answered one that reads.
func (p *Peer) noAnswer(reads bool) string {
	wait, size, how := "after all retries", "", "RoCE uses UDP port 4791"
	if p != nil && p.InfiniBand {
		how = "both ports must be in the QPs' partition, and one of them a full member"
	}
	if p != nil && p.Timeout != 0 {
		wait = fmt.Sprintf("for %d attempts of %s each", p.Attempts, p.Timeout)
	}
	if p != nil && p.MTU != 0 {
		size = fmt.Sprintf(", at least those of the path MTU, %d bytes", p.MTU)
		if reads {
			size += ", or the peer has another path MTU"
		}
	}
	return "it did not acknowledge " + wait + "; it is gone, its QP is not ready to receive, or packets do not get through (" + how + ")" + size
}

// minMTU is the smallest path MTU: a message of so many bytes is one packet.
const minMTU = 256

// invalidRequest says why the peer may have refused a request as invalid.
func (c *Completion) invalidRequest() string {
	r, mtu := c.Request, ""
	if r == nil || r.Length > minMTU {
		mtu = ", or the peer has another path MTU"
	}
	switch {
	case c.SendInv:
		return "the key that it invalidates may not be one of an MR or MW that the peer's QP may invalidate, the peer's receive is too short" + mtu
	case r == nil:
		return "the peer's receive may be too short, its QP may not permit the operation or so many READs and atomics at once" + mtu
	case r.Writes:
		return "the peer's QP may not permit the operation, or so many READs and atomics at once (MaxDestRdAtomic)"
	case r.Remote:
		return "the peer's QP may not permit the operation" + mtu
	}
	return "the peer's receive may be too short" + mtu
}

// localHint explains a failure on this side.
func (c *Completion) localHint() string {
	fault := c.Request.localFault()
	switch {
	case fault != "":
		return fault
	case c.Status == LocProtErr:
		return "an SGE is outside its MR, has a wrong lkey, or the MR does not have AccessLocalWrite"
	case c.Status != LocQPOpErr || c.Request == nil:
		return ""
	case c.IWARP && c.Inv:
		return "the key that it invalidates may not be one of the QP's protection domain"
	case c.IWARP:
		return "nothing is wrong with its memory; the connection has broken, as when the peer is gone or TCP does not get through"
	}
	if c.NoRoute {
		return "nothing is wrong with its memory; the device may have no route to the peer, as when the port is down"
	}
	return "nothing is wrong with its memory; the device does not accept the request: the type or state of the QP may forbid it, and a READ or atomic needs MaxRdAtomic above 0"
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
	const moved = "the device moved the QP to state ERR, and no completion that was polled says why; an asynchronous event of the QP may (Device.WaitEvent), or "
	switch {
	case c.IWARP:
		return "the connection has ended: the peer disconnected, closed its QP or is gone, or this side refused a message of the peer; " + what + " that were still posted are flushed"
	case c.Queue == RecvQueue:
		return moved + "the completion of a send that is not polled yet"
	}
	return moved + "a completion that is not polled yet; some kernels say no more of a send that they cannot execute"
}
