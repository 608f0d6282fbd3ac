package engine

import (
	"math/bits"

	"github.com/goverbs/goverbs/uverbs/soft/internal/memory"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// rememberedKind is the kind of a request that may have to be answered again.
type rememberedKind uint8

const (
	forgotten rememberedKind = iota
	aRead
	anAtomic
	anAtomicWrite
)

// A remembered request can be answered again without carrying it out again.
type remembered struct {
	kind        rememberedKind
	first, last uint32 // PSNs of the response
	psn         uint32 // next one of a READ
	original    uint64 // result of an atomic
	addr        uint64 // READ: the address, length and key of the request
	length      uint32
	key         uint32
	next        uint64 // READ: the next byte
	left        uint32 // READ: bytes to send
	start       bool   // READ: nothing was sent yet
	again       bool   // READ: it was answered before
}

// keep remembers a request in the place of the oldest one.
func (r *responder) keep(m remembered) *remembered {
	if r.remembered == nil {
		r.remembered = make([]remembered, r.mostReads)
	}
	slot := &r.remembered[r.nextSlot]
	*slot = m
	r.nextSlot = (r.nextSlot + 1) % len(r.remembered)
	return slot
}

// find returns the remembered request with a PSN, or nil.
func (r *responder) find(psn uint32) *remembered {
	for i := range r.remembered {
		m := &r.remembered[i]
		if m.kind != forgotten && wire.Diff(psn, m.first) >= 0 && wire.Diff(psn, m.last) <= 0 {
			return m
		}
	}
	return nil
}

// answersBefore returns how many READs and atomics were answered when a worker began to bring a batch of packets. All
// of a batch were sent before any of it is answered.
func (r *responder) answersBefore(batch uint64) uint32 {
	if r.batch != batch {
		r.batch, r.before = batch, r.answers
	}
	return r.before
}

// tooMany reports whether more READs and atomics were under way, when one came, than the QP has promised to take. Peers
// on the network may round that up to a power of two, as rxe does.
func (q *QP) tooMany(a *arrival) bool {
	most := uint32(q.resp.mostReads)
	if q.path.local == nil && most > 0 {
		most = 1 << bits.Len32(most-1)
	}
	return q.resp.answers-a.answers >= most
}

// executeRead begins to answer a READ. The response of one that is long takes several rounds.
func (q *QP) executeRead(w *worker, h *wire.Header) verdict {
	r := &q.resp
	if h.Length > 0 && q.dev.config.Memory.CheckRemote(q.ref(), h.RKey, h.Addr, uint64(h.Length), memory.RemoteRead) != memory.OK {
		return denied
	}
	last := wire.Add(h.PSN, q.packets(h.Length)-1)
	r.msn = wire.Add(r.msn, 1)
	r.psn, r.opcode = wire.Add(last, 1), noOpcode
	r.reading = r.keep(remembered{
		kind: aRead, first: h.PSN, last: last, psn: h.PSN, addr: h.Addr, length: h.Length, key: h.RKey,
		next: h.Addr, left: h.Length, start: true,
	})
	q.sendReadResponse(w)
	return ok
}

// sendReadResponse sends packets of the response to the READ under way, until w is full or all is
// sent. The caller holds mu.
func (q *QP) sendReadResponse(w *worker) {
	for budget := roundPackets; budget > 0; budget-- {
		m := q.resp.reading
		if m == nil || q.state == Err {
			return
		}
		payload := int(min(m.left, uint32(q.mtu)))
		h := wire.Header{PSN: m.psn, Opcode: readOpcode(m.start, m.left <= uint32(q.mtu)), Syndrome: wire.SyndromeACK}
		b := q.reserveResponse(w, &h, payload)
		if b == nil {
			return
		}
		if payload > 0 && q.dev.config.Memory.ReadRemote(b[:payload], q.ref(), m.key, m.next) != memory.OK {
			q.dropResponse(w)
			q.failRead(w, m)
			return
		}
		m.start = false
		m.next += uint64(payload)
		m.left -= uint32(payload)
		m.psn = wire.Add(m.psn, 1)
		if m.left == 0 {
			q.resp.reading = nil
			if !m.again {
				q.resp.answers++
			}
		}
	}
}

// readOpcode returns the opcode of a packet of a response.
func readOpcode(first, last bool) wire.Opcode {
	switch {
	case first && last:
		return wire.ReadResponseOnly
	case first:
		return wire.ReadResponseFirst
	case last:
		return wire.ReadResponseLast
	}
	return wire.ReadResponseMiddle
}

// failRead ends a READ whose memory is not there any more.
func (q *QP) failRead(w *worker, m *remembered) {
	a := arrival{header: wire.Header{Opcode: wire.ReadRequest, PSN: m.psn}}
	q.refuse(w, &a, wire.SyndromeRemoteAccess, StatusRemAccessErr)
}

// duplicate answers a request that was received before (duplicate_request).
func (q *QP) duplicate(w *worker, a *arrival) {
	r, h := &q.resp, &a.header
	if h.Opcode.IsSend() || h.Opcode.IsWrite() {
		q.acknowledge(w, wire.SyndromeACK, r.again(h.PSN))
		return
	}
	op := h.Opcode.Operation()
	if op == wire.Flush { // it has happened, and once is enough
		q.acknowledgeEmpty(w, h.PSN)
		return
	}
	m := r.find(h.PSN)
	if m == nil {
		return
	}
	switch {
	case m.kind == anAtomic && h.Opcode.IsAtomic():
		q.acknowledgeAtomic(w, h.PSN, m.original)
	case m.kind == anAtomicWrite && op == wire.AtomicWrite:
		q.acknowledgeEmpty(w, h.PSN)
	case m.kind == aRead && op == wire.ReadRequest:
		q.readAgain(w, h, m)
	}
}

// again returns the PSN that acknowledges a SEND or WRITE that came again: that of all before which has been
// acknowledged, but of nothing that has a response of its own. rxe acknowledges an atomic so as well, and takes
// such an acknowledgement for the end of its own atomic, whose result is then missing.
func (r *responder) again(psn uint32) uint32 {
	last := wire.Add(r.ackPSN, -1)
	for i := range r.remembered {
		m := &r.remembered[i]
		if m.kind != forgotten && wire.Diff(m.first, psn) > 0 && wire.Diff(m.first, last) <= 0 {
			last = wire.Add(m.first, -1)
		}
	}
	return last
}

// readAgain answers a READ again, or the rest of one. It must lie in the one that is remembered.
func (q *QP) readAgain(w *worker, h *wire.Header, m *remembered) {
	end := m.addr + uint64(m.length)
	if h.RKey != m.key && m.length > 0 || h.Addr < m.addr || h.Length > m.length || h.Addr-m.addr > uint64(m.length) || h.Addr+uint64(h.Length) > end {
		return
	}
	m.psn, m.next, m.left, m.start, m.again = h.PSN, h.Addr, h.Length, true, true
	q.resp.reading = m
	q.sendReadResponse(w)
}
