package uverbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"syscall"
	"time"
)

// EventType is the kind of an asynchronous event (enum ib_event_type, rdma/ib_verbs.h).
type EventType uint32

// Event types (IBV_EVENT_CQ_ERR and following). Each comment names the field of [Event] that is set.
const (
	EventCQErr             EventType = iota // CQ: a completion was lost because the CQ was full; cards and software devices put no more into it
	EventQPFatal                            // QP: a fatal error
	EventQPReqErr                           // QP: the transport refused a request
	EventQPAccessErr                        // QP: a local access was not allowed
	EventCommEst                            // QP: a message arrived in state RTR
	EventSQDrained                          // QP: in state SQD, no request is in flight any more
	EventPathMig                            // QP: it uses the alternate path now
	EventPathMigErr                         // QP: the migration failed
	EventDeviceFatal                        // none: the device was removed, and no event follows
	EventPortActive                         // Port: it is active
	EventPortErr                            // Port: it is down
	EventLIDChange                          // Port: its LID changed
	EventPKeyChange                         // Port: its P_Key table changed
	EventSMChange                           // Port: it has another subnet manager; rxe, siw and mlx5_ib do not report it
	EventSRQErr                             // SRQ: a fatal error
	EventSRQLimitReached                    // SRQ: it has fewer receives left than its limit
	EventQPLastWQEReached                   // QP: it takes no more receives from its SRQ
	EventClientReregister                   // Port: the subnet manager asks clients to register again
	EventGIDChange                          // Port: its GID table changed
	EventWQFatal                            // WQ: a fatal error; with mlx5_ib since Linux 6.1, Close of the WQ blocks forever
	EventDeviceSpeedChange                  // Port: its speed changed
)

// eventNames are the names that rdma-core uses.
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

// Event is an asynchronous event (struct ibv_async_event). The event types document which of Port
// and the objects is set; for an unknown type none is.
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
		if e.Type == EventCQErr {
			return fmt.Sprintf("%s: a CQ with room for %d completions has lost one; poll it in time, or create it with a larger CQOptions.Size", e.Type, e.CQ.Size())
		}
		return fmt.Sprintf("%s: CQ of %d", e.Type, e.CQ.Size())
	case e.SRQ != nil:
		return fmt.Sprintf("%s: SRQ %#x", e.Type, e.SRQ.SRQN())
	case e.WQ != nil:
		return fmt.Sprintf("%s: WQ %#x", e.Type, e.WQ.WQN())
	case e.Port != 0:
		return fmt.Sprintf("%s: port %d", e.Type, e.Port)
	}
	return e.Type.String()
}

// NextEvent waits for the next asynchronous event of the device or of one of its objects
// (ibv_get_async_event). Events need no acknowledgement. The kernel queues events while no
// goroutine waits, from the opening of the device on. Events of closed objects are dropped.
//
// rxe raises these events:
//
//   - EventPortErr and EventPortActive when the network interface goes down and up (up to Linux
//     6.12 EventPortActive may come twice);
//   - EventGIDChange when an address of the interface is added or removed;
//   - EventCQErr when a completion finds its CQ full, of which NextEvent returns one in five seconds for each CQ;
//   - EventSQDrained in state SQD;
//   - EventSRQLimitReached;
//   - EventQPLastWQEReached when a QP with an SRQ enters the error state (Linux 6.12, not 6.1);
//   - EventQPAccessErr when an access of a peer is refused (Linux 7.2, not 6.12).
//
// It reports other errors of a QP as completions. Cards and software devices raise EventQPFatal as well, for a QP whose
// completion finds the CQ full, now or earlier: the QP is in state ERR, and the CQ takes no more completions.
//
// NextEvent returns ctx.Err() wrapped if the context ends first, [os.ErrClosed] if the device is
// closed, and [ErrDeviceRemoved] once it has returned EventDeviceFatal. Before Linux 5.6 it returns
// a [FeatureError]. It parks the goroutine in Go's netpoller and takes no thread; it has no busy waits
// as [CompChannel.Next] has, since these events are rare. Repeated calls with one context do not
// allocate. One goroutine at a time may call NextEvent.
func (d *Device) NextEvent(ctx context.Context) (Event, error) {
	if err := d.usable(); err != nil {
		return Event{}, err
	}
	if err := ctx.Err(); err != nil {
		return Event{}, fmt.Errorf("uverbs: wait for event: %w", err)
	}
	if d.async == nil {
		return Event{}, &FeatureError{Feature: "ASYNC_EVENT", Since: Version{5, 6}}
	}
	if d.fatal { // the kernel would block
		return Event{}, fmt.Errorf("uverbs: wait for event: %w", ErrDeviceRemoved)
	}
	d.asyncWatch.follow(ctx, d.async)
	for {
		ev, ok, err := d.readEvent()
		if s := d.cmd.sandbox(); s != "" && errors.Is(err, syscall.EAGAIN) { // it passes events on, but no file that can be waited for
			return Event{}, &FeatureError{Feature: "ASYNC_EVENT", Sandbox: s, Err: err}
		}
		if err != nil {
			return Event{}, waitErr(ctx, &d.object, "event", err)
		}
		if ok {
			d.fatal = ev.Type == EventDeviceFatal
			return ev, nil
		}
	}
}

// Events returns an iterator over the asynchronous events of the device, each of which it takes with
// [Device.NextEvent] when its turn comes. An error is the last pair of the loop, and comes with the zero Event.
func (d *Device) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			if e, err := d.NextEvent(ctx); !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// overrunPause is the time in which NextEvent returns EventCQErr once for a CQ.
const overrunPause = 5 * time.Second

// readEvent reads one event; ok is false if its object is closed, or NextEvent need not repeat the event.
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

// event returns the event for a type and an element, which is a port number or a user_handle.
func (d *Device) event(t EventType, element uint64) (ev Event, ok bool) {
	ev = Event{Type: t}
	switch t {
	case EventCQErr:
		ev.CQ, ok = d.targets.get(element).(*CQ)
		if now := int64(time.Since(started)); ok {
			last := ev.CQ.overrun.Load()
			if ok = last == 0 || now-last >= int64(overrunPause); ok {
				ev.CQ.overrun.Store(now)
			}
		}
	case EventQPFatal, EventQPReqErr, EventQPAccessErr, EventCommEst, EventSQDrained, EventPathMig, EventPathMigErr, EventQPLastWQEReached:
		if ev.QP, ok = d.targets.get(element).(*QP); ok && (t == EventQPFatal || t == EventQPReqErr || t == EventQPAccessErr) {
			ev.QP.SetErrCause(eventCause(t.String()))
		}
	case EventSRQErr, EventSRQLimitReached:
		ev.SRQ, ok = d.targets.get(element).(*SRQ)
	case EventWQFatal:
		if ev.WQ, ok = d.targets.get(element).(*WQ); ok {
			ev.WQ.failed()
		}
	case EventPortActive, EventPortErr, EventLIDChange, EventPKeyChange, EventSMChange, EventClientReregister, EventGIDChange, EventDeviceSpeedChange:
		d.ports.events.Add(1)
		ev.Port, ok = uint8(element), true
	default:
		ok = true
	}
	return ev, ok
}
