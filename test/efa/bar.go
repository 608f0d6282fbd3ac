package efa

import "fmt"

// registers is the state of BAR 0.
type registers struct {
	answer          uint64 // bus address that registers are read to; 0 is none
	answerHi        uint32
	aq, acq, aenq   uint64
	masked, resetOn bool
}

// ReadBAR answers a load. A driver has no reason for one: it has registers written to memory, and what it has stored
// to the send queues comes back slowly if at all.
func (d *Device) ReadBAR(bar int, off uint64, p []byte) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	for i := range p {
		p[i] = 0xff
	}
	if bar == barRegisters && off >= MSIXTable {
		return
	}
	d.violate("load", "%d bytes at %#x of BAR %d", len(p), off, bar)
}

// WriteBAR is a store.
func (d *Device) WriteBAR(bar int, off uint64, p []byte) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if bar == barLLQ {
		d.storeLLQ(off, p)
		return
	}
	if bar == barRegisters && off >= MSIXTable {
		return // QEMU plays the table
	}
	if len(p) != 4 || off%4 != 0 {
		d.violate("store-width", "%d bytes at %#x of BAR %d, want 4 that are aligned", len(p), off, bar)
		return
	}
	if v := le.Uint32(p); bar == barRegisters {
		d.storeRegister(off, v)
	} else {
		d.doorbell(off, v)
	}
}

// storeRegister is a store to a register.
func (d *Device) storeRegister(off uint64, v uint32) {
	r := &d.reg
	switch off {
	case regAQBaseLo:
		r.aq = join(v, uint32(r.aq>>32))
	case regAQBaseHi:
		r.aq = join(uint32(r.aq), v)
	case regACQBaseLo:
		r.acq = join(v, uint32(r.acq>>32))
	case regACQBaseHi:
		r.acq = join(uint32(r.acq), v)
	case regAENQBaseLo:
		r.aenq = join(v, uint32(r.aenq>>32))
	case regAENQBaseHi:
		r.aenq = join(uint32(r.aenq), v)
	case regAQCaps:
		d.setAQ(v)
	case regACQCaps:
		d.setACQ(v)
	case regAENQCaps:
		d.setAENQ(v)
	case regAQDoorbell:
		d.adminDoorbell(v)
	case regAENQCons:
		d.aenqConsumer(v)
	case regIntrMask:
		if v > 1 {
			d.violate("register-reserved", "INTR_MASK = %#x", v)
		}
		r.masked = v&1 != 0
	case regControl:
		d.control(v)
	case regRead:
		d.readRegister(uint16(v), v>>16)
	case regAnswerHi:
		r.answerHi = v
	case regAnswerLo:
		r.answer = join(v, r.answerHi)
	case regEQDoorbell:
		d.armEQ(v)
	default:
		d.violate("register", "store of %#x to %#x, which is no register to write", v, off)
	}
}

// control resets the card, in two steps.
func (d *Device) control(v uint32) {
	switch {
	case v&controlMBZ != 0:
		d.violate("register-reserved", "DEV_CTL = %#x", v)
	case v&controlReset != 0 && d.reg.resetOn:
		d.violate("reset", "a reset during a reset")
	case v&controlReset != 0:
		d.trace("reset, reason %d", v>>28)
		d.rep.Resets[fmt.Sprintf("reason %d", v>>28)]++
		d.clear()
		d.reg.resetOn = true
	case !d.reg.resetOn:
		d.violate("reset", "the end of a reset that was not begun")
	default:
		d.reg.resetOn = false
	}
}

// readRegister writes the value of a register to memory: first the value, then the number of the request.
func (d *Device) readRegister(id uint16, off uint32) {
	if d.reg.answer == 0 || d.reg.answer%8 != 0 {
		d.violate("register-read", "register %#x is read to bus address %#x", off, d.reg.answer)
		return
	}
	b, err := d.place(d.reg.answer, 8)
	if err != nil {
		d.violate("register-read", "%v", err)
		return
	}
	answer := le.AppendUint32(nil, uint32(id)|off<<16)
	publish(b, le.AppendUint32(answer, d.register(off)), 0)
}

// register gives the value of a register.
func (d *Device) register(off uint32) uint32 {
	switch off {
	case regVersion:
		return d.cfg.Personality.Version
	case regController:
		return 1 // 0.0.1
	case regCaps:
		return capsReset | capsWidth<<8
	case regStatus:
		if d.reg.resetOn {
			return statusReset
		}
		return statusReady
	}
	d.violate("register-read", "register %#x cannot be read", off)
	return unreadRegister
}

// doorbell is a store to BAR 4. The page is a UAR's, and the word in it a queue's.
func (d *Device) doorbell(off uint64, v uint32) {
	page, at := uint16(off/pageSize), uint16(off%pageSize)
	switch index := at / 4; {
	case d.uars[page] == nil:
		d.violate("doorbell-page", "%#x in UAR %d, which does not exist", v, page)
	case at >= doorbellCQ:
		if q := d.cqs[index-doorbellCQ/4]; q == nil || q.uar != page {
			d.violate("doorbell-page", "%#x to CQ %d in UAR %d, which does not have it", v, index-doorbellCQ/4, page)
		} else {
			d.cqDoorbell(q, v)
		}
	default:
		q := d.qps[index%maxQPs]
		switch {
		case q == nil || q.uar != page:
			d.violate("doorbell-page", "%#x to QP %d in UAR %d, which does not have it", v, index%maxQPs, page)
		case v>>16 != 0:
			d.violate("doorbell-width", "QP %#x: counter %#x has more than 16 bits", q.number, v)
		case at >= doorbellRQ:
			d.rqDoorbell(q, uint16(v))
		default:
			d.sqDoorbell(q, uint16(v))
		}
	}
}

// storeLLQ is a store to the memory of the send queues.
func (d *Device) storeLLQ(off uint64, p []byte) {
	q := d.qps[uint16(off/maxLLQ)]
	if at := off % maxLLQ; q == nil || at+uint64(len(p)) > uint64(q.sq.bytes) {
		d.violate("llq", "%d bytes at %#x, which is in no send queue", len(p), off)
		return
	}
	if len(p) < 8 || len(p)%8 != 0 || off%8 != 0 {
		d.violate("llq-width", "QP %#x: %d bytes at %#x, want multiples of 8", q.number, len(p), off)
	}
	copy(q.sq.ring[off%maxLLQ:], p)
}
