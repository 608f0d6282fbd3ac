package efa

import "github.com/goverbs/goverbs/mmio/efa/internal/abi"

// DriverID is the kernel's number of the driver efa (RDMA_DRIVER_EFA, enum rdma_driver_id).
const DriverID = abi.RDMA_DRIVER_EFA

// MinABI and MaxABI are the versions of efa's interface that this package speaks, as the device reports
// them.
const (
	MinABI = abi.EFA_UVERBS_ABI_VERSION
	MaxABI = abi.EFA_UVERBS_ABI_VERSION
)

// Attributes of COMP_CNTR_CREATE: where the device writes the number of completions, and that of errors.
const (
	AttrCompBuffer = abi.EFA_IB_ATTR_CREATE_COMP_CNTR_COMP_BUFFER
	AttrErrBuffer  = abi.EFA_IB_ATTR_CREATE_COMP_CNTR_ERR_BUFFER
)

// An Op is the operation of a send request: the value of enum ib_uverbs_wr_opcode plus 1. Zero is none.
type Op uint8

// Operations.
const (
	Write    Op = 1
	WriteImm Op = 2
	Send     Op = 3
	SendImm  Op = 4
	Read     Op = 5
	numOps      = 8 // a power of two, so that a mask makes any Op a valid index

	// Quiet is a flag of an Op, which Complete returns with it: whoever posts the request wants no completion if it
	// succeeds. The device completes every request.
	Quiet Op = 1 << 6
)

// Statuses of completions.
const (
	StatusOK              uint8 = 0
	StatusFlushed         uint8 = 1  // the QP was destroyed or is in an error state
	StatusInternalError   uint8 = 2  // the QP has an internal error
	StatusUnsupportedOp   uint8 = 3  // the device or the QP does not support the operation
	StatusInvalidAH       uint8 = 4  // the address handle does not exist
	StatusInvalidLKey     uint8 = 5  // the lkey does not exist or does not cover the local memory
	StatusBadLength       uint8 = 6  // the message is too long
	StatusRemoteAddress   uint8 = 7  // the rkey does not exist or does not cover the peer's memory
	StatusRemoteAbort     uint8 = 8  // the peer has reset the connection
	StatusRemoteQPN       uint8 = 9  // the peer has no such QP, or it is in an error state
	StatusRemoteRNR       uint8 = 10 // the peer has posted no receive
	StatusRemoteLength    uint8 = 11 // the peer's receive is too short
	StatusRemoteStatus    uint8 = 12 // the peer has answered with an unknown status
	StatusUnresponsive    uint8 = 13 // the peer does not answer any more
	StatusUnknownPeer     uint8 = 14 // the peer has no address handle for this side, which RDMA needs
	StatusUnreachable     uint8 = 15 // the peer has never answered
	StatusFeatureMismatch uint8 = 18 // the peer does not support a feature
)

// Limits of the formats.
const (
	NoAH          = 0xffff    // instead of the number of an address handle
	MaxKey        = 1<<24 - 1 // the largest lkey
	MaxRecvLength = 1<<16 - 1 // the most bytes that one entry of a receive can take
	MaxSendSGE    = 2         // scatter/gather entries of a SEND
	MaxRDMASGE    = 1         // scatter/gather entries of a READ or a WRITE
	EntrySize     = 32        // bytes of a completion

	maxDepth       = 1 << 15 // requests of a queue: request IDs and doorbells have 16 bits
	narrow, wide   = 64, 128 // bytes of a send request
	inlineNarrow   = 32      // bytes of inline data that a narrow request has room for
	inlineWide     = 80      // and a wide one
	descriptorSize = 16      // bytes of an entry of a receive
)
