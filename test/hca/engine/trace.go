package engine

// TraceKind is what a [TraceEvent] is about.
type TraceKind uint8

// The kinds of trace events.
const (
	TraceWQE       TraceKind = iota // a send WQE is fetched
	TraceRecv                       // a receive WQE is taken
	TraceCQE                        // a completion is written
	TraceArm                        // a CQ is armed
	TraceDoorbell                   // a send queue's doorbell
	TraceAsync                      // an asynchronous event
	TraceState                      // a QP changes its state
	TracePacket                     // a packet is sent
	TraceDrop                       // a packet is dropped
	TraceViolation                  // a violation
)

// TraceEvent is something that happened. Its String is made on demand.
type TraceEvent struct {
	Device    string     // Device is the name of the device.
	Kind      TraceKind  // Kind says which of the other fields count.
	QPN       uint32     // QPN is the QP or SQ.
	Number    uint32     // Number is the CQ's or SRQ's.
	Index     uint32     // Index is the WQE's or CQE's counter, or the arm word.
	Type      QPType     // Type of the QP.
	Raw       []byte     // Raw is the WQE or CQE as in memory.
	BlueFlame bool       // BlueFlame says how the doorbell came.
	Event     EventType  // Event is the asynchronous event's type.
	Subtype   uint8      // Subtype of the event.
	Data      []byte     // Data of the event.
	From, To  QPState    // From and To are the states of a change.
	Text      string     // Text of a packet, or of the reason.
	Violation *Violation // Violation is the violation.
}

// trace hands an event on.
func (d *Device) trace(e TraceEvent) {
	if d.cfg.Trace != nil {
		e.Device = d.cfg.Name
		d.cfg.Trace(e)
	}
}
