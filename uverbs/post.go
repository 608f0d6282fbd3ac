package uverbs

import (
	"errors"
	"fmt"
)

// WROpcode is the operation of a send work request (enum ib_uverbs_wr_opcode,
// rdma/ib_user_verbs.h).
type WROpcode uint8

// Operations.
const (
	WRRDMAWrite        WROpcode = 0 // write to the peer's memory (IBV_WR_RDMA_WRITE)
	WRRDMAWriteWithImm WROpcode = 1 // the same, and complete a receive of the peer (IBV_WR_RDMA_WRITE_WITH_IMM)
	WRSend             WROpcode = 2 // send a message to a receive of the peer (IBV_WR_SEND)
	WRSendWithImm      WROpcode = 3 // the same with a 32-bit value beside it (IBV_WR_SEND_WITH_IMM)
	WRRDMARead         WROpcode = 4 // read from the peer's memory (IBV_WR_RDMA_READ)
)

// String returns the operation's name.
func (o WROpcode) String() string {
	names := [...]string{"RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "SEND", "SEND_WITH_IMM", "RDMA_READ"}
	if int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("opcode %d", uint8(o))
}

// SendFlags modify a send work request (enum ib_send_flags, rdma/ib_verbs.h).
type SendFlags uint8

// Flags of a send work request.
const (
	Fence     SendFlags = 1 << 0 // wait until earlier READs and atomics are done (IBV_SEND_FENCE)
	Signaled  SendFlags = 1 << 1 // raise a completion (IBV_SEND_SIGNALED)
	Solicited SendFlags = 1 << 2 // wake a peer that armed its CQ with NotifySolicited (IBV_SEND_SOLICITED)
)

// sendFlagsAll are the flags that there are.
const sendFlagsAll = Fence | Signaled | Solicited

// SGE is a piece of registered memory (struct ibv_sge). [MR.SGE] makes one that is
// inside its MR.
type SGE struct {
	Addr   uint64
	Length uint32 // in bytes
	LKey   uint32

	outside bool // made by MR.SGE from a range that is not inside the MR
}

// SendWR is a send work request (struct ibv_send_wr).
type SendWR struct {
	ID         uint64    // ID comes back in the completion.
	Opcode     WROpcode  // Opcode is the operation.
	Flags      SendFlags // Flags modify it.
	SGL        []SGE     // SGL is the local memory: the data to send or write, or where a READ puts it.
	Inline     []byte    // Inline is data to send or write that need not be registered; it is copied by PostSend. It excludes SGL.
	Imm        uint32    // Imm goes with the operations that have an immediate, in host byte order.
	RemoteAddr uint64    // RemoteAddr is the address in the peer's memory, for RDMA.
	RKey       uint32    // RKey is the key of the peer's MR, for RDMA.
}

// RecvWR is a receive work request (struct ibv_recv_wr).
type RecvWR struct {
	ID  uint64 // ID comes back in the completion.
	SGL []SGE  // SGL is where the message goes.
}

// Causes of a [PostError].
var (
	// ErrSGERange means that an SGE was made by MR.SGE from a range outside its MR.
	ErrSGERange = errors.New("an SGE is outside its MR")
	// ErrTooManySGE means that there are more SGEs than the QP was created for.
	ErrTooManySGE = errors.New("too many SGEs for this QP")
	// ErrInlineTooLong means more inline data than the QP was created for.
	ErrInlineTooLong = errors.New("inline data too long for this QP")
	// ErrInlineUse means inline data together with an SGL or in an RDMA READ.
	ErrInlineUse = errors.New("inline data excludes an SGL and RDMA READ")
	// ErrTooLong means that the SGEs together exceed 4 GiB.
	ErrTooLong = errors.New("the SGEs together are too long")
	// ErrOpcode means an operation that the library or the QP does not have.
	ErrOpcode = errors.New("unknown operation")
	// ErrSendFlags means a flag that is not one of the constants.
	ErrSendFlags = errors.New("unknown send flag")
)

// ErrState is returned by the post methods if the QP's state does not permit posting:
// receives need Init or later, sends RTS or later.
var ErrState = errors.New("uverbs: QP is not in a state to post")

// PostSend posts send work requests, in order, with one doorbell (ibv_post_send). It
// posts all or none: [ErrQueueFull] if there is no room for all, [ErrState] before the
// QP is connected, a [PostError] if one of them is at fault.
func (q *QP) PostSend(wrs ...SendWR) error {
	if s := QPState(q.state.Load()); s < RTS || q.gone.Load() {
		return q.stateErr()
	}
	switch q.kind {
	case kindRxe:
		return q.postSendRxe(wrs)
	}
	return nil
}

// PostRecv posts one receive work request (ibv_post_recv). It fails with
// [ErrQueueFull], [ErrState] or a [PostError].
func (q *QP) PostRecv(id uint64, sgl ...SGE) error {
	if s := QPState(q.state.Load()); s < Init || q.gone.Load() {
		return q.stateErr()
	}
	switch q.kind {
	case kindRxe:
		return q.postRecvRxe(id, sgl)
	}
	return nil
}

// PostRecvs posts receive work requests, in order, all or none.
func (q *QP) PostRecvs(wrs ...RecvWR) error {
	if s := QPState(q.state.Load()); s < Init || q.gone.Load() {
		return q.stateErr()
	}
	switch q.kind {
	case kindRxe:
		return q.postRecvsRxe(wrs)
	}
	return nil
}

// stateErr says why nothing can be posted.
func (q *QP) stateErr() error {
	if q.gone.Load() {
		return q.errClosed()
	}
	return ErrState
}
