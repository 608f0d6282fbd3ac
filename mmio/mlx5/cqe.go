package mlx5

import "unsafe"

// A CQE reads one completion where it lies, until it is released.
type CQE struct {
	p unsafe.Pointer
}

// Kind is the kind of a completion.
type Kind uint8

// Kinds of completions.
const (
	KindUnknown   Kind = iota // of nothing that was asked for
	KindSend                  // a send that has succeeded
	KindRecv                  // a receive that has succeeded
	KindSendError             // a send that has failed
	KindRecvError             // a receive that has failed
)

var cqeKinds = [16]Kind{
	cqeReq: KindSend, cqeRespWriteImm: KindRecv, cqeRespSend: KindRecv, cqeRespSendImm: KindRecv, cqeRespSendInv: KindRecv,
	cqeReqErr: KindSendError, cqeRespErr: KindRecvError,
}

// Kind returns what the completion is of.
func (c CQE) Kind() Kind { return cqeKinds[get8(c.p, cqeOwn)>>4] }

// Plain reports whether the completion is of a success and has neither data nor anything else
// that goes with some operations only: it is of a send, cqeReq, or a receive, cqeRespSend.
func (c CQE) Plain() (recv, ok bool) {
	own := get8(c.p, cqeOwn)
	const others = 0xf0 &^ ((cqeReq | cqeRespSend) << 4)
	return own&(cqeRespSend<<4) != 0, own&(others|cqeInline32|cqeInline64) == 0
}

// RawOpcode returns the completion's own opcode, for messages.
func (c CQE) RawOpcode() uint8 { return get8(c.p, cqeOwn) >> 4 }

// UserIndex returns the index that the user gave the queue, or with a device that has none
// the number of the shared receive queue, 0 if there is none.
func (c CQE) UserIndex() uint32 { return get32(c.p, cqeUIdx) & indexMask }

// QPN returns the QP's number.
func (c CQE) QPN() uint32 { return get32(c.p, cqeOpQPN) & indexMask }

// Counter says which entry of the queue has completed.
func (c CQE) Counter() uint16 { return get16(c.p, cqeCounter) }

// ByteCount returns the number of bytes received, or read by a Read.
func (c CQE) ByteCount() uint32 { return get32(c.p, cqeByteCount) }

// Imm returns the immediate, in host order, or the key that was invalidated, or the index of
// the partition key.
func (c CQE) Imm() uint32 { return get32(c.p, cqeImm) }

// Timestamp returns the device's time.
func (c CQE) Timestamp() uint64 { return get64(c.p, cqeTimestamp) }

// WCOp is the operation of a completion, a value of enum ib_uverbs_wc_opcode or, from WCRecv
// on, of libibverbs' enum ibv_wc_opcode.
type WCOp uint8

// Operations of completions.
const (
	WCSend      WCOp = 0
	WCWrite     WCOp = 1
	WCRead      WCOp = 2
	WCCAS       WCOp = 3
	WCFAA       WCOp = 4
	WCBindMW    WCOp = 5
	WCLocalInv  WCOp = 6
	WCRecv      WCOp = 128
	WCRecvWrite WCOp = 129
)

// sendOps are the operations of completions by that of the work request.
var sendOps = [numOps]WCOp{
	Write: WCWrite, WriteImm: WCWrite, Send: WCSend, SendImm: WCSend, SendInv: WCSend, Read: WCRead,
	CAS: WCCAS, FAA: WCFAA, LocalInv: WCLocalInv, BindMW: WCBindMW,
}

// SendOp returns the operation of the completion of a send. The queue remembers it, as the
// device does not tell apart what changes keys.
func SendOp(op Op) WCOp { return sendOps[op%numOps] }

// Returns reports whether the completion of an operation has a number of bytes.
func (op WCOp) Returns() bool { return 1<<(op&31)&(1<<WCRead|1<<WCCAS|1<<WCFAA) != 0 }

// Returned returns the number of bytes for the completion of an operation that has one. An atomic
// always returns 8 bytes: no document defines the byte count in the CQE of an atomic, and neither
// libmlx5 nor the kernel reads it.
func (c CQE) Returned(op WCOp) uint32 {
	if op == WCRead {
		return c.ByteCount()
	}
	return atomicBytes
}

// Extra says what else the completion of a receive has.
type Extra uint8

// Extras.
const (
	HasImm   Extra = 1 << iota // an immediate
	HasInv                     // a key that was invalidated
	HasGRH                     // the datagram has a GRH before it
	HasWrite                   // the receive was consumed by a write with immediate
)

var extras = [16]Extra{cqeRespWriteImm: HasImm | HasWrite, cqeRespSendImm: HasImm, cqeRespSendInv: HasInv}

// Extra returns what the completion of a receive has.
func (c CQE) Extra() Extra {
	e := extras[get8(c.p, cqeOwn)>>4]
	if get32(c.p, cqeFlagsRQPN)>>28&3 != 0 {
		e |= HasGRH
	}
	return e
}

// SrcQP returns the sender's QP, for datagrams.
func (c CQE) SrcQP() uint32 { return get32(c.p, cqeFlagsRQPN) & indexMask }

// SL returns the service level.
func (c CQE) SL() uint8 { return uint8(get32(c.p, cqeFlagsRQPN) >> 24 & 0xf) }

// SLID returns the sender's LID, 0 on Ethernet.
func (c CQE) SLID() uint16 { return get16(c.p, cqeSLID) }

// PathBits returns the low bits of the LID that the message was for.
func (c CQE) PathBits() uint8 { return get8(c.p, cqePathBits) & 0x7f }

// HasInline reports whether the device has put data into the completion.
func (c CQE) HasInline() bool { return get8(c.p, cqeOwn)&(cqeInline32|cqeInline64) != 0 }

// Inline returns the data that the device has put into the completion, or nil. stride is the
// size of the queue's CQEs.
func (q *CompQueue) Inline(c CQE) []byte {
	n := int(min(c.ByteCount(), cqeSize))
	switch own := get8(c.p, cqeOwn); {
	case own&cqeInline32 != 0:
		return unsafe.Slice((*byte)(c.p), min(n, 32))
	case own&cqeInline64 != 0 && q.stride == 2*cqeSize:
		return unsafe.Slice((*byte)(unsafe.Add(c.p, -cqeSize)), n)
	}
	return nil
}
