package efa

// eventQueue is a ring of completion events.
type eventQueue struct {
	ring
	vector int
	armed  bool
	unsaid bool // events were written since the vector was raised
	users  int
}

func (d *Device) createEQ(c *command) *failure {
	depth, vector, words, base := uint32(c.u16(4)), int(c.u8(6)), c.u8(7), join(c.u32(8), c.u32(12))
	switch {
	case d.cfg.Personality.NoEQs:
		return refuse(statusUnsupported, "there are no event queues")
	case depth == 0 || depth&(depth-1) != 0 || depth > eqDepth || words != eqEntrySize/4:
		return illegal("%d entries of %d words", depth, words)
	case vector == 0 || vector >= Vectors || c.u32(16) != 1:
		return illegal("vector %d, events %#x", vector, c.u32(16))
	}
	if f := d.ringMemory(base, depth*eqEntrySize); f != nil {
		return f
	}
	n, ok := unused(d.eqs, 1, maxEQs)
	if !ok {
		return refuse(statusNoResources, "there are %d EQs", maxEQs)
	}
	d.eqs[n] = &eventQueue{ring: ring{base: base, depth: depth}, vector: vector}
	d.hadEQ[n] = true
	c.put16(8, n)
	return nil
}

// ringMemory checks the memory of a ring, which is in one piece.
func (d *Device) ringMemory(base uint64, n uint32) *failure {
	if base == 0 || base%64 != 0 {
		return illegal("a ring at %#x", base)
	}
	if _, err := d.place(base, int(n)); err != nil {
		return illegal("a ring: %v", err)
	}
	return nil
}

func (d *Device) destroyEQ(c *command) *failure {
	n := c.u16(4)
	switch q := d.eqs[n]; {
	case q == nil:
		return illegal("EQ %d does not exist", n)
	case q.users > 0:
		return refuse(statusBusy, "EQ %d has %d CQs", n, q.users)
	}
	delete(d.eqs, n)
	return nil
}

// armEQ asks for an interrupt with the next event. The driver looks for events before it does so, but one may have come
// after that.
func (d *Device) armEQ(v uint32) {
	q := d.eqs[uint16(v)]
	if q == nil && d.hadEQ[uint16(v)] {
		return
	}
	if q == nil || v&^uint32(eqArm) > 0xffff || v&eqArm == 0 {
		d.violate("eq-doorbell", "%#x: EQ %d does not exist, or is not armed", v, uint16(v))
		return
	}
	q.armed = true
	d.rep.Queues["EQ arms"]++
	d.signal(q)
}

// signal raises the vector of an EQ that is armed and has new events.
func (d *Device) signal(q *eventQueue) {
	if q.armed && q.unsaid {
		q.armed, q.unsaid = false, false
		d.interrupt(q.vector)
	}
}

// event writes a completion event.
func (d *Device) event(q *cq) {
	addr, phase := q.eq.at(eqEntrySize)
	b, err := d.place(addr, eqEntrySize)
	if err != nil {
		d.gone(err)
		return
	}
	q.eq.counter++
	var e [eqEntrySize]byte
	e[0] = phase
	le.PutUint16(e[8:], q.number)
	publish(b, e[:], 0)
	d.rep.Queues["CQ events"]++
	q.eq.unsaid = true
	d.signal(q.eq)
}

// cq is a completion queue: a number of rings with one doorbell.
type cq struct {
	number    uint16
	uar       uint16
	eq        *eventQueue // nil without notification
	entry     int         // size of one
	source    bool        // receives of unknown peers have their address
	rings     []ring
	written   uint16 // entries of all rings
	consumer  uint16
	armed     bool
	events    uint8 // how many there were
	users     int
	subRings  int // how many queues were given a ring
	overflown bool
}

func (d *Device) createCQ(c *command) *failure {
	caps1, caps2, depth, subs, page := c.u8(4), c.u8(5), uint32(c.u16(6)), c.u16(24), c.u16(26)
	words, base := caps2&31, join(c.u32(12), c.u32(16))
	q := &cq{uar: page, entry: int(words) * 4, source: caps2&0x20 != 0, rings: make([]ring, d.cfg.Personality.SubCQs)}
	switch {
	case caps1&^uint8(0x20) != 0 || caps2&^uint8(0x3f) != 0:
		return d.malformed("CREATE_CQ with flags %#x and %#x", caps1, caps2)
	case words != 4 && words != 8 || q.source && words != 8:
		return illegal("entries of %d words, with source address: %v", words, q.source)
	case depth == 0 || depth&(depth-1) != 0 || depth > maxCQDepth:
		return illegal("%d entries", depth)
	case subs != d.cfg.Personality.SubCQs:
		return illegal("%d rings, and a CQ has %d", subs, d.cfg.Personality.SubCQs)
	case d.uars[page] == nil:
		return illegal("UAR %d does not exist", page)
	}
	if caps1&0x20 != 0 {
		if q.eq = d.eqs[c.u16(8)]; q.eq == nil {
			return illegal("EQ %d does not exist", c.u16(8))
		}
	}
	if f := d.ringMemory(base, depth*uint32(q.entry)*uint32(subs)); f != nil {
		return f
	}
	n, ok := unused(d.cqs, 0, maxCQs)
	if !ok {
		return refuse(statusNoResources, "there are %d CQs", maxCQs)
	}
	q.number = n
	for i := range q.rings {
		q.rings[i] = ring{base: base + uint64(i)*uint64(depth)*uint64(q.entry), depth: depth}
	}
	if q.eq != nil {
		q.eq.users++
	}
	d.uars[page].users++
	d.cqs[n] = q
	c.put16(8, n)
	c.put16(10, uint16(depth))
	c.put32(12, uint32(page)*pageSize+doorbellCQ+4*uint32(n))
	c.put32(16, 1) // the offset of the doorbell is valid
	return nil
}

func (d *Device) destroyCQ(c *command) *failure {
	n := c.u16(4)
	q := d.cqs[n]
	switch {
	case q == nil:
		return illegal("CQ %d does not exist", n)
	case q.users > 0:
		return refuse(statusBusy, "CQ %d has %d queues", n, q.users)
	}
	if q.eq != nil {
		q.eq.users--
	}
	d.uars[q.uar].users--
	delete(d.cqs, n)
	return nil
}

// subRing chooses the ring of a queue.
func (q *cq) subRing() uint16 {
	q.subRings++
	return uint16((q.subRings - 1) % len(q.rings))
}

// cqDoorbell says what was read, and may arm the CQ. An arm has the number of the events that the driver has seen, so
// that one which was given twice counts once.
func (d *Device) cqDoorbell(q *cq, v uint32) {
	consumer := uint16(v)
	if q.written-consumer > q.written-q.consumer || v>>16&0x1fff != 0 {
		d.violate("cq-doorbell", "CQ %d: %#x after consumer %#x, and %#x entries were written", q.number, v, q.consumer, q.written)
		return
	}
	q.consumer = consumer
	if v>>31 == 0 {
		d.rep.Queues["CQ doorbells"]++
		return
	}
	d.rep.Queues["CQ arms"]++
	if q.eq == nil {
		d.violate("cq-doorbell", "CQ %d is armed, and has no EQ", q.number)
		return
	}
	if uint8(v>>29&3) != q.events&3 {
		return // of an event that the driver has not seen yet
	}
	q.armed = true
	d.notify(q)
}

// notify writes an event if the CQ is armed and has entries that were not read.
func (d *Device) notify(q *cq) {
	if q.armed && q.consumer != q.written {
		q.armed = false
		q.events++
		d.event(q)
	}
}

// complete writes an entry to one of the rings. Its flags, in byte 3, have no phase yet.
func (d *Device) complete(q *cq, sub uint16, entry []byte) {
	r := &q.rings[sub]
	if !q.overflown && uint32(q.written-q.consumer) >= r.depth*uint32(len(q.rings)) {
		d.violate("cq-overrun", "CQ %d has %d entries that were not read", q.number, q.written-q.consumer)
		q.overflown = true
	}
	addr, phase := r.at(q.entry)
	b, err := d.place(addr, q.entry)
	if err != nil {
		d.gone(err)
		return
	}
	r.counter++
	q.written++
	entry[3] |= phase
	publish(b, entry[:q.entry], 0)
	d.notify(q)
}
