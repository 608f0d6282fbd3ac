package mlx5

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
)

// A CompQueue is the ring of a completion queue. One goroutine at a time may use it.
type CompQueue struct {
	ring         unsafe.Pointer // the 64 bytes of CQE 0 that have the completion
	stride       uintptr        // 64 or 128
	mask, number uint32
	shift        uint32 // log2 of the number of CQEs
	turn         uint32 // by how many bits the round in index is turned to get to the owner bit of a LastWord
	index        uint32 // next CQE to read; not reduced modulo the ring size
	rec          Record
	doorbell     *uint64
	mini         Compression
	seq          uint32 // number of events so far, by which the device recognizes outdated requests
}

// NewCompQueue makes the ring of a CQ in mem, with n CQEs of size bytes, and gives all of them to
// the device. Call SetNumber before any other method.
func NewCompQueue(mem []byte, n, size int, rec Record) (*CompQueue, error) {
	if n < 2 || n&(n-1) != 0 || n > maxCQEs || size != 64 && size != 128 || len(mem) < n*size {
		return nil, fmt.Errorf("mlx5: completion queue of %d entries of %d bytes in %d bytes: %w", n, size, len(mem), ErrSize)
	}
	// The second half of a CQE of 128 bytes has the layout of a CQE of 64 bytes.
	q := &CompQueue{ring: unsafe.Pointer(&mem[size-cqeSize]), stride: uintptr(size), mask: uint32(n - 1), shift: uint32(log2(n)), rec: rec}
	q.turn = (wordOwn - q.shift) & 31
	for i := range uint32(n) {
		put8(q.at(i), cqeOwn, cqeInitialOwn)
	}
	return q, nil
}

// SetNumber sets the number of the CQ and the UAR page with its doorbell.
func (q *CompQueue) SetNumber(number uint32, uar []byte) error {
	if len(uar) < uarSize {
		return fmt.Errorf("mlx5: UAR page of %d bytes: %w", len(uar), ErrLayout)
	}
	q.number, q.doorbell = number&indexMask, (*uint64)(unsafe.Pointer(&uar[uarCQDoorbell]))
	return nil
}

// Cap returns the maximum number of completions in the queue.
func (q *CompQueue) Cap() int { return int(q.mask) }

func (q *CompQueue) at(i uint32) unsafe.Pointer {
	return unsafe.Add(q.ring, uintptr(i&q.mask)*q.stride)
}

// ready reports whether the device has written a CQE in this round.
func (q *CompQueue) ready(i uint32) bool {
	// A load of 4 bytes that the compiler does not split and the race detector understands. The
	// device writes the owner bit of a CQE last.
	own := atomic.LoadUint32((*uint32)(unsafe.Add(q.at(i), cqeLastWord))) >> 24
	return (own^i>>(q.shift&31))&cqeOwnerMask == 0 && own < cqeInvalid<<4
}

// Avail returns the number of completions in the queue, up to most.
func (q *CompQueue) Avail(most int) int {
	n := 0
	most = min(most, int(q.mask)+1)
	for n < most && q.ready(q.index+uint32(n)) {
		q.unpackAt(q.index + uint32(n))
		n++
	}
	// Pairs with the order in which the device writes a CQE: its owner bit last. One
	// barrier is enough for all whose bits were read before it.
	mmio.FromDevice()
	return n
}

// Look returns the next completion without taking it, and its last word. It is valid only if the word says so.
func (q *CompQueue) Look() (c CQE, w LastWord) {
	c.p = q.at(q.index)
	w = LastWord(atomic.LoadUint32((*uint32)(unsafe.Add(c.p, cqeLastWord)))) // see ready
	mmio.FromDevice()                                                        // see Avail
	return c, w ^ LastWord(bits.RotateLeft32(q.index, int(q.turn)))&(cqeOwnerMask<<wordOwn)
}

// Skip takes the completion that Look has returned. The device may overwrite it after Release, which need not
// count it.
func (q *CompQueue) Skip() { q.index++ }

// Next takes the next completion, or returns false if there is none. It is Unpack and Skip.
func (q *CompQueue) Next() (c CQE, ok bool) {
	c, w := q.Unpack()
	if !w.There() {
		return c, false
	}
	q.index++
	return c, true
}

// Entry returns the i-th completion that was not released yet.
//
// Preconditions: 0 <= i < n for the n that Avail returned since the last Release.
func (q *CompQueue) Entry(i int) CQE { return CQE{q.at(q.index + uint32(i))} }

// Release returns the first n completions to the device, which may overwrite them at once.
func (q *CompQueue) Release(n int) {
	q.index += uint32(n)
	q.ringIndex()
}

// Arm requests an event for the next completion or, if solicited is set, for the next one that is
// solicited or has failed. If there is one already that was not released, the event comes at once.
func (q *CompQueue) Arm(solicited bool) {
	cmd := uint32(armAny)
	if solicited {
		cmd = armSolicited
	}
	q.ringArm(q.seq&3<<armSeqShift | cmd | q.index&indexMask)
}

// Event counts an event that was delivered. The device ignores requests from before the event.
func (q *CompQueue) Event() { q.seq++ }

// A Successor replaces a CompQueue when the CQ is resized.
type Successor struct{ *CompQueue }

// Succeed makes the ring to pass to the kernel when the CQ is resized. Until Switch the old ring
// stays in use: completions may be read, events counted and the queue armed.
func (q *CompQueue) Succeed(mem []byte, n int) (Successor, error) {
	s, err := NewCompQueue(mem, n, int(q.stride), q.rec)
	if err != nil {
		return Successor{}, err
	}
	s.number, s.doorbell, s.mini = q.number, q.doorbell, q.mini
	return Successor{s}, nil
}

// Switch copies the unread completions to the new ring after the kernel has changed rings. The
// device marks the end of the old ring with a special CQE and continues in the new one at the next
// index. The error is ErrCorrupt if there is no such CQE.
func (q *CompQueue) Switch(s Successor) (*CompQueue, error) {
	// Events and polls may have changed both values since Succeed made the new ring.
	s.seq, s.index = q.seq, q.index
	for i := q.index; i-q.index <= q.mask; i++ {
		if !q.ready(i) {
			break
		}
		mmio.FromDevice()
		q.unpackAt(i)
		from := q.at(i)
		if get8(from, cqeOwn)>>4 == cqeResize {
			s.index++ // the special CQE has an index, which is free again
			s.ringIndex()
			return s.CompQueue, nil
		}
		if i-q.index >= s.mask { // more than the new ring holds: the kernel has refused that
			break
		}
		s.copyCQE(i+1, from, q.stride)
	}
	return nil, ErrCorrupt
}

// copyCQE copies a CQE to index i, as if the device had written it there.
func (q *CompQueue) copyCQE(i uint32, from unsafe.Pointer, stride uintptr) {
	to := q.at(i)
	whole := func(p unsafe.Pointer) []byte {
		return unsafe.Slice((*byte)(unsafe.Add(p, int(cqeSize)-int(stride))), stride)
	}
	copy(whole(to), whole(from))
	put8(to, cqeOwn, get8(from, cqeOwn)&^cqeOwnerMask|byte(i>>q.shift)&cqeOwnerMask)
}

// Sweep removes the completions for which drop returns true, because their queue is being
// destroyed. It keeps the others in order. It also keeps CQEs that complete no work request, such
// as the one that Switch looks for.
func (q *CompQueue) Sweep(drop func(CQE) bool) {
	end := q.index
	for end-q.index <= q.mask && q.ready(end) {
		q.unpackAt(end)
		end++
	}
	mmio.FromDevice()
	dropped := uint32(0)
	for i := end; i != q.index; {
		i--
		switch e := (CQE{q.at(i)}); {
		case e.Kind() != KindUnknown && drop(e):
			dropped++
		case dropped > 0:
			q.copyCQE(i+dropped, q.at(i), q.stride)
		}
	}
	if dropped > 0 {
		q.Release(int(dropped))
	}
}
