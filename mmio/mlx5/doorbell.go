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
// Without ToDevice arm64 may show the record before the WQE, and a device that looks at the
// record on its own, since it is still busy with the queue, executes garbage. Without
// StartWC the store to write-combining memory may pass that of the record, even on amd64;
// the device then finds nothing to do and is never told again.

// Publish hands the WQEs that were finished since Begin to the device, at least one, and rings the
// doorbell.
func (q *SendQueue) Publish() {
	n := q.begun
	q.head += n
	q.begun, q.start, q.saved = 0, q.next, q.fence
	// Pairs with Acquire in Done: what was noted of the work requests is there. A completion
	// by itself orders nothing between two goroutines.
	q.shown.Release(q.head)
	r := q.reg
	// 1. The WQEs are complete before the record says that they are there.
	mmio.ToDevice()
	// 2. The record counts blocks, not work requests.
	q.rec.set(recSend, q.next&0xffff)
	// A register that several queues share is theirs in turn: what is written must not
	// mix, and the two halves are used alternately.
	if r.shared {
		r.mu.Lock()
	}
	// 3. The record is there before the register is written. Pairs with the device's read of
	// the record when it sees the register. StoreWC and CopyWC begin with that (StartWC).
	reg, wqe := unsafe.Add(r.base, r.half), q.block(q.last)
	blocks, left := q.next-q.last, q.mask+1-q.last&q.mask // left before the ring's end
	// 4. A small WQE goes along with the doorbell (BlueFlame), which saves the device a read.
	// A larger one, or one of several, is announced by its first 8 bytes.
	size := uintptr(get8(wqe, ctrlSizeByte)&ctrlSizeMask) * octoSize
	// 5. What was written leaves the write-combining buffer now, and not some time, and
	// before anything else is written to the other half: StoreWC and CopyWC end with that (FlushWC).
	switch {
	case n != 1 || size <= octoSize || size > r.halfSize:
		mmio.StoreWC((*uint64)(reg), *(*uint64)(wqe))
	case blocks <= left:
		mmio.CopyWC((*[blockSize]byte)(reg), (*[blockSize]byte)(wqe), int(blocks))
	default:
		mmio.StartWC()
		mmio.Copy64((*[blockSize]byte)(reg), (*[blockSize]byte)(wqe), int(left))
		mmio.Copy64((*[blockSize]byte)(unsafe.Add(reg, left*blockSize)), (*[blockSize]byte)(q.ring), int(blocks-left))
		mmio.FlushWC()
	}
	// 6. The other half is next: the device may still be at this one. A register without halves
	// may be in use by several queues without a lock, so nothing of it is changed.
	if r.halfSize != 0 {
		r.half ^= r.halfSize
	}
	if r.shared {
		r.mu.Unlock()
	}
}

// ringRecv tells the device that receives were posted. There is no register for that: the
// device looks at the record when a message comes.
func ringRecv(rec Record, count uint32) {
	// 1. The entries are complete before the record says that they are there. Pairs with the
	// device's read of the record, which comes before that of the entry.
	mmio.ToDevice()
	// 2. The record counts entries.
	rec.set(recRecv, count&0xffff)
}

// ringArm asks the device for an event when the next completion comes. word is what the
// record and the register both get.
func (q *CompQueue) ringArm(word uint32) {
	// 1. The record has the request before the register is written: the device reads it
	// there if it was busy.
	q.rec.set(recArm, word)
	// 2. The record is there before the register is written (StartWC).
	// 3. The register gets the same and the number of the CQ, in one store.
	// 4. It is on its way before the caller looks at the queue once more (FlushWC).
	mmio.StoreWC(q.doorbell, bits.ReverseBytes64(uint64(word)<<32|uint64(q.number)))
}

// ringIndex tells the device how far completions were read.
func (q *CompQueue) ringIndex() {
	// 1. The entries were read before they are given back: what was made of them has been
	// stored, and that comes after the load.
	mmio.ToDevice()
	// 2. The device may overwrite what is before the index.
	q.rec.set(recIndex, q.index&indexMask)
}
