package mlx5

import (
	"encoding/binary"
	"fmt"

	"github.com/goverbs/goverbs/mmio/mlx5/internal/abi"
)

// The methods that pass a command to the firmware, for the device or for a QP (mlx5_user_ioctl_cmds.h).
const (
	ObjectDEVX    uint16 = abi.MLX5_IB_OBJECT_DEVX
	ObjectDEVXObj uint16 = abi.MLX5_IB_OBJECT_DEVX_OBJ

	MethodDEVXOther  uint16 = abi.MLX5_IB_METHOD_DEVX_OTHER
	MethodDEVXModify uint16 = abi.MLX5_IB_METHOD_DEVX_OBJ_MODIFY
	MethodDEVXQuery  uint16 = abi.MLX5_IB_METHOD_DEVX_OBJ_QUERY

	AttrDEVXOtherIn      uint16 = abi.MLX5_IB_ATTR_DEVX_OTHER_CMD_IN
	AttrDEVXOtherOut     uint16 = abi.MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT
	AttrDEVXModifyHandle uint16 = abi.MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE
	AttrDEVXModifyIn     uint16 = abi.MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN
	AttrDEVXModifyOut    uint16 = abi.MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT
	AttrDEVXQueryHandle  uint16 = abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE
	AttrDEVXQueryIn      uint16 = abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN
	AttrDEVXQueryOut     uint16 = abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT
)

// commandHeader is the least length of a command and of its answer, in bytes.
const commandHeader = 16

// Opcodes of the firmware's commands (MLX5_CMD_OP_*, mlx5_ifc.h).
const (
	opQueryHCACap = 0x100
	opRST2INITQP  = 0x502 // the first of those that change a QP's state
	opRTS2RTSQP   = 0x505
	op2RSTQP      = 0x50a // the last of them
	opQueryQP     = 0x50b
	opQueryLAG    = 0x842
	opModifyTIS   = 0x913
	opQueryTIS    = 0x915
)

// Offsets of bytes in commands and answers, and bits there (the structs *_in_bits and *_out_bits of mlx5_ifc.h).
const (
	cmdOpMod  = 6
	cmdNumber = 8 // of the object, 24 bits behind one byte

	// RTS2RTS_QP has a mask, the QP context, a second mask, and an extended context if the bit qpc_ext is set.
	// QUERY_QP answers with a context.
	qpMask         = 0x80 / 8
	qpContext      = 0xc0 / 8
	qpMask2        = 0x840 / 8
	qpInSize       = 0x880 / 8
	qpOutSize      = 0x880 / 8
	qpLAGPort      = 0 // in the context, low half of the byte
	qpSport        = 0xc0/8 + 0x110/8
	qpMaskLAGPort  = 1 << 15
	qpMask2UDPPort = 1 << 2
	qpMask2Stream  = 1 << 0
	qpHasExt       = 1 << 7
	qpExtStream    = qpInSize + 0x10/8
	qpExtInSize    = qpInSize + 0x600/8

	// MODIFY_TIS has a mask and the context. QUERY_TIS answers with a context.
	tisMask        = 0x80 / 8
	tisContext     = 0x100 / 8
	tisInSize      = 0x600 / 8
	tisOut         = 0x80 / 8
	tisOutSize     = 0x580 / 8
	tisMaskLAGPort = 1 << 2

	capsOut     = 0x80 / 8
	capsSize    = 4096
	capsCurrent = 1 // general capabilities, those in force
)

// command returns a command of so many bytes, about the object with a number.
func command(op uint16, number uint32, size int) []byte {
	b := make([]byte, size)
	binary.BigEndian.PutUint16(b, op)
	binary.BigEndian.PutUint32(b[cmdNumber:], number)
	return b
}

// An Answer is what the firmware says to every command.
type Answer struct {
	Status   uint8  // Status is 0 if the command was carried out.
	Syndrome uint32 // Syndrome is the vendor's number for the reason.
}

// DecodeAnswer reads the beginning of an answer, and returns zeros if it is too short.
func DecodeAnswer(out []byte) Answer {
	if len(out) < 8 {
		return Answer{}
	}
	return Answer{Status: out[0], Syndrome: binary.BigEndian.Uint32(out[4:])}
}

// String says what the status means, in the words of the kernel (cmd_status_str).
func (a Answer) String() string {
	word := "unknown status"
	switch a.Status {
	case 0x1:
		word = "internal error"
	case 0x2:
		word = "bad operation"
	case 0x3:
		word = "bad parameter"
	case 0x4:
		word = "bad system state"
	case 0x5:
		word = "bad resource"
	case 0x6:
		word = "resource busy"
	case 0x8:
		word = "limits exceeded"
	case 0x9:
		word = "bad resource state"
	case 0xa:
		word = "bad index"
	case 0xf:
		word = "no resources"
	case 0x10:
		word = "bad QP state"
	case 0x50:
		word = "bad input length"
	case 0x51:
		word = "bad output length"
	}
	return fmt.Sprintf("%s (%#x), syndrome %#x", word, a.Status, a.Syndrome)
}

// ChangesState reports whether a command leads a QP from one state to another.
func ChangesState(in []byte) bool {
	op := binary.BigEndian.Uint16(in)
	return op >= opRST2INITQP && op <= op2RSTQP && op != opRTS2RTSQP
}

// CommandName returns the name of a command that this package makes, or its opcode.
func CommandName(in []byte) string {
	switch op := binary.BigEndian.Uint16(in); op {
	case opQueryHCACap:
		return "QUERY_HCA_CAP"
	case opRTS2RTSQP:
		return "RTS2RTS_QP"
	case opQueryQP:
		return "QUERY_QP"
	case opQueryLAG:
		return "QUERY_LAG"
	case opModifyTIS:
		return "MODIFY_TIS"
	case opQueryTIS:
		return "QUERY_TIS"
	default:
		return fmt.Sprintf("command %#x", op)
	}
}

// QueryCaps returns the command that asks for the general capabilities, and the size of its answer.
func QueryCaps() (in []byte, out int) {
	in = command(opQueryHCACap, 0, commandHeader)
	binary.BigEndian.PutUint16(in[cmdOpMod:], capsCurrent)
	return in, capsOut + capsSize
}

// Caps are the capabilities that the library's firmware commands depend on.
type Caps struct {
	SourcePort bool // SourcePort says that a QP in RTS can be given a UDP source port (rts2rts_qp_udp_sport).
	LAGPorts   int  // LAGPorts is the number of ports in link aggregation (num_lag_ports).
	LAGPort    bool // LAGPort says that QPs have a port of a LAG also if the kernel knows of none (lag_tx_port_affinity).
	SetLAGPort bool // SetLAGPort says that a QP in RTS can be given one (rts2rts_lag_tx_port_affinity).
	Extended   bool // Extended says that commands may have an extended QP context (qpc_extension).
	LogDCReads int  // LogDCReads is log2 of the most READs and atomics that a DCI has in flight (log_max_ra_req_dc).
}

// DecodeCaps reads the answer to QueryCaps (struct mlx5_ifc_cmd_hca_cap_bits).
func DecodeCaps(out []byte) Caps {
	if len(out) < capsOut+capsSize {
		return Caps{}
	}
	bits := func(at, n int) int { return int(out[capsOut+at/8]) >> (8 - at%8 - n) & (1<<n - 1) }
	has := func(at int) bool { return bits(at, 1) == 1 }
	return Caps{SourcePort: has(0x151), LAGPorts: bits(0x27c, 4), LAGPort: has(0x278), SetLAGPort: has(0x152), Extended: has(0x122), LogDCReads: bits(0x12a, 6)}
}

// QueryLAG returns the command that asks for the state of link aggregation.
func QueryLAG() (in []byte, out int) { return command(opQueryLAG, 0, commandHeader), commandHeader }

// DecodeLAG reads the answer to QueryLAG: the state, and for each of the first two ports the one that sends
// in its place (struct mlx5_ifc_lagc_bits).
func DecodeLAG(out []byte) (state uint8, active [2]uint8) {
	if len(out) < commandHeader {
		return 0, active
	}
	return out[11] & 7, [2]uint8{out[15] & 0xf, out[14] & 0xf}
}

// SetSourcePort returns the command that gives a QP in RTS a UDP source port.
func SetSourcePort(qpn uint32, port uint16) (in []byte, out int) {
	in = command(opRTS2RTSQP, qpn, qpInSize)
	binary.BigEndian.PutUint64(in[qpMask2:], qpMask2UDPPort)
	binary.BigEndian.PutUint16(in[qpContext+qpSport:], port)
	return in, commandHeader
}

// SetLAGPort returns the command that gives a QP in RTS a port of a LAG.
func SetLAGPort(qpn uint32, port uint8) (in []byte, out int) {
	in = command(opRTS2RTSQP, qpn, qpInSize)
	binary.BigEndian.PutUint32(in[qpMask:], qpMaskLAGPort)
	in[qpContext+qpLAGPort] = port & 0xf
	return in, commandHeader
}

// ResetStream returns the command that makes a failed stream of a DCI in RTS usable again.
func ResetStream(qpn uint32, stream uint16) (in []byte, out int) {
	in = command(opRTS2RTSQP, qpn, qpExtInSize)
	in[cmdNumber] = qpHasExt
	binary.BigEndian.PutUint64(in[qpMask2:], qpMask2Stream)
	binary.BigEndian.PutUint16(in[qpExtStream:], stream)
	return in, commandHeader
}

// QueryQP returns the command that asks for a QP's context.
func QueryQP(qpn uint32) (in []byte, out int) {
	return command(opQueryQP, qpn, commandHeader), qpOutSize
}

// DecodeQPPorts reads the port of a LAG and the UDP source port from the answer to QueryQP.
func DecodeQPPorts(out []byte) (lag uint8, udp uint16) {
	if len(out) < qpOutSize {
		return 0, 0
	}
	return out[qpContext+qpLAGPort] & 0xf, binary.BigEndian.Uint16(out[qpContext+qpSport:])
}

// SetTISLAGPort returns the command that gives the TIS of a QP for raw packets a port of a LAG.
func SetTISLAGPort(tisn uint32, port uint8) (in []byte, out int) {
	in = command(opModifyTIS, tisn, tisInSize)
	binary.BigEndian.PutUint64(in[tisMask:], tisMaskLAGPort)
	in[tisContext] = port & 0xf
	return in, commandHeader
}

// QueryTIS returns the command that asks for the context of a TIS.
func QueryTIS(tisn uint32) (in []byte, out int) {
	return command(opQueryTIS, tisn, commandHeader), tisOutSize
}

// DecodeTISLAGPort reads the port of a LAG from the answer to QueryTIS.
func DecodeTISLAGPort(out []byte) uint8 {
	if len(out) < tisOutSize {
		return 0
	}
	return out[tisOut] & 0xf
}

// DecodeTIS returns the number of the TIS of a new QP for raw packets from the driver's part of the response
// to CREATE_QP. It is there if the context was created with devx, and the QP has a send queue.
func DecodeTIS(b []byte) (tisn uint32, ok bool) {
	var r abi.CreateQPResp
	if err := decode(&r, b, "mlx5_ib_create_qp_resp"); err != nil || r.CompMask&abi.MLX5_IB_CREATE_QP_RESP_MASK_TISN == 0 {
		return 0, false
	}
	return r.Tisn, true
}
