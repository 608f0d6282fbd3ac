package engine

import (
	"bytes"
	"time"
)

// bfWait is how long a doorbell on a register that BlueFlame copies come through waits for
// each next piece of a copy. It decides no result: the WQE is in memory all the same, and a copy
// that comes later is compared with what was there.
const bfWait = 400 * time.Microsecond

// bfReg is a doorbell register in two halves.
type bfReg struct {
	used bool
	last uint32     // the half that was written last
	blue bool       // BlueFlame copies have come through it
	open [2]*bfCopy // what is being written to each half
}

// bfCopy is a doorbell, and the BlueFlame copy that it may be the beginning of.
type bfCopy struct {
	q       *qp
	index   uint16
	end     uint16 // the counter after the WQE
	ring    []byte // the WQE in memory when the doorbell came
	data    []byte // what was written to the register
	need    int    // how much a copy has
	again   bool   // the half is the one that was used before
	differs bool
	held    bool // the WQE waits for the copy
	gone    bool // the WQE was handed on
	wait    *timer
}

// UARWrite is a store of the driver to a UAR page. Stores must be handed over in the
// order in which they were made, each in one piece.
func (d *Device) UARWrite(uar, offset uint32, data []byte) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if d.fatal {
		return
	}
	if offset >= uarPageBytes || len(data) == 0 || len(data) > int(uarPageBytes-offset) {
		d.violate("uar-range", 0, "a store of %d bytes at %#x of UAR %#x", len(data), offset, uar)
		return
	}
	switch {
	case offset >= cqDoorbell && offset < cqDoorbell+8:
		if offset != cqDoorbell {
			d.violate("cq-doorbell-width", 0, "a store of %d bytes at %#x of UAR %#x: the CQ doorbell is one store of 8 bytes at %#x", len(data), offset, uar, cqDoorbell)
			return
		}
		d.cqArm(uar, data)
	case offset == eqDoorbell, offset == eqUpdate:
		d.eqDoorbell(uar, offset == eqDoorbell, data)
	case offset >= bfOffset:
		half, at := d.cfg.Traits.bfHalf(), offset-bfOffset
		if at/(2*half) >= bfRegs {
			d.violate("uar-offset", 0, "a store of %d bytes at %#x of UAR %#x, behind its %d registers", len(data), offset, uar, bfRegs)
			return
		}
		d.register(uar, at/(2*half), at/half%2, at%half, data)
	default:
		d.violate("uar-offset", 0, "a store of %d bytes at %#x of UAR %#x, where no doorbell is", len(data), offset, uar)
	}
}

// NewUAR forgets what is known of the registers of a UAR page: it was given to a new owner,
// who begins with whichever half it likes.
func (d *Device) NewUAR(uar uint32) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	for k := range uint64(4) {
		r := d.regs[uint64(uar)<<2|k]
		if r == nil {
			continue
		}
		for _, c := range r.open {
			d.close(c)
		}
		delete(d.regs, uint64(uar)<<2|k)
	}
}

// UARRead is a load from a UAR page, which drivers do not do: a locked instruction on a
// doorbell is one.
func (d *Device) UARRead(uar, offset uint32, n int) []byte {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.violate("uar-read", 0, "%d bytes are read at %#x of UAR %#x: an atomic operation on a doorbell does that", n, offset, uar)
	return make([]byte, min(max(n, 0), uarPageBytes))
}

// register is a store to a half of a doorbell register.
func (d *Device) register(uar, k, half, offset uint32, data []byte) {
	bfHalf := d.cfg.Traits.bfHalf()
	key := uint64(uar)<<2 | uint64(k)
	r := d.regs[key]
	if r == nil {
		r = &bfReg{}
		d.regs[key] = r
	}
	if len(data)%8 != 0 || offset%8 != 0 || offset+uint32(len(data)) > bfHalf {
		d.violate("doorbell-width", 0, "a store of %d bytes at %#x of register %d of UAR %#x: a doorbell is one store of 8 bytes, and a BlueFlame copy is made of such", len(data), half*bfHalf+offset, k, uar)
		return
	}
	if offset != 0 {
		d.piece(r, uar, k, half, offset, data)
		return
	}
	for _, c := range r.open {
		d.close(c)
	}
	c := d.ring(uar, k, data)
	if c != nil {
		c.again = r.used && r.last == half
		c.data = bytes.Clone(data)
		if r.blue && c.need <= int(bfHalf) {
			c.held = true
			c.await()
		} else {
			c.release()
		}
		if len(data) > 8 {
			d.blue(r, c, uar, k)
		}
	}
	r.open[half], r.last, r.used = c, half, true
}

// piece is a store in the middle of a register.
func (d *Device) piece(r *bfReg, uar, k, half, offset uint32, data []byte) {
	bfHalf := d.cfg.Traits.bfHalf()
	c := r.open[half]
	if c == nil {
		d.violate("bf-stray", 0, "a store of %d bytes at %#x of register %d of UAR %#x, where no BlueFlame copy has begun", len(data), half*bfHalf+offset, k, uar)
		return
	}
	if int(offset) != len(c.data) || len(c.data)+len(data) > c.need {
		d.violate("bf-order", c.q.n, "%s: a BlueFlame copy of %d bytes continues at byte %d with %d bytes, and has %d so far", c.q.describe(), c.need, offset, len(data), len(c.data))
		return
	}
	first := len(c.data) == 8
	c.data = append(c.data, data...)
	if c.held {
		c.await()
	}
	if first {
		d.blue(r, c, uar, k)
	}
	c.compare(len(c.data) - len(data))
	if len(c.data) == c.need {
		c.complete()
	}
}

// blue says that a doorbell is the beginning of a BlueFlame copy.
func (d *Device) blue(r *bfReg, c *bfCopy, uar, k uint32) {
	bfHalf := int(d.cfg.Traits.bfHalf())
	// A driver finds out by copies of NOPs whether there is BlueFlame, and must not copy after that.
	if d.cfg.Traits.NoBlueFlame && c.ring[ctrlOpcodeByte] != opNOP {
		d.violate("bf-absent", c.q.n, "%s: a BlueFlame copy to a device that has no BlueFlame", c.q.describe())
	}
	r.blue = !d.cfg.Traits.NoBlueFlame
	d.rep.doorbells["8 bytes"]--
	d.rep.doorbells["BlueFlame"]++
	if c.again {
		d.violate("bf-alternation", c.q.n, "%s: a BlueFlame copy to the half of register %d of UAR %#x that was written last: the halves must alternate", c.q.describe(), k, uar)
	}
	if c.need > bfHalf {
		d.violate("bf-size", c.q.n, "%s: a BlueFlame copy of a WQE of %d bytes, and a register half has %d", c.q.describe(), c.need, bfHalf)
		c.need = bfHalf
	}
	c.compare(0)
	if len(c.data) >= c.need {
		c.complete()
	}
}

// compare compares a piece of the copy with the WQE in memory. The device does not read the rest of
// the last block behind the WQE, so it may differ.
func (c *bfCopy) compare(from int) {
	for i := from; i < min(len(c.data), len(c.ring)); i++ {
		if c.data[i] == c.ring[i] || c.differs {
			continue
		}
		// The kernel's test for write combining posts NOPs that ask for a CQE in the copy
		// alone: it learns from the CQE that the copy was used.
		if i == ctrlFlagsByte && c.ring[ctrlOpcodeByte] == opNOP && c.data[i]^c.ring[i] == ctrlCQUpdate {
			continue
		}
		c.differs = true
		c.q.d.violate("bf-data", c.q.n, "%s WQE %#x: BlueFlame byte %d is %#02x, in memory %#02x: %s", c.q.describe(), c.index, i, c.data[i], c.ring[i], describeWQE(c.q, c.ring))
	}
}

// complete lets the WQE be executed from the copy.
func (c *bfCopy) complete() {
	if c.held && !c.differs {
		c.q.send.copyOf, c.q.send.copied = c.index, c.data[:min(len(c.ring), len(c.data))]
	}
	c.release()
}

// await waits for the next piece.
func (c *bfCopy) await() {
	c.q.d.f.cancel(&c.wait)
	c.wait = c.q.d.f.after(bfWait, c.release)
}

// release lets the WQE be executed.
func (c *bfCopy) release() {
	if c.gone { // and the queue may have been reset since
		return
	}
	c.q.d.f.cancel(&c.wait)
	c.held, c.gone = false, true
	if c.q.send.held == c {
		c.q.send.held = nil
	}
	c.q.send.posted = c.end
	c.q.kick()
}

// close says that nothing more comes for a copy.
func (d *Device) close(c *bfCopy) {
	if c == nil {
		return
	}
	if c.held {
		c.release()
	}
	if n := len(c.data); n > 8 && n < c.need && !c.q.gone {
		d.violate("bf-short", c.q.n, "%s WQE %#x: a BlueFlame copy of %d bytes ended after %d", c.q.describe(), c.index, c.need, n)
		c.need = n
	}
}

// ring is a doorbell: the first 8 bytes of a WQE's control segment.
func (d *Device) ring(uar, k uint32, data []byte) *bfCopy {
	index, op := uint16(be.Uint32(data)>>8), data[3]
	qpn, ds := be.Uint32(data[4:])>>8, int(data[7]&ctrlDSMask)
	q := d.qps[qpn]
	if q == nil || q.spec.NoSQ {
		d.violate("doorbell-qpn", qpn, "a doorbell on UAR %#x names QP %#x, which has no send queue: %x", uar, qpn, data[:8])
		return nil
	}
	d.rep.doorbells["8 bytes"]++
	d.trace(TraceEvent{Kind: TraceDoorbell, QPN: qpn, Index: uint32(index), Raw: data})
	if want := q.uar(); want != uar {
		d.violate("doorbell-uar", qpn, "%s: a doorbell on UAR %#x, and it is bound to %#x", q.describe(), uar, want)
	}
	if q.hasReg && q.reg != k && q.uar() == uar {
		d.violate("doorbell-register", qpn, "%s: a doorbell on register %d of UAR %#x, and the last one was on %d", q.describe(), k, uar, q.reg)
	}
	q.reg, q.hasReg = k, true
	if q.state == Reset {
		d.violate("doorbell-state", qpn, "%s: a doorbell in the reset state", q.describe())
		return nil
	}
	if ds == 0 {
		d.violate("wqe-ds", qpn, "%s: a doorbell for a WQE of size 0: %x", q.describe(), data[:8])
		return nil
	}
	s := &q.send
	c := &bfCopy{q: q, index: index, end: index + uint16(blocks(ds)), need: blocks(ds) * blockBytes}
	if s.held != nil {
		s.held.release()
	}
	if !s.checkDoorbell(q, index, c.end) {
		return nil
	}
	c.ring = make([]byte, ds*16)
	if err := q.readSQ(index, c.ring); err != nil {
		q.catastrophe(err.Error())
		return nil
	}
	if !bytes.Equal(c.ring[:8], data[:8]) {
		d.violate("doorbell-ctrl", qpn, "%s: the doorbell is %x, and the WQE %#x in memory begins with %x (%s)", q.describe(), data[:8], index, c.ring[:8], opName(op))
	}
	s.rung, s.held = c.end, c
	return c
}

// checkDoorbell compares a doorbell with the doorbell record and the ring. The record is
// written first; it may be newer, since the driver goes on meanwhile, but not older.
func (s *sendQueue) checkDoorbell(q *qp, index, end uint16) bool {
	d := q.d
	size := uint16(1) << s.log
	rec, err := d.load32(q.dbr() + 4)
	if err != nil {
		d.violate("sq-record-memory", q.n, "%s: the doorbell record can't be read: %v", q.describe(), err)
		q.catastrophe("its doorbell record can't be read")
		return false
	}
	if n := end - s.rung; n == 0 || n > size {
		d.violate("doorbell-index", q.n, "%s: a doorbell for WQE %#x up to %#x, while %#x is rung for already, in a ring of %d blocks", q.describe(), index, end, s.rung, size)
		return false
	}
	if ahead := uint16(rec) - end; ahead >= 0x8000 {
		d.violate("doorbell-record", q.n, "%s: a doorbell for WQE %#x up to %#x while the doorbell record says %#x: the record must be written first", q.describe(), index, end, uint16(rec))
	} else if uint16(rec)-s.tail > size {
		d.violate("sq-ownership", q.n, "%s: the doorbell record says %#x, while hardware has not finished %#x, in a ring of %d blocks", q.describe(), uint16(rec), s.tail, size)
		return false
	}
	// The kernel writes its counter without cutting it to 16 bits: hardware doesn't look at
	// the upper ones.
	return true
}

// uar is the page on which a QP's or SQ's doorbells ring.
func (q *qp) uar() uint32 {
	if q.sq != nil {
		return q.sq.UAR
	}
	return q.spec.UAR
}

// dbr is where the doorbell record is.
func (q *qp) dbr() uint64 {
	if q.sq != nil {
		return q.sq.DBR
	}
	return q.spec.DBR
}
