package siw

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/goverbs/goverbs/test/testenv"
)

// Offsets, sizes and values as the C header rdma/siw-abi.h has them, typed from there and on
// purpose not taken from the generated package, which these tests check.
const (
	sqeSize, rqeSize, cqeSize, ctrlSize = 120, 112, 32, 8

	elemFlags  = 8  // siw_sqe.flags, siw_rqe.flags (16 bits), siw_cqe.flags (8 bits)
	elemSGEs   = 10 // siw_sqe.num_sge, siw_rqe.num_sge
	sqeOpcode  = 11 // siw_sqe.opcode
	sqeRKey    = 12 // siw_sqe.rkey
	sqeRaddr   = 16 // siw_sqe.raddr
	sqeSGE     = 24 // siw_sqe.sge
	rqeSGE     = 16 // siw_rqe.sge
	cqeOpcode  = 9  // siw_cqe.opcode
	cqeStatus  = 10 // siw_cqe.status
	cqeBytes   = 12 // siw_cqe.bytes
	cqeQPID    = 24 // siw_cqe.qp_id
	sgeSize    = 16 // sizeof(struct siw_sge): laddr, length at 8, lkey at 12
	flagValid  = 1  // SIW_WQE_VALID
	flagInline = 2  // SIW_WQE_INLINE
)

// A peer is the kernel's side of a ring: it goes around by a counter of its own, as siw does,
// and knows the memory as bytes only.
type peer struct {
	mem  []byte
	size int // of an element
	num  uint32
	at   uint32 // the next element to take or to fill
	idle bool   // the kernel has nothing to do in a send ring, and waits for a doorbell
}

// alloc returns n bytes of the Go heap, aligned to 8, so that the race detector watches them.
func alloc(n int) []byte {
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), n)
}

// newPeer makes a ring of num elements, whose flags are clear and whose other bytes are 0xee, as
// if left by somebody else.
func newPeer(size int, num uint32, extra int) *peer {
	p := &peer{size: size, num: num, idle: true}
	p.mem = alloc(size*int(num) + extra)
	for i := range num {
		e := p.elem(i)
		for j := range e {
			e[j] = 0xee
		}
		binary.LittleEndian.PutUint32(e[elemFlags:], 0)
	}
	return p
}

func (p *peer) elem(at uint32) []byte {
	i := int(at%p.num) * p.size
	return p.mem[i : i+p.size : i+p.size]
}

// word is the word that has an element's flags.
func (p *peer) word(at uint32) *uint32 { return (*uint32)(unsafe.Pointer(&p.elem(at)[elemFlags])) }

// ctrl is the word behind a completion ring that arms it.
func (p *peer) ctrl() unsafe.Pointer { return unsafe.Pointer(&p.mem[int(p.num)*p.size]) }

// clear clears an element's flags, of 16 bits, and leaves what is beside them.
func (p *peer) clear(at uint32) {
	w := p.word(at)
	atomic.StoreUint32(w, atomic.LoadUint32(w)&^0xffff)
}

// take consumes one element of a send or receive ring and returns a copy of it as it was, or nil
// if there is none.
func (p *peer) take() []byte {
	if atomic.LoadUint32(p.word(p.at))&flagValid == 0 {
		p.idle = true
		return nil
	}
	e := append([]byte(nil), p.elem(p.at)...)
	p.clear(p.at)
	p.at++
	return e
}

// ring is the doorbell.
func (p *peer) ring(needed bool) {
	if needed {
		p.idle = false
	}
}

// put completes something, and says whether there was room for it.
func (p *peer) put(id uint64, op uint8, status uint16, bytes uint32, qpn uint64) bool {
	e := p.elem(p.at)
	if atomic.LoadUint32(p.word(p.at))&0xff != 0 {
		return false
	}
	binary.LittleEndian.PutUint64(e, id)
	binary.LittleEndian.PutUint32(e[cqeBytes:], bytes)
	binary.LittleEndian.PutUint64(e[cqeQPID:], qpn)
	atomic.StoreUint32(p.word(p.at), flagValid|uint32(op)<<8|uint32(status)<<16)
	p.at++
	return true
}

// must returns v, or ends the test.
func must[T any](tb testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		tb.Helper()
		testenv.Must(tb, err)
		return v
	}
}

func newSend(tb testing.TB, num uint32) (*peer, *SendQueue) {
	p := newPeer(sqeSize, num, 0)
	return p, must[*SendQueue](tb)(NewSendQueue(p.mem, int(num), MaxSGE))
}

func newRecv(tb testing.TB, num uint32) (*peer, *RecvQueue) {
	p := newPeer(rqeSize, num, 0)
	return p, must[*RecvQueue](tb)(NewRecvQueue(p.mem, int(num), MaxSGE))
}

func newComp(tb testing.TB, num uint32) (*peer, *CompQueue) {
	p := newPeer(cqeSize, num, ctrlSize)
	return p, must[*CompQueue](tb)(NewCompQueue(p.mem, int(num)))
}
