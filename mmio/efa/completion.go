package efa

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
)

// A CompQueue is a completion queue: a number of rings (sub-CQs) with one doorbell. The kernel says which of
// the rings the completions of a QP's sends and receives go to. One goroutine at a time may use it.
type CompQueue struct {
	rings []compRing
	next  *compRing // the ring that is read next
	mask  uint32    // number of entries of a ring - 1
	log   uint32    // log2 of the number
	taken uint32    // entries of all rings that were taken
	told  uint32    // and that were released
	seq   uint32    // number of events, by which the device recognizes outdated requests
	bell  *uint32
}

// compRing is the state of one ring.
type compRing struct {
	base  unsafe.Pointer // does not keep the mapping alive
	next  *compRing
	taken uint32
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
	q := &CompQueue{rings: make([]compRing, rings), mask: uint32(depth - 1), log: uint32(bits.TrailingZeros(uint(depth)))}
	for i := range q.rings {
		q.rings[i].base, q.rings[i].next = unsafe.Pointer(&mem[i*depth*EntrySize]), &q.rings[(i+1)%rings]
	}
	q.next = &q.rings[0]
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
func (q *CompQueue) Cap() int { return int(q.mask) + 1 }

// Next takes the next completion, or returns false if there is none. It looks at the rings in turn. The entry
// may be read until Release, or until another request is posted to the queue whose request has completed.
func (q *CompQueue) Next() (c CQE, ok bool) {
	for range q.rings {
		r := q.next
		if r.next != r {
			q.next = r.next
		}
		c.p = unsafe.Add(r.base, uintptr(r.taken&q.mask)*EntrySize)
		// A load of 4 bytes that the compiler does not split and the race detector understands. The phase
		// bit, which the device writes last, is 1 in the first round.
		if (atomic.LoadUint32((*uint32)(c.p))>>24^r.taken>>(q.log&31))&1 == 0 {
			continue
		}
		// Pairs with the order in which the device writes an entry.
		mmio.FromDevice()
		c.word = atomic.LoadUint64((*uint64)(c.p))
		r.taken++
		q.taken++
		return c, true
	}
	return CQE{}, false
}

// Event counts an event that was delivered. The device ignores requests from before the event.
func (q *CompQueue) Event() { q.seq++ }

// A CQE is a completion. Its methods but Source have what they return from the time when it was
// taken.
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
