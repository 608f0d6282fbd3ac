package mlx5

import "unsafe"

// PutInline and PutSGE write a SEND, WRITE or READ, with or without an immediate and with data in one
// piece, in one step: the most common kinds of work requests. Their arguments are in registers.

// A Meta is the operation, the flags and the immediate of a work request in one argument, and the stream of a
// DCI.
type Meta uint64

// NewMeta makes a Meta. The immediate is in host order; only operations that have one use it.
func NewMeta(op Op, flags uint8, imm uint32) Meta {
	return Meta(imm)<<32 | Meta(flags)<<headFlags | Meta(op)
}

const (
	metaStreamShift = 8
	metaStream      = 0xffff << metaStreamShift
)

// WithStream returns the Meta with a stream.
func (m Meta) WithStream(stream uint16) Meta { return m | Meta(stream)<<metaStreamShift }

// head returns what the control segment says of the operation and the flags.
func (m Meta) head() uint32 { return heads[m%Meta(len(heads))] }

// imm returns the immediate, or 0 for an operation without one.
func (m Meta) imm(head uint32) uint32 { return uint32(m>>32) & uint32(int32(head)>>31) }

// ToQP writes the QP that the next work request goes to, before PutInline or PutSGE.
//
// Preconditions: those of Start; the queue's transport is Datagram.
func (q *SendQueue) ToQP(qpn, qkey uint32, av *AV) { putQP(q.block(q.next), qpn, qkey, av) }

// ToDCT writes the DCT that the next work request goes to, before PutInline or PutSGE.
//
// Preconditions: those of Start; the queue's transport is DC.
func (q *SendQueue) ToDCT(dctn uint32, key uint64, av *AV) { putDCT(q.block(q.next), dctn, key, av) }

// putQP and putDCT write the address of a peer behind a control segment.
func putQP(ctrl unsafe.Pointer, qpn, qkey uint32, av *AV) {
	p := unsafe.Add(ctrl, ctrlSize)
	*(*[avSize]byte)(p) = av.b
	put32(p, avQKey, qkey)
	put32(p, avDQPN, avExtended|qpn&indexMask)
}

func putDCT(ctrl unsafe.Pointer, dctn uint32, key uint64, av *AV) {
	p := unsafe.Add(ctrl, ctrlSize)
	*(*[avSize]byte)(p) = av.b
	put64(p, avDCKey, key)
	put32(p, avDQPN, avExtended|dctn&indexMask)
}

// putRDMA writes the address and key of the peer's memory.
func putRDMA(p unsafe.Pointer, addr uint64, rkey uint32) {
	put64(p, 0, addr)
	put64(p, 8, uint64(rkey)<<32)
}

// putData writes an entry of length bytes of registered memory. The device reads a length of 0 as 2 GiB.
func putData(p unsafe.Pointer, addr uint64, length, lkey uint32) {
	put64(p, 0, uint64(length&^inlineFlag)<<32|uint64(lkey))
	put64(p, 8, addr)
}

// PutInline writes a work request with b as its data, as Start, SetRDMA, AddInline and Finish do. It
// reports whether it did: it does nothing if the request is not valid, has no data, or does not end before
// the ring does. Those methods write what is valid, and return an error for the rest.
//
// Preconditions: those of Start; the queue's transport is Connected, or it is Datagram or DC and ToQP or ToDCT
// was called; the operation is a SEND or a WRITE. raddr and rkey are the address and key of the peer's memory,
// for a WRITE.
func (q *SendQueue) PutInline(id uint64, m Meta, raddr uint64, rkey uint32, b []byte) bool {
	head, wqe, n := m.head(), q.next, uintptr(len(b))
	at := uintptr(wqe&q.mask) * blockSize
	pos := uintptr(q.first) // where the data begins
	if head&headRDMA != 0 {
		pos += raddrSize
	}
	if n-1 >= uintptr(q.maxInline) || at+pos+inlineSize+n-1 > uintptr(q.bytes) {
		return false
	}
	ctrl := unsafe.Add(q.ring, at)
	if head&headRDMA != 0 {
		putRDMA(unsafe.Add(ctrl, pos-raddrSize), raddr, rkey)
	}
	to, from := unsafe.Add(ctrl, pos+inlineSize), unsafe.Pointer(unsafe.SliceData(b))
	put32(unsafe.Add(ctrl, pos), 0, inlineFlag|uint32(n))
	octos := uint32(pos+inlineSize+n+octoSize-1) / octoSize
	q.control(ctrl, head, uint32(m&metaStream), m.imm(head))
	q.end(ctrl, wqe, head, octos)
	q.record(id, at, wqe, head)
	// Last, when little else is in registers. Not copy, which takes longer to find out how to copy so few bytes. No
	// pointer is ever behind the data.
	for {
		if n < 64 {
			copyFew(to, from, n)
			return true
		}
		*(*[16]byte)(to) = *(*[16]byte)(from)
		*(*[16]byte)(unsafe.Add(to, 16)) = *(*[16]byte)(unsafe.Add(from, 16))
		*(*[16]byte)(unsafe.Add(to, 32)) = *(*[16]byte)(unsafe.Add(from, 32))
		*(*[16]byte)(unsafe.Add(to, 48)) = *(*[16]byte)(unsafe.Add(from, 48))
		if n -= 64; n == 0 {
			return true
		}
		to, from = unsafe.Add(to, 64), unsafe.Add(from, 64)
	}
}

// PutSGE is PutInline for data that is length bytes of registered memory at addr; if length is 0, there is
// no data. The operation may be a READ, too.
//
// Preconditions: those of PutInline.
func (q *SendQueue) PutSGE(id uint64, m Meta, raddr uint64, rkey uint32, addr uint64, length, lkey uint32) bool {
	head, wqe := m.head(), q.next
	at := uintptr(wqe&q.mask) * blockSize
	end := uintptr(q.first)
	if length > maxLength || q.maxSGE == 0 || at+end+raddrSize+dataSize-1 > uintptr(q.bytes) {
		return false
	}
	ctrl := unsafe.Add(q.ring, at)
	if head&headRDMA != 0 {
		putRDMA(unsafe.Add(ctrl, end), raddr, rkey)
		end += raddrSize
	}
	if length != 0 {
		putData(unsafe.Add(ctrl, end), addr, length, lkey)
		end += dataSize
	}
	q.control(ctrl, head, uint32(m&metaStream), m.imm(head))
	q.end(ctrl, wqe, head, uint32(end)/octoSize)
	q.record(id, at, wqe, head)
	return true
}

// copyFew copies n bytes between memory that does not overlap.
func copyFew(to, from unsafe.Pointer, n uintptr) {
	i := uintptr(0)
	for ; i+8 <= n; i += 8 {
		*(*[8]byte)(unsafe.Add(to, i)) = *(*[8]byte)(unsafe.Add(from, i))
	}
	for ; i < n; i++ {
		*(*byte)(unsafe.Add(to, i)) = *(*byte)(unsafe.Add(from, i))
	}
}

// copyIn copies b into the ring, continuing at its start when it reaches the end.
func (q *SendQueue) copyIn(to unsafe.Pointer, b []byte) {
	if left := int(q.bytes) + 1 - int(uintptr(to)-uintptr(q.ring)); left < len(b) {
		copy(unsafe.Slice((*byte)(to), left), b)
		b, to = b[left:], q.ring
	}
	copy(unsafe.Slice((*byte)(to), len(b)), b)
}
