package efa

// Events of a QP that a counter counts: bits of ATTACH_EVENT_COUNTER. The one of an operation that failed follows the
// one of its success.
const (
	eventSend = 1 << (2 * iota)
	eventRecv
	eventRead
	eventWrite
	eventRemoteRead
	eventRemoteWrite = eventRemoteRead << 1
	allEvents        = eventRemoteWrite<<1 - 1
)

// sentEvents are the events of send requests by operation.
var sentEvents = [...]uint32{ioSend: eventSend, ioRead: eventRead, ioWrite: eventWrite}

// counter counts events of QPs, in the guest's memory.
type counter struct {
	uar   uint16
	addr  uint64
	value uint64
	users int // QPs, once for each of their events
}

func (d *Device) createCounter(c *command) *failure {
	page, addr := c.u16(4), c.u64(8)
	switch {
	case !d.cfg.Personality.has(capCounters):
		return refuse(statusUnsupported, "there are no event counters")
	case d.uars[page] == nil:
		return illegal("UAR %d does not exist", page)
	case addr == 0 || addr%8 != 0:
		return illegal("a counter at %#x", addr)
	case len(d.counters) >= maxCounters:
		return refuse(statusNoResources, "there are %d event counters", maxCounters)
	}
	if _, err := d.place(addr, 8); err != nil {
		return illegal("a counter: %v", err)
	}
	d.last.counter++
	d.counters[d.last.counter] = &counter{uar: page, addr: addr}
	d.uars[page].users++
	c.put32(8, d.last.counter)
	return nil
}

// counterOf finds the counter that a command names.
func (d *Device) counterOf(c *command) (*counter, *failure) {
	if n := d.counters[c.u32(4)]; n != nil {
		return n, nil
	}
	return nil, illegal("event counter %d does not exist", c.u32(4))
}

func (d *Device) destroyCounter(c *command) *failure {
	n, f := d.counterOf(c)
	if f != nil {
		return f
	}
	if n.users > 0 {
		return refuse(statusBusy, "event counter %d counts %d events", c.u32(4), n.users)
	}
	d.uars[n.uar].users--
	delete(d.counters, c.u32(4))
	return nil
}

// attachCounter makes a counter count events of a QP, or none, as Linux does for the failures of a peer's operations.
func (d *Device) attachCounter(c *command) *failure { return d.changeEvents(c, true) }

func (d *Device) detachCounter(c *command) *failure { return d.changeEvents(c, false) }

func (d *Device) changeEvents(c *command, attach bool) *failure {
	n, f := d.counterOf(c)
	if f != nil {
		return f
	}
	q, f := d.byHandle(c, 12)
	if f != nil {
		return f
	}
	events := c.u32(16)
	if c.u8(8) != 0 || events&^uint32(allEvents) != 0 || q.uar != n.uar {
		return illegal("type %d, events %#x of UAR %d, and the counter has UAR %d", c.u8(8), events, q.uar, n.uar)
	}
	for bit := range q.counters {
		if events>>bit&1 != 0 && (attach && q.counters[bit] != nil || !attach && q.counters[bit] != n) {
			return illegal("event %d of QP %#x has a counter, or not this one", bit, q.number)
		}
	}
	for bit := range q.counters {
		switch {
		case events>>bit&1 == 0:
		case attach:
			q.counters[bit] = n
			n.users++
		default:
			q.counters[bit] = nil
			n.users--
		}
	}
	return nil
}

// modifyCounter sets a counter or adds to it.
func (d *Device) modifyCounter(c *command) *failure {
	n, f := d.counterOf(c)
	if f != nil {
		return f
	}
	op, v := c.u8(8), c.u64(16)
	switch {
	case op > 1 || v > maxCounterValue:
		return illegal("operation %d with %#x", op, v)
	case op == 1:
		v += n.value
	}
	d.setCounter(n, v)
	return nil
}

// setCounter publishes a value. After the largest one comes 0.
func (d *Device) setCounter(n *counter, v uint64) {
	n.value = v % (maxCounterValue + 1)
	b, err := d.place(n.addr, 8)
	if err != nil {
		d.gone(err)
		return
	}
	publishCounter(b, n.value)
}

// countEvent counts an event of a QP, or the one of its failure.
func (d *Device) countEvent(q *qp, event uint32, status uint8) {
	if status != ioOK {
		event <<= 1
	}
	for bit, n := range q.counters {
		if n != nil && event>>bit&1 != 0 {
			d.rep.Queues["counted events"]++
			d.setCounter(n, n.value+1)
		}
	}
}
