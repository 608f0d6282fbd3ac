package mlx5

import (
	"math/bits"
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
)

// Each doorbell is one function, with the steps numbered in the order in which the device
// must see them.
//
// Litmus, of a send:
//
//	program: write WQE;  ToDevice;  write record;  StartWC;  store to register
//	device:  sees the register, reads the record, reads the WQE => both are complete
//
// Without ToDevice, on arm64 the device may see the record before the WQE. If it is still busy with
// the queue and reads the record on its own, it then executes garbage. Without StartWC the store to
// write-combining memory may overtake the store to the record, even on amd64. The device then finds
// no work, and no other doorbell follows.

// Publish hands the WQEs that were finished since Begin to the device and rings the doorbell. There
// must be at least one.
func (q *SendQueue) Publish() {
	n, last, next, r := q.filled-q.head, q.last, q.next, q.reg
	q.head = q.filled
	q.start, q.saved = next, q.fence
	// Pairs with Acquire in Done: the records of the work requests are complete. A
	// completion by itself orders nothing between two goroutines.
	q.published.Release(q.head)
	// 1. The WQEs are complete before the record says that they are there.
	mmio.ToDevice()
	// 2. The record counts blocks, not work requests.
	q.rec.set(recSend, next&0xffff)
	// Queues that share a register take turns: their stores must not be interleaved, and the
	// two halves are used alternately.
	if r.shared {
		r.mu.Lock()
	}
	// 3. The record is there before the register is written. Pairs with the device's read of
	// the record when it sees the register. StoreWC and CopyWC begin with that (StartWC).
	reg, wqe := unsafe.Add(r.base, r.half), q.block(last)
	blocks, left := next-last, q.mask+1-last&q.mask // left before the ring's end
	first := *(*uint64)(wqe)
	// 4. A small WQE goes along with the doorbell (BlueFlame), which saves the device a read.
	// A larger one, one of the control segment alone, or one of several, is announced by its first 8 bytes.
	// 5. The data leaves the write-combining buffer at once, and before anything is written to
	// the other half: StoreWC and CopyWC end with FlushWC.
	switch {
	case n != 1 || uintptr(blocks)*blockSize > r.halfSize || first>>(8*ctrlSizeByte)&ctrlSizeMask == 1:
		mmio.StoreWC((*uint64)(reg), first)
	case blocks <= left:
		mmio.CopyWC((*[blockSize]byte)(reg), (*[blockSize]byte)(wqe), int(blocks))
	default:
		mmio.StartWC()
		mmio.Copy64((*[blockSize]byte)(reg), (*[blockSize]byte)(wqe), int(left))
		mmio.Copy64((*[blockSize]byte)(unsafe.Add(reg, left*blockSize)), (*[blockSize]byte)(q.ring), int(blocks-left))
		mmio.FlushWC()
	}
	// 6. The other half is next, because the device may still use this one. Several queues may
	// use a register without halves without a lock, so its fields are not changed.
	if r.halfSize != 0 {
		r.half ^= r.halfSize
	}
	if r.shared {
		r.mu.Unlock()
	}
}

// ringRecv tells the device that receives were posted. There is no register for them: the device
// reads the record when a message arrives.
func ringRecv(rec Record, count uint32) {
	// 1. The entries are complete before the record says that they are there. Pairs with the
	// device's read of the record, which comes before that of the entry.
	mmio.ToDevice()
	// 2. The record counts entries.
	rec.set(recRecv, count&0xffff)
}

// ringArm requests an event for the next completion. Both the record and the register get word.
func (q *CompQueue) ringArm(word uint32) {
	// 1. The record has the request: a busy device reads it there.
	q.rec.set(recArm, word)
	// 2. The record is there before the register is written (StartWC).
	// 3. The register gets the same and the number of the CQ, in one store.
	// 4. It is on its way before the caller polls the queue again (FlushWC).
	mmio.StoreWC(q.doorbell, bits.ReverseBytes64(uint64(word)<<32|uint64(q.number)))
}

// ringIndex tells the device how many completions were read.
func (q *CompQueue) ringIndex() {
	// 1. The entries were read before they are returned: their contents have been stored
	// elsewhere, and a store follows the load of its value.
	mmio.ToDevice()
	// 2. The device may overwrite what is before the index.
	q.rec.set(recIndex, q.index&indexMask)
}
