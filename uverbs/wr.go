package uverbs

import (
	"errors"
	"fmt"
	"strings"
)

// WROpcode is the operation of a send work request. Its zero value is none, which is refused. The
// others are the values of enum ib_uverbs_wr_opcode (rdma/ib_user_verbs.h) plus 1.
type WROpcode uint8

// Operations.
const (
	WRRDMAWrite        WROpcode = 1  // write to the peer's memory (IBV_WR_RDMA_WRITE)
	WRRDMAWriteWithImm WROpcode = 2  // write, and complete a receive of the peer with a 32-bit value (IBV_WR_RDMA_WRITE_WITH_IMM)
	WRSend             WROpcode = 3  // send a message to a receive of the peer (IBV_WR_SEND)
	WRSendWithImm      WROpcode = 4  // send a message with a 32-bit value (IBV_WR_SEND_WITH_IMM)
	WRRDMARead         WROpcode = 5  // read from the peer's memory (IBV_WR_RDMA_READ)
	WRCompareSwap      WROpcode = 6  // compare and swap 8 bytes of the peer's memory (IBV_WR_ATOMIC_CMP_AND_SWP)
	WRFetchAdd         WROpcode = 7  // add to 8 bytes of the peer's memory (IBV_WR_ATOMIC_FETCH_AND_ADD)
	WRLocalInv         WROpcode = 8  // invalidate a local key (IBV_WR_LOCAL_INV)
	WRBindMW           WROpcode = 9  // bind a memory window (IBV_WR_BIND_MW)
	WRSendWithInv      WROpcode = 10 // send, and invalidate a key of the peer (IBV_WR_SEND_WITH_INV)
	WRRDMAReadWithInv  WROpcode = 12 // read, and invalidate the lkey of the SGE; iWARP only, and siw does not invalidate it (IB_WR_RDMA_READ_WITH_INV)

	WRFlush       WROpcode = 15 // make data in the peer's memory visible or persistent (IBV_WR_FLUSH)
	WRAtomicWrite WROpcode = 16 // write 8 bytes atomically (IBV_WR_ATOMIC_WRITE)
)

// opcodeNames are the names of the operations.
var opcodeNames = [len(opcodeSet{})]string{
	WRRDMAWrite: "RDMA_WRITE", WRRDMAWriteWithImm: "RDMA_WRITE_WITH_IMM", WRSend: "SEND", WRSendWithImm: "SEND_WITH_IMM",
	WRRDMARead: "RDMA_READ", WRCompareSwap: "ATOMIC_CMP_AND_SWP", WRFetchAdd: "ATOMIC_FETCH_AND_ADD", WRLocalInv: "LOCAL_INV",
	WRBindMW: "BIND_MW", WRSendWithInv: "SEND_WITH_INV", WRRDMAReadWithInv: "RDMA_READ_WITH_INV", WRFlush: "FLUSH", WRAtomicWrite: "ATOMIC_WRITE",
}

// known reports whether the operation is one of the constants.
func (o WROpcode) known() bool { return int(o) < len(opcodeNames) && opcodeNames[o] != "" }

// opcodeSet is a set of operations.
type opcodeSet [17]bool

// opcodes returns a set.
func opcodes(all ...WROpcode) (s opcodeSet) {
	for _, o := range all {
		s[o] = true
	}
	return s
}

// String returns the operation's name (ibv_wr_opcode_str).
func (o WROpcode) String() string {
	if o.known() {
		return opcodeNames[o]
	}
	return fmt.Sprintf("opcode %d", uint8(o))
}

// abi returns the operation's number in rings and commands.
func (o WROpcode) abi() uint32 { return uint32(o) - 1 }

// SendFlags modify a send work request (enum ib_send_flags, rdma/ib_verbs.h).
type SendFlags uint8

// Flags of a send work request.
const (
	SendFence     SendFlags = 1 << 0 // wait until earlier READs and atomics are done (IBV_SEND_FENCE)
	SendSignaled  SendFlags = 1 << 1 // generate a completion also on success (IBV_SEND_SIGNALED)
	SendSolicited SendFlags = 1 << 2 // wake a peer that armed its CQ with NotifySolicited (IBV_SEND_SOLICITED)
)

// String returns the flags' names.
func (f SendFlags) String() string {
	return flagNames(uint32(f), "SendFence", "SendSignaled", "SendSolicited")
}

// sendFlagsAll are all send flags.
const sendFlagsAll = SendFence | SendSignaled | SendSolicited

// SGE is a scatter/gather element: a piece of registered memory (struct ibv_sge). [MR.SGE] makes
// one and checks that it is inside its MR.
type SGE struct {
	Addr    uint64 // Addr is the address of the first byte, see [MR.Addr].
	Length  uint32 // Length is the length in bytes.
	LKey    uint32 // LKey is the lkey of the MR.
	outside bool   // made by MR.SGE from a range that is not inside the MR
}

// sglBytes returns the number of bytes of a scatter/gather list.
func sglBytes(sgl []SGE) (n uint64) {
	for i := range sgl {
		n += uint64(sgl[i].Length)
	}
	return n
}

// checkAtomic returns why an atomic cannot have such a scatter/gather list or remote address, or nil.
func checkAtomic(sgl []SGE, addr uint64) error {
	switch {
	case sglBytes(sgl) != 8:
		return errAtomicData
	case addr%8 != 0:
		return errAtomicAddr
	}
	return nil
}

// FlushPlacement says where data must be before a FLUSH completes (enum ib_placement_type).
type FlushPlacement uint8

// Placements. They can be combined.
const (
	FlushGlobal     FlushPlacement = 1 << 0 // visible to all of the peer's processors (IBV_FLUSH_GLOBAL)
	FlushPersistent FlushPlacement = 1 << 1 // on persistent memory (IBV_FLUSH_PERSISTENT)
)

// FlushLevel says what a FLUSH covers (enum ib_selectivity_level).
type FlushLevel uint8

// Levels of a FLUSH.
const (
	FlushRange FlushLevel = 0 // the bytes at RemoteAddr (IBV_FLUSH_RANGE)
	FlushMR    FlushLevel = 1 // the whole MR (IBV_FLUSH_MR)
)

// RecvWR is a receive work request (struct ibv_recv_wr).
type RecvWR struct {
	ID  uint64 // ID is repeated in the completion.
	SGL []SGE  // SGL is the memory that receives the message.
}

// errNoAtomics is the error for an atomic on a device without atomics.
var errNoAtomics = &FeatureError{Feature: "atomics", Err: errors.New("atomic_cap of the device is ATOMIC_NONE")}

// PostError reports an invalid work request. Nothing of its batch was posted.
type PostError struct {
	Index int    // Index is the position of the work request in the batch, from 0.
	Field string // Field is the field of [SendWR] or [RecvWR] that is wrong, or empty if it is none of them.
	Err   error  // Err says what is wrong with it, such as [ErrTooManySGE].
}

// Error implements error.
func (e *PostError) Error() string {
	text := strings.TrimPrefix(e.Err.Error(), "uverbs: ")
	if e.Field != "" {
		text = e.Field + ": " + text
	}
	return fmt.Sprintf("uverbs: post: work request %d: %s", e.Index, text)
}

// Unwrap returns the cause.
func (e *PostError) Unwrap() error { return e.Err }

// postErr returns the PostError of a work request. It is not inlined, to keep the data path small.
//
//go:noinline
func postErr(index int, err error) *PostError {
	p := &PostError{Index: index, Err: err}
	if e, ok := errors.AsType[*wrong](err); ok {
		p.Field = e.field
	} else if errors.As(err, new(*FeatureError)) { // atomics of a device without them
		p.Field = "Opcode"
	}
	return p
}

// wrong says what is wrong with a field of a work request. It is the Err of a [PostError].
type wrong struct{ field, text string }

// Error returns the text without the field.
func (w *wrong) Error() string { return w.text }

// Causes of a [PostError] that a program may want to distinguish.
var (
	// ErrSGERange means that [MR.SGE] or [Slot.SGE] was called with a range outside the memory.
	ErrSGERange error = &wrong{"SGL", "an SGE is outside its MR"}
	// ErrTooManySGE means more SGEs than the queue was created for.
	ErrTooManySGE error = &wrong{"SGL", "too many SGEs for this QP"}
	// ErrInlineTooLong means more inline data than QPCaps.MaxInline.
	ErrInlineTooLong error = &wrong{"Inline", "inline data too long for this QP"}
	// ErrOpcode means an operation that is unknown, or that this type of QP does not support.
	ErrOpcode error = &wrong{"Opcode", "this type of QP does not support the operation"}
)

// Other causes of a [PostError]. errHeader is for an adapter that needs the Ethernet header in the work
// request. The library copies it from inline data or from an MR, which must have the whole header and be
// memory of this program. errBindRight is for a device that does not check the right itself.
var (
	errTooLong      = &wrong{"SGL", "the SGEs together are too long"}
	errNoSGL        = &wrong{"SGL", "this operation takes no SGE"}
	errHeader       = &wrong{"SGL", "this adapter needs the first 18 bytes of a frame inline, or in an MR of this PD that this program can read"}
	errAtomicData   = &wrong{"SGL", "an atomic needs SGEs of 8 bytes together"}
	errAtomicWrite  = &wrong{"Inline", "an atomic write needs 8 bytes of inline data and no SGE"}
	errInlineUse    = &wrong{"Inline", "inline data cannot be combined with SGEs, RDMA READ or atomics"}
	errNoInline     = &wrong{"Inline", "this operation takes no inline data"}
	errAtomicAddr   = &wrong{"RemoteAddr", "the remote address of an atomic must be a multiple of 8"}
	errNoAddress    = &wrong{"AH", "a datagram or a request of a DCI needs an open AH"}
	errNotDatagram  = &wrong{"AH", "only UD and SRD QPs and DCIs take an AH, and only UD and SRD QPs a Q_Key"}
	errForeignAH    = &wrong{"AH", "the AH belongs to another device"}
	errNotDC        = &wrong{"DCAccessKey", "only DCIs take the number and the key of a DCT"}
	errNoStreams    = &wrong{"DCStream", "the DCI has no streams"}
	errNotXRC       = &wrong{"RemoteSRQN", "only XRC send QPs take the number of an SRQ"}
	errBind         = &wrong{"Bind", "a bind needs an open MW and an open MR"}
	errBindForeign  = &wrong{"Bind", "the MW or the MR belongs to another device"}
	errBindRight    = &wrong{"Bind.MR", "the MR was registered without AccessMWBind"}
	errBindLength   = &wrong{"Bind.Length", "a window of this adapter is at most 2 GiB long"}
	errBindKey      = &wrong{"RKey", "the new key differs from the window's key in more than the last 8 bits"}
	errSendFlags    = &wrong{"Flags", "unknown send flag"}
	errNothingBegun = &wrong{"", "no work request was begun"}
)

// ErrState is returned by the post methods if the state of the queue does not permit posting:
// receives need QPInit or later, sends QPRTS or later.
var ErrState = errors.New(textState)

const textState = "uverbs: QP is not in a state to post"

// errAwaitFirstRecv is ErrState for the side of a connection that may not send yet.
var errAwaitFirstRecv = &reason{textState + ": on iWARP the side that connects sends first, and nothing has arrived from it yet", ErrState}

// ErrNoRecvQueue is returned by PostRecv for a QP without a receive queue of its own: one that uses an
// SRQ or WQs, or is of an XRC type.
var ErrNoRecvQueue = errors.New("uverbs: the QP has no receive queue")

// errSRQ is the ErrNoRecvQueue of a QP with an SRQ.
var errSRQ = &reason{"uverbs: the QP has no receive queue of its own: post to its SRQ", ErrNoRecvQueue}

// errKind means that the driver has no data path. It is a bug of the library.
var errKind = &reason{"uverbs: driver without a data path: unsupported operation", errors.ErrUnsupported}
