package uverbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// setOps sets the operations of the QP. Those in plain can be encoded from a SendWR without a
// lookup; only connected QPs have them. Those in addressed are SENDs, WRITEs and READs to a peer that each SendWR names.
func (q *QP) setOps(ops opcodeSet) {
	q.ops, q.plain, q.addressed = ops, 0, 0
	if q.typ == ib.UD || q.typ == ib.DCI {
		for op := range WRRDMARead + 1 {
			if ops[op] {
				q.addressed |= 1 << op
			}
		}
	}
	if q.typ != ib.RC && q.typ != ib.UC {
		return
	}
	for _, op := range []WROpcode{WRSend, WRSendWithImm, WRRDMAWrite, WRRDMAWriteWithImm, WRRDMARead, WRAtomicCAS, WRAtomicFAA} {
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
	return ib.QPState(q.state.Load()) >= ib.QPRTS && q.builder.n == 0 && q.builder.err == nil
}

// allOps is the set of all operations, for work requests that were checked.
const allOps = 1<<len(opcodeSet{}) - 1

// opIn reports whether ops has the bit of the operation, and the flags are known.
func (wr *SendWR) opIn(ops uint16) bool {
	return wr.Opcode < WROpcode(len(opcodeSet{})) && ops>>(wr.Opcode&15)&1 != 0 && wr.Flags&^sendFlagsAll == 0
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

// stateErr returns why nothing can be posted.
func (q *QP) stateErr() error {
	if q.closed.Load() {
		return q.errClosed()
	}
	if ib.QPState(q.state.Load()) == ib.QPRTR && q.dev.driver.capabilities().connectionManaged {
		return errAwaitFirstRecv
	}
	return ErrState
}
