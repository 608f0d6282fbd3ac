package mlx5

import "unsafe"

// A Plain is the most common kind of work request: SEND, WRITE or READ, with or without an
// immediate, and with data in one piece. [SendQueue.Put] makes a WQE of it in one step.
type Plain struct {
	ID         uint64 // ID is the ID that the completion has.
	RemoteAddr uint64 // RemoteAddr is the address of the peer's memory, for WRITE and READ.
	RKey       uint32 // RKey is the key of the peer's memory.
	Imm        uint32 // Imm is the immediate in host order, for operations that have one.
	Op         Op     // Op is the operation.
	Flags      uint8  // Flags are flags of a work request.
	Inline     []byte // Inline is data to copy into the WQE; if it is empty, the data is in registered memory.
	Addr       uint64 // Addr is the address of the registered memory.
	Length     uint32 // Length is the number of bytes at Addr.
	LKey       uint32 // LKey is the key of the registered memory.
}

// A Peer is where a work request goes that names its peer itself.
type Peer struct {
	AV     *AV    // AV is the address.
	QPN    uint32 // QPN is the number of the peer's QP or DCT.
	Key    uint64 // Key is the Q_Key, or the access key of the DCT.
	Stream uint16 // Stream is the stream of a DCI.
}

// Put writes a work request, as Start, the methods for its data, and Finish do, and reports whether
// it did. If the request is not valid, Put does nothing; those methods return the error.
//
// Preconditions: those of Start; the queue's transport is Connected and to is nil, or it is Datagram or
// DC; Op is one that Plain has, and Inline is empty if it is Read.
func (q *SendQueue) Put(w *Plain, to *Peer) bool {
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
	// Everything before the data is in the first block, or an address fills that block.
	p, size := unsafe.Add(ctrl, ctrlSize), uint32(ctrlSize)
	if to != nil {
		*(*[avSize]byte)(p) = to.AV.b
		put32(p, avDQPN, avExtended|to.QPN&indexMask)
		if q.transport == DC {
			put64(p, avDCKey, to.Key)
			put16(ctrl, ctrlStream, to.Stream)
		} else {
			put32(p, avQKey, uint32(to.Key))
		}
		p, size = q.block(wqe+1), blockSize
	}
	if how.rdma {
		put64(p, 0, w.RemoteAddr)
		put64(p, 8, uint64(w.RKey)<<32)
		p = unsafe.Add(p, raddrSize)
		size += raddrSize
	}
	inline := uint32(len(w.Inline))
	switch {
	case inline > 0:
		put32(p, 0, inlineFlag|inline)
		p = unsafe.Add(p, inlineSize)
		size += inlineSize + inline
	case w.Length > 0: // 0 would be 2 GiB to the device
		put64(p, 0, uint64(w.Length&^inlineFlag)<<32|uint64(w.LKey))
		put64(p, 8, w.Addr)
		size += dataSize
	}
	// As in Finish.
	put64(ctrl, ctrlOpcode, uint64(wqe&0xffff)<<40|uint64(how.code)<<32|uint64(q.number|(size+octoSize-1)/octoSize))
	q.ids[wqe&q.mask].store(w.ID, q.head+q.begun, wqe, w.Op)
	q.begun++
	q.last = wqe
	q.next = wqe + (size+blockSize-1)/blockSize
	if inline > 0 { // last, so that nothing must be kept during the call
		q.copyIn(p, w.Inline)
	}
	return true
}

// copyIn copies b into the ring, continuing at its start when it reaches the end.
func (q *SendQueue) copyIn(to unsafe.Pointer, b []byte) {
	if left := int(q.bytes) + 1 - int(uintptr(to)-uintptr(q.ring)); left < len(b) {
		copy(unsafe.Slice((*byte)(to), left), b)
		b, to = b[left:], q.ring
	}
	copy(unsafe.Slice((*byte)(to), len(b)), b)
}
