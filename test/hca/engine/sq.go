package engine

import (
	"bytes"
	"fmt"
	"time"
)

const (
	blockBytes = 64 // MLX5_SEND_WQE_BB
	maxDS      = 63 // what the control segment can say
)

// blocks is how many blocks a WQE of ds 16-byte units takes.
func blocks(ds int) int { return (ds + 3) / 4 }

// sendQueue is where a send queue stands. Its counters count blocks, with 16 bits.
type sendQueue struct {
	base uint64 // where in the buffer it begins
	log  uint   // log2 of its size in blocks

	rung   uint16  // after the last WQE that a doorbell was for
	posted uint16  // the same, but for a WQE whose BlueFlame copy is awaited
	next   uint16  // the WQE to fetch
	tail   uint16  // the first that is not completed
	held   *bfCopy // the doorbell that waits for its copy

	idleAt time.Duration // of a queue with a rate: when the frames that were sent would be on the wire

	copyOf uint16 // the WQE of which copied is a BlueFlame copy
	copied []byte
}

// readSQ reads a WQE, which may wrap at the end of the ring.
func (q *qp) readSQ(index uint16, dst []byte) error {
	s := &q.send
	buf := &q.spec.Buf
	if q.sq != nil {
		buf = &q.sq.Buf
	}
	for len(dst) > 0 {
		slot := uint64(index) & (1<<s.log - 1)
		n := min(len(dst), blockBytes)
		if err := q.d.readBuf(buf, s.base+slot*blockBytes, dst[:n]); err != nil {
			return fmt.Errorf("WQE %#x can't be read: %w", index, err)
		}
		dst, index = dst[n:], index+1
	}
	return nil
}

// fetch reads the next WQE, from the BlueFlame copy if there is one. It gives nil if
// none is posted, or if the queue can't go on.
func (q *qp) fetch() *sendWQE {
	s := &q.send
	if s.next == s.posted {
		return nil
	}
	var ctrl [16]byte
	if err := q.readSQ(s.next, ctrl[:]); err != nil {
		q.catastrophe(err.Error())
		return nil
	}
	ds := int(ctrl[7] & ctrlDSMask)
	left := s.posted - s.next
	if ds == 0 || blocks(ds) > int(left) {
		q.d.violate("wqe-ds", q.n, "%s WQE %#x: its size of %d units leads beyond the %d blocks that are posted: %x", q.describe(), s.next, ds, left, ctrl[:])
		q.catastrophe("a WQE's size leads nowhere")
		return nil
	}
	raw := make([]byte, ds*16)
	if err := q.readSQ(s.next, raw); err != nil {
		q.catastrophe(err.Error())
		return nil
	}
	w := &sendWQE{q: q, index: s.next, blocks: uint16(blocks(ds)), ring: raw, raw: raw}
	if s.copied != nil && s.copyOf == s.next && len(s.copied) == len(raw) {
		w.raw, w.fromBF = s.copied, true
	}
	if s.copyOf == s.next {
		s.copied = nil
	}
	s.next += w.blocks
	q.d.trace(TraceEvent{Kind: TraceWQE, QPN: q.n, Index: uint32(w.index), Type: q.traceType(), Raw: w.raw, BlueFlame: w.fromBF})
	w.decode()
	return w
}

// traceType is the type by which a WQE is put into words.
func (q *qp) traceType() QPType {
	if q.sq != nil {
		return RawEth
	}
	return q.spec.Type
}

// finished gives the WQE's blocks back to the driver. Until now they are hardware's: a
// change of them is a violation.
func (w *sendWQE) finished() {
	q := w.q
	now := make([]byte, len(w.ring))
	if err := q.readSQ(w.index, now); err == nil && !bytes.Equal(now, w.ring) {
		q.d.violate("sq-changed", q.n, "%s WQE %#x was changed before it was completed: it was %s, and is %s", q.describe(), w.index, describeWQE(q, w.ring), describeWQE(q, now))
	}
	q.send.tail = w.index + w.blocks
}

// complete writes the WQE's completion, if it is to have one, and gives it back.
func (w *sendWQE) complete(bytes int) {
	w.finished()
	w.q.d.rep.opcodes[w.q.traceType().String()+" "+opName(w.op)]++
	if !w.signaled {
		return
	}
	e := &cqe{opcode: cqeReq, qpn: w.q.n, srqn: w.q.userIndex(false), index: w.index, sendOp: w.op, count: uint32(bytes), inline: w.inlined, ethernet: w.q.sq != nil}
	w.q.sendCQ.post(e)
}

// fail writes the WQE's error completion and gives it back.
func (w *sendWQE) fail(s Syndrome, vendor uint8) {
	w.finished()
	if s == Flushed && w.firstOnly {
		return
	}
	if s != Flushed {
		w.q.d.rep.opcodes[w.q.traceType().String()+" "+opName(w.op)]++
	}
	w.q.counts.countReqError(s)
	w.q.sendCQ.post(&cqe{opcode: cqeReqErr, qpn: w.q.n, srqn: w.q.userIndex(false), index: w.index, sendOp: w.op, syndrome: s, vendor: vendor, solicited: true, ethernet: w.q.sq != nil})
}

// kick has the QP looked at soon.
func (q *qp) kick() {
	if q.scheduled || q.gone {
		return
	}
	q.scheduled = true
	q.d.f.soon(func() {
		q.scheduled = false
		if !q.gone && !q.d.fatal {
			q.run()
		}
	})
}

// run does what there is to do on the send side.
func (q *qp) run() {
	switch {
	case q.sq != nil:
		q.runEthernet()
	case q.state == Err || q.state == SQErr:
		q.flushSends()
	case q.state == RTS || q.state == SQD && q.draining:
		if q.spec.NoSQ {
			return
		}
		q.runSends()
		if q.state == SQD && q.draining && len(q.req.flight) == 0 {
			q.draining = false
			if q.asked {
				q.asked = false
				q.eventOf(EventSQDrained)
			}
		}
	}
}
