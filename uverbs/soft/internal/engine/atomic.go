package engine

import (
	"github.com/goverbs/goverbs/uverbs/soft/internal/memory"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// executeAtomic carries out a compare and swap, or a fetch and add.
func (q *QP) executeAtomic(w *worker, h *wire.Header) verdict {
	var old uint64
	var fault memory.Fault
	if h.Opcode == wire.CompareSwap {
		old, fault = q.dev.config.Memory.CompareSwap(q.ref(), h.RKey, h.Addr, h.Compare, h.SwapAdd)
	} else {
		old, fault = q.dev.config.Memory.FetchAdd(q.ref(), h.RKey, h.Addr, h.SwapAdd)
	}
	if v := verdictOf(fault); v != ok {
		return v
	}
	q.answered(h)
	q.resp.keep(remembered{kind: anAtomic, first: h.PSN, last: h.PSN, original: old})
	q.acknowledgeAtomic(w, h.PSN, old)
	return ok
}

// executeAtomicWrite carries out an ATOMIC WRITE, which has exactly 8 bytes.
func (q *QP) executeAtomicWrite(w *worker, a *arrival) verdict {
	h, mem := &a.header, q.dev.config.Memory
	if mem.CheckRemote(q.ref(), h.RKey, h.Addr, uint64(h.Length), memory.RemoteWrite) != memory.OK {
		return denied
	}
	if h.Length != 8 || len(a.payload) != 8 {
		return invalid
	}
	if v := verdictOf(mem.AtomicWrite(q.ref(), h.RKey, h.Addr, [8]byte(a.payload))); v != ok {
		return v
	}
	q.answered(h)
	q.resp.keep(remembered{kind: anAtomicWrite, first: h.PSN, last: h.PSN})
	q.acknowledgeEmpty(w, h.PSN)
	return ok
}

// executeFlush carries out a FLUSH. Data that was written is visible to all processors already.
func (q *QP) executeFlush(w *worker, h *wire.Header) verdict {
	if q.dev.config.Memory.Flush(q.ref(), h.RKey, h.Addr, uint64(h.Length), h.FlushType, h.FlushLevel) != memory.OK {
		return denied
	}
	q.answered(h)
	// It is not remembered, as requesters do not count a FLUSH with the READs and atomics: it would
	// take the place of one of them.
	q.acknowledgeEmpty(w, h.PSN)
	return ok
}

// answered advances the responder behind a request of one packet that has a response.
func (q *QP) answered(h *wire.Header) {
	r := &q.resp
	r.msn = wire.Add(r.msn, 1)
	r.psn = wire.Add(h.PSN, 1)
	r.ackPSN, r.opcode = r.psn, h.Opcode
	if needsSlot(h.Opcode) {
		r.answers++
	}
}

// verdictOf converts what came of an access.
func verdictOf(f memory.Fault) verdict {
	switch f {
	case memory.OK:
		return ok
	case memory.Misaligned:
		return invalid
	}
	return denied
}
