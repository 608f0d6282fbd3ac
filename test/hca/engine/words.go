package engine

import (
	"fmt"
	"strings"
)

// describeWQE puts a send WQE of a queue into words.
func describeWQE(q *qp, raw []byte) string {
	return describeSend(q.traceType(), raw)
}

// describeSend puts a send WQE into words, as far as it has bytes. It checks nothing.
func describeSend(t QPType, raw []byte) string {
	if len(raw) < 16 {
		return fmt.Sprintf("%x", raw)
	}
	op, flags := raw[ctrlOpcodeByte], raw[ctrlFlagsByte]
	var s strings.Builder
	fmt.Fprintf(&s, "%s index %#x qpn %#x ds %d", opName(op), be.Uint16(raw[1:]), be.Uint32(raw[4:])>>8, raw[7]&ctrlDSMask)
	if flags&ctrlCEMask >= ctrlCQUpdate {
		s.WriteString(" signaled")
	}
	if flags&ctrlSolicited != 0 {
		s.WriteString(" solicited")
	}
	if f := flags >> 5; f != 0 {
		fmt.Fprintf(&s, " fence %d", f)
	}
	switch op {
	case opSendImm, opWriteImm:
		fmt.Fprintf(&s, " imm %#x", be.Uint32(raw[12:]))
	case opSendInv, opUMR, opLocalInv:
		fmt.Fprintf(&s, " key %#x", be.Uint32(raw[12:]))
	}
	// A queue without a device or memory is enough to decode.
	w := &sendWQE{q: &qp{d: &Device{}, spec: QPSpec{Type: t}}, raw: raw, words: true}
	w.q.attr.LogMsgMax = 31
	if t == RawEth {
		w.q.sq = &SQSpec{}
	}
	w.op = op
	if w.q.allowed(op) {
		w.decodeSegments(&reader{b: raw[16:], w: w})
	}
	w.describeSegments(&s, t)
	fmt.Fprintf(&s, " [%x]", raw)
	return s.String()
}

// describeSegments puts what follows the control segment into words.
func (w *sendWQE) describeSegments(s *strings.Builder, t QPType) {
	if w.op == opNOP {
		return
	}
	if t == XRC {
		fmt.Fprintf(s, ", SRQ %#x", w.srqn)
	}
	if w.q.datagram() || t == DCI {
		fmt.Fprintf(s, ", %s", &w.av)
	}
	switch w.op {
	case opWrite, opWriteImm, opRead, opCAS, opFAA, opMaskedCAS, opMaskedFAA:
		fmt.Fprintf(s, ", remote %#x rkey %#x", w.raddr, w.rkey)
	}
	switch w.op {
	case opCAS, opMaskedCAS:
		fmt.Fprintf(s, ", swap %#x if %#x", w.swapAdd, w.compare)
	case opFAA, opMaskedFAA:
		fmt.Fprintf(s, ", add %#x", w.swapAdd)
	}
	if u := w.umr; u != nil {
		fmt.Fprintf(s, ", flags %#x mask %#x, status %#x access %#x variant %#x qpn %#x start %#x length %#x, %d octowords", u.flags, u.mask, u.status, u.access, u.variant, u.qpn, u.start, u.length, u.octos)
	}
	if e := w.eth; e != nil {
		fmt.Fprintf(s, ", checksums %#x, header of %d bytes", e.flags, len(e.header))
	}
	for _, g := range w.segs {
		if g.is {
			fmt.Fprintf(s, ", inline %d bytes", g.n)
		} else {
			fmt.Fprintf(s, ", %d bytes at %#x lkey %#x", g.n, g.addr, g.lkey)
		}
	}
}

// describeCQE puts a completion queue entry into words.
func describeCQE(raw []byte) string {
	if len(raw) < 64 {
		return fmt.Sprintf("%x", raw)
	}
	b := raw[len(raw)-64:]
	op := b[63] >> 4
	head := fmt.Sprintf("%s owner %d", cqeName(op), b[63]&1)
	if op == cqeResize {
		return head
	}
	head += fmt.Sprintf(" qpn %#x wqe %#x index %#x", be.Uint32(b[56:])&maxNumber, be.Uint16(b[60:]), be.Uint32(b[32:])&maxNumber)
	if op == cqeReqErr || op == cqeRespErr {
		return head + fmt.Sprintf(" %s vendor %#x", Syndrome(b[55]), b[54])
	}
	if op == cqeReq {
		head += " " + opName(b[56])
	}
	head += fmt.Sprintf(" %d bytes", be.Uint32(b[44:]))
	if op == cqeRespWriteImm || op == cqeRespSendImm || op == cqeRespSendInv {
		head += fmt.Sprintf(" imm %#x", be.Uint32(b[36:]))
	}
	switch {
	case b[63]&cqeInline64 != 0:
		head += " with the data (64)"
	case b[63]&cqeInline32 != 0:
		head += " with the data (32)"
	}
	if op != cqeReq {
		head += fmt.Sprintf(" from %#x", be.Uint32(b[24:])&maxNumber)
	}
	return head
}

// String puts what happened into words.
func (e TraceEvent) String() string {
	head := e.Device + ": "
	switch e.Kind {
	case TraceWQE:
		if e.BlueFlame {
			head += "BlueFlame "
		}
		return head + fmt.Sprintf("QP %#x %s WQE %#x: %s", e.QPN, e.Type, e.Index, describeSend(e.Type, e.Raw))
	case TraceRecv:
		return head + fmt.Sprintf("RQ %#x takes WQE %#x: [%x]", e.Number, e.Index, e.Raw)
	case TraceCQE:
		return head + fmt.Sprintf("CQ %#x CQE %#x: %s [%x]", e.Number, e.Index, describeCQE(e.Raw), e.Raw)
	case TraceArm:
		return head + fmt.Sprintf("CQ %#x armed with sn %d, solicited %v, consumer %#x", e.Number, e.Index>>armSNShift&3, e.Index&armSolicBit != 0, e.Index&maxNumber)
	case TraceDoorbell:
		return head + fmt.Sprintf("QP %#x doorbell for WQE %#x: %x", e.QPN, e.Index, e.Raw)
	case TraceAsync:
		return head + fmt.Sprintf("event %s.%d: %x", e.Event, e.Subtype, e.Data)
	case TraceState:
		return head + fmt.Sprintf("QP %#x %s -> %s: %s", e.QPN, e.From, e.To, e.Text)
	case TracePacket:
		return head + "packet " + e.Text
	case TraceDrop:
		return head + "dropped " + e.Text
	case TraceViolation:
		return head + "VIOLATION " + e.Violation.Rule + ": " + e.Violation.Text
	}
	return head + "?"
}
