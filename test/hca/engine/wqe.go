package engine

import "fmt"

// The opcodes of send WQEs (MLX5_OPCODE_* in mlx5/device.h).
const (
	opNOP       = 0x00
	opSendInv   = 0x01
	opWrite     = 0x08
	opWriteImm  = 0x09
	opSend      = 0x0a
	opSendImm   = 0x0b
	opLSO       = 0x0e
	opRead      = 0x10
	opCAS       = 0x11
	opFAA       = 0x12
	opMaskedCAS = 0x14
	opMaskedFAA = 0x15
	opLocalInv  = 0x1b
	opSetPSV    = 0x20
	opUMR       = 0x25
)

// The control segment (struct mlx5_wqe_ctrl_seg).
const (
	ctrlOpcodeByte = 3
	ctrlFlagsByte  = 11
	ctrlDSMask     = 0x3f
	ctrlSolicited  = 1 << 1
	ctrlFirstError = 1 << 2 // MLX5_COMP_ONLY_FIRST_ERR of DPDK: a completion of an error, but not of a flush
	ctrlCQUpdate   = 2 << 2
	ctrlCEMask     = 3 << 2
	ctrlReserved   = 1<<0 | 1<<4

	fenceSmall  = 1 // initiator small fence
	fenceReads  = 2
	fenceStrong = 3
	fenceBoth   = 4
)

// opNames are the opcodes' names.
var opNames = map[uint8]string{
	opNOP: "NOP", opSendInv: "SEND_INV", opWrite: "WRITE", opWriteImm: "WRITE_IMM", opSend: "SEND", opSendImm: "SEND_IMM",
	opLSO: "LSO", opRead: "READ", opCAS: "CAS", opFAA: "FAA", opMaskedCAS: "MASKED_CAS", opMaskedFAA: "MASKED_FAA",
	opLocalInv: "LOCAL_INV", opSetPSV: "SET_PSV", opUMR: "UMR",
}

// opName is the name of an opcode.
func opName(op uint8) string {
	if n, ok := opNames[op]; ok {
		return n
	}
	return hex("opcode ", uint32(op))
}

// segment is a data segment, or a piece of inline data.
type segment struct {
	inline []byte
	is     bool // it is inline
	addr   uint64
	lkey   uint32
	n      uint64
}

// sendWQE is a send WQE in words.
type sendWQE struct {
	q      *qp
	index  uint16
	blocks uint16
	ring   []byte // as in memory
	raw    []byte // what is executed: the same, or the BlueFlame copy
	fromBF bool
	words  bool // it is only put into words: nothing is recorded

	op        uint8
	signaled  bool
	firstOnly bool // it has no completion if it is flushed, nor if it succeeds
	solicited bool
	fence     uint8
	imm       uint32 // immediate data, key to invalidate, or key of a UMR

	av       av
	srqn     uint32 // of XRC
	stream   uint16 // of a DCI
	raddr    uint64
	rkey     uint32
	swapAdd  uint64
	compare  uint64
	swapMask uint64
	cmpMask  uint64
	segs     []segment
	umr      *umr
	eth      *ethSeg

	size    int    // bytes of the data segments
	inlined []byte // what goes into the CQE instead of memory

	bad    Syndrome // it can't be executed, because ...
	reason string
}

// av is an address vector (struct mlx5_av).
type av struct {
	qkey     uint32
	dcKey    uint64 // of a DCI, in place of the Q_Key
	qpn      uint32 // of a DCI the number of the DCT
	extended bool
	sl       uint8
	rate     uint8
	pathBits uint8
	rlid     uint16 // on RoCE v2 the UDP source port
	rmac     [6]byte
	tclass   uint8
	hops     uint8
	grh      bool
	sgid     uint8
	flow     uint32
	rgid     [16]byte
}

// allowed says which opcodes a service has.
func (q *qp) allowed(op uint8) bool {
	switch op {
	case opNOP:
		return true
	case opSend:
		return q.spec.Type != RegUMR || q.sq != nil
	case opLSO:
		return q.sq != nil
	case opSendImm:
		return q.sq == nil && q.spec.Type != RegUMR
	case opWrite, opWriteImm:
		return q.sq == nil && (q.spec.Type == RC || q.spec.Type == UC || q.spec.Type == XRC || q.spec.Type == DCI)
	case opSendInv, opUMR, opLocalInv:
		return q.sq == nil && (q.reliable() || q.spec.Type == UC || op != opSendInv && q.spec.Type == RegUMR)
	case opRead, opCAS, opFAA, opMaskedCAS, opMaskedFAA:
		return q.reliable()
	}
	return false
}

// refuse says that the WQE can't be executed.
func (w *sendWQE) refuse(s Syndrome, format string, args ...any) {
	if w.bad == 0 {
		w.bad, w.reason = s, fmt.Sprintf(format, args...)
	}
}

// violate records a violation of the WQE's layout, with the WQE in words.
func (w *sendWQE) violate(rule, format string, args ...any) {
	if w.words {
		return
	}
	w.q.d.violate(rule, w.q.n, "%s WQE %#x: %s: %s", w.q.describe(), w.index, fmt.Sprintf(format, args...), describeWQE(w.q, w.raw))
}

// malformed is a violation that also keeps the WQE from being executed.
func (w *sendWQE) malformed(rule, format string, args ...any) {
	w.violate(rule, format, args...)
	w.refuse(LocalQPOp, format, args...)
}

// decode reads the WQE and checks every byte that hardware reads.
func (w *sendWQE) decode() {
	b := w.raw
	q := w.q
	w.op = b[ctrlOpcodeByte]
	flags := b[ctrlFlagsByte]
	w.signaled = flags&ctrlCEMask >= ctrlCQUpdate
	w.firstOnly = flags&ctrlCEMask == ctrlFirstError
	w.solicited = flags&ctrlSolicited != 0
	w.fence = flags >> 5
	w.imm = be.Uint32(b[12:])
	if index := be.Uint16(b[1:]); index != w.index {
		w.malformed("wqe-index", "its index is %#x", index)
	}
	if qpn := be.Uint32(b[4:]) >> 8; qpn != q.n {
		w.malformed("wqe-qpn", "its QPN is %#x", qpn)
	}
	if b[0] != 0 {
		w.malformed("wqe-opmod", "its opcode modifier is %#x", b[0])
	}
	stream := be.Uint16(b[9:])
	if q.spec.Type == DCI && q.sq == nil {
		w.stream, stream = stream, 0 // any number: the card bounds how many are active, not which
	}
	if b[7]&^ctrlDSMask != 0 || b[8] != 0 || stream != 0 || flags&ctrlReserved != 0 {
		w.violate("wqe-reserved", "reserved bits of the control segment are set: %x", b[:16])
	}
	if w.fence > fenceBoth {
		w.violate("wqe-fence", "fence mode %d is reserved", w.fence)
	}
	if w.op == opSetPSV || w.op == opLSO && q.sq == nil {
		w.malformed("wqe-not-modelled", "%s is not modelled", opName(w.op))
		return
	}
	if limit := q.d.cfg.Traits.MaxSendWQE; q.sq == nil && len(b) > limit {
		w.malformed("wqe-size", "it has %d bytes, and the longest has %d", len(b), limit)
		return
	}
	if q.d.cfg.Traits.NoAtomics && w.atomic() {
		w.malformed("wqe-atomic", "the device has no atomic operations")
		return
	}
	if !q.allowed(w.op) {
		w.malformed("wqe-opcode", "%s has no %s", q.traceType(), opName(w.op))
		return
	}
	w.decodeSegments(&reader{b: b[16:], w: w})
}

// reader goes through a WQE's segments.
type reader struct {
	b []byte
	w *sendWQE
}

// take gives the next n bytes, or nil if the WQE ends before.
func (r *reader) take(n int, what string) []byte {
	if len(r.b) < n {
		r.w.malformed("wqe-size", "it ends where %d bytes of %s are to come", n, what)
		r.b = nil
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

// decodeSegments reads what follows the control segment.
func (w *sendWQE) decodeSegments(r *reader) {
	q := w.q
	if w.op == opNOP {
		return // whatever follows isn't read
	}
	if q.sq != nil {
		w.decodeEth(r)
		return
	}
	if w.op == opUMR || w.op == opLocalInv {
		w.decodeUMR(r)
		return
	}
	if q.spec.Type == XRC {
		if b := r.take(16, "the XRC segment"); b != nil {
			w.srqn = be.Uint32(b) & maxNumber
			if b[0] != 0 {
				w.malformed("wqe-xrc", "the SRQ's number %#x has more than 24 bits", be.Uint32(b))
			}
		}
	}
	if q.datagram() || q.spec.Type == DCI {
		w.decodeAV(r)
	}
	switch w.op {
	case opWrite, opWriteImm, opRead, opCAS, opFAA, opMaskedCAS, opMaskedFAA:
		if b := r.take(16, "the remote address segment"); b != nil {
			w.raddr, w.rkey = be.Uint64(b), be.Uint32(b[8:])
			if !zero(b[12:16]) {
				w.violate("wqe-reserved", "reserved bytes of the remote address segment are set: %x", b[12:16])
			}
		}
	}
	switch w.op {
	case opCAS, opFAA:
		if b := r.take(16, "the atomic segment"); b != nil {
			w.swapAdd, w.compare, w.swapMask, w.cmpMask = be.Uint64(b), be.Uint64(b[8:]), ^uint64(0), ^uint64(0)
			if w.op == opFAA {
				w.swapMask = 0 // one field of 64 bits
			}
		}
	case opMaskedCAS:
		if b := r.take(32, "the masked atomic segment"); b != nil {
			w.swapAdd, w.compare, w.swapMask, w.cmpMask = be.Uint64(b), be.Uint64(b[8:]), be.Uint64(b[16:]), be.Uint64(b[24:])
		}
	case opMaskedFAA:
		// The summand and the boundaries of fields: two words of the same segment.
		if b := r.take(16, "the masked atomic segment"); b != nil {
			w.swapAdd, w.swapMask = be.Uint64(b), be.Uint64(b[8:])
		}
	}
	w.decodeData(r)
}

// decodeAV reads the address vector, which has 48 bytes, or 16 without the extension bit.
func (w *sendWQE) decodeAV(r *reader) {
	b := r.take(16, "the address vector")
	if b == nil {
		return
	}
	a := &w.av
	a.qpn, a.extended = be.Uint32(b[8:])&maxNumber, b[8]&0x80 != 0
	dc := w.q.spec.Type == DCI
	if dc {
		a.dcKey = be.Uint64(b)
	} else {
		a.qkey = be.Uint32(b)
	}
	a.rate, a.pathBits, a.rlid = b[12]>>4, b[13]&0x7f, be.Uint16(b[14:])
	a.sl = b[12] & 0xf
	if !dc && !zero(b[4:8]) || b[8]&0x7f != 0 {
		w.violate("wqe-reserved", "reserved bits of the address vector are set: %x", b)
	}
	if !a.extended {
		if w.q.d.cfg.LinkLayer == Ethernet {
			w.malformed("wqe-av", "on Ethernet an address vector has 48 bytes")
		}
		return
	}
	if b = r.take(32, "the extended address vector"); b == nil {
		return
	}
	copy(a.rmac[:], b[4:10])
	a.tclass, a.hops = b[10], b[11]
	g := be.Uint32(b[12:])
	a.grh, a.sgid, a.flow = g>>30&1 == 1, uint8(g>>20), g&0xfffff
	copy(a.rgid[:], b[16:32])
	if !zero(b[:4]) || g>>31 != 0 {
		w.violate("wqe-reserved", "reserved bits of the address vector are set: %x", b)
	}
}

// inlineSegment marks a segment with data in it (MLX5_INLINE_SEG).
const (
	inlineSegment = 0x80000000
	inlineMax     = 0x3ff // MLX5_WQE_INLINE_SEG_BYTE_COUNT_MASK
)

// decodeData reads data segments to the WQE's end.
func (w *sendWQE) decodeData(r *reader) {
	for len(r.b) > 0 && w.bad == 0 {
		if len(r.b) < 16 {
			w.malformed("wqe-size", "%d bytes are left, and a data segment has 16", len(r.b))
			return
		}
		n := be.Uint32(r.b)
		if n&inlineSegment != 0 {
			if n&^uint32(inlineSegment|inlineMax) != 0 {
				w.malformed("wqe-inline", "an inline segment of %#x bytes", n)
				return
			}
			k := int(n & inlineMax)
			if k == 0 {
				w.violate("wqe-inline", "an inline segment without data")
			}
			if w.op == opRead || w.atomic() {
				w.malformed("wqe-inline", "inline data where a result must be stored")
				return
			}
			b := r.take((4+k+15)&^15, "inline data")
			if b == nil {
				return
			}
			w.segs = append(w.segs, segment{is: true, inline: b[4 : 4+k], n: uint64(k)})
			w.size += k
			continue
		}
		b := r.take(16, "a data segment")
		s := segment{lkey: be.Uint32(b[4:]), addr: be.Uint64(b[8:]), n: uint64(n)}
		if n == 0 {
			// Hardware takes a count of 0 for 2 GiB. No driver here means that.
			w.violate("wqe-data-zero", "a data segment of length 0 stands for 2 GiB")
			s.n = 1 << 31
		}
		w.segs = append(w.segs, s)
		w.size += int(s.n)
	}
	switch {
	case w.bad != 0:
	case w.atomic() && w.size != 8:
		w.refuse(LocalLength, "the result of an atomic has 8 bytes, and there is room for %d", w.size)
	case w.size > 1<<31:
		w.refuse(LocalLength, "a message of %d bytes", w.size)
	case (w.q.reliable() || w.q.spec.Type == UC) && w.size > 1<<w.q.attr.LogMsgMax:
		w.refuse(LocalLength, "a message of %d bytes, and the QP's longest has %d", w.size, 1<<w.q.attr.LogMsgMax)
	}
}

// atomic reports whether the opcode is an atomic.
func (w *sendWQE) atomic() bool {
	return w.op == opCAS || w.op == opFAA || w.op == opMaskedCAS || w.op == opMaskedFAA
}

// fetches reports whether the opcode brings data back.
func (w *sendWQE) fetches() bool { return w.op == opRead || w.atomic() }
