package engine

// wqeFault makes a WQE of a QP complete with an error.
type wqeFault struct {
	recv             bool
	skip             int
	syndrome, vendor uint8
}

// FailWQE makes a WQE of a QP, or SQ, complete with an error: of the send queue or the
// receive queue, after skip others. The QP goes where such an error takes it.
func (d *Device) FailWQE(qpn uint32, recv bool, skip int, syndrome Syndrome, vendor uint8) error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	q := d.qps[qpn]
	if q == nil {
		return unknown("QP", qpn)
	}
	q.faults = append(q.faults, &wqeFault{recv: recv, skip: skip, syndrome: uint8(syndrome), vendor: vendor})
	return nil
}

// fault says whether the next WQE is to fail.
func (q *qp) fault(recv bool) *wqeFault {
	for i, f := range q.faults {
		if f.recv != recv {
			continue
		}
		if f.skip > 0 {
			f.skip--
			return nil
		}
		q.faults = append(q.faults[:i:i], q.faults[i+1:]...)
		return f
	}
	return nil
}

// FailQP is a catastrophic error of a QP.
func (d *Device) FailQP(qpn uint32) error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	q := d.qps[qpn]
	if q == nil {
		return unknown("QP", qpn)
	}
	q.catastrophe("fault injected")
	return nil
}

// FailMigration is a request to migrate that a QP could not follow: its peer asked for another path than
// the alternate one. The QP stays as it is.
func (d *Device) FailMigration(qpn uint32) error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	q := d.qps[qpn]
	if q == nil {
		return unknown("QP", qpn)
	}
	q.eventOf(EventPathMigFailed)
	return nil
}

// Reregister is the subnet manager's wish that everybody registers with it anew.
func (d *Device) Reregister() {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.portEvent(PortRereg)
}

// FailCQ is an error of a CQ, as if it had overrun. QPs that use it fail too.
func (d *Device) FailCQ(n uint32) error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	c := d.cqs[n]
	if c == nil {
		return unknown("CQ", n)
	}
	c.fail(cqErrOverrun)
	return nil
}

// FailCQOf is FailCQ of the CQ that a QP's sends complete to.
func (d *Device) FailCQOf(qpn uint32) error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	q := d.qps[qpn]
	if q == nil || q.sendCQ == nil {
		return unknown("QP with a send CQ", qpn)
	}
	q.sendCQ.fail(cqErrOverrun)
	return nil
}

// FailSRQ is a catastrophic error of a shared receive queue.
func (d *Device) FailSRQ(n uint32) error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	w := d.srqs[n]
	if w == nil {
		return unknown("SRQ", n)
	}
	w.fail("fault injected")
	return nil
}

// FailRQ is a catastrophic error of a receive queue for Ethernet frames: nothing more arrives there.
func (d *Device) FailRQ(n uint32) error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	r := d.rqs[n]
	if r == nil {
		return unknown("RQ", n)
	}
	r.state = WQError
	d.objectEvent(EventWQCatas, 1, n)
	return nil
}

// Fatal stops the device: nothing is executed, no command succeeds, no event is written.
// Only Reset brings it back. The health buffer belongs to the command interface.
func (d *Device) Fatal() {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.fatal = true
}

// PacketAction is what happens to a packet.
type PacketAction uint8

// The actions.
const (
	DropPacket PacketAction = iota
	DuplicatePacket
)

// PacketFault picks packets and says what happens to them.
type PacketFault struct {
	From   *Device      // From is the sender; nil is any.
	QPN    uint32       // QPN is the destination QP; 0 is any.
	Skip   int          // Skip lets as many packets pass first.
	Count  int          // Count is how many packets are hit; 0 is one.
	Action PacketAction // Action is what happens to them.
}

type packetFault struct{ PacketFault }

// Fault adds a fault for packets. It is gone once it has hit its count.
func (f *Fabric) Fault(p PacketFault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p.Count = max(p.Count, 1)
	f.faults = append(f.faults, &packetFault{p})
}

// faultOf says what the faults do to a packet.
func (f *Fabric) faultOf(from *Device, qpn uint32) (drop, dup bool) {
	for i := 0; i < len(f.faults); i++ {
		p := f.faults[i]
		if p.From != nil && p.From != from || p.QPN != 0 && p.QPN != qpn {
			continue
		}
		if p.Skip > 0 {
			p.Skip--
			continue
		}
		drop = drop || p.Action == DropPacket
		dup = dup || p.Action == DuplicatePacket
		if p.Count--; p.Count == 0 {
			f.faults = append(f.faults[:i:i], f.faults[i+1:]...)
			i--
		}
	}
	return drop, dup
}
