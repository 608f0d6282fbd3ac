package rxe

import "github.com/goverbs/goverbs/mmio/rxe/internal/abi"

// DriverID is the kernel's number of the driver rxe (RDMA_DRIVER_RXE, enum rdma_driver_id).
const DriverID = abi.RDMA_DRIVER_RXE

// MinABI and MaxABI are the versions of rxe's interface that this package supports, as the device
// reports them (RXE_UVERBS_ABI_VERSION in drivers/infiniband/sw/rxe/rxe.h, which is 2 in Linux 5.10
// and later).
const (
	MinABI = 2
	MaxABI = 2
)

// Opcodes of send work requests (enum ib_uverbs_wr_opcode).
const (
	Write       uint32 = abi.IB_UVERBS_WR_RDMA_WRITE
	WriteImm    uint32 = abi.IB_UVERBS_WR_RDMA_WRITE_WITH_IMM
	Send        uint32 = abi.IB_UVERBS_WR_SEND
	SendImm     uint32 = abi.IB_UVERBS_WR_SEND_WITH_IMM
	Read        uint32 = abi.IB_UVERBS_WR_RDMA_READ
	AtomicCAS   uint32 = abi.IB_UVERBS_WR_ATOMIC_CMP_AND_SWP
	AtomicFAA   uint32 = abi.IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD
	LocalInv    uint32 = abi.IB_UVERBS_WR_LOCAL_INV
	BindMW      uint32 = abi.IB_UVERBS_WR_BIND_MW
	SendInv     uint32 = abi.IB_UVERBS_WR_SEND_WITH_INV
	Flush       uint32 = abi.IB_UVERBS_WR_FLUSH
	AtomicWrite uint32 = abi.IB_UVERBS_WR_ATOMIC_WRITE
)

// Flags of send work requests. No uapi header of the kernel has them: rxe uses enum ib_send_flags
// (include/rdma/ib_verbs.h), which libibverbs repeats as enum ibv_send_flags.
const (
	Fence     uint32 = 1 << 0 // wait for earlier reads and atomics (IB_SEND_FENCE)
	Signaled  uint32 = 1 << 1 // also report success (IB_SEND_SIGNALED)
	Solicited uint32 = 1 << 2 // wake a receiver that waits for solicited messages only (IB_SEND_SOLICITED)
	Inline    uint32 = 1 << 3 // the data is in the entry; AddInline sets it (IB_SEND_INLINE)
)

// Opcodes of completions (enum ib_uverbs_wc_opcode). Those of receives are only
// in the kernel's own enum ib_wc_opcode (include/rdma/ib_verbs.h) and in
// libibverbs.
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
	WCRecv        uint32 = 1 << 7   // a send arrived (IB_WC_RECV)
	WCRecvWrite   uint32 = 1<<7 + 1 // a write with immediate arrived (IB_WC_RECV_RDMA_WITH_IMM)
)

// Flags of completions, as rxe writes them into a program's ring: the values of
// the kernel's enum ib_wc_flags (include/rdma/ib_verbs.h). Only the first two
// are the same in libibverbs, which has IBV_WC_WITH_INV at 1<<3.
const (
	WCGRH            uint32 = 1 << 0 // IB_WC_GRH
	WCWithImm        uint32 = 1 << 1 // Imm is valid (IB_WC_WITH_IMM)
	WCWithInvalidate uint32 = 1 << 2 // InvalidatedRKey is valid (IB_WC_WITH_INVALIDATE)
)
