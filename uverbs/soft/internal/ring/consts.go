package ring

import "github.com/goverbs/goverbs/uverbs/internal/abi"

// Opcodes of send work requests (enum ib_uverbs_wr_opcode).
const (
	OpWrite       uint32 = abi.IB_UVERBS_WR_RDMA_WRITE
	OpWriteImm    uint32 = abi.IB_UVERBS_WR_RDMA_WRITE_WITH_IMM
	OpSend        uint32 = abi.IB_UVERBS_WR_SEND
	OpSendImm     uint32 = abi.IB_UVERBS_WR_SEND_WITH_IMM
	OpRead        uint32 = abi.IB_UVERBS_WR_RDMA_READ
	OpAtomicCAS   uint32 = abi.IB_UVERBS_WR_ATOMIC_CMP_AND_SWP
	OpAtomicFAA   uint32 = abi.IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD
	OpLocalInv    uint32 = abi.IB_UVERBS_WR_LOCAL_INV
	OpBindMW      uint32 = abi.IB_UVERBS_WR_BIND_MW
	OpSendInv     uint32 = abi.IB_UVERBS_WR_SEND_WITH_INV
	OpFlush       uint32 = abi.IB_UVERBS_WR_FLUSH
	OpAtomicWrite uint32 = abi.IB_UVERBS_WR_ATOMIC_WRITE
)

// Flags of send work requests (enum ib_send_flags of include/rdma/ib_verbs.h, which no uapi header
// has).
const (
	SendFence     uint32 = 1 << 0 // wait for earlier reads and atomics
	SendSignaled  uint32 = 1 << 1 // also report success
	SendSolicited uint32 = 1 << 2 // wake a receiver that waits for solicited messages only
	SendInline    uint32 = 1 << 3 // the data is in the element
)

// Statuses of completions (enum ib_wc_status of include/rdma/ib_verbs.h).
const (
	StatusSuccess       uint32 = 0
	StatusLocLenErr     uint32 = 1
	StatusLocQPOpErr    uint32 = 2
	StatusLocEECOpErr   uint32 = 3
	StatusLocProtErr    uint32 = 4
	StatusWRFlushErr    uint32 = 5
	StatusMWBindErr     uint32 = 6
	StatusBadRespErr    uint32 = 7
	StatusLocAccessErr  uint32 = 8
	StatusRemInvReqErr  uint32 = 9
	StatusRemAccessErr  uint32 = 10
	StatusRemOpErr      uint32 = 11
	StatusRetryExcErr   uint32 = 12
	StatusRNRRetryExc   uint32 = 13
	StatusLocRDDViolErr uint32 = 14
	StatusRemInvRDReq   uint32 = 15
	StatusRemAbortErr   uint32 = 16
	StatusInvEECNErr    uint32 = 17
	StatusInvEECState   uint32 = 18
	StatusFatalErr      uint32 = 19
	StatusRespTimeout   uint32 = 20
	StatusGeneralErr    uint32 = 21
)

// Opcodes of completions (enum ib_uverbs_wc_opcode; those of receives are only in enum ib_wc_opcode
// of include/rdma/ib_verbs.h).
const (
	WCSend        uint32 = abi.IB_UVERBS_WC_SEND
	WCWrite       uint32 = abi.IB_UVERBS_WC_RDMA_WRITE
	WCRead        uint32 = abi.IB_UVERBS_WC_RDMA_READ
	WCAtomicCAS   uint32 = abi.IB_UVERBS_WC_COMP_SWAP
	WCAtomicFAA   uint32 = abi.IB_UVERBS_WC_FETCH_ADD
	WCBindMW      uint32 = abi.IB_UVERBS_WC_BIND_MW
	WCLocalInv    uint32 = abi.IB_UVERBS_WC_LOCAL_INV
	WCFlush       uint32 = abi.IB_UVERBS_WC_FLUSH
	WCAtomicWrite uint32 = abi.IB_UVERBS_WC_ATOMIC_WRITE
	WCRecv        uint32 = 1 << 7   // IB_WC_RECV
	WCRecvWrite   uint32 = 1<<7 + 1 // IB_WC_RECV_RDMA_WITH_IMM
)

// Flags of completions (enum ib_wc_flags of include/rdma/ib_verbs.h).
const (
	WCGRH            uint32 = 1 << 0 // IB_WC_GRH
	WCWithImm        uint32 = 1 << 1 // IB_WC_WITH_IMM
	WCWithInvalidate uint32 = 1 << 2 // IB_WC_WITH_INVALIDATE
)
