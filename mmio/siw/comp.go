package siw

import (
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/siw/internal/abi"
)

// A CompQueue is the ring of a completion queue: an array of struct siw_cqe, followed by struct
// siw_cq_ctrl. One goroutine at a time may use it.
type CompQueue struct {
	ring
	tail   uint32 // position of the next element to read
	notify *mmio.Index
}

// CompRingSize returns the size in bytes of a completion ring of num elements.
func CompRingSize(num uint32) uint64 {
	return uint64(num)*uint64(unsafe.Sizeof(abi.SiwCQE{})) + uint64(unsafe.Sizeof(abi.SiwCQCtrl{}))
}

// NewCompQueue makes a CompQueue of a mapped ring of num elements. The error matches
// ErrMapping.
func NewCompQueue(mem []byte, num int) (*CompQueue, error) {
	const ctrl = unsafe.Sizeof(abi.SiwCQCtrl{})
	r, err := newRing(mem, "completion queue", num, unsafe.Sizeof(abi.SiwCQE{}), ctrl)
	if err != nil {
		return nil, err
	}
	at := uintptr(num)*unsafe.Sizeof(abi.SiwCQE{}) + unsafe.Offsetof(abi.SiwCQCtrl{}.Flags)
	notify, err := mmio.IndexAt(mem, at)
	if err != nil {
		return nil, err
	}
	return &CompQueue{ring: r, notify: notify}, nil
}

// Next returns the next completion, if there is one. It returns the same completion until Release.
func (q *CompQueue) Next() (Completion, bool) {
	// Pairs with the kernel's store of the flag, which is the last one to the element
	// (siw_sqe_complete, siw_rqe_complete).
	w := q.word(q.tail).Acquire()
	return Completion{(*abi.SiwCQE)(q.elem(q.tail)), w}, w&valid != 0
}

// Release returns the completion of the last Next to the kernel, which may overwrite it at once.
//
// Preconditions: Next has returned one since the last Release.
func (q *CompQueue) Release() {
	// The kernel looks at the flag before it writes to the element; what was read of it was read
	// before this.
	q.word(q.tail).Release(0)
	q.tail++
}

// Arm makes the kernel raise one event at the next completion. A completion that is in the ring
// already raises none.
//
// The kernel stores a completion and then looks at this word, with a full barrier between the two.
// This side arms first and then looks for a completion. So a caller that looks for a completion
// after Arm either finds it or gets the event.
func (q *CompQueue) Arm() {
	q.notify.Publish(abi.SIW_NOTIFY_SOLICITED | abi.SIW_NOTIFY_NEXT_COMPLETION)
}

// A Completion reads an entry of a CompQueue in place, until it is released. Each method loads its
// field once, or has it from the time when the entry was found, so a result that the caller keeps
// cannot change.
//
// If Status is not StatusSuccess, only WRID, Status and QPN are valid.
type Completion struct {
	cqe  *abi.SiwCQE
	word uint32
}

// WRID returns the ID of the work request.
func (c Completion) WRID() uint64 { return c.cqe.ID }

// Status returns one of the statuses, or a value that this package does not know.
func (c Completion) Status() uint16 { return uint16(c.word >> cqeStatBit) }

// Opcode returns one of the operations, or a value that this package does not know.
func (c Completion) Opcode() uint8 { return uint8(c.word >> cqeOpBit) }

// ByteLen returns the number of bytes that were transferred.
func (c Completion) ByteLen() uint32 { return c.cqe.Bytes }

// QPN returns the number of the queue pair that the work request was posted to.
func (c Completion) QPN() uint32 { return uint32(c.cqe.QPID) }
