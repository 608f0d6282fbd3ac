package rxe

import "github.com/goverbs/goverbs/mmio/rxe/internal/abi"

// SendInfo describes a posted work request, for messages. It is read from memory that the kernel
// and the posting goroutine may write at the same time, so only messages may depend on it. The
// functions that read it are hidden from the race detector, which watches a ring in Go memory.
type SendInfo struct {
	Opcode     uint32    // the operation
	Length     uint32    // in bytes, of all data
	RemoteAddr uint64    // of RDMA and atomics
	RKey       uint32    // of RDMA and atomics; the new key of a window that is bound
	MWRKey     uint32    // the key that a window has before it is bound
	Bind       BindInfo  // of BindMW
	Invalid    uint32    // the key that LocalInv invalidates
	RemoteQPN  uint32    // of datagrams
	SGEs       []SGEInfo // local memory
}

// BindInfo describes what a window is bound to.
type BindInfo struct {
	Addr, Length uint64 // of the memory; Length is in bytes
	LKey         uint32 // key of the MR
	Access       uint32 // access rights of the window
}

// SGEInfo is a scatter/gather entry.
type SGEInfo struct {
	Addr   uint64 // first byte
	Length uint32 // in bytes
	LKey   uint32 // key of its MR
}

// Find returns the newest work request with the given ID. Requests that have completed are found
// until their place is used again. Find may be called while another goroutine posts. x may be nil.
func (q *SendQueue) Find(x *IDIndex, wrID uint64, datagram bool) (SendInfo, bool) {
	i, ok := x.find(&q.producer, wrID, q.readID)
	if !ok {
		return SendInfo{}, false
	}
	return q.info((*abi.RxeSendWQE)(q.elem(i)), datagram), true
}

// readID returns the ID of an element, and whether it was ever written.
//
//go:norace
func (q *SendQueue) readID(index uint32) (wrID uint64, used bool) {
	w := (*abi.RxeSendWQE)(q.elem(index))
	return w.WR.WRID, w.DMA.Length|w.WR.Opcode|w.WR.SendFlags != 0
}

// Has reports whether the ring still has a work request with the given ID. It may be called while
// another goroutine posts. x may be nil.
func (q *SendQueue) Has(x *IDIndex, wrID uint64) bool {
	_, ok := x.find(&q.producer, wrID, q.readID)
	return ok
}

// HasFailed reports whether the ring has a work request with the given ID for which the kernel has
// stored the given status. It may be called while another goroutine posts.
//
//go:norace
func (q *SendQueue) HasFailed(wrID uint64, status uint32) bool {
	for i := range q.mask + 1 {
		id, used := q.readID(i)
		if used && id == wrID && (*abi.RxeSendWQE)(q.elem(i)).Status == status {
			return true
		}
	}
	return false
}

// stateError is the state of a failed work request (wqe_state_error, rxe_verbs.h).
const stateError = 4

// FindFailed looks for the work request that moved the queue pair to the error state. The kernel
// stores a status in it, even if its completion only says that it was flushed. The argument flushed
// is the status of the requests after it. FindFailed may be called while another goroutine posts.
//
//go:norace
func (q *SendQueue) FindFailed(flushed uint32, datagram bool) (wrID uint64, status uint32, i SendInfo, found bool) {
	head := q.ring.producer.Acquire()
	for n := range q.mask + 1 { // the oldest first
		w := (*abi.RxeSendWQE)(q.elem(head + n))
		if status := w.Status; w.State == stateError && status != 0 && status != flushed {
			return w.WR.WRID, status, q.info(w, datagram), true
		}
	}
	return 0, 0, SendInfo{}, false
}

// info copies the fields of a SendInfo.
//
//go:norace
func (q *SendQueue) info(w *abi.RxeSendWQE, datagram bool) SendInfo {
	i := SendInfo{Opcode: w.WR.Opcode, Length: w.DMA.Length}
	switch i.Opcode {
	case Write, WriteImm, Read, AtomicWrite:
		r := w.WR.WR.RDMA()
		i.RemoteAddr, i.RKey = r.RemoteAddr, r.RKey
	case AtomicCAS, AtomicFAA:
		a := w.WR.WR.Atomic()
		i.RemoteAddr, i.RKey = a.RemoteAddr, a.RKey
	case Flush:
		f := w.WR.WR.Flush()
		i.RemoteAddr, i.RKey = f.RemoteAddr, f.RKey
	case BindMW:
		m := w.WR.WR.MW()
		i.RKey, i.MWRKey = m.RKey, m.MWRKey
		i.Bind = BindInfo{Addr: m.Addr, Length: m.Length, LKey: m.MRLKey, Access: m.Access}
	case LocalInv:
		i.Invalid = *w.WR.Ex.InvalidateRKey()
	case Send, SendImm:
		if datagram {
			i.RemoteQPN = w.WR.WR.UD().RemoteQPN
		}
	}
	if w.WR.SendFlags&Inline == 0 {
		i.SGEs = sgesOf(&w.DMA, q.maxSGE)
	}
	return i
}

// sgesOf copies the scatter/gather entries of a work request, of which there are at most a number.
//
//go:norace
func sgesOf(d *abi.RxeDMAInfo, most uint32) (all []SGEInfo) {
	if n := min(d.NumSGE, most); n > 0 {
		for _, e := range d.TailSGE(int(n)) {
			all = append(all, SGEInfo{Addr: e.Addr, Length: e.Length, LKey: e.LKey})
		}
	}
	return all
}
