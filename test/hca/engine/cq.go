package engine

import "time"

// cq is a completion queue.
type cq struct {
	d    *Device
	n    uint32
	spec CQSpec
	eq   *eq
	refs int
	gone bool

	pi     uint32 // counts written entries, 24 bits
	ci     uint32 // the consumer index when it was last looked at
	failed bool
	zip    [][]byte // entries that are held back to be compressed; see compress.go
	zipEnd *timer

	armed     byte   // armNone, armSolicited or armAny
	sn        uint32 // the sequence number that the next arm must have, 2 bits
	fired     bool   // an event has been written since the CQ was made
	owed      uint32 // a doorbell that must come, as the record has it already; 0 is none
	solicited uint32 // the counter after the last solicited entry
	anySol    bool   // there was a solicited entry
	pending   int    // entries since the CQ was armed, for the moderation
	modTimer  *timer
}

const (
	armNone = iota
	armSolicited
	armAny
)

// checkCQ says what is wrong with a CQ's size and buffer.
func (d *Device) checkCQ(s *CQSpec) error {
	if s.EntrySize != 64 && s.EntrySize != 128 {
		return refuse(BadParam, "CQ", 0, "cqe_sz", "%d bytes; 64 and 128 are modelled", s.EntrySize)
	}
	if m := s.Mini; m != 0 && (s.EntrySize != 64 || s.Collapsed || m != MiniHash && m != MiniCsum && m != MiniStride) {
		return refuse(BadParam, "CQ", 0, "cqe_comp_en, mini_cqe_res_format", "format %d of CQEs of %d bytes", m-1, s.EntrySize)
	}
	if s.Log > d.cfg.Traits.LogMaxCQSize {
		return refuse(BadParam, "CQ", 0, "log_cq_size", "2^%d entries", s.Log)
	}
	return s.Buf.check(d, "CQ", uint64(s.EntrySize)<<s.Log)
}

// CreateCQ makes a completion queue.
func (d *Device) CreateCQ(s CQSpec) (uint32, error) {
	if err := d.lock("CQ"); err != nil {
		return 0, err
	}
	defer d.f.mu.Unlock()
	if err := d.checkCQ(&s); err != nil {
		return 0, err
	}
	if err := d.checkDBR("CQ", s.DBR); err != nil {
		return 0, err
	}
	e := d.eqs[s.EQN]
	if e == nil {
		return 0, refuse(BadResource, "CQ", 0, "c_eqn", "EQ %#x does not exist", s.EQN)
	}
	n, err := number(d, "CQ", firstCQN, d.cqs)
	if err != nil {
		return 0, err
	}
	e.refs++
	d.cqs[n] = &cq{d: d, n: n, spec: s, eq: e}
	return n, nil
}

// QueryCQ says what a CQ is like now.
func (d *Device) QueryCQ(n uint32) (CQSpec, error) {
	if err := d.lock("CQ"); err != nil {
		return CQSpec{}, err
	}
	defer d.f.mu.Unlock()
	c := d.cqs[n]
	if c == nil {
		return CQSpec{}, unknown("CQ", n)
	}
	s := c.spec
	s.Failed, s.Armed, s.Producer = c.failed, c.armed != armNone, c.pi
	return s, nil
}

// ModerateCQ sets the moderation: an event waits for count CQEs or period µs.
func (d *Device) ModerateCQ(n uint32, count, period uint16) error {
	if err := d.lock("CQ"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	c := d.cqs[n]
	if c == nil {
		return unknown("CQ", n)
	}
	c.spec.ModCount, c.spec.ModPeriod = count, period
	return nil
}

// ResizeCQ moves a CQ to another buffer: Buf, Log and EntrySize of the spec count. The
// old buffer gets a last entry that says so, and the next one goes into the new buffer.
func (d *Device) ResizeCQ(n uint32, s CQSpec) error {
	if err := d.lock("CQ"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	c := d.cqs[n]
	if c == nil {
		return unknown("CQ", n)
	}
	if err := d.checkCQ(&s); err != nil {
		return err
	}
	if c.failed {
		return refuse(BadState, "CQ", n, "", "it has overrun")
	}
	c.unzip()
	ci, ok := c.consumer()
	left := (c.pi - ci) & maxNumber
	if !ok || left >= 1<<c.spec.Log || left+1 > 1<<s.Log {
		return refuse(BadSize, "CQ", n, "log_cq_size", "%d entries are left, and one more says that it moved", left)
	}
	c.write(&cqe{opcode: cqeResize})
	c.spec.Buf, c.spec.Log, c.spec.EntrySize = s.Buf, s.Log, s.EntrySize
	return nil
}

// DestroyCQ removes a CQ that no queue uses.
func (d *Device) DestroyCQ(n uint32) error {
	if err := d.lock("CQ"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	c := d.cqs[n]
	if c == nil {
		return unknown("CQ", n)
	}
	if c.refs > 0 {
		return refuse(Busy, "CQ", n, "", "%d queues use it", c.refs)
	}
	c.unzip()
	c.checkOwed(0)
	c.checkConsumer()
	c.gone = true
	c.eq.refs--
	delete(d.cqs, n)
	return nil
}

// consumer reads the consumer index from the doorbell record.
func (c *cq) consumer() (uint32, bool) {
	v, err := c.d.load32(c.spec.DBR)
	if err != nil {
		c.d.violate("cq-record-memory", 0, "CQ %#x: the doorbell record can't be read: %v", c.n, err)
		return 0, false
	}
	ci := v & maxNumber
	if v != ci {
		c.d.violate("cq-record-reserved", 0, "CQ %#x: the doorbell record is %#x, and has 24 bits", c.n, v)
	}
	if back := (c.ci - ci) & maxNumber; back != 0 && back < 1<<23 {
		c.d.violate("cq-consumer-back", 0, "CQ %#x: the doorbell record's consumer has gone back from %#x to %#x", c.n, c.ci, ci)
	}
	c.ci = ci
	return ci, true
}

// checkConsumer sees whether the consumer index is behind the producer, when no entry is written.
func (c *cq) checkConsumer() {
	if c.failed || c.spec.IgnoreOverrun || c.spec.Collapsed {
		return
	}
	if ci, ok := c.consumer(); ok && (c.pi-ci)&maxNumber > 1<<c.spec.Log {
		c.d.violate("cq-consumer", 0, "CQ %#x: the doorbell record's consumer %#x is not behind producer %#x by at most %d", c.n, ci, c.pi, 1<<c.spec.Log)
	}
}

// fail stops a CQ: an event says why, and nothing is written to it any more.
func (c *cq) fail(syndrome byte) {
	if c.failed {
		return
	}
	c.failed = true
	data := make([]byte, eqeDataBytes)
	be.PutUint32(data, c.n)
	data[11] = syndrome
	c.d.event(EventCQError, 0, data)
	for _, q := range c.d.sortedQPs() {
		if q.sendCQ == c || q.recvCQ == c {
			q.catastrophe("its CQ has failed")
		}
	}
}

// Syndromes of a CQ error event (MLX5_CQ_ERROR_SYNDROME_*).
const (
	cqErrOverrun   = 1
	cqErrViolation = 2
)

// post writes a CQE, if there is room, and asks for an event if one is due.
func (c *cq) post(e *cqe) {
	if c.failed || c.gone {
		return
	}
	if !c.spec.IgnoreOverrun && !c.spec.Collapsed {
		ci, ok := c.consumer()
		if !ok {
			c.fail(cqErrViolation)
			return
		}
		size := uint32(1) << c.spec.Log
		switch left := (c.pi - ci + uint32(len(c.zip))) & maxNumber; {
		case left > size:
			c.d.violate("cq-consumer", 0, "CQ %#x: the doorbell record's consumer %#x is not behind producer %#x by at most %d", c.n, ci, c.pi, size)
			c.fail(cqErrViolation)
			return
		case left == size:
			c.d.violate("cq-overrun", e.qpn, "CQ %#x of %d entries is full, and a completion for QP %#x is lost", c.n, size, e.qpn)
			c.fail(cqErrOverrun)
			return
		}
	}
	if c.held(e) {
		return
	}
	c.unzip()
	if !c.write(e) {
		return
	}
	if e.solicited {
		c.solicited, c.anySol = c.pi, true
	}
	if c.armed == armAny || c.armed == armSolicited && e.solicited {
		c.due()
	}
}

// write writes an entry at the producer.
func (c *cq) write(e *cqe) bool {
	c.d.rep.cqes[e.name()]++
	return c.put(e.bytes(c, c.d.now()), e.qpn)
}

// put writes the bytes of one.
func (c *cq) put(raw []byte, qpn uint32) bool {
	raw[len(raw)-1] |= byte(c.pi >> c.spec.Log & 1)
	if !c.putAt(c.pi, raw, qpn) {
		return false
	}
	c.pi = (c.pi + 1) & maxNumber
	return true
}

// putAt writes the bytes of the entry with an index.
func (c *cq) putAt(i uint32, raw []byte, qpn uint32) bool {
	slot := i & (1<<c.spec.Log - 1)
	if c.spec.Collapsed {
		slot = 0
	}
	if err := c.d.writeEntry(&c.spec.Buf, uint64(slot)*uint64(c.spec.EntrySize), raw); err != nil {
		c.d.violate("cq-memory", qpn, "CQ %#x can't be written: %v", c.n, err)
		c.fail(cqErrViolation)
		return false
	}
	c.d.trace(TraceEvent{Kind: TraceCQE, Number: c.n, QPN: qpn, Index: i, Raw: raw})
	return true
}

// due writes the completion event, or waits for more as the moderation says.
func (c *cq) due() {
	c.pending++
	if c.spec.ModCount > 1 && c.spec.ModPeriod > 0 && c.pending < int(c.spec.ModCount) {
		if c.modTimer == nil {
			c.modTimer = c.d.f.after(time.Duration(c.spec.ModPeriod)*time.Microsecond, func() {
				c.modTimer = nil
				if c.armed != armNone && !c.gone {
					c.fire()
				}
			})
		}
		return
	}
	c.fire()
}

// fire writes the completion event.
func (c *cq) fire() {
	c.d.f.cancel(&c.modTimer)
	c.armed, c.pending, c.fired = armNone, 0, true
	c.sn = (c.sn + 1) & 3
	data := make([]byte, eqeDataBytes)
	be.PutUint32(data[24:], c.n)
	c.d.rep.events[EventComp.String()]++
	c.d.eqe(c.eq, EventComp, 0, data)
}

// The arm word of a CQ: sequence number, kind and consumer index.
const (
	armSNShift   = 28
	armSolicBit  = 1 << 24
	armReserved  = 0xc0000000 | 0x0e000000
	cqDoorbell   = 0x20 // MLX5_CQ_DOORBELL
	eqDoorbell   = 0x40 // MLX5_EQ_DOORBEL_OFFSET
	eqUpdate     = 0x48
	bfOffset     = 0x800 // MLX5_BF_OFFSET
	bfRegs       = 4     // MLX5_BFREGS_PER_UAR
	uarPageBytes = 4096
)

// cqArm is a store to a UAR page's CQ doorbell.
func (d *Device) cqArm(uar uint32, data []byte) {
	if len(data) != 8 {
		d.violate("cq-doorbell-width", 0, "a store of %d bytes to the CQ doorbell of UAR %#x, which takes one of 8", len(data), uar)
		return
	}
	word, n := be.Uint32(data), be.Uint32(data[4:])
	c := d.cqs[n&maxNumber]
	if c == nil || n>>24 != 0 {
		d.violate("cq-doorbell-number", 0, "a CQ doorbell on UAR %#x names CQ %#x, which does not exist", uar, n)
		return
	}
	d.rep.doorbells["CQ arm"]++
	d.trace(TraceEvent{Kind: TraceArm, Number: c.n, Index: word})
	if c.spec.UAR != uar {
		d.violate("cq-doorbell-uar", 0, "CQ %#x is armed on UAR %#x, and belongs to %#x", c.n, uar, c.spec.UAR)
	}
	if word&armReserved != 0 {
		d.violate("cq-arm-reserved", 0, "CQ %#x is armed with %#08x, which has reserved bits set", c.n, word)
	}
	c.checkArmRecord(word)
	c.checkConsumer()
	ci, sn := word&maxNumber, word>>armSNShift&3
	if left := (c.pi - ci) & maxNumber; left > 1<<c.spec.Log && !c.spec.IgnoreOverrun {
		d.violate("cq-arm-consumer", 0, "CQ %#x is armed with consumer %#x, which is not behind producer %#x by at most %d", c.n, ci, c.pi, 1<<c.spec.Log)
		return
	}
	switch {
	case sn == c.sn:
	case c.fired && sn == (c.sn-1)&3:
		return // the event that this asks for is on its way already
	default:
		d.violate("cq-arm-sequence", 0, "CQ %#x is armed with sequence number %d; %d is due, since %s", c.n, sn, c.sn, map[bool]string{true: "the last event had the one before", false: "there was no event yet"}[c.fired])
		return
	}
	if c.armed == armNone {
		c.pending = 0
	}
	if word&armSolicBit != 0 {
		c.armed = max(c.armed, armSolicited)
		if c.anySol && (c.solicited-ci-1)&maxNumber < 1<<23 {
			c.fire()
		}
		return
	}
	c.armed = armAny
	if c.pi != ci {
		c.fire()
	}
}

// checkArmRecord compares an arm doorbell with the doorbell record. The record is written
// first. It may be newer than the doorbell, since the driver goes on meanwhile, but never
// older.
func (c *cq) checkArmRecord(word uint32) {
	rec, err := c.d.load32(c.spec.DBR + 4)
	if err != nil {
		c.d.violate("cq-record-memory", 0, "CQ %#x: the doorbell record can't be read: %v", c.n, err)
		return
	}
	newer := (rec-word)&maxNumber < 1<<23 && (rec>>armSNShift-word>>armSNShift)&3 < 2
	if rec != word && !newer {
		c.d.violate("cq-arm-record", 0, "CQ %#x is armed with %#08x while its doorbell record says %#08x: the record must be written first", c.n, word, rec)
	}
	c.checkOwed(word)
	// With the same consumer index and sequence number the record is either that of a next
	// doorbell, or of the wrong kind; the next doorbell tells.
	if rec == word|armSolicBit && word&armSolicBit == 0 {
		c.owed = rec
	}
}

// checkOwed sees whether a doorbell is the one that the record had announced. 0 is none: the
// CQ goes.
func (c *cq) checkOwed(word uint32) {
	if c.owed != 0 && word != c.owed {
		c.d.violate("cq-arm-kind", 0, "CQ %#x was armed for any completion while its doorbell record said %#08x, for which no doorbell came", c.n, c.owed)
	}
	c.owed = 0
}
