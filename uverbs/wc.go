package uverbs

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// WCStatus is the outcome of a work request. Every value except [WCSuccess] is an error (enum
// ib_wc_status, rdma/ib_verbs.h).
type WCStatus uint32

// Completion statuses (IBV_WC_SUCCESS and following).
const (
	WCSuccess        WCStatus = iota // the request succeeded
	WCLocLenErr                      // a local buffer is too short for the message
	WCLocQPOpErr                     // the work request is inconsistent
	WCLocEECOpErr                    // local EE context error (RD only)
	WCLocProtErr                     // a local SGE is outside its MR, or its lkey is wrong
	WCWRFlushErr                     // flushed, because the QP, or its send queue, was in the error state
	WCMWBindErr                      // the memory window could not be bound
	WCBadRespErr                     // an unexpected response
	WCLocAccessErr                   // an operation of the peer violated local access rights
	WCRemInvReqErr                   // the responder found the request invalid
	WCRemAccessErr                   // the remote address, rkey or access rights are wrong
	WCRemOpErr                       // the responder could not complete the request
	WCRetryExcErr                    // the peer never acknowledged
	WCRNRRetryExcErr                 // the peer had no receive posted
	WCLocRDDViolErr                  // RDD mismatch (RD only)
	WCRemInvRDReqErr                 // invalid RD request (RD only)
	WCRemAbortErr                    // the responder aborted
	WCInvEECNErr                     // invalid EE context number (RD only)
	WCInvEECStateErr                 // invalid EE context state (RD only)
	WCFatalErr                       // fatal transport error
	WCRespTimeoutErr                 // the response took too long
	WCGeneralErr                     // another error
)

// statusNames holds a short text for each status.
var statusNames = [...]string{
	WCSuccess:        "success",
	WCLocLenErr:      "local length error",
	WCLocQPOpErr:     "local QP operation error",
	WCLocEECOpErr:    "local EE context operation error",
	WCLocProtErr:     "local protection error",
	WCWRFlushErr:     "work request flushed: the QP, or its send queue, is in the error state",
	WCMWBindErr:      "memory window bind error",
	WCBadRespErr:     "bad response",
	WCLocAccessErr:   "local access error",
	WCRemInvReqErr:   "remote invalid request error",
	WCRemAccessErr:   "remote access error",
	WCRemOpErr:       "remote operation error",
	WCRetryExcErr:    "transport retry counter exceeded",
	WCRNRRetryExcErr: "RNR retry counter exceeded",
	WCLocRDDViolErr:  "local RDD violation",
	WCRemInvRDReqErr: "remote invalid RD request",
	WCRemAbortErr:    "operation aborted by the remote side",
	WCInvEECNErr:     "invalid EE context number",
	WCInvEECStateErr: "invalid EE context state",
	WCFatalErr:       "fatal error",
	WCRespTimeoutErr: "response timeout",
	WCGeneralErr:     "general error",
}

// String returns the status in words (ibv_wc_status_str).
func (s WCStatus) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("unknown completion status %d", uint32(s))
}

// Error implements error.
func (s WCStatus) Error() string { return "uverbs: " + s.String() }

// WCOpcode is the operation that completed (enum ib_uverbs_wc_opcode, rdma/ib_user_verbs.h). [WC]
// says when it is valid.
type WCOpcode uint32

// Completion opcodes (IBV_WC_SEND and following).
const (
	WCSend          WCOpcode = 0
	WCRDMAWrite     WCOpcode = 1
	WCRDMARead      WCOpcode = 2
	WCCompareSwap   WCOpcode = 3
	WCFetchAdd      WCOpcode = 4
	WCBindMW        WCOpcode = 5
	WCLocalInv      WCOpcode = 6
	WCFlush         WCOpcode = 8
	WCAtomicWrite   WCOpcode = 9
	WCRecv          WCOpcode = 128
	WCRecvRDMAWrite WCOpcode = 129 // a receive consumed by an RDMA WRITE with immediate
)

// String returns the opcode's name.
func (o WCOpcode) String() string {
	switch o {
	case WCSend:
		return "SEND"
	case WCRDMAWrite:
		return "RDMA_WRITE"
	case WCRDMARead:
		return "RDMA_READ"
	case WCCompareSwap:
		return "COMP_SWAP"
	case WCFetchAdd:
		return "FETCH_ADD"
	case WCBindMW:
		return "BIND_MW"
	case WCLocalInv:
		return "LOCAL_INV"
	case WCFlush:
		return "FLUSH"
	case WCAtomicWrite:
		return "ATOMIC_WRITE"
	case WCRecv:
		return "RECV"
	case WCRecvRDMAWrite:
		return "RECV_RDMA_WITH_IMM"
	}
	return fmt.Sprintf("opcode %d", uint32(o))
}

// WCFlags are properties of a completion (IBV_WC_GRH and following).
type WCFlags uint32

// Completion flags.
const (
	WCWithGRH      WCFlags = 1 << iota // the first 40 bytes of the buffer are the GRH (UD)
	WCWithImm                          // Imm is valid
	WCWithInv                          // InvalidatedRKey is valid
	WCWithVLAN                         // VLAN is valid
	WCIPChecksumOK                     // the checksum of an IPv4 header is right, or the packet is of IPv6 (raw packets)
	WCL4ChecksumOK                     // that of TCP or UDP is right (raw packets; with WCIPChecksumOK: IBV_WC_IP_CSUM_OK)
)

// String returns the flags' names.
func (f WCFlags) String() string {
	return flagNames(uint32(f), "WCWithGRH", "WCWithImm", "WCWithInv", "WCWithVLAN", "WCIPChecksumOK", "WCL4ChecksumOK")
}

// flagNames returns the names of the bits that are set, from bit 0 on, and the rest as a number.
func flagNames(flags uint32, names ...string) string {
	var set []string
	rest := flags
	for i, name := range names {
		if flags>>i&1 != 0 {
			set, rest = append(set, name), rest&^(1<<i)
		}
	}
	if rest != 0 || flags == 0 {
		set = append(set, fmt.Sprintf("%#x", rest))
	}
	return strings.Join(set, "|")
}

// WC is a work completion (struct ibv_wc).
//
// If Status is not [WCSuccess], only ID, Status, VendorErr and QPN are valid, and Opcode is
// [WCRecv] if the work request is known to be a receive. With rxe and one CQ for both queues it is
// not known if both rings hold the ID, if neither does any more, or if another goroutine posts to
// the SRQ or changes it at the same time.
type WC struct {
	ID              uint64   // ID is the ID of the work request.
	Status          WCStatus // Status is the outcome; see [WC.Err].
	Opcode          WCOpcode // Opcode is the operation that completed.
	VendorErr       uint32   // VendorErr is the device's own error code.
	ByteLen         uint32   // ByteLen is the number of bytes received, or read by an RDMA READ.
	Imm             uint32   // Imm is the immediate value, in host byte order, if Flags has WCWithImm.
	QPN             uint32   // QPN is the number of the local QP; 0 for a receive of a WQ.
	SrcQP           uint32   // SrcQP is the number of the remote QP (UD, SRD).
	Flags           WCFlags  // Flags say which optional fields are valid, see the constants.
	PKeyIndex       uint16   // PKeyIndex is 0. It has a meaning on QP 1 alone, which the kernel keeps; a QP receives in its own partition only.
	SLID            uint16   // SLID is the source LID (UD on InfiniBand); 0 on Ethernet. On efa it is the device's number of an AH for the sender, or 0xffff.
	SL              uint8    // SL is the service level (UD). On RoCE it is the priority of the VLAN tag, and 0 without a tag.
	PathBits        uint8    // PathBits are the low bits of the destination LID (UD).
	VLAN            uint16   // VLAN is the tag that the device removed from a frame, if Flags has WCWithVLAN: the VLAN in bits 0 to 11, the priority in bits 13 to 15.
	InvalidatedRKey uint32   // InvalidatedRKey is the key that the peer's SEND_WITH_INV invalidated, if Flags has WCWithInv.
	FlowTag         uint32   // FlowTag is the tag of the flow that took the packet, of raw packets: see [flow.Tag].

	Timestamp uint64 // Timestamp is the time of the completion on the device's clock, if the CQ has CQTimestamp; see [Device.ReadClock].
}

// Err returns nil if the work request succeeded, and its [WCStatus] otherwise. [QP.Err] returns
// more details.
func (wc *WC) Err() error {
	if wc.Status == WCSuccess {
		return nil
	}
	return wc.Status
}

// CQFlags are properties of a CQ.
type CQFlags uint32

// CQ flags (IBV_CREATE_CQ_ATTR_*).
const (
	CQTimestamp     CQFlags = abi.IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION // completions have a time stamp of the device
	CQIgnoreOverrun CQFlags = abi.IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN       // the device does not check whether the CQ is full

	// CQCompressed lets the device write completions that follow one another in a short form
	// (mlx5dv_create_cq): fewer bytes on PCIe, but Poll executes more instructions, which write
	// them out. Only mlx5 supports it, and not with CQTimestamp or a CQESize of 128.
	CQCompressed CQFlags = 1 << 31

	cqFlagsAll = CQTimestamp | CQIgnoreOverrun | CQCompressed
)

// String returns the flags' names.
func (f CQFlags) String() string {
	switch {
	case f == CQCompressed:
		return "CQCompressed"
	case f&CQCompressed != 0:
		return (f &^ CQCompressed).String() + "|CQCompressed"
	}
	return flagNames(uint32(f), "CQTimestamp", "CQIgnoreOverrun")
}
