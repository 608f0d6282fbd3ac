package uverbs

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// EventType is the kind of an asynchronous event (enum ib_event_type, rdma/ib_verbs.h).
type EventType uint32

// Event types (IBV_EVENT_CQ_ERR and following). The comments name the field of [Event] that is set.
const (
	EventCQErr             EventType = iota // CQ: a completion was lost, since the queue was full
	EventQPFatal                            // QP
	EventQPReqErr                           // QP: the transport refused a request
	EventQPAccessErr                        // QP: a local access was not allowed
	EventCommEst                            // QP: a message came in state RTR
	EventSQDrained                          // QP: nothing is in flight any more, in state SQD
	EventPathMig                            // QP
	EventPathMigErr                         // QP
	EventDeviceFatal                        // the device is gone; no event follows
	EventPortActive                         // Port
	EventPortErr                            // Port
	EventLIDChange                          // Port
	EventPKeyChange                         // Port
	EventSMChange                           // Port
	EventSRQErr                             // SRQ
	EventSRQLimitReached                    // SRQ: it has fewer receives left than its limit
	EventQPLastWQEReached                   // QP: it takes no more receives from its SRQ
	EventClientReregister                   // Port
	EventGIDChange                          // Port
	EventWQFatal                            // WQ
	EventDeviceSpeedChange                  // Port, if the kernel reports it
)

// eventNames are in the words of rdma-core.
var eventNames = [...]string{
	EventCQErr:             "CQ error",
	EventQPFatal:           "local work queue catastrophic error",
	EventQPReqErr:          "invalid request local work queue error",
	EventQPAccessErr:       "local access violation work queue error",
	EventCommEst:           "communication established",
	EventSQDrained:         "send queue drained",
	EventPathMig:           "path migrated",
	EventPathMigErr:        "path migration request error",
	EventDeviceFatal:       "local catastrophic error",
	EventPortActive:        "port active",
	EventPortErr:           "port error",
	EventLIDChange:         "LID change",
	EventPKeyChange:        "P_Key change",
	EventSMChange:          "SM change",
	EventSRQErr:            "SRQ catastrophic error",
	EventSRQLimitReached:   "SRQ limit reached",
	EventQPLastWQEReached:  "last WQE reached",
	EventClientReregister:  "client reregistration",
	EventGIDChange:         "GID table change",
	EventWQFatal:           "WQ fatal",
	EventDeviceSpeedChange: "device speed change",
}

// String returns the type in words (ibv_event_type_str).
func (t EventType) String() string {
	if int64(t) < int64(len(eventNames)) {
		return eventNames[t]
	}
	return fmt.Sprintf("event type %d", uint32(t))
}

// Event is an asynchronous event (struct ibv_async_event). The comments of the event types say
// which of Port and the objects is set; for an unknown type none is.
type Event struct {
	Type EventType // Type is the kind of event.
	Port uint8     // Port is the port number, from 1; 0 if the event is not about a port.
	QP   *QP       // QP is the queue pair of the event, or nil.
	CQ   *CQ       // CQ is the completion queue of the event, or nil.
	SRQ  *SRQ      // SRQ is the shared receive queue of the event, or nil.
	WQ   *WQ       // WQ is the work queue of the event, or nil.
}

// String describes the event in one line.
func (e Event) String() string {
	switch {
	case e.QP != nil:
		return fmt.Sprintf("%s: QP %#x", e.Type, e.QP.QPN())
	case e.CQ != nil:
		return fmt.Sprintf("%s: CQ of %d", e.Type, e.CQ.Cap())
	case e.SRQ != nil:
		return fmt.Sprintf("%s: SRQ %#x", e.Type, e.SRQ.SRQN())
	case e.WQ != nil:
		return fmt.Sprintf("%s: WQ %#x", e.Type, e.WQ.WQN())
	case e.Port != 0:
		return fmt.Sprintf("%s: port %d", e.Type, e.Port)
	}
	return e.Type.String()
}

// targets are the objects that events can be about. The kernel carries their numbers in
// the user_handle of an object, for completion events and asynchronous ones alike. A
// number is never used again, so a late event cannot reach another object.
type targets struct {
	mu   sync.RWMutex
	last uint64
	all  map[uint64]any
}

// addTarget registers an object before it is created, since its first event may come at
// once. It returns the user_handle to create it with, which is never 0.
func (d *Device) addTarget(o any) uint64 {
	t := &d.targets
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[uint64]any{}
	}
	t.last++
	t.all[t.last] = o
	return t.last
}

// dropTarget forgets an object that is destroyed.
func (d *Device) dropTarget(handle uint64) {
	d.targets.mu.Lock()
	delete(d.targets.all, handle)
	d.targets.mu.Unlock()
}

// target returns the object of a user_handle, or nil.
func (d *Device) target(handle uint64) any {
	d.targets.mu.RLock()
	defer d.targets.mu.RUnlock()
	return d.targets.all[handle]
}

// openEvents allocates the file of asynchronous events for a context that was made by
// ioctl. A kernel without it has no such events.
func (d *Device) openEvents() error {
	cmd := newIoctl(abi.UVERBS_OBJECT_ASYNC_EVENT, abi.UVERBS_METHOD_ASYNC_EVENT_ALLOC)
	fd := cmd.newObj(abi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE)
	errno := d.cmd.ioctl(cmd)
	if absent(errno) {
		return nil
	}
	if errno != 0 {
		return d.cmd.fail("ASYNC_EVENT_ALLOC", errno, "")
	}
	var err error
	d.asyncFD = int(fd.Data)
	d.async, err = d.cmd.Events(uint32(fd.Data), "asynchronous events of "+d.Name())
	return err
}

// eventFD returns the descriptor for the EVENT_FD attribute of the commands that create
// CQs, QPs and SRQs. Without the attribute the kernel takes the first such file of the
// context, which is the same one; ok is false if it was not made by ioctl.
func (d *Device) eventFD() (fd int, ok bool) {
	return d.asyncFD, d.async != nil && d.asyncFD >= 0
}

// eventFDAttr adds that attribute. A kernel that does not know it may ignore it.
func (d *Device) eventFDAttr(cmd *ioctlCommand, id uint16) {
	if fd, ok := d.eventFD(); ok {
		cmd.fd(id, fd).Flags = 0
	}
}

// WaitEvent waits for the next asynchronous event of the device or of one of its objects
// (ibv_get_async_event). The kernel queues events from the time when the device was opened, so none
// is lost while no goroutine waits. Events of closed objects are dropped. Events need no
// acknowledgement, unlike in C.
//
// rxe raises these events:
//
//   - EventPortErr and EventPortActive when the network interface goes down and up (up to Linux 6.12
//     EventPortActive may come twice);
//   - EventGIDChange when an address of the interface is added or removed;
//   - EventCQErr when a completion finds its CQ full;
//   - EventSQDrained in state SQD;
//   - EventSRQLimitReached;
//   - EventQPLastWQEReached when a QP with an SRQ enters the error state (Linux 6.12, not 6.1);
//   - EventQPAccessErr when an access of a peer is refused (Linux 7.2, not 6.12).
//
// Other errors of a QP are completions.
//
// WaitEvent returns ctx.Err() wrapped if the context ends first, [os.ErrClosed] if the device is
// closed, [ErrDeviceRemoved] once it has returned EventDeviceFatal, and a [FeatureError] if the
// ioctl interface has no events (before Linux 5.6). One goroutine at a time may call WaitEvent. It
// parks in Go's netpoller and takes no thread. Repeated calls with one context do not allocate.
func (d *Device) WaitEvent(ctx context.Context) (Event, error) {
	if err := d.usable(); err != nil {
		return Event{}, err
	}
	if err := ctx.Err(); err != nil {
		return Event{}, fmt.Errorf("uverbs: wait for event: %w", err)
	}
	if d.async == nil {
		return Event{}, &FeatureError{Feature: "ASYNC_EVENT", Since: Version{5, 6}}
	}
	if d.fatal { // the kernel would let the call wait
		return Event{}, fmt.Errorf("uverbs: wait for event: %w", ErrDeviceRemoved)
	}
	d.asyncWatch.follow(ctx, d.async)
	for {
		ev, ok, err := d.readEvent()
		if err != nil {
			return Event{}, waitErr(ctx, &d.object, "event", err)
		}
		if ok {
			d.fatal = ev.Type == EventDeviceFatal
			return ev, nil
		}
	}
}

// readEvent reads one event; ok is false if its object is not known any more.
func (d *Device) readEvent() (ev Event, ok bool, err error) {
	desc := &d.asyncDesc
	n, err := d.async.Read(bytesOf(desc))
	if err != nil {
		return Event{}, false, err
	}
	if n != len(bytesOf(desc)) {
		return Event{}, false, fmt.Errorf("event of %d bytes instead of %d: %w", n, len(bytesOf(desc)), io.ErrUnexpectedEOF)
	}
	ev, ok = d.event(EventType(desc.EventType), desc.Element)
	return ev, ok, nil
}

// event finds what an event is about: element is a port number or a user_handle.
func (d *Device) event(t EventType, element uint64) (ev Event, ok bool) {
	ev = Event{Type: t}
	switch t {
	case EventCQErr:
		ev.CQ, ok = d.target(element).(*CQ)
	case EventQPFatal, EventQPReqErr, EventQPAccessErr, EventCommEst, EventSQDrained, EventPathMig, EventPathMigErr, EventQPLastWQEReached:
		if ev.QP, ok = d.target(element).(*QP); ok && (t == EventQPFatal || t == EventQPReqErr || t == EventQPAccessErr) {
			ev.QP.SetErrCause(eventCause(t))
		}
	case EventSRQErr, EventSRQLimitReached:
		ev.SRQ, ok = d.target(element).(*SRQ)
	case EventWQFatal:
		ev.WQ, ok = d.target(element).(*WQ)
	case EventPortActive, EventPortErr, EventLIDChange, EventPKeyChange, EventSMChange, EventClientReregister, EventGIDChange, EventDeviceSpeedChange:
		ev.Port, ok = uint8(element), true
	default:
		ok = true
	}
	return ev, ok
}
