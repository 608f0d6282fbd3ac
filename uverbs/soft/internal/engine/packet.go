package engine

import (
	"encoding/binary"

	"github.com/goverbs/goverbs/uverbs/soft/internal/memory"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// A request says which packets a work request has.
type request struct {
	only, first, middle, last wire.Opcode
	data                      bool // the packets carry the message
	rdAtomic                  bool // it counts as a READ or atomic under way
}

// dataRequest is a request of one packet or of several.
func dataRequest(transport, only, first, middle, last wire.Opcode) request {
	return request{only: transport | only, first: transport | first, middle: transport | middle, last: transport | last, data: true}
}

// requests are those that each type of QP can send, by their opcode (next_opcode of rxe_req.c).
var requests = func() (t [UD + 1][ring.OpAtomicWrite + 1]request) {
	for typ, transport := range map[QPType]wire.Opcode{RC: wire.RC, UC: wire.UC} {
		t[typ][ring.OpSend] = dataRequest(transport, wire.SendOnly, wire.SendFirst, wire.SendMiddle, wire.SendLast)
		t[typ][ring.OpSendImm] = dataRequest(transport, wire.SendOnlyImm, wire.SendFirst, wire.SendMiddle, wire.SendLastImm)
		t[typ][ring.OpWrite] = dataRequest(transport, wire.WriteOnly, wire.WriteFirst, wire.WriteMiddle, wire.WriteLast)
		t[typ][ring.OpWriteImm] = dataRequest(transport, wire.WriteOnlyImm, wire.WriteFirst, wire.WriteMiddle, wire.WriteLastImm)
	}
	t[RC][ring.OpSendInv] = dataRequest(wire.RC, wire.SendOnlyInv, wire.SendFirst, wire.SendMiddle, wire.SendLastInv)
	t[RC][ring.OpRead] = request{only: wire.ReadRequest, rdAtomic: true}
	t[RC][ring.OpAtomicCAS] = request{only: wire.CompareSwap, rdAtomic: true}
	t[RC][ring.OpAtomicFAA] = request{only: wire.FetchAdd, rdAtomic: true}
	t[RC][ring.OpFlush] = request{only: wire.Flush}
	t[RC][ring.OpAtomicWrite] = request{only: wire.AtomicWrite, data: true, rdAtomic: true}
	t[UD][ring.OpSend] = request{only: wire.UD | wire.SendOnly, data: true}
	t[UD][ring.OpSendImm] = request{only: wire.UD | wire.SendOnlyImm, data: true}
	return t
}()

// requestKind returns the packets of a work request. It reports false if the QP cannot send it.
func requestKind(typ QPType, opcode uint32) (*request, bool) {
	if opcode > ring.OpAtomicWrite {
		return nil, false
	}
	k := &requests[typ][opcode]
	return k, k.only != 0
}

// sendPacket generates the next packet of the work request at next, which w has read.
func (q *QP) sendPacket(w *worker, s *sendState) outcome {
	r, wr := &q.req, &w.wr
	kind, _ := requestKind(q.typ, wr.Opcode)
	if q.typ == RC && !q.mayContinue(s) {
		return blocked
	}
	way, ok := q.pathOf(wr)
	if !ok {
		return q.fail(StatusLocQPOpErr)
	}
	h := wire.Header{Opcode: kind.only, MigReq: true, PKey: wire.DefaultPKey, DestQP: q.attr.DestQPN, PSN: r.psn}
	payload, psns := 0, 1
	if kind.data {
		left := int(s.length - r.offset)
		mtu := q.mtu
		switch {
		case q.typ == UD:
			mtu = q.dev.MTU()
		case left > mtu && q.typ == RC && way.large && q.dev.config.Network.TakesLarge(way.to):
			mtu = udp.LargePayload
			psns = q.packets(uint32(min(left, mtu)))
		}
		payload = min(left, mtu)
		switch first, last := r.offset == 0, left <= mtu; {
		case q.typ == UD && !last: // the MTU has changed since
			return q.fail(StatusLocLenErr)
		case first && !last:
			h.Opcode = kind.first
		case !first && !last:
			h.Opcode = kind.middle
		case !first:
			h.Opcode = kind.last
		}
	}
	last := h.Opcode.Ends()
	if q.typ == RC {
		h.AckReq = last || r.sinceAck+psns-1 > q.window()/2
	}
	q.fillRequest(&h, wr, s, last)
	h.Pad = uint8(wire.Padding(payload))
	b := w.reserve(&w.requests, way, wire.PacketSize(h.Opcode, payload))
	if b == nil {
		return full
	}
	n := h.Put(b)
	if w.gather(q, b[n:n+payload]) != memory.OK {
		w.drop(&w.requests, way)
		return q.fail(StatusLocProtErr)
	}
	clear(b[n+payload : n+payload+int(h.Pad)])
	q.dev.stats.sent(len(b))
	if q.typ != RC {
		r.unsent = w.unsent()
	}
	if r.sinceAck += psns; h.AckReq {
		r.sinceAck = 0
	}
	if wr.Opcode == ring.OpRead {
		r.offset += h.Length
		q.sent(s, q.packets(h.Length), r.offset == s.length)
		return progress
	}
	r.offset += uint32(payload)
	q.sent(s, psns, last)
	return progress
}

// mayContinue reports whether a packet of a request may be sent now: there is room in the window, and
// the part of a READ before it has come.
func (q *QP) mayContinue(s *sendState) bool {
	if s.opcode == ring.OpRead && q.req.offset > 0 {
		return q.req.psn == q.req.una
	}
	return q.mayStart(uint32(s.opcode))
}

// sent advances the requester behind a packet with n PSNs, which may have been the last one of its
// message.
func (q *QP) sent(s *sendState, n int, last bool) {
	r := &q.req
	if r.psn = wire.Add(r.psn, n); last {
		r.next, r.offset = q.sq.Next(r.next), 0
	}
	if wire.Diff(r.psn, r.end) > 0 {
		r.end = r.psn
	}
	if q.typ == RC {
		if !q.deadlines.isSet(retryDeadline) {
			q.awaitAcknowledgement()
		}
		return
	}
	if r.una = r.psn; last {
		s.state = done
		q.completeDone()
	}
}

// pathOf returns where the packets of a request go (rxe_get_av).
func (q *QP) pathOf(wr *ring.Send) (*path, bool) {
	if q.typ != UD {
		return q.path, q.path != nil
	}
	ah := q.dev.findAH(wr.AH)
	if ah == nil || ah.pd != q.pd {
		return nil, false
	}
	return ah.path, true
}

// controlledQKey is the bit of Q_Keys that work requests cannot choose. One with this bit stands for the Q_Key of
// the QP, so that a program sends only privileged Q_Keys that it was given.
const controlledQKey = 1 << 31

// fillRequest fills the headers of a packet behind its opcode.
func (q *QP) fillRequest(h *wire.Header, wr *ring.Send, s *sendState, last bool) {
	if q.typ == UD {
		h.DestQP, h.QKey, h.SrcQP = wr.QPN&qpnMask, wr.QKey, q.num
		if wr.QKey&controlledQKey != 0 {
			h.QKey = q.attr.QKey
		}
	}
	h.Solicited = wr.Flags&ring.SendSolicited != 0 && last && (h.Opcode.IsSend() || h.Opcode.IsWrite() && h.Opcode.HasImm())
	switch wr.Opcode {
	case ring.OpSendImm, ring.OpWriteImm:
		h.Imm = netOrder(wr.ImmOrKey)
	case ring.OpSendInv:
		h.InvKey = wr.ImmOrKey
	case ring.OpAtomicCAS:
		h.Compare, h.SwapAdd = wr.CompareAdd, wr.Swap
	case ring.OpAtomicFAA:
		h.SwapAdd = wr.CompareAdd
	case ring.OpFlush:
		h.FlushType, h.FlushLevel = wr.FlushType, wr.FlushLevel
	}
	h.Addr, h.RKey, h.Length = wr.RemoteAddr, wr.RKey, s.length
	if wr.Opcode == ring.OpRead { // a part, or the rest when it is sent again
		chunk := uint32(localReadChunk)
		if q.path.local == nil {
			chunk = readChunk
		}
		h.Addr += uint64(q.req.offset)
		h.Length = min(h.Length-q.req.offset, chunk-q.req.offset%chunk)
	}
}

// netOrder converts between four bytes in network order that were loaded as a number, and their
// value.
func netOrder(x uint32) uint32 {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], x)
	return binary.BigEndian.Uint32(b[:])
}

// An sgeCursor is a place in a message: entry i of its scatter/gather list begins at byte start.
type sgeCursor struct {
	i     int
	start uint32
}

// seek moves the cursor to the entry with a byte of the message.
func (c *sgeCursor) seek(list []ring.SGE, at uint32) {
	if at < c.start {
		*c = sgeCursor{}
	}
	for c.i < len(list) && at-c.start >= list[c.i].Length {
		c.start += list[c.i].Length
		c.i++
	}
}

// gather copies the next bytes of the message that q is sending, which w has read.
func (w *worker) gather(q *QP, dst []byte) memory.Fault {
	if len(dst) == 0 {
		return memory.OK
	}
	at := q.req.offset
	if w.wr.Inline != nil {
		copy(dst, w.wr.Inline[at:])
		return memory.OK
	}
	list := w.wr.SGEs[:w.wr.NumSGE]
	for len(dst) > 0 {
		w.cursor.seek(list, at)
		if w.cursor.i == len(list) {
			return memory.BadKey
		}
		e := &list[w.cursor.i]
		skip := at - w.cursor.start
		n := min(uint32(len(dst)), e.Length-skip)
		if f := q.dev.config.Memory.ReadLocal(dst[:n], q.pd, e.LKey, e.Addr+uint64(skip)); f != memory.OK {
			return f
		}
		dst, at = dst[n:], at+n
	}
	return memory.OK
}

// scatter copies data to byte at of the message that a scatter/gather list describes. The memory belongs to pd.
func (q *QP) scatter(pd memory.PD, list []ring.SGE, c *sgeCursor, at uint32, src []byte) memory.Fault {
	for len(src) > 0 {
		c.seek(list, at)
		if c.i == len(list) {
			return memory.BadKey
		}
		e := &list[c.i]
		skip := at - c.start
		n := min(uint32(len(src)), e.Length-skip)
		if f := q.dev.config.Memory.WriteLocal(pd, e.LKey, e.Addr+uint64(skip), src[:n]); f != memory.OK {
			return f
		}
		src, at = src[n:], at+n
	}
	return memory.OK
}
