package efa

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
)

// A CompQueue is a completion queue: a number of rings (sub-CQs) with one doorbell. The kernel says which of
// the rings the completions of a QP's sends and receives go to. One goroutine at a time may use it.
type CompQueue struct {
	rings []CompRing
	turn  *CompRing // the ring whose turn it is
	told  uint32    // entries of all rings that were released
	seq   uint32    // number of events, in its place in the doorbell, by which the device recognizes outdated requests
	bell  *uint32
}

// A CompRing is one ring of a completion queue.
type CompRing struct {
	base  unsafe.Pointer // does not keep the mapping alive
	taken uint32         // entries that were taken
	mask  uint32         // number of entries - 1
	phase uint32         // the phase bit of an entry that is not there yet, in its place
	next  *CompRing
}

// NewCompQueue makes a completion queue in zeroed memory of the kernel, which may be read-only: rings with
// depth entries of EntrySize bytes each, one behind the other. The doorbell is as in [NewSendQueue], or nil
// if there is none.
func NewCompQueue(mem, doorbell []byte, rings, depth int) (*CompQueue, error) {
	if depth < 1 || depth > 1<<16 || depth&(depth-1) != 0 || rings < 1 || rings > maxSubCQs {
		return nil, fmt.Errorf("%w: completion queue with %d rings of %d entries", ErrSize, rings, depth)
	}
	if need := rings * depth * EntrySize; len(mem) < need || uintptr(unsafe.Pointer(&mem[0]))%8 != 0 {
		return nil, fmt.Errorf("%w: completion queue: got %d bytes, %d rings of %d entries need %d, aligned to 8", ErrMapping, len(mem), rings, depth, need)
	}
	q := &CompQueue{rings: make([]CompRing, rings)}
	for i := range q.rings {
		q.rings[i] = CompRing{base: unsafe.Pointer(&mem[i*depth*EntrySize]), mask: uint32(depth - 1), next: &q.rings[(i+1)%rings]}
	}
	q.turn = &q.rings[0]
	if doorbell != nil {
		var err error
		if q.bell, err = register(doorbell); err != nil {
			return nil, err
		}
	}
	return q, nil
}

// maxSubCQs bounds the number of rings.
const maxSubCQs = 64

// Cap returns the maximum number of completions in one ring of the queue.
func (q *CompQueue) Cap() int { return int(q.turn.mask) + 1 }

// Rings returns the number of rings.
func (q *CompQueue) Rings() int { return len(q.rings) }

// Ring returns the ring whose turn it is.
func (q *CompQueue) Ring() *CompRing { return q.turn }

// Turn goes on to the next ring.
func (q *CompQueue) Turn() { q.turn = q.turn.next }

// Look returns the next completion of the ring, or returns false if there is none. The entry may be read until
// Release, or until another request is posted to the queue whose request has completed.
func (r *CompRing) Look() (c CQE, ok bool) {
	c.p = unsafe.Add(r.base, uintptr(r.taken&r.mask)*EntrySize)
	// A load of 4 bytes that the compiler does not split and the race detector understands. The phase
	// bit, which the device writes last, is 1 in the first round.
	if (atomic.LoadUint32((*uint32)(c.p))^r.phase)&cqePhase == 0 {
		return c, false
	}
	// Pairs with the order in which the device writes an entry.
	mmio.FromDevice()
	c.word = atomic.LoadUint64((*uint64)(c.p))
	return c, true
}

// Advance takes the completion that Look has returned.
func (r *CompRing) Advance() {
	if r.taken++; r.taken&r.mask == 0 {
		r.phase ^= cqePhase
	}
}

// Event counts an event that was delivered. The device ignores requests from before the event.
func (q *CompQueue) Event() { q.seq = (q.seq + 1<<bellSeqShift) & (3 << bellSeqShift) }

// A CQE is a completion. Its methods but Source have what they return from the time of Look.
type CQE struct {
	p    unsafe.Pointer
	word uint64
}

// Kind is the kind of a completion.
type Kind uint8

// Kinds of completions.
const (
	KindUnknown Kind = 0 // not the completion of a request
	KindSend    Kind = 1
	KindRecv    Kind = 2
)

// Bits of the flags, in the first word.
const (
	cqeStatus      = 16
	cqePhase       = 1 << 24
	cqeKind        = 25
	cqeImm         = 27
	cqeOp          = 28
	cqeUnsolicited = 31
	cqeQPN         = 32
	cqeLength      = 48

	cqeAH    = 8  // number of the sender's AH, of its QP, and the immediate, of a receive
	cqeUpper = 16 // the upper half of the length, of a WRITE with immediate
)

// Kind returns the kind of the completion.
func (c CQE) Kind() Kind {
	if k := Kind(c.word >> cqeKind & 3); k <= KindRecv {
		return k
	}
	return KindUnknown
}

// An Outcome is the kind of a completion, its status, and whether a receive is unsolicited.
type Outcome uint32

// Outcomes of requests that have succeeded. There are many others.
const (
	Sent     = Outcome(KindSend) << cqeKind
	Received = Outcome(KindRecv) << cqeKind
)

// Outcome returns the outcome.
func (c CQE) Outcome() Outcome {
	return Outcome(c.word) & (0xff<<cqeStatus | 3<<cqeKind | 1<<cqeUnsolicited)
}

// ReqID returns the ID of the request, for Complete.
func (c CQE) ReqID() uint16 { return uint16(c.word) }

// Status returns one of the statuses, or a value that this package does not know.
func (c CQE) Status() uint8 { return uint8(c.word >> cqeStatus) }

// QPN returns the number of the local QP.
func (c CQE) QPN() uint16 { return uint16(c.word >> cqeQPN) }

// Unsolicited reports whether a WRITE with immediate came to a QP that needs no receive for it. The
// completion then has no request ID.
func (c CQE) Unsolicited() bool { return c.word>>cqeUnsolicited&1 != 0 }

// IsWrite reports whether the completion of a receive is of a WRITE with immediate.
func (c CQE) IsWrite() bool { return c.word>>cqeOp&7 == codeWrite }

// HasImm reports whether the completion of a receive has an immediate.
func (c CQE) HasImm() bool { return c.word>>cqeImm&1 != 0 }

// A Source says where a message came from, and what came with it.
type Source struct {
	Length uint32 // bytes received or, by a WRITE, written
	Imm    uint32 // immediate, in host order, if HasImm
	QPN    uint16 // number of the sender's QP
	AH     uint16 // number of the address handle for the sender in the QP's PD, or NoAH
}

// Source returns the part that only successful receives have.
func (c CQE) Source() Source {
	w := atomic.LoadUint64((*uint64)(unsafe.Add(c.p, cqeAH)))
	s := Source{Length: uint32(c.word >> cqeLength), Imm: uint32(w >> 32), QPN: uint16(w >> 16), AH: uint16(w)}
	if c.IsWrite() {
		s.Length |= uint32(*(*uint16)(unsafe.Add(c.p, cqeUpper))) << 16
	}
	return s
}
