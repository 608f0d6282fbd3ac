package engine

// EventType is the type of an event queue entry (MLX5_EVENT_TYPE_* in mlx5/device.h).
type EventType uint8

// The event types.
const (
	EventComp          EventType = 0x00
	EventPathMig       EventType = 0x01
	EventCommEst       EventType = 0x02
	EventSQDrained     EventType = 0x03
	EventCQError       EventType = 0x04
	EventWQCatas       EventType = 0x05
	EventPathMigFailed EventType = 0x07
	EventInternalError EventType = 0x08
	EventPortChange    EventType = 0x09
	EventCmd           EventType = 0x0a
	EventPageRequest   EventType = 0x0b
	EventPageFault     EventType = 0x0c
	EventVportChange   EventType = 0x0d
	EventInvalReq      EventType = 0x10
	EventAccessError   EventType = 0x11
	EventSRQCatas      EventType = 0x12
	EventLastWQE       EventType = 0x13
	EventSRQLimit      EventType = 0x14

	EventDCTDrained      EventType = 0x1c
	EventDCTKeyViolation EventType = 0x1d
)

// eventNames are the events' names.
var eventNames = map[EventType]string{
	EventComp: "COMP", EventPathMig: "PATH_MIG", EventCommEst: "COMM_EST", EventSQDrained: "SQ_DRAINED",
	EventCQError: "CQ_ERROR", EventWQCatas: "WQ_CATAS_ERROR", EventPathMigFailed: "PATH_MIG_FAILED",
	EventInternalError: "INTERNAL_ERROR", EventPortChange: "PORT_CHANGE", EventCmd: "CMD",
	EventPageRequest: "PAGE_REQUEST", EventPageFault: "PAGE_FAULT", EventVportChange: "NIC_VPORT_CHANGE",
	EventInvalReq: "WQ_INVAL_REQ_ERROR", EventAccessError: "WQ_ACCESS_ERROR", EventSRQCatas: "SRQ_CATAS_ERROR",
	EventLastWQE: "SRQ_LAST_WQE", EventSRQLimit: "SRQ_RQ_LIMIT",
	EventDCTDrained: "DCT_DRAINED", EventDCTKeyViolation: "DCT_KEY_VIOLATION",
}

// String is the event's name.
func (t EventType) String() string {
	if s, ok := eventNames[t]; ok {
		return s
	}
	return hex("event ", uint32(t))
}

// Subtypes of a port change (MLX5_PORT_CHANGE_SUBTYPE_*).
const (
	PortDown     = 1
	PortActive   = 4
	PortInit     = 5
	PortLID      = 6
	PortPKey     = 7
	PortGUID     = 8
	PortRereg    = 9
	eqeSize      = 64
	eqeDataBytes = 28
)

// eq is an event queue.
type eq struct {
	n     uint32
	spec  EQSpec
	pi    uint32 // counts written entries, 24 bits
	ci    uint32 // what the driver last said it has consumed
	armed bool
	refs  int
}

// CreateEQ makes an event queue. It isn't armed.
func (d *Device) CreateEQ(s EQSpec) (uint32, error) {
	if err := d.lock("EQ"); err != nil {
		return 0, err
	}
	defer d.f.mu.Unlock()
	if s.Log > 22 {
		return 0, refuse(BadParam, "EQ", 0, "log_eq_size", "2^%d entries", s.Log)
	}
	if err := s.Buf.check(d, "EQ", eqeSize<<s.Log); err != nil {
		return 0, err
	}
	// An EQ number has 8 bits: it stands in the top byte of the arm word.
	for n := uint32(4); n < 256; n++ {
		if d.eqs[n] == nil {
			d.eqs[n] = &eq{n: n, spec: s}
			return n, nil
		}
	}
	return 0, refuse(Limit, "EQ", 0, "", "252 of them exist")
}

// QueryEQ says what an event queue was created with, its producer and consumer counters
// and whether it is armed.
func (d *Device) QueryEQ(n uint32) (s EQSpec, producer, consumer uint32, armed bool, err error) {
	if err = d.lock("EQ"); err != nil {
		return
	}
	defer d.f.mu.Unlock()
	e := d.eqs[n]
	if e == nil {
		err = unknown("EQ", n)
		return
	}
	return e.spec, e.pi, e.ci, e.armed, nil
}

// DestroyEQ removes an event queue that no CQ uses.
func (d *Device) DestroyEQ(n uint32) error {
	if err := d.lock("EQ"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	e := d.eqs[n]
	if e == nil {
		return unknown("EQ", n)
	}
	if e.refs > 0 {
		return refuse(Busy, "EQ", n, "", "%d CQs use it", e.refs)
	}
	delete(d.eqs, n)
	return nil
}

// PostEQE writes an entry to an event queue by its number: a command's completion, for
// one. The data is what struct mlx5_eqe has from byte 32 on, at most 28 bytes.
func (d *Device) PostEQE(eqn uint32, t EventType, subtype uint8, data []byte) error {
	if err := d.lock("EQ"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	e := d.eqs[eqn]
	if e == nil {
		return unknown("EQ", eqn)
	}
	d.eqe(e, t, subtype, data)
	return nil
}

// PostEvent writes an entry to every event queue that asked for the type, and says
// whether there was one.
func (d *Device) PostEvent(t EventType, subtype uint8, data []byte) bool {
	if d.lock("EQ") != nil {
		return false
	}
	defer d.f.mu.Unlock()
	return d.event(t, subtype, data)
}

// event is PostEvent with the lock held.
func (d *Device) event(t EventType, subtype uint8, data []byte) bool {
	d.rep.events[t.String()]++
	found := false
	for n := uint32(0); n < 256; n++ { // in a fixed order
		if e := d.eqs[n]; e != nil && e.spec.Events>>t&1 == 1 {
			d.eqe(e, t, subtype, data)
			found = true
		}
	}
	d.trace(TraceEvent{Kind: TraceAsync, Event: t, Subtype: subtype, Data: data})
	return found
}

// objectEvent is an event about a QP or SRQ. kind is 0 for a QP or SRQ, 1 for an RQ and 2
// for an SQ (MLX5_EVENT_QUEUE_TYPE_*).
func (d *Device) objectEvent(t EventType, kind uint8, n uint32) {
	data := make([]byte, eqeDataBytes)
	data[20] = kind
	be.PutUint32(data[24:], n)
	d.event(t, 0, data)
}

// portEvent is an event about the one port.
func (d *Device) portEvent(subtype uint8) {
	data := make([]byte, eqeDataBytes)
	data[8] = 1 << 4
	d.event(EventPortChange, subtype, data)
}

// eqe writes an entry and interrupts if the queue is armed.
func (d *Device) eqe(e *eq, t EventType, subtype uint8, data []byte) {
	if d.fatal {
		return
	}
	if (e.pi-e.ci)&maxNumber >= 1<<e.spec.Log {
		d.violate("eq-overrun", 0, "EQ %#x has %d entries, %d are not consumed, and %s is lost", e.n, 1<<e.spec.Log, (e.pi-e.ci)&maxNumber, t)
		return
	}
	var b [eqeSize]byte
	b[1], b[3] = byte(t), subtype
	copy(b[32:60], data)
	b[63] = byte(e.pi >> e.spec.Log & 1)
	if err := d.writeEntry(&e.spec.Buf, uint64(e.pi&(1<<e.spec.Log-1))*eqeSize, b[:]); err != nil {
		d.violate("eq-memory", 0, "EQ %#x can't be written: %v", e.n, err)
		return
	}
	e.pi = (e.pi + 1) & maxNumber
	if e.armed {
		e.armed = false
		d.cfg.Interrupt(e.spec.Vector)
	}
}

// eqDoorbell is a store to a UAR page that says what the driver has consumed of an EQ,
// and arms it.
func (d *Device) eqDoorbell(uar uint32, arm bool, data []byte) {
	if len(data) != 4 {
		d.violate("eq-doorbell-width", 0, "a store of %d bytes to the EQ doorbell of UAR %#x, which takes 4", len(data), uar)
		return
	}
	v := be.Uint32(data)
	e := d.eqs[v>>24]
	if e == nil {
		d.violate("eq-doorbell-number", 0, "an EQ doorbell on UAR %#x names EQ %#x, which does not exist", uar, v>>24)
		return
	}
	if e.spec.UAR != uar {
		d.violate("eq-doorbell-uar", 0, "EQ %#x is armed on UAR %#x, and belongs to %#x", e.n, uar, e.spec.UAR)
	}
	if ci := v & maxNumber; (e.pi-ci)&maxNumber > 1<<e.spec.Log {
		d.violate("eq-consumer", 0, "EQ %#x: consumer %#x is not behind producer %#x by at most %d", e.n, ci, e.pi, 1<<e.spec.Log)
		return
	} else {
		e.ci = ci
	}
	d.rep.doorbells[map[bool]string{true: "EQ arm", false: "EQ update"}[arm]]++
	if !arm {
		return
	}
	if e.armed = e.pi == e.ci; !e.armed {
		d.cfg.Interrupt(e.spec.Vector)
	}
}
