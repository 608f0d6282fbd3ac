package efa

// eventRing is the ring of asynchronous events (AENQ).
type eventRing struct {
	ring
	vector   int
	consumer uint16
	enabled  uint32 // groups
}

// setAENQ starts the ring.
func (d *Device) setAENQ(v uint32) {
	if d.ringIsRight("AENQ", d.reg.aenq, v&0xffff, v>>16&0xff, d.aenq.depth) {
		d.hadAENQ = true
		d.aenq.ring, d.aenq.vector = ring{base: d.reg.aenq, depth: v & 0xffff}, int(v>>24)
	}
}

// aenqConsumer says which events were read.
func (d *Device) aenqConsumer(v uint32) {
	q := &d.aenq
	if q.depth == 0 && d.hadAENQ {
		return
	}
	if q.depth == 0 || v>>16 != 0 || uint16(q.counter)-uint16(v) > uint16(q.counter)-q.consumer {
		d.violate("aenq-doorbell", "consumer %#x after %#x, and %#x events were written", v, q.consumer, uint16(q.counter))
		return
	}
	q.consumer = uint16(v)
}

// KeepAlive tells the driver that the card works, if the driver wants to know and has read the earlier events.
func (d *Device) KeepAlive() {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.keepAlive()
}

func (d *Device) keepAlive() {
	q := &d.aenq
	if q.depth == 0 || q.enabled&(1<<groupKeepAlive) == 0 || uint16(q.counter)-q.consumer >= uint16(q.depth) {
		return
	}
	addr, phase := q.at(aenqEntrySize)
	b, err := d.place(addr, aenqEntrySize)
	if err != nil {
		d.gone(err)
		return
	}
	q.counter++
	var e [aenqEntrySize]byte
	le.PutUint16(e[:], groupKeepAlive)
	e[4] = phase
	publish(b, e[:], 1)
	d.rep.Queues["keep-alive events"]++
	if !d.reg.masked {
		d.interrupt(q.vector)
	}
}
