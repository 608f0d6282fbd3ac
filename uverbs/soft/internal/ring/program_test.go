package ring

import (
	"encoding/binary"
	"testing"

	"github.com/goverbs/goverbs/mmio"
)

// Offsets and sizes as the C headers rdma_user_rxe.h and ib_user_verbs.h have them, typed from there
// and on purpose not taken from the generated packages, which these tests check.
const (
	hdrLog2ElemSize = 0   // rxe_queue_buf.log2_elem_size
	hdrIndexMask    = 4   // rxe_queue_buf.index_mask
	hdrProducer     = 128 // rxe_queue_buf.producer_index
	hdrConsumer     = 256 // rxe_queue_buf.consumer_index
	hdrSize         = 384 // rxe_queue_buf.data
)

// newRing returns a ring.
func newRing(t testing.TB, count, elemSize int) *Ring {
	t.Helper()
	r, errno := New(count, elemSize)
	if errno != 0 {
		t.Fatal(errno)
	}
	return r
}

// A program is the other side of a ring, which knows the memory as bytes only.
type program struct {
	mem                []byte
	producer, consumer *mmio.Index
}

func newProgram(t testing.TB, mem []byte) *program {
	t.Helper()
	p := &program{mem: mem}
	var err error
	if p.producer, err = mmio.IndexAt(mem, hdrProducer); err != nil {
		t.Fatal(err)
	}
	if p.consumer, err = mmio.IndexAt(mem, hdrConsumer); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *program) mask() uint32 { return binary.NativeEndian.Uint32(p.mem[hdrIndexMask:]) }

// elem returns the element of an index.
func (p *program) elem(i uint32) []byte {
	size := 1 << binary.NativeEndian.Uint32(p.mem[hdrLog2ElemSize:])
	at := hdrSize + int(i&p.mask())*size
	return p.mem[at : at+size]
}

// A field is a value at an offset of an element.
type field struct {
	offset int
	value  any // uint8, uint16, uint32, uint64 or []byte
}

// write puts fields into an element, in the host's byte order.
func write(e []byte, fields ...field) {
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
		case []byte:
			copy(e[f.offset:], v)
		default:
			panic("a value of a type that write does not know")
		}
	}
}
