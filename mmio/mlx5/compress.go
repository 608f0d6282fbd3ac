package mlx5

import (
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
)

// Compression is how the completions of a CQ may be compressed. A device compresses completions that follow one
// another and differ in little: the first one is the title, and arrays behind it have the number of bytes of each.
// Together they have as many places in the ring as there are completions.
type Compression uint8

// Kinds of compression, by what the next completion of a receive belongs to.
const (
	NotCompressed     Compression = iota
	CompressedEntries             // the next entry of the queue
	CompressedStrides             // the next strides of the same entry
)

// Compress says that the device may compress completions. Call it before any other method. CQEs have 64 bytes.
func (q *CompQueue) Compress(c Compression) { q.mini = c }

// struct mlx5_mini_cqe8, and how many of them have place in a CQE.
const (
	miniSize    = 8
	miniCounter = 0 // be16: the index of the entry, of a send
	miniOp      = 2 // the opcode of a send
	miniCount   = 4 // be32: byte_cnt
	miniArray   = cqeSize / miniSize
)

// Unpack replaces compressed completions, if they are next, by those that they stand for, and returns what Look does.
func (q *CompQueue) Unpack() (CQE, LastWord) {
	if _, w := q.Look(); w.There() && w>>wordOwn&cqeMini == cqeMini {
		q.expand(q.index)
	}
	return q.Look()
}

// unpackAt does so for index i, where a completion is.
func (q *CompQueue) unpackAt(i uint32) {
	if q.mini != NotCompressed {
		mmio.FromDevice() // see Avail
		if get8(q.at(i), cqeOwn)&cqeMini == cqeMini {
			q.expand(i)
		}
	}
}

// expand replaces compressed completions, the title of which has index i, by those that they stand for, in the same
// places. It leaves them alone if the title is not valid; its Kind is then KindUnknown.
//
// Preconditions: the owner bit of the title was loaded, and a barrier came after that.
func (q *CompQueue) expand(i uint32) {
	title := *(*[cqeSize]byte)(q.at(i))
	t := unsafe.Pointer(&title)
	n, op := get32(t, cqeByteCount), get8(t, cqeOwn)>>4
	kind := cqeKinds[op]
	if q.mini == NotCompressed || q.stride != cqeSize || n < 2 || n > q.mask+1-(i-q.index) || kind != KindSend && kind != KindRecv {
		return
	}
	// The first array is in the place behind the title, the others in each eighth place.
	first := *(*[cqeSize]byte)(q.at(i + 1))
	mini := func(k uint32) unsafe.Pointer {
		if k < miniArray {
			return unsafe.Pointer(&first[k*miniSize])
		}
		return unsafe.Add(q.at(i+k&^(miniArray-1)), k%miniArray*miniSize)
	}
	// Indices of strides depend on the completions before.
	counter := get16(t, cqeCounter) + uint16(n)
	if q.mini == CompressedStrides {
		counter -= uint16(n)
		for k := range n {
			counter += StrideWord(get32(mini(k), miniCount)).Count()
		}
	}
	for k := n; k > 0; { // from the end, as the arrays are in the places of later ones
		k--
		m := mini(k)
		count, index, sop := get32(m, miniCount), get16(m, miniCounter), get8(m, miniOp)
		to := q.at(i + k)
		*(*[cqeSize]byte)(to) = title
		put32(to, cqeByteCount, count)
		switch {
		case kind == KindSend:
			counter = index
			put8(to, cqeOpQPN, sop)
		case q.mini == CompressedStrides:
			counter -= StrideWord(count).Count()
		default:
			counter--
		}
		put16(to, cqeCounter, counter)
		put8(to, cqeOwn, op<<4|byte((i+k)>>q.shift)&cqeOwnerMask)
	}
}
