package rdmacm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// EventType is the type of an [Event] (enum rdma_cm_event_type, rdma/rdma_cm.h).
type EventType uint32

// Event types.
const (
	EventAddrResolved     EventType = iota // the device for the address is known (RDMA_CM_EVENT_ADDR_RESOLVED)
	EventAddrError                         // the address could not be resolved (RDMA_CM_EVENT_ADDR_ERROR)
	EventRouteResolved                     // the route is known (RDMA_CM_EVENT_ROUTE_RESOLVED)
	EventRouteError                        // the route could not be resolved (RDMA_CM_EVENT_ROUTE_ERROR)
	EventConnectRequest                    // a peer asks a listener for a connection (RDMA_CM_EVENT_CONNECT_REQUEST)
	EventConnectResponse                   // the peer has accepted and waits for this side (RDMA_CM_EVENT_CONNECT_RESPONSE)
	EventConnectError                      // the connection could not be established (RDMA_CM_EVENT_CONNECT_ERROR)
	EventUnreachable                       // the peer does not answer (RDMA_CM_EVENT_UNREACHABLE)
	EventRejected                          // the peer has rejected the request or the answer (RDMA_CM_EVENT_REJECTED)
	EventEstablished                       // the connection is established (RDMA_CM_EVENT_ESTABLISHED)
	EventDisconnected                      // the connection has ended (RDMA_CM_EVENT_DISCONNECTED)
	EventDeviceRemoval                     // the device is being removed (RDMA_CM_EVENT_DEVICE_REMOVAL)
	EventMulticastJoin                     // the ID has joined the group (RDMA_CM_EVENT_MULTICAST_JOIN)
	EventMulticastError                    // joining the group failed, or the membership is lost (RDMA_CM_EVENT_MULTICAST_ERROR)
	EventAddrChange                        // the network interface has another hardware address, as after the failover of a bond (RDMA_CM_EVENT_ADDR_CHANGE)
	EventTimewaitExit                      // the QP may be used for another connection (RDMA_CM_EVENT_TIMEWAIT_EXIT)
	EventAddrInfoResolved                  // an InfiniBand service was found (RDMA_CM_EVENT_ADDRINFO_RESOLVED); Linux 6.18
	EventAddrInfoError                     // an InfiniBand service was not found (RDMA_CM_EVENT_ADDRINFO_ERROR); Linux 6.18
	EventUser                              // a program has called WriteEvent (RDMA_CM_EVENT_USER); Linux 6.18
	EventInternal                          // a library has written an event for its own use (RDMA_CM_EVENT_INTERNAL); Linux 6.18
)

var eventNames = [...]string{
	"ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST", "CONNECT_RESPONSE", "CONNECT_ERROR", "UNREACHABLE",
	"REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL", "MULTICAST_JOIN", "MULTICAST_ERROR", "ADDR_CHANGE", "TIMEWAIT_EXIT",
	"ADDRINFO_RESOLVED", "ADDRINFO_ERROR", "USER", "INTERNAL",
}

// String returns the name of the type (rdma_event_str).
func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("event %d", uint32(t))
}

// Event is an event of an ID (struct rdma_cm_event). It is a plain value that need not be
// acknowledged.
type Event struct {
	Type   EventType // Type says what happened.
	ID     *ID       // ID is the ID that the event belongs to; for EventConnectRequest, the new ID.
	Listen *ID       // Listen is the listener of an EventConnectRequest.
	Group  *Group    // Group is the group of an EventMulticastJoin or EventMulticastError.
	Status int32     // Status is 0, a negative errno, the [Reason] of an EventRejected, or the status given to WriteEvent.
	Arg    uint64    // Arg is the argument given to WriteEvent, for EventUser.

	Param ConnParam // Param has the peer's parameters and private data, if it has sent any.
	UD    UDParam   // UD says how to send to the peer, in the port spaces for datagrams.

	cause error // an error of this side, if Status does not come from the kernel
}

// ConnParam has the parameters of a connection (struct rdma_conn_param).
type ConnParam struct {
	PrivateData        []byte                          // PrivateData is sent with a request, an answer or a rejection.
	ResponderResources uint8                           // ResponderResources is how many READs and atomics of the peer this side serves at a time.
	InitiatorDepth     uint8                           // InitiatorDepth is how many READs and atomics of this side may be outstanding.
	FlowControl        bool                            // FlowControl says whether InfiniBand's end-to-end flow control is used.
	RetryCount         uint8                           // RetryCount is how often a packet without an acknowledgement is sent again, up to 7; rxe takes 7 as no limit.
	RNRRetryCount      uint8                           // RNRRetryCount is how often a message is sent again if the receiver has no receive posted, up to 6; 7 is no limit. QPs of [ID.CreateQP] have the peer wait 0.64 ms before each.
	SRQ                bool                            // SRQ says that the QP takes its receives from an SRQ; only for an ID without a QP.
	QPN                uint32                          // QPN is the number of the QP; only for an ID without a QP.
	QKey               uint32                          // QKey is the Q_Key for datagrams; 0 is the default of the port space.
	MTU                ib.MTU                          // MTU, for [ID.Accept], is the longest path MTU of this side, in a program that tells it to the peer; with 0 a request for more than the port has is refused.
	AnswerMTU          func(privateData []byte) ib.MTU // AnswerMTU, for [ID.Connect], returns the longest path MTU of the peer, which the answer says; 0 if it does not. It is called when the answer is read.
	ECE                ECE                             // ECE has options for enhanced connections (rdma_set_local_ece, rdma_get_remote_ece); if it is the zero value, the [ECEMode] of the ID says which are sent.
}

// UDParam says how to send datagrams to a peer or a group.
type UDParam struct {
	QPN  uint32        // QPN is the number of the peer's QP; of a group, [MulticastQPN].
	QKey uint32        // QKey is the Q_Key of the peer.
	AH   uverbs.AHAttr // AH is the address of the peer, for [uverbs.PD.CreateAH].
}

// Err returns the failure that the event reports, or nil. An event of type [EventUser] is a failure if
// its status is not 0.
func (e *Event) Err() error {
	if e.Status == 0 && e.Type != EventMulticastError { // which the kernel also reports without a status
		return nil
	}
	err := &EventError{Type: e.Type, Status: e.Status, PrivateData: e.Param.PrivateData, cause: e.cause}
	if e.ID != nil {
		err.Addr, err.space = e.ID.remoteName(), e.ID.space
	}
	if e.Group != nil {
		err.Addr = e.Group.addr.String()
	}
	if e.Status < 0 {
		err.hint = err.likelyCause(syscall.Errno(-e.Status))
	}
	return err
}

// EventError is the failure that an event reports, or an event that came instead of the expected
// one. If Status is an errno, the error matches it. It also matches ECONNREFUSED if the peer has
// rejected the connection or has no QP for datagrams, ECONNRESET if the peer has disconnected, and
// ENODEV if the device is being removed. A rejection with [ReasonVendorOption] matches [ErrNoECE], too.
type EventError struct {
	Type        EventType // Type is the type of the event.
	Addr        string    // Addr is the address of the peer or of the group; empty if this side did not choose it.
	Device      string    // Device is the name of the device that is being removed; empty if it is not known.
	Status      int32     // Status is a negative errno, or the reason of a rejection.
	PrivateData []byte    // PrivateData is the private data of a rejection.

	space PortSpace
	hint  string // hint says what the cause may be; may be empty.
	cause error  // cause is an error of this side, if Status does not come from the kernel.
}

// Error implements the error interface.
func (e *EventError) Error() string {
	s := "cm: " + e.Type.String()
	if e.Addr != "" {
		s += " " + e.Addr
	}
	switch {
	case e.cause != nil:
		return s + ": " + e.cause.Error()
	case e.Type == EventDeviceRemoval && e.Status == 0:
		return s + ": " + errRemoved(e.Device).Error()
	case e.Status < 0:
		errno := syscall.Errno(-e.Status)
		s += ": " + errno.Error()
		if e.hint != "" {
			s += ": " + e.hint
		}
		return s
	case e.Type == EventMulticastError && e.Status == 0:
		return s + ": the port no longer has a GID for the address of the ID"
	case e.Type == EventRejected:
		return fmt.Sprintf("%s: %s (reason %d)", s, Reason(e.Status), e.Status)
	}
	if e.Type == EventUnreachable && int(e.Status) < len(sidrStatus) && e.Status > 0 {
		return fmt.Sprintf("%s: %s (status %d)", s, sidrStatus[e.Status], e.Status)
	}
	if e.Status == 0 {
		return s + ": this event was not expected here"
	}
	return fmt.Sprintf("%s: status %d", s, e.Status)
}

// likelyCause returns the likely cause of a failure, if there is one. It may list the devices.
func (e *EventError) likelyCause(errno syscall.Errno) string {
	switch t := e.Type; {
	case t == EventAddrError && errno == syscall.EINVAL && e.space == IPoIB:
		return noIPoIB
	case t == EventRejected:
		return "the program there has rejected the connection, or has closed it without an answer"
	case t == EventConnectError && errno == syscall.EINVAL:
		return "on iWARP the peer speaks another version of MPA, sends an answer that this side does not support, or has sent data before this side did"
	case t == EventAddrError && errno == syscall.ENODEV:
		return noDevice(e.Addr)
	case t == EventAddrError && (errno == syscall.ETIMEDOUT || errno == syscall.EHOSTUNREACH):
		return orSoft("no host on the network of the interface answers for the address")
	case t == EventMulticastError && errno == syscall.ENETRESET:
		return "the membership is lost because the port or the subnet has changed; leave the group and join again"
	case t == EventMulticastError && errno == syscall.ETIMEDOUT:
		return "InfiniBand's subnet administrator does not answer"
	case t == EventMulticastError:
		return "InfiniBand's subnet administrator has refused, or the device does not support it"
	case t == EventAddrInfoError:
		return "the subnet administrator has no such service on record, or does not answer"
	case t == EventUnreachable:
		return "no answer; the host is down, a firewall blocks UDP port 4791 (on iWARP this TCP port), or the listener's backlog is full"
	}
	return ""
}

// Unwrap returns the errno that the error matches.
func (e *EventError) Unwrap() error {
	switch {
	case e.cause != nil:
		return e.cause
	case e.Type == EventRejected && e.Status < 0: // on iWARP
		return errors.Join(syscall.ECONNREFUSED, syscall.Errno(-e.Status))
	case e.Status < 0:
		return syscall.Errno(-e.Status)
	case e.Type == EventDisconnected:
		return syscall.ECONNRESET
	case e.Type == EventDeviceRemoval:
		return syscall.ENODEV
	case e.Type == EventRejected && Reason(e.Status) == ReasonVendorOption:
		return errors.Join(syscall.ECONNREFUSED, ErrNoECE)
	case e.Type == EventRejected || e.Type == EventUnreachable:
		return syscall.ECONNREFUSED
	}
	return nil
}

// sidrStatus has the texts for the statuses with which a peer refuses a request for a QP for
// datagrams (enum ib_cm_sidr_status, rdma/ib_cm.h).
var sidrStatus = [...]string{"", "nobody listens on this port", "the program there has rejected the request", "the program there has no QP for the request",
	"redirected", "the peer speaks another version"}

// Reason says why a request was rejected (enum ib_cm_rej_reason, rdma/ib_cm.h).
type Reason uint16

// The most common reasons.
const (
	ReasonInvalidServiceID Reason = 8  // no program listens on the port
	ReasonStaleConn        Reason = 10 // the peer still has an old connection with this QP
	ReasonConsumer         Reason = 28 // the program has rejected the request
	ReasonVendorOption     Reason = 35 // the options for enhanced connections are not acceptable
)

// reasons are the texts of reasons, after the standard (IBTA 12.6.7.2).
var reasons = map[Reason]string{
	1: "no QP", 2: "no EEC", 3: "no resources", 4: "timeout", 5: "unsupported request", 6: "invalid communication ID",
	7: "invalid communication instance", 8: "nobody listens on this port", 9: "invalid transport service type",
	10: "stale connection: the peer still has an old connection with this QP", 11: "RDC not existent", 12: "invalid GID", 13: "invalid LID",
	14: "invalid service level", 15: "invalid traffic class", 16: "invalid hop limit", 17: "invalid packet rate", 18: "invalid alternate GID",
	19: "invalid alternate LID", 20: "invalid alternate service level", 21: "invalid alternate traffic class", 22: "invalid alternate hop limit",
	23: "invalid alternate packet rate", 24: "redirected to another port by CM", 25: "redirected to another port", 26: "invalid MTU",
	27: "not enough responder resources", 28: "the program there has rejected the request, or its kernel has no route back to this address", 29: "RNR retry count", 30: "duplicate communication ID",
	31: "invalid class version", 32: "invalid flow label", 33: "invalid alternate flow label", 35: "the options for enhanced connections are not acceptable",
}

// String returns a text for the reason.
func (r Reason) String() string {
	if s, ok := reasons[r]; ok {
		return s
	}
	return fmt.Sprintf("reason %d", uint16(r))
}

// decode decodes an event of the kernel, except for the IDs.
func decode(r *abi.EventResp, datagrams bool) *Event {
	e := &Event{Type: EventType(r.Event), Status: int32(r.Status)}
	if e.Type == EventUser || e.Type == EventInternal {
		arg := r.Param.Arg32()
		e.Arg = binary.NativeEndian.Uint64(binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, arg[0]), arg[1]))
		return e
	}
	ece := ECE{VendorID: r.Ece.VendorID, Options: r.Ece.AttrMod}
	if datagrams {
		p := r.Param.UD()
		e.UD = UDParam{QPN: p.QPNum, QKey: p.QKey, AH: ahAttr(&p.AHAttr)}
		e.Param = ConnParam{PrivateData: private(&p.PrivateData, p.PrivateDataLen), QPN: p.QPNum, QKey: p.QKey, ECE: ece}
		return e
	}
	p := r.Param.Conn()
	e.Param = ConnParam{
		PrivateData:        private(&p.PrivateData, p.PrivateDataLen),
		ResponderResources: p.ResponderResources,
		InitiatorDepth:     p.InitiatorDepth,
		FlowControl:        p.FlowControl != 0,
		RetryCount:         p.RetryCount,
		RNRRetryCount:      p.RNRRetryCount,
		SRQ:                p.SRQ != 0,
		QPN:                p.QPNum,
		QKey:               p.QKey,
		ECE:                ece,
	}
	return e
}

// private returns a copy of private data.
func private(b *[abi.RDMA_MAX_PRIVATE_DATA]uint8, n uint8) []byte {
	if n == 0 {
		return nil
	}
	return append([]byte(nil), b[:n]...) // n is at most 255
}
