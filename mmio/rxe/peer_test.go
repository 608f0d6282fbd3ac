package rxe

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/goverbs/goverbs/test/testenv"
)

// Offsets and sizes as the C header rdma_user_rxe.h (and ib_user_verbs.h, for
// ib_uverbs_wc) has them, typed from there and on purpose not taken from the
// generated package, which these tests check.
const (
	hdrLog2ElemSize = 0   // rxe_queue_buf.log2_elem_size
	hdrIndexMask    = 4   // rxe_queue_buf.index_mask
	hdrProducer     = 128 // rxe_queue_buf.producer_index
	hdrConsumer     = 256 // rxe_queue_buf.consumer_index
	hdrSize         = 384 // rxe_queue_buf.data

	sendSize = 208 // sizeof(struct rxe_send_wqe)
	recvSize = 40  // sizeof(struct rxe_recv_wqe)
	wcSize   = 48  // sizeof(struct ib_uverbs_wc)
)

// A peer is the kernel's side of a ring. It keeps its own index, as rxe does,
// and knows the memory as bytes only.
type peer struct {
	mem   []byte
	shift uint32
	mask  uint32
	index uint32 // consumer of a send or receive ring, producer of a completion ring
}

// alloc returns n bytes of the Go heap, aligned to 8, so that the race detector
// watches them.
func alloc(n int) []byte {
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), n)
}

// newPeer makes a ring of 1<<log2Elems elements of 1<<shift bytes. Every byte
// that is not part of the header is 0xee, as if left by somebody else.
func newPeer(shift, log2Elems uint32) *peer {
	p := &peer{shift: shift, mask: 1<<log2Elems - 1}
	p.mem = alloc(hdrSize + 1<<(shift+log2Elems))
	for i := hdrSize; i < len(p.mem); i++ {
		p.mem[i] = 0xee
	}
	binary.NativeEndian.PutUint32(p.mem[hdrLog2ElemSize:], shift)
	binary.NativeEndian.PutUint32(p.mem[hdrIndexMask:], p.mask)
	return p
}

// word is a 32-bit word of the memory, for atomic access.
func (p *peer) word(offset int) *uint32 { return (*uint32)(unsafe.Pointer(&p.mem[offset])) }

func (p *peer) producer() uint32     { return atomic.LoadUint32(p.word(hdrProducer)) }
func (p *peer) consumer() uint32     { return atomic.LoadUint32(p.word(hdrConsumer)) }
func (p *peer) setProducer(v uint32) { atomic.StoreUint32(p.word(hdrProducer), v) }
func (p *peer) setConsumer(v uint32) { atomic.StoreUint32(p.word(hdrConsumer), v) }

// elem is the element at an index.
func (p *peer) elem(index uint32) []byte {
	at := hdrSize + int(index&p.mask)<<p.shift
	return p.mem[at : at+1<<p.shift]
}

// startAt moves an empty ring's indices, as after index entries.
func (p *peer) startAt(index uint32) {
	p.index = index
	p.setProducer(index)
	p.setConsumer(index)
}

// take consumes one entry of a send or receive ring and returns a copy of it,
// or nil if there is none.
func (p *peer) take() []byte {
	if p.producer() == p.index {
		return nil
	}
	e := append([]byte(nil), p.elem(p.index)...)
	p.index = (p.index + 1) & p.mask
	p.setConsumer(p.index)
	return e
}

// put produces one completion and says whether there was room for it.
func (p *peer) put(fields ...field) bool {
	if (p.index+1)&p.mask == p.consumer()&p.mask {
		return false
	}
	write(p.elem(p.index), fields)
	p.index = (p.index + 1) & p.mask
	p.setProducer(p.index)
	return true
}

// A field is bytes at an offset of an element, under the name that C has for it.
type field struct {
	name   string
	offset int
	value  any // uint8, uint16, uint32, uint64, be32 or []byte
}

type be32 uint32

// write puts fields into an element, in the host's byte order.
func write(e []byte, fields []field) {
	for _, f := range fields {
		switch v := f.value.(type) {
		case uint8:
			e[f.offset] = v
		case uint16:
			binary.NativeEndian.PutUint16(e[f.offset:], v)
		case uint32:
			binary.NativeEndian.PutUint32(e[f.offset:], v)
		case uint64:
			binary.NativeEndian.PutUint64(e[f.offset:], v)
		case be32:
			binary.BigEndian.PutUint32(e[f.offset:], uint32(v))
		case []byte:
			copy(e[f.offset:], v)
		default:
			panic("field " + f.name + " has a type that write does not know")
		}
	}
}

// element returns what an element should be: zero in its first size bytes but
// for the fields, and untouched behind them and behind what tail fields cover.
func element(shift uint32, size int, fields []field) []byte {
	e := make([]byte, 1<<shift)
	for i := size; i < len(e); i++ {
		e[i] = 0xee
	}
	write(e, fields)
	return e
}

// must returns v, or ends the test.
func must[T any](tb testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		tb.Helper()
		testenv.Must(tb, err)
		return v
	}
}
