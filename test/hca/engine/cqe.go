package engine

import "fmt"

// The opcodes of completion queue entries (MLX5_CQE_* in mlx5/device.h).
const (
	cqeReq          = 0
	cqeRespWriteImm = 1
	cqeRespSend     = 2
	cqeRespSendImm  = 3
	cqeRespSendInv  = 4
	cqeResize       = 5
	cqeReqErr       = 13
	cqeRespErr      = 14
)

// Syndrome is why a completion is an error (MLX5_CQE_SYNDROME_* in mlx5/device.h).
type Syndrome uint8

// The syndromes.
const (
	LocalLength      Syndrome = 0x01
	LocalQPOp        Syndrome = 0x02
	LocalProt        Syndrome = 0x04
	Flushed          Syndrome = 0x05
	MWBind           Syndrome = 0x06
	BadResponse      Syndrome = 0x10
	LocalAccess      Syndrome = 0x11
	RemoteInvalidReq Syndrome = 0x12
	RemoteAccess     Syndrome = 0x13
	RemoteOp         Syndrome = 0x14
	RetryExceeded    Syndrome = 0x15
	RNRExceeded      Syndrome = 0x16
	RemoteAborted    Syndrome = 0x22
)

// syndromeNames are the syndromes' names.
var syndromeNames = map[Syndrome]string{
	LocalLength: "LOCAL_LENGTH", LocalQPOp: "LOCAL_QP_OP", LocalProt: "LOCAL_PROT", Flushed: "WR_FLUSH", MWBind: "MW_BIND",
	BadResponse: "BAD_RESP", LocalAccess: "LOCAL_ACCESS", RemoteInvalidReq: "REMOTE_INVAL_REQ", RemoteAccess: "REMOTE_ACCESS",
	RemoteOp: "REMOTE_OP", RetryExceeded: "TRANSPORT_RETRY_EXC", RNRExceeded: "RNR_RETRY_EXC", RemoteAborted: "REMOTE_ABORTED",
}

// String is the syndrome's name.
func (s Syndrome) String() string {
	if n, ok := syndromeNames[s]; ok {
		return n
	}
	return hex("syndrome ", uint32(s))
}

// Vendor syndromes, as users of real cards report them beside the syndromes.
const (
	vendorRetry     = 0x81
	vendorRNR       = 0x87
	vendorRemAccess = 0x88
	vendorRemOp     = 0x89
	vendorRemInval  = 0x8a
	vendorLocalProt = 0x51
	vendorLocalLen  = 0x69
	vendorLocalOp   = 0x67
	vendorMWBind    = 0xd4
	vendorFlushSQ   = 0xf4
	vendorFlushRQ   = 0xf9
	vendorPageFault = 0x93 // with RemoteAborted, on an SRQ: see Traits.SRQFaults
)

// vendorSyndromes are the vendor syndromes of errors on the send side.
var vendorSyndromes = map[Syndrome]uint8{
	RetryExceeded: vendorRetry, RNRExceeded: vendorRNR, RemoteAccess: vendorRemAccess, RemoteOp: vendorRemOp,
	RemoteInvalidReq: vendorRemInval, LocalProt: vendorLocalProt, LocalLength: vendorLocalLen, LocalQPOp: vendorLocalOp,
	MWBind: vendorMWBind, Flushed: vendorFlushSQ,
}

// vendorOf is the vendor syndrome of an error on the send side.
func vendorOf(s Syndrome) uint8 { return vendorSyndromes[s] }

// cqe is a completion to write.
type cqe struct {
	opcode    uint8
	solicited bool
	qpn       uint32
	srqn      uint32 // the SRQ's number or the user index
	index     uint16 // the WQE's counter
	sendOp    uint8
	imm       uint32 // immediate, invalidated key or P_Key
	count     uint32
	slid      uint16
	mlPath    uint8
	flagsRQPN uint32 // SL or RoCE's kind of packet, GRH, and the source QP
	checksum  uint16
	checks    uint8 // which checksums of a frame are right (hds_ip_ext)
	l4l3      uint8
	wqeID     uint16 // the WQE of a striding queue, whose completions have the index of a stride
	vlan      uint16
	inline    []byte // data that goes into the entry

	syndrome Syndrome
	vendor   uint8
	ethernet bool // of an Ethernet queue, where more fields have a meaning
}

// Bits of op_own (enum in mlx5dv.h).
const (
	cqeInline32 = 0x4
	cqeInline64 = 0x8
)

// bytes is the entry as it stands in memory, but for the owner bit.
func (e *cqe) bytes(c *cq, now uint64) []byte {
	raw := make([]byte, c.spec.EntrySize)
	b := raw[len(raw)-64:]
	if !e.ethernet {
		c.d.noise(raw)
	}
	b[63] = e.opcode << 4
	if e.opcode == cqeResize {
		return raw
	}
	if e.opcode == cqeReqErr || e.opcode == cqeRespErr {
		be.PutUint32(b[32:], e.srqn)
		b[54], b[55] = e.vendor, byte(e.syndrome)
		be.PutUint32(b[56:], uint32(e.sendOp)<<24|e.qpn)
		be.PutUint16(b[60:], e.index)
		return raw
	}
	// Of a request's completion only the fields below that are not about a packet have a meaning.
	request := e.opcode == cqeReq && c.d.cfg.Traits.Noise != 0 && !e.ethernet
	if !request {
		b[17] = e.mlPath
		be.PutUint16(b[20:], e.checksum)
		if c.d.cfg.LinkLayer == InfiniBand { // Ethernet has no LIDs
			be.PutUint16(b[22:], e.slid)
		}
		be.PutUint32(b[24:], e.flagsRQPN)
		b[29] = e.l4l3
		be.PutUint16(b[30:], e.vlan)
		be.PutUint32(b[36:], e.imm)
	}
	switch n := len(e.inline); {
	case n == 0:
	case n <= 32:
		copy(b, e.inline)
		b[63] |= cqeInline32
	default:
		copy(raw, e.inline)
		b[63] |= cqeInline64
	}
	if e.ethernet {
		be.PutUint16(b[2:], e.wqeID)
		b[28] = e.checks
	}
	be.PutUint32(b[32:], e.srqn)
	if !request || e.sendOp == opRead {
		be.PutUint32(b[44:], e.count)
	}
	be.PutUint64(b[48:], now)
	be.PutUint32(b[56:], uint32(e.sendOp)<<24|e.qpn)
	be.PutUint16(b[60:], e.index)
	return raw
}

// name is what the report counts the entry as.
func (e *cqe) name() string {
	switch e.opcode {
	case cqeReqErr, cqeRespErr:
		return e.syndrome.String()
	}
	return cqeName(e.opcode)
}

// cqeNames are the names of the first opcodes of CQEs.
var cqeNames = [...]string{"REQ", "RESP_WRITE_IMM", "RESP_SEND", "RESP_SEND_IMM", "RESP_SEND_INV", "RESIZE"}

// cqeName is the name of a CQE's opcode.
func cqeName(op uint8) string {
	switch {
	case int(op) < len(cqeNames):
		return cqeNames[op]
	case op == cqeReqErr:
		return "REQ_ERR"
	case op == cqeRespErr:
		return "RESP_ERR"
	}
	return fmt.Sprintf("opcode %d", op)
}

// inlineRoom is how many bytes of a message a CQE may take, of those that the QP allows.
func (c *cq) inlineRoom(allowed int) int {
	if c.spec.EntrySize == 64 {
		return min(allowed, 32)
	}
	return allowed
}

// userIndex is what a CQE of a QP says about whose it is: the user index, or without one
// the SRQ's number.
func (q *qp) userIndex(recv bool) uint32 {
	index, srqn := q.spec.UserIndex, uint32(0)
	if recv && q.spec.RQ == RQSRQ {
		srqn = q.spec.SRQN
	}
	if q.sq != nil {
		index = q.sq.UserIndex
	}
	if q.d.cfg.CQEVersion == 0 || index == NoUserIndex {
		return srqn
	}
	return index
}
