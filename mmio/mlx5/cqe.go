package mlx5

import (
	"math/bits"
	"unsafe"
)

// A CQE reads a completion in place, until it is released.
type CQE struct {
	p unsafe.Pointer
}

// Kind is the kind of a completion.
type Kind uint8

// Kinds of completions.
const (
	KindUnknown   Kind = iota // not the completion of a work request
	KindSend                  // a successful send
	KindRecv                  // a successful receive
	KindSendError             // a failed send
	KindRecvError             // a failed receive
)

var cqeKinds = [16]Kind{
	cqeReq: KindSend, cqeRespWriteImm: KindRecv, cqeRespSend: KindRecv, cqeRespSendImm: KindRecv, cqeRespSendInv: KindRecv,
	cqeReqErr: KindSendError, cqeRespErr: KindRecvError,
}

// Kind returns the kind of the completion.
func (c CQE) Kind() Kind {
	own := get8(c.p, cqeOwn)
	if own&cqeMini == cqeMini { // compressed completions that are not valid
		return KindUnknown
	}
	return cqeKinds[own>>4]
}

// A LastWord is the last 4 bytes of a completion, with an owner bit of 0 if the device has written them in this round.
type LastWord uint32

const wordOwn = 8 * (cqeOwn - cqeLastWord)

// There reports whether there is a completion.
func (w LastWord) There() bool { return w>>wordOwn&cqeOwnerMask == 0 && w < cqeInvalid<<4<<wordOwn }

// Plain reports whether there is a completion that is a success without inline data, an immediate or anything
// else that only some operations have: opcode cqeReq for a send, or cqeRespSend for a receive.
func (w LastWord) Plain() bool {
	const others = 0xf0 &^ ((cqeReq | cqeRespSend) << 4)
	return w&((others|cqeInline32|cqeInline64|cqeOwnerMask)<<wordOwn) == 0
}

// Recv reports whether a plain completion belongs to a receive.
func (w LastWord) Recv() bool { return w&(cqeRespSend<<4<<wordOwn) != 0 }

// Counter returns the counter of the completion; see [CQE.Counter].
func (w LastWord) Counter() uint16 { return bits.ReverseBytes16(uint16(w)) }

// RawOpcode returns the opcode of the CQE, for messages.
func (c CQE) RawOpcode() uint8 { return get8(c.p, cqeOwn) >> 4 }

// UserIndex returns the index that the program gave the queue. On a device without user indices it
// is the number of the shared receive queue, or 0 if there is none.
func (c CQE) UserIndex() uint32 { return get32(c.p, cqeUIdx) & indexMask }

// QPN returns the QP's number.
func (c CQE) QPN() uint32 { return get32(c.p, cqeOpQPN) & indexMask }

// Counter returns the index of the entry of the queue that has completed.
func (c CQE) Counter() uint16 { return get16(c.p, cqeCounter) }

// ByteCount returns the number of bytes received, or read by a Read.
func (c CQE) ByteCount() uint32 { return get32(c.p, cqeByteCount) }

// Imm returns the immediate in host order, the key that was invalidated, or the partition key of a
// datagram.
func (c CQE) Imm() uint32 { return get32(c.p, cqeImm) }

// Timestamp returns the device's timestamp.
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

// sendOps has the operation of the completion for each operation of a work request.
var sendOps = [numOps]WCOp{
	Write: WCWrite, WriteImm: WCWrite, Send: WCSend, SendImm: WCSend, SendInv: WCSend, Read: WCRead,
	CAS: WCCAS, FAA: WCFAA, LocalInv: WCLocalInv, BindMW: WCBindMW,
}

// SendOp returns the operation of the completion of a send. It depends on the operation that the
// queue remembers, because the CQE is the same for all operations that change keys.
func SendOp(op Op) WCOp { return sendOps[op%numOps] }

// Returns reports whether completions of the operation have a number of bytes.
func (op WCOp) Returns() bool { return op-WCRead <= WCFAA-WCRead }

// Returned returns the number of bytes of a completion, for operations that have one. For an atomic
// it returns 8: no document defines the byte count in the CQE of an atomic, and neither libmlx5 nor
// the kernel reads it.
func (c CQE) Returned(op WCOp) uint32 {
	if op == WCRead {
		return c.ByteCount()
	}
	return atomicBytes
}

// Extra has flags for what the completion of a receive also has.
type Extra uint8

// Flags of Extra.
const (
	HasImm   Extra = 1 << iota // an immediate
	HasInv                     // a key that was invalidated
	HasGRH                     // the datagram is preceded by a GRH
	HasWrite                   // the receive was consumed by a write with immediate
)

var extras = [16]Extra{cqeRespWriteImm: HasImm | HasWrite, cqeRespSendImm: HasImm, cqeRespSendInv: HasInv}

// Extra returns what the completion of a receive also has.
func (c CQE) Extra() Extra {
	e := extras[get8(c.p, cqeOwn)>>4]
	if get32(c.p, cqeFlagsRQPN)>>28&3 != 0 {
		e |= HasGRH
	}
	return e
}

// VLAN returns the tag that the device has removed from an Ethernet frame.
func (c CQE) VLAN() (tag uint16, ok bool) {
	return get16(c.p, cqeVLAN), get8(c.p, cqeHeaders)&cqeHasVLAN != 0
}

// Checks are the checksums of an Ethernet frame that the device has found to be right.
type Checks uint8

// Bits of Checks.
const (
	CheckedIP Checks = 1 << iota // of the header of IPv4; always set for IPv6
	CheckedL4                    // of TCP or UDP
)

// Checks returns which checksums of an Ethernet frame are right.
func (c CQE) Checks() Checks { return Checks(get8(c.p, cqeL3L4)>>1) & (CheckedIP | CheckedL4) }

// SrcQP returns the number of the sender's QP, for datagrams.
func (c CQE) SrcQP() uint32 { return get32(c.p, cqeFlagsRQPN) & indexMask }

// SL returns the service level of a datagram on InfiniBand. On Ethernet these bits have the kind of the
// packet's IP header.
func (c CQE) SL() uint8 { return uint8(get32(c.p, cqeFlagsRQPN) >> 24 & 0xf) }

// SLID returns the sender's LID. On Ethernet it is undefined.
func (c CQE) SLID() uint16 { return get16(c.p, cqeSLID) }

// PathBits returns the low bits of the destination LID.
func (c CQE) PathBits() uint8 { return get8(c.p, cqePathBits) & 0x7f }

// HasInline reports whether the device has put data into the completion.
func (c CQE) HasInline() bool { return get8(c.p, cqeOwn)&(cqeInline32|cqeInline64) != 0 }

// Inline returns the data that the device has put into the completion, or nil: count bytes, which is
// ByteCount or Returned, as far as there is room for them.
func (q *CompQueue) Inline(c CQE, count uint32) []byte {
	n := int(min(count, cqeSize))
	switch own := get8(c.p, cqeOwn); {
	case own&cqeInline32 != 0:
		return unsafe.Slice((*byte)(c.p), min(n, 32))
	case own&cqeInline64 != 0 && q.stride == 2*cqeSize:
		return unsafe.Slice((*byte)(unsafe.Add(c.p, -cqeSize)), n)
	}
	return nil
}
