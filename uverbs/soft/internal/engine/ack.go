package engine

import (
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// An ackPlace is where the last acknowledgement of a QP stands, to let it stand for more packets.
type ackPlace struct {
	worker uint64 // its number; 0: there is none
	round  uint64 // of the worker
	packet int    // index of the packet in the worker's queue
	psn    uint32 // of the packet
}

// acknowledge answers a request with an AETH alone. A positive acknowledgement takes the place of the
// one before it, if that was not sent yet. It never acknowledges less than that one.
func (q *QP) acknowledge(w *worker, syndrome uint8, psn uint32) {
	h := wire.Header{Opcode: wire.Acknowledge, Syndrome: syndrome, PSN: psn}
	last := &q.resp.lastAck
	if syndrome == wire.SyndromeACK && last.worker == w.number && last.round == w.responseRound {
		if wire.Diff(psn, last.psn) < 0 { // of a request that has come again
			h.PSN = last.psn
		}
		q.fillResponse(&h)
		last.psn = h.PSN
		h.Put(w.packet(&w.responses, q.path, last.packet))
		return
	}
	if q.reserveResponse(w, &h, 0) != nil && syndrome == wire.SyndromeACK {
		*last = ackPlace{w.number, w.responseRound, w.packets(&w.responses, q.path) - 1, psn}
	}
}

// acknowledgeAtomic sends the result of an atomic.
func (q *QP) acknowledgeAtomic(w *worker, psn uint32, original uint64) {
	q.reserveResponse(w, &wire.Header{Opcode: wire.AtomicAcknowledge, Syndrome: wire.SyndromeACK, PSN: psn, Original: original}, 0)
}

// acknowledgeEmpty answers a FLUSH or an ATOMIC WRITE.
func (q *QP) acknowledgeEmpty(w *worker, psn uint32) {
	q.reserveResponse(w, &wire.Header{Opcode: wire.ReadResponseOnly, Syndrome: wire.SyndromeACK, PSN: psn}, 0)
}

// fillResponse fills the fields that all responses have.
func (q *QP) fillResponse(h *wire.Header) {
	h.MigReq, h.PKey, h.DestQP, h.MSN = true, wire.DefaultPKey, q.attr.DestQPN, q.resp.msn
}

// reserveResponse adds a response to those of the worker and returns the room for its payload. It
// returns nil if the worker has no room, which cannot be for a packet without data.
func (q *QP) reserveResponse(w *worker, h *wire.Header, payload int) []byte {
	if q.path == nil {
		return nil
	}
	q.fillResponse(h)
	h.Pad = uint8(wire.Padding(payload))
	b := w.reserve(&w.responses, q.path, wire.PacketSize(h.Opcode, payload))
	if b == nil {
		return nil
	}
	q.resp.lastAck, q.resp.unsent = ackPlace{}, w.unsent()
	q.dev.stats.sent(len(b))
	n := h.Put(b)
	clear(b[n+payload : n+payload+int(h.Pad)])
	return b[n : n+payload]
}

// dropResponse removes the response that was reserved last.
func (q *QP) dropResponse(w *worker) { w.drop(&w.responses, q.path) }
