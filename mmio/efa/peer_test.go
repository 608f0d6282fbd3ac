//go:build amd64 || arm64

package efa

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/goverbs/goverbs/test/testenv"
)

var le = binary.LittleEndian

// alloc returns n bytes of the Go heap, aligned to 64, so that the race detector watches them. They are 0xee,
// as if left by somebody else.
func alloc(n int) []byte {
	b := make([]byte, n+64)
	for i := range b {
		b[i] = 0xee
	}
	return b[-int(uintptr(unsafe.Pointer(&b[0])))&63:][:n:n]
}

// A peer is the device's side of the queues of a QP and of their CQ. It knows the memory as bytes only.
type peer struct {
	llq, rq, cq                  []byte
	sendBell, recvBell, compBell []byte
	size                         SendSize
	recv                         RecvSize
	sent, received               uint32 // requests and descriptors that were taken
	rings, depth                 int    // of the CQ
	written                      []uint32
}

// rig is both sides.
type rig struct {
	*peer
	sq *SendQueue
	rq *RecvQueue
	cq *CompQueue
}

// must returns v, or ends the test.
func must[T any](tb testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		tb.Helper()
		testenv.Must(tb, err)
		return v
	}
}

// newRig makes the queues of a QP of generation 1.
func newRig(tb testing.TB, size SendSize, recv RecvSize, rings, depth int) *rig {
	p := &peer{
		llq: alloc(size.Bytes()), rq: alloc(recv.Bytes()), cq: make([]byte, rings*depth*EntrySize),
		sendBell: alloc(4), recvBell: alloc(4), compBell: alloc(4), size: size, recv: recv, rings: rings, depth: depth, written: make([]uint32, rings),
	}
	return &rig{
		p, must[*SendQueue](tb)(NewSendQueue(p.llq, p.sendBell, size, 1)), must[*RecvQueue](tb)(NewRecvQueue(p.rq, p.recvBell, recv, 1)),
		must[*CompQueue](tb)(NewCompQueue(p.cq, p.compBell, rings, depth)),
	}
}

// plain is a rig with n sends and n receives.
func plain(tb testing.TB, n int) *rig {
	return newRig(tb, SendSize{Depth: n, Width: 64, MaxSGE: 2, MaxInline: 32}, RecvSize{MaxWR: n, MaxSGE: 1, Descriptors: n}, 1, 2*n)
}

// requests returns the requests that the doorbell has announced since the last time.
func (p *peer) requests() [][]byte { return p.announced(uint16(le.Uint32(p.sendBell))) }

// announced returns the requests up to a counter.
func (p *peer) announced(counter uint16) (all [][]byte) {
	for uint16(p.sent) != counter {
		at := int(p.sent) % p.size.Depth * p.size.Width
		all = append(all, append([]byte(nil), p.llq[at:at+p.size.Width]...))
		p.sent++
	}
	return all
}

// descriptors returns the descriptors that the doorbell has announced since the last time.
func (p *peer) descriptors() (all [][]byte) {
	for uint16(p.received) != uint16(le.Uint32(p.recvBell)) {
		at := int(p.received) % p.recv.Descriptors * 16
		all = append(all, append([]byte(nil), p.rq[at:at+16]...))
		p.received++
	}
	return all
}

// next takes the next completion of the rings in turn.
func next(q *CompQueue) (c CQE, ok bool) {
	for range q.Rings() {
		r := q.Ring()
		q.Turn()
		if c, ok = r.Look(); ok {
			r.Advance()
			break
		}
	}
	return c, ok
}

// Bits of the flags of an entry.
const (
	entrySend        = 1 << 1
	entryRecv        = 2 << 1
	entryImm         = 1 << 3
	entryWrite       = 2 << 4
	entryUnsolicited = 1 << 7
)

// complete writes an entry to a ring, which has no phase yet. The phase comes last.
func (p *peer) complete(ring int, entry [32]byte) {
	n := p.written[ring]
	p.written[ring]++
	at := p.cq[(ring*p.depth+int(n)%p.depth)*32:][:32]
	copy(at[4:], entry[4:])
	phase := byte(1 ^ int(n)/p.depth&1)
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&at[0])), le.Uint32(entry[:])|uint32(phase)<<24)
}

// entry makes an entry without a phase.
func entry(reqID uint16, status, flags uint8, qpn uint16) (e [32]byte) {
	le.PutUint16(e[:], reqID)
	e[2], e[3] = status, flags
	le.PutUint16(e[4:], qpn)
	return e
}

// idOf returns the ID of a request or, if it has 16 bytes, a descriptor.
func idOf(b []byte) uint16 {
	if len(b) == 16 {
		return le.Uint16(b[8:])
	}
	return le.Uint16(b)
}

// send posts a SEND of one entry.
func (r *rig) send(tb testing.TB, id uint64) {
	tb.Helper()
	if !r.sq.Room(1) {
		tb.Fatal("no room for a send")
	}
	testenv.Must(tb, r.sq.put(0, id, Send, 0, Peer{}, 0, 0, id<<12, uint32(id)+1, 9))
	r.sq.Publish(1)
}

// receive posts a receive of one entry.
func (r *rig) receive(tb testing.TB, id uint64) {
	tb.Helper()
	if !r.rq.Room(1) {
		tb.Fatal("no room for a receive")
	}
	r.rq.Begin()
	testenv.Must(tb, r.rq.Put(0, id, id<<12, 64, 9))
	r.rq.Publish(1)
}

// put is Put with an argument for each field.
func (q *SendQueue) put(i int, id uint64, op Op, imm uint32, to Peer, raddr uint64, rkey uint32, addr uint64, length, lkey uint32) error {
	if !q.Put(i, id, NewMeta(op, rkey), to.WithImm(imm), raddr, addr, NewLocal(length, lkey)) {
		return ErrKey
	}
	return nil
}
