package efa

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
)

// Each doorbell is one function, with the steps numbered in the order in which the device must see them.
//
// Litmus, of a send:
//
//	program: copy request to the device;  FlushWC;  store to doorbell
//	device:  sees the doorbell, reads the request in its memory => the request is complete
//
// The ring is write-combining memory and the doorbell uncached memory. Without FlushWC the request may be in
// a buffer of the processor when the doorbell arrives, even on amd64. The device then executes what was there
// before.

// Doorbell returns the doorbell at offset bytes into a mapped page.
func Doorbell(page []byte, offset uint32) ([]byte, error) {
	if uint64(offset)+4 > uint64(len(page)) {
		return nil, fmt.Errorf("%w: doorbell: got offset %d, the page has %d bytes", ErrMapping, offset, len(page))
	}
	return page[offset:], nil
}

// register returns the register that a mapping begins with.
func register(mem []byte) (*uint32, error) {
	if len(mem) < 4 || uintptr(unsafe.Pointer(&mem[0]))%4 != 0 {
		return nil, fmt.Errorf("%w: doorbell: got %d bytes, must be at least 4, aligned to 4", ErrMapping, len(mem))
	}
	return (*uint32)(unsafe.Pointer(&mem[0])), nil
}

// Publish hands the first n requests to the device and makes the next one the first. It rings the doorbell
// more than once if there are more than the device accepts at a time, or around the end of the ring.
//
// Preconditions: 0 < n; Room(n) was true; all n were filled.
func (q *SendQueue) Publish(n int) {
	pos := q.head
	// Pairs with Acquire in At: the records of the requests are complete.
	q.publish(n)
	if n != 1 {
		q.hand(pos)
		return
	}
	at := q.offset(pos)
	// 1. Earlier stores, to memory and to the doorbell, come first (StartWC).
	// 2. The requests, in ascending order.
	// 3. They have left the write-combining buffers (FlushWC).
	// 4. The doorbell counts requests.
	mmio.CopyAndRing((*[narrow]byte)(unsafe.Add(q.device, at)), (*[narrow]byte)(unsafe.Add(q.ring, at)), int(q.width/narrow), q.bell, (pos+1)&0xffff)
}

// hand does for the requests from a position on what Publish does for one.
func (q *SendQueue) hand(pos uint32) {
	for pos != q.head {
		// What the device accepts at a time, up to the end of the ring.
		k := min(q.head-pos, q.batch, q.mask+1-pos&q.mask)
		at := q.offset(pos)
		pos += k
		mmio.CopyAndRing((*[narrow]byte)(unsafe.Add(q.device, at)), (*[narrow]byte)(unsafe.Add(q.ring, at)), int(uintptr(k)*q.width/narrow), q.bell, pos&0xffff)
	}
}

// Publish hands the first n receives to the device and makes the next one the first.
//
// Preconditions: 0 < n; Room(n) was true; all n were filled.
func (q *RecvQueue) Publish(n int) {
	q.publish(n)
	q.start = q.next
	// 1. The descriptors are complete before the doorbell says that they are there.
	mmio.ToDevice()
	// 2. The doorbell counts descriptors.
	mmio.Store32(q.bell, q.next&0xffff)
}

// Bits of a CQ's doorbell.
const (
	bellSeqShift = 29
	bellArm      = 1 << 31
)

// Release returns the completions that were taken to the device, which may overwrite them at once.
func (q *CompQueue) Release() { q.tell(0) }

// ReleaseOne is Release for a queue with one ring, with fewer instructions.
func (q *CompQueue) ReleaseOne() {
	if taken := q.turn.taken; taken != q.told && q.bell != nil {
		q.told = taken
		mmio.ToDevice() // as in tell
		mmio.Store32(q.bell, taken&0xffff|q.seq)
	}
}

// Arm requests an event for the next completion. If there is one already that was not released, the event
// comes at once. It does nothing if the queue has no doorbell.
func (q *CompQueue) Arm() { q.tell(bellArm) }

// tell releases completions, with more bits of the doorbell, if there is something to tell.
func (q *CompQueue) tell(more uint32) {
	taken := q.turn.taken
	for r := q.turn.next; r != q.turn; r = r.next {
		taken += r.taken
	}
	if taken == q.told && more == 0 || q.bell == nil {
		return
	}
	q.told = taken
	// 1. The entries were read before they are returned: their contents have been stored elsewhere, and a
	// store follows the load of its value.
	mmio.ToDevice()
	// 2. The device may overwrite what is before the counter.
	mmio.Store32(q.bell, taken&0xffff|q.seq|more)
}
