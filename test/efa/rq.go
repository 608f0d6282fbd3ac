package efa

// descriptorSize is the size of a receive descriptor.
const descriptorSize = 16

// noAH is the address of a sender that the receiver's domain does not have.
const noAH = 0xffff

// receiveQueue is the state of a receive queue, a ring of descriptors in the guest's memory.
type receiveQueue struct {
	base              uint64
	depth             uint32 // descriptors
	posted, completed uint32
	requests          []*receive
}

// receive is a receive request.
type receive struct {
	id    uint16
	local []sge
}

// rqDoorbell says how many descriptors there are.
func (d *Device) rqDoorbell(q *qp, counter uint16) {
	r := &q.rq
	n := uint32(counter - uint16(r.posted))
	d.rep.Queues["RQ doorbells"]++
	d.trace("QP %#x: receive doorbell %d", q.number, counter)
	if n == 0 {
		return // libefa does so if it refuses a request
	}
	if q.state == stateReset {
		d.violate("rq-state", "QP %#x: a receive in the state RESET", q.number)
		return
	}
	if n > r.depth-(r.posted-r.completed) {
		d.violate("rq-doorbell", "QP %#x: counter %#x after %#x, and %d of %d descriptors are used", q.number, counter, r.posted, r.completed, r.posted)
		return
	}
	var now *receive
	for range n {
		var b [descriptorSize]byte
		if err := d.read(r.base+uint64(r.posted%r.depth)*descriptorSize, b[:]); err != nil {
			d.gone(err)
			return
		}
		r.posted++
		now = d.parseReceive(q, now, b[:])
	}
	if now != nil {
		d.violate("rq-descriptor", "QP %#x: the last of the descriptors of request %#x is not posted", q.number, now.id)
	}
	if q.state == stateError {
		d.flushReceives(q)
		return
	}
	d.f.retry(q)
}

// parseReceive adds a descriptor to the request that it belongs to, and returns the request if more follow.
func (d *Device) parseReceive(q *qp, now *receive, b []byte) *receive {
	d.trace("QP %#x: descriptor [%x]", q.number, b)
	ctrl := le.Uint32(b[12:])
	first, last := ctrl>>30&1 != 0, ctrl>>31 != 0
	switch {
	case ctrl>>24&0x3f != 0:
		d.violate("rq-reserved", "QP %#x: descriptor % x", q.number, b)
	case first != (now == nil):
		d.violate("rq-descriptor", "QP %#x: a descriptor that begins a request and is not the first, or the other way round: % x", q.number, b)
	case now != nil && len(now.local) == recvSGEs:
		d.violate("rq-sges", "QP %#x: request %#x has more than %d descriptors", q.number, now.id, recvSGEs)
	}
	if now == nil {
		now = &receive{id: le.Uint16(b[8:])}
		for _, r := range q.rq.requests {
			if r.id == now.id {
				d.violate("rq-id", "QP %#x: request ID %#x is in use", q.number, now.id)
			}
		}
	}
	now.local = append(now.local, sge{length: uint32(le.Uint16(b[10:])), key: ctrl & 0xffffff, addr: le.Uint64(b)})
	if !last {
		return now
	}
	q.rq.requests = append(q.rq.requests, now)
	return nil
}

// flushReceives completes all receives of a QP in the state ERR.
func (d *Device) flushReceives(q *qp) {
	for len(q.rq.requests) > 0 {
		d.received(q, &message{}, q.take(), ioFlushed, 0)
	}
}

// take takes the oldest receive.
func (q *qp) take() *receive {
	r := q.rq.requests[0]
	q.rq.requests = q.rq.requests[1:]
	q.rq.completed += uint32(len(r.local))
	return r
}

// received completes a receive. Without one it is the completion of a WRITE that needs none.
func (d *Device) received(q *qp, m *message, r *receive, status uint8, length uint64) {
	var e [32]byte
	e[2], e[3] = status, 2<<1
	le.PutUint16(e[4:], q.number)
	le.PutUint16(e[8:], noAH)
	if r != nil {
		le.PutUint16(e[:], r.id)
	} else {
		e[3] |= 1 << 7
	}
	if status == ioOK {
		le.PutUint16(e[6:], uint16(length))
		le.PutUint16(e[10:], m.from.number)
		if a := d.ahOf(q.pd, m.from.dev.gid); a != nil {
			le.PutUint16(e[8:], a.number)
		} else if q.recvCQ.source && m.op == ioSend {
			copy(e[16:], m.from.dev.gid[:])
		}
		if m.hasImm {
			e[3] |= 1 << 3
			le.PutUint32(e[12:], m.imm)
		}
		if m.op == ioWrite {
			le.PutUint16(e[16:], uint16(length>>16))
		}
		if d.cfg.Personality.has(capWrite) {
			e[3] |= m.op << 4
		}
		d.stats.recvs++
		d.stats.recvBytes += m.length
	}
	d.rep.Queues["receives: "+ioStatuses[status]]++
	if r != nil {
		d.countEvent(q, eventRecv, status)
	}
	d.complete(q.recvCQ, q.recvSub, e[:])
}
