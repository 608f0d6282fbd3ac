package siw

import (
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/siw/internal/abi"
)

// A CompQueue is the ring of a completion queue: an array of struct siw_cqe, and struct
// siw_cq_ctrl behind it. It is for one goroutine at a time.
type CompQueue struct {
	ring
	tail   uint32 // position of the next element to read
	notify *mmio.Index
}

// CompRingSize returns how many bytes a completion ring of num elements has.
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

// Next returns the next completion, or reports that there is none yet. It returns the same one
// until Release.
func (q *CompQueue) Next() (Completion, bool) {
	// Pairs with the kernel's store of the flag, which is the last one to the element
	// (siw_sqe_complete, siw_rqe_complete).
	w := q.word(q.tail).Acquire()
	return Completion{(*abi.SiwCQE)(q.elem(q.tail)), w}, w&valid != 0
}

// Release gives the completion that Next has returned back to the kernel, which may overwrite it
// at once.
//
// Preconditions: Next has returned one since the last Release.
func (q *CompQueue) Release() {
	// The kernel looks at the flag before it writes to the element; what was read of it was read
	// before this.
	q.word(q.tail).Release(0)
	q.tail++
}

// Arm has the kernel raise an event at the next completion, once. One that is there already
// raises none.
//
// The kernel stores a completion and looks at this word, with a full barrier between the two, and
// so does this side the other way round: who looks for a completion after Arm either finds it or
// gets the event.
func (q *CompQueue) Arm() {
	q.notify.Publish(abi.SIW_NOTIFY_SOLICITED | abi.SIW_NOTIFY_NEXT_COMPLETION)
}

// A Completion reads one entry of a CompQueue where it lies, until it is released. Each method
// loads its field once, or has it from when the entry was found, so a caller that keeps the
// result has a value that can't change.
//
// If Status is not StatusSuccess, only WRID, Status and QPN are valid.
type Completion struct {
	cqe  *abi.SiwCQE
	word uint32
}

// WRID returns the ID that the work request was posted with.
func (c Completion) WRID() uint64 { return c.cqe.ID }

// Status returns one of the statuses, or a value that this package does not know.
func (c Completion) Status() uint16 { return uint16(c.word >> cqeStatBit) }

// Opcode returns one of the operations, or a value that this package does not know.
func (c Completion) Opcode() uint8 { return uint8(c.word >> cqeOpBit) }

// ByteLen returns the number of bytes that were transferred.
func (c Completion) ByteLen() uint32 { return c.cqe.Bytes }

// QPN returns the number of the queue pair that the work request was posted to.
func (c Completion) QPN() uint32 { return uint32(c.cqe.QPID) }
