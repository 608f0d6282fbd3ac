package mlx5

import "unsafe"

// A Plain is a work request of RC or UC as most are: SEND, WRITE or READ, with an immediate or
// not, and data in one piece. Put makes a WQE of it in one go.
type Plain struct {
	ID         uint64 // ID is told with the completion.
	RemoteAddr uint64 // RemoteAddr is the peer's memory, of WRITE and READ.
	RKey       uint32 // RKey is its key.
	Imm        uint32 // Imm is the immediate, in host order, of the operations that have one.
	Op         Op     // Op is one of those.
	Flags      uint8  // Flags are some of the flags.
	Inline     []byte // Inline is data that is copied; if there is none, the next three say where it is.
	Addr       uint64 // Addr is registered memory.
	Length     uint32 // Length is in bytes.
	LKey       uint32 // LKey is the memory's key.
}

// Put writes a work request, as Start, the methods for its data, and Finish do. It reports whether
// it did. If something is wrong with the request it does nothing, and those methods say what is
// wrong.
//
// Preconditions: those of Start; the queue's transport is Connected; Op is one that Plain has, and
// Inline is empty if it is Read.
func (q *SendQueue) Put(w *Plain) bool {
	if uint(len(w.Inline)) > uint(q.maxInline) || w.Length > maxLength || q.maxSGE == 0 {
		return false
	}
	wqe, how := q.next, &shapes[w.Op%numOps]
	ctrl := q.block(wqe)
	bits := flagBits[w.Flags%numFlags]
	if q.fence != 0 {
		bits = fenced(bits, q.fence)
		q.fence = 0
	}
	put64(ctrl, ctrlFlags, uint64(bits)<<32|uint64(w.Imm&how.imm))
	// What comes before the data is in the first block.
	size := uint32(ctrlSize)
	if how.rdma {
		put64(ctrl, ctrlSize, w.RemoteAddr)
		put64(ctrl, ctrlSize+8, uint64(w.RKey)<<32)
		size = ctrlSize + raddrSize
	}
	p := unsafe.Add(ctrl, size)
	switch {
	case len(w.Inline) > 0:
		size += inlineSize + uint32(len(w.Inline))
		put32(p, 0, inlineFlag|uint32(len(w.Inline)))
		q.copyIn(unsafe.Add(p, inlineSize), w.Inline)
	case w.Length > 0: // 0 would be 2 GiB to the device
		put64(p, 0, uint64(w.Length&^inlineFlag)<<32|uint64(w.LKey))
		put64(p, 8, w.Addr)
		size += dataSize
	}
	// As in Finish.
	put64(ctrl, ctrlOpcode, uint64(wqe&0xffff)<<40|uint64(how.code)<<32|uint64(q.number|(size+octoSize-1)/octoSize))
	q.ids[wqe&q.mask].note(w.ID, q.head+q.begun, wqe, w.Op)
	q.begun++
	q.last = wqe
	q.next = wqe + (size+blockSize-1)/blockSize
	return true
}

// copyIn copies to a place in the ring, behind whose end there is its start.
func (q *SendQueue) copyIn(to unsafe.Pointer, b []byte) {
	if left := int(q.bytes) + 1 - int(uintptr(to)-uintptr(q.ring)); left < len(b) {
		copy(unsafe.Slice((*byte)(to), left), b)
		b, to = b[left:], q.ring
	}
	copy(unsafe.Slice((*byte)(to), len(b)), b)
}
