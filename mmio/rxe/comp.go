package rxe

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/mmio/rxe/internal/abi"
)

// A CompQueue is the ring of a completion queue (struct rxe_queue_buf; its elements begin with
// struct ib_uverbs_wc). One goroutine at a time may use it.
type CompQueue struct {
	ring
	head uint32 // the producer's index when it was last loaded
	tail uint32 // next index to read; only this side stores it
}

// NewCompQueue makes a CompQueue of the mapped ring of a CQ that was created for cqe completions.
// The error matches ErrCorrupt if the memory is not such a ring.
func NewCompQueue(mem []byte, cqe int) (*CompQueue, error) {
	r, prod, cons, err := newRing(mem, "completion queue", cqe, unsafe.Sizeof(abi.WC{}))
	if err != nil {
		return nil, err
	}
	return &CompQueue{ring: r, head: prod, tail: cons}, nil
}

// Cap returns the maximum number of completions in the ring.
func (q *CompQueue) Cap() int { return int(q.mask) }

// Avail returns the number of completions in the ring, including those that it returned before and
// that were not released. The error is ErrCorrupt.
//
// It loads the kernel's index in each call, so that a batch is as full as possible.
func (q *CompQueue) Avail() (int, error) {
	// Pairs with the release in queue_advance_producer of rxe_queue.h: the
	// entries before this index are complete.
	head := q.producer.Acquire()
	n := (head - q.tail) & q.mask
	// It can only have moved away from the consumer index. If it is closer now, it has moved
	// backwards, or past the end over unread entries.
	if head > q.mask || n < (q.head-q.tail)&q.mask {
		return 0, ErrCorrupt
	}
	q.head = head
	return int(n), nil
}

// Entry returns the i-th completion that was not released yet.
//
// Preconditions: 0 <= i < n for the n that Avail returned since the last Release.
func (q *CompQueue) Entry(i int) Completion {
	return Completion{wc: (*abi.WC)(q.elem(q.tail + uint32(i)))}
}

// Release returns the first n completions to the kernel, which may overwrite them at once.
//
// Preconditions: 0 <= n, and at most what Avail returned since the last Release.
func (q *CompQueue) Release(n int) {
	q.tail = (q.tail + uint32(n)) & q.mask
	// Pairs with the acquire in queue_get_consumer of rxe_queue.h: the entries
	// were read before the kernel sees this index.
	q.consumer.Release(q.tail)
}

// A Completion reads an entry of a CompQueue in place, until it is released. Each method loads its
// field once, so a result that the caller keeps cannot change.
//
// If Status is not 0, only WRID, Status, VendorErr and QPN are valid.
type Completion struct {
	wc *abi.WC
}

// A Record is a copy of a completion with the layout of the ring (struct ib_uverbs_wc).
type Record = abi.WC

// CopyTo copies the whole completion in a few loads; the other methods take one load each.
func (c Completion) CopyTo(r *Record) { *r = *c.wc }

// WRID returns the ID of the work request.
func (c Completion) WRID() uint64 { return c.wc.WRID }

// Status returns 0 for success or a value of enum ib_wc_status.
func (c Completion) Status() uint32 { return c.wc.Status }

// Opcode returns one of the WC opcodes, or a value that this package does not
// know.
func (c Completion) Opcode() uint32 { return c.wc.Opcode }

// Injected explains the VendorErr of an error that a software device has injected. The kernel's is always 0.
func Injected(vendorErr uint32) (text string, ok bool) {
	if vendorErr&1 == 0 {
		return "", false
	}
	queue := "send"
	if vendorErr&2 != 0 {
		queue = "recv"
	}
	if n := vendorErr >> 2; n != 0 { // the number of the work request, plus 1
		queue += fmt.Sprintf(":%d", n-1)
	}
	return "injected by the fault fail=" + queue + " of the software device", true
}

// VendorErr returns the driver's own error number.
func (c Completion) VendorErr() uint32 { return c.wc.VendorErr }

// ByteLen returns the number of bytes that were transferred.
func (c Completion) ByteLen() uint32 { return c.wc.ByteLen }

// Imm returns the immediate data in host order. It is valid with WCWithImm.
func (c Completion) Imm() uint32 { return c.wc.Ex.ImmData().Get() }

// InvalidatedRKey returns the rkey that the peer's request invalidated. It is
// valid with WCWithInvalidate.
func (c Completion) InvalidatedRKey() uint32 { return *c.wc.Ex.InvalidateRKey() }

// QPN returns the number of the queue pair that the work request was posted to.
func (c Completion) QPN() uint32 { return c.wc.QPNum }

// SrcQP returns the number of the sender's queue pair, for datagrams.
func (c Completion) SrcQP() uint32 { return c.wc.SrcQP }

// Flags returns the WC flags.
func (c Completion) Flags() uint32 { return c.wc.WCFlags }

// PKeyIndex returns the index of the partition key, for the GSI queue pair.
func (c Completion) PKeyIndex() uint16 { return c.wc.PKeyIndex }

// SLID returns the source LID, which is 0 on Ethernet.
func (c Completion) SLID() uint16 { return c.wc.SLID }

// SL returns the service level.
func (c Completion) SL() uint8 { return c.wc.SL }

// DLIDPathBits returns the path bits of the destination LID.
func (c Completion) DLIDPathBits() uint8 { return c.wc.DLIDPathBits }

// PortNum returns the port at which a message arrived.
func (c Completion) PortNum() uint8 { return c.wc.PortNum }
