package ring

import "github.com/goverbs/goverbs/uverbs/internal/abi"

// Opcodes of send work requests (enum ib_uverbs_wr_opcode).
const (
	OpWrite       = abi.IB_UVERBS_WR_RDMA_WRITE
	OpWriteImm    = abi.IB_UVERBS_WR_RDMA_WRITE_WITH_IMM
	OpSend        = abi.IB_UVERBS_WR_SEND
	OpSendImm     = abi.IB_UVERBS_WR_SEND_WITH_IMM
	OpRead        = abi.IB_UVERBS_WR_RDMA_READ
	OpAtomicCAS   = abi.IB_UVERBS_WR_ATOMIC_CMP_AND_SWP
	OpAtomicFAA   = abi.IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD
	OpLocalInv    = abi.IB_UVERBS_WR_LOCAL_INV
	OpBindMW      = abi.IB_UVERBS_WR_BIND_MW
	OpSendInv     = abi.IB_UVERBS_WR_SEND_WITH_INV
	OpFlush       = abi.IB_UVERBS_WR_FLUSH
	OpAtomicWrite = abi.IB_UVERBS_WR_ATOMIC_WRITE
)

// Flags of send work requests (enum ib_send_flags of include/rdma/ib_verbs.h, which no uapi header
// has).
const (
	SendFence     = 1 << 0 // wait for earlier reads and atomics
	SendSignaled  = 1 << 1 // also report success
	SendSolicited = 1 << 2 // wake a receiver that waits for solicited messages only
	SendInline    = 1 << 3 // the data is in the element
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
