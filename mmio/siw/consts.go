package siw

import "github.com/goverbs/goverbs/mmio/siw/internal/abi"

// DriverID is the kernel's number of the driver siw (RDMA_DRIVER_SIW, enum rdma_driver_id).
const DriverID = abi.RDMA_DRIVER_SIW

// MinABI and MaxABI are the versions of siw's interface that this package speaks, as the device
// reports them.
const (
	MinABI = abi.SIW_ABI_VERSION
	MaxABI = abi.SIW_ABI_VERSION
)

// Limits of an element.
const (
	MaxSGE    = abi.SIW_MAX_SGE    // scatter/gather entries
	MaxInline = abi.SIW_MAX_INLINE // bytes of inline data, which take the place of all entries but the first
)

// Operations of work requests and completions (enum siw_opcode). A program may post all except
// Recv, which is the operation of completed receives.
const (
	Write    uint8 = abi.SIW_OP_WRITE           // write to the peer's memory
	Read     uint8 = abi.SIW_OP_READ            // read from the peer's memory
	ReadInv  uint8 = abi.SIW_OP_READ_LOCAL_INV  // read, and invalidate the key of the local memory
	Send     uint8 = abi.SIW_OP_SEND            // send a message
	SendInv  uint8 = abi.SIW_OP_SEND_REMOTE_INV // send, and invalidate a key of the peer
	LocalInv uint8 = abi.SIW_OP_INVAL_STAG      // invalidate a key of this side
	Recv     uint8 = abi.SIW_OP_RECEIVE         // a message has arrived
)

// Flags of send work requests (enum siw_wqe_flags). The kernel accepts no Fence for a READ: READs
// are carried out in order anyway.
const (
	Signaled  uint8 = abi.SIW_WQE_SIGNALLED  // also report success
	Solicited uint8 = abi.SIW_WQE_SOLICITED  // wake a receiver that waits for solicited messages only
	Fence     uint8 = abi.SIW_WQE_READ_FENCE // wait for earlier READs
)

// Statuses of completions (enum siw_wc_status).
const (
	StatusSuccess      uint16 = abi.SIW_WC_SUCCESS
	StatusLocLenErr    uint16 = abi.SIW_WC_LOC_LEN_ERR
	StatusLocProtErr   uint16 = abi.SIW_WC_LOC_PROT_ERR
	StatusLocQPOpErr   uint16 = abi.SIW_WC_LOC_QP_OP_ERR
	StatusWRFlushErr   uint16 = abi.SIW_WC_WR_FLUSH_ERR
	StatusBadRespErr   uint16 = abi.SIW_WC_BAD_RESP_ERR
	StatusLocAccessErr uint16 = abi.SIW_WC_LOC_ACCESS_ERR
	StatusRemAccessErr uint16 = abi.SIW_WC_REM_ACCESS_ERR
	StatusRemInvReqErr uint16 = abi.SIW_WC_REM_INV_REQ_ERR
	StatusGeneralErr   uint16 = abi.SIW_WC_GENERAL_ERR
)
