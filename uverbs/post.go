package uverbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// SendWR is a send work request (struct ibv_send_wr).
type SendWR struct {
	ID         uint64    // ID is repeated in the completion.
	Opcode     WROpcode  // Opcode is the operation. It must be set.
	Flags      SendFlags // Flags modify the operation.
	SGL        []SGE     // SGL is local memory: the data to send or write, or the destination of a READ or an atomic.
	Inline     []byte    // Inline is data to send or write that need not be registered. PostSend copies it. SGL must be empty.
	Imm        uint32    // Imm is the immediate value of operations that have one, in host byte order.
	RemoteAddr uint64    // RemoteAddr is the address in the peer's memory, for RDMA and atomics.
	RKey       uint32    // RKey is the rkey of the peer's MR or MW, for RDMA and atomics; with BIND_MW see Bind.

	CompareAdd     uint64 // CompareAdd is the value that an atomic compares with or adds.
	Swap           uint64 // Swap is the value that a compare and swap stores.
	InvalidateRKey uint32 // InvalidateRKey is the key that SEND_WITH_INV and LOCAL_INV invalidate.

	AH         *AH    // AH is the address of the peer, for datagrams, SRD and DCIs.
	RemoteQPN  uint32 // RemoteQPN is the peer's QP number, for datagrams and SRD, or that of a group, [ib.MulticastQPN]; for DCIs the number of the DCT.
	RemoteQKey uint32 // RemoteQKey is the peer's Q_Key, for datagrams and SRD.
	RemoteSRQN uint32 // RemoteSRQN is the number of the peer's SRQ, for XRCSend.

	Bind BindInfo // Bind are the arguments of BIND_MW. RKey is the window's new key; 0 means IncRKey of the current one.

	Length    uint32         // Length is the number of bytes that FLUSH covers.
	Placement FlushPlacement // Placement says where FLUSH moves the data.
	Level     FlushLevel     // Level is the range that FLUSH covers.

	DCStream    uint16 // DCStream is the stream, for DCIs with streams; see [SendBuilder.ToDCTStream].
	DCAccessKey uint64 // DCAccessKey is the access key of the DCT, for DCIs.
}

// BindInfo are the arguments of a memory window bind (struct ibv_mw_bind_info).
type BindInfo struct {
	MW     *MW    // MW is the window to bind.
	MR     *MR    // MR is the region to bind it to, registered with AccessMWBind.
	Addr   uint64 // Addr is the address of the first byte, see [MR.Addr].
	Length uint64 // Length is the number of bytes; 0 unbinds a window of type 1.
	Access Access // Access are the peer's rights.
}

// setOps sets the operations of the QP. Those in plain can be encoded from a SendWR without a
// lookup; only connected QPs have them. Those in addressed are SENDs, WRITEs and READs to a peer that each SendWR names.
func (q *QP) setOps(ops opcodeSet) {
	q.ops, q.plain, q.addressed = ops, 0, 0
	if isDatagram(q.typ) || q.typ == ib.DCI {
		for op := range WRRDMARead + 1 {
			if ops[op] {
				q.addressed |= 1 << op
			}
		}
	}
	if q.typ != ib.RC && q.typ != ib.UC {
		return
	}
	for _, op := range []WROpcode{WRSend, WRSendWithImm, WRRDMAWrite, WRRDMAWriteWithImm, WRRDMARead, WRCompareSwap, WRFetchAdd} {
		if ops[op] {
			q.plain |= 1 << op
		}
	}
}

// postSlow posts work requests that PostSend cannot encode itself with the builder, or returns what is
// wrong with them.
//
// Preconditions: the caller holds sending, which postSlow releases.
func (q *QP) postSlow(wrs []SendWR) error {
	b := q.BeginSend()
	if b.err == nil {
		b.err = q.sendRoom(len(wrs))
	}
	for i := range wrs {
		b.add(wrs[i : i+1])
	}
	err := b.post()
	q.sending.Unlock()
	return err
}

// ready reports whether the state permits posting and the builder is not in use.
//
// Preconditions: the caller holds sending.
func (q *QP) ready() bool {
	return ib.QPState(q.state.Load()) >= ib.QPRTS && !q.builder.open
}

// allOps is the set of all operations, for work requests that were checked.
const allOps = 1<<len(opcodeSet{}) - 2

// opIn reports whether ops has the bit of the operation, and the flags are known.
func (wr *SendWR) opIn(ops uint32) bool {
	return wr.Opcode < WROpcode(len(opcodeSet{})) && ops>>(wr.Opcode&31)&1 != 0 && wr.Flags <= sendFlagsAll
}

// errNeedsBuilder means that a work request must be checked by the builder first.
var errNeedsBuilder = errors.New("uverbs: work request needs the builder")

// shortDoorbell is the largest amount of data, in bytes, for which a doorbell bypasses Go's
// scheduler. Such a doorbell delays the garbage collector. A longer one does not, but while it runs
// the scheduler's monitor wakes up to every 20 microseconds.
const shortDoorbell = 1 << 20

// doorbellErr returns the error for a doorbell that the kernel refused.
func (q *QP) doorbellErr(errno syscall.Errno) error {
	return about(q.dev.cmd.fail("POST_SEND", errno, "the work requests are in the queue, but the device was not told"), q.label(), "")
}

// roomErr returns the error for n work requests that do not fit into a queue.
func roomErr(n, capacity int, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrQueueCorrupt, err)
	case n > capacity:
		return argErr("post", "number of work requests", n, "up to %d, the size of the queue", capacity)
	}
	return ErrQueueFull
}

// stateErr returns why nothing can be posted: sends, or receives.
func (q *QP) stateErr(recv bool) error {
	if q.closed.Load() {
		return q.errClosed()
	}
	if ib.QPState(q.state.Load()) == ib.QPRTR && q.dev.driver.capabilities().connectionManaged {
		return errAwaitFirstRecv
	}
	if q.dev == nil {
		return ErrState
	}
	call, needs := "Connect makes the QP ready", "sends need RTS"
	switch q.typ {
	case ib.DCI, ib.DCT:
		call = "mlx5.ReadyDC makes the QP ready"
	case ib.UD, ib.SRD, ib.RawPacket:
		call = "ReadyUD makes the QP ready"
	}
	if recv {
		needs, call = "receives need INIT", "call Init first"
	}
	if q.dev.driver.capabilities().connectionManaged {
		call = "package cm connects it on iWARP"
	}
	return &reason{fmt.Sprintf("%s: %s %s is in %s, %s: %s", textState, q.dev.Name(), q.label(), q.State(), needs, call), ErrState}
}

// errResetMeanwhile is ErrState for a batch.
var errResetMeanwhile = &reason{textState + ": it was reset since the batch was begun", ErrState}
