package mlx5

import (
	"encoding/binary"

	"github.com/goverbs/goverbs/mmio/mlx5/internal/abi"
)

// Strides divide the memory of each receive of a WQ into pieces of one size. A message begins with a stride, and
// takes as many as it needs, so that one receive is for many messages. The zero value means no strides.
type Strides struct {
	LogBytes int // LogBytes is the binary logarithm of a stride's size in bytes.
	LogCount int // LogCount is the binary logarithm of the number of strides of a receive.
}

// StrideLimits are the least and the largest strides of a device.
type StrideLimits struct {
	Min Strides // Min has the least values.
	Max Strides // Max has the largest ones.
}

// DecodeStrides returns the limits of strides, from the driver's part of QUERY_DEVICE. They are 0 if the device or
// the kernel does not support strides.
func DecodeStrides(b []byte) (l StrideLimits) {
	if len(b) < QueryDeviceRespSize {
		return l
	}
	var r abi.StridingRQCaps
	copy(bytesOf(&r), b[abi.QUERY_DEVICE_STRIDING_RQ:])
	l.Min = Strides{int(r.MinSingleStrideLogNumOfBytes), int(r.MinSingleWQELogNumOfStrides)}
	l.Max = Strides{int(r.MaxSingleStrideLogNumOfBytes), int(r.MaxSingleWQELogNumOfStrides)}
	return l
}

// DecodeCompression reports whether completions can be compressed, from the driver's part of QUERY_DEVICE.
func DecodeCompression(b []byte) bool {
	return len(b) >= QueryDeviceRespSize && binary.LittleEndian.Uint32(b[abi.QUERY_DEVICE_CQE_COMP+4:])&abi.MLX5_IB_CQE_RES_FORMAT_CSUM != 0
}

// stridedEntry is the binary logarithm of the size of an entry of a queue with strides: struct
// mlx5_wqe_srq_next_seg, which is not used, and an SGE.
const stridedEntry = 5

// SizeWQ returns the size of a WQ for maxWR work requests, each of maxSGE entries or, with strides, of one.
func (c *Context) SizeWQ(maxWR, maxSGE int, s Strides) (RecvSize, error) {
	if s == (Strides{}) {
		return c.SizeRecv(maxWR, maxSGE)
	}
	if maxWR < 1 || maxWR > c.MaxRecvWR {
		return RecvSize{}, sizeErr("MaxRecvWR", maxWR, c.MaxRecvWR)
	}
	return RecvSize{Entries: max(pow2(maxWR), blockSize>>stridedEntry), Shift: stridedEntry, MaxSGE: 1, Strides: s}, nil
}

// A StrideWord is what the completion of a receive with strides has in the place of a number of bytes.
type StrideWord uint32

// Length returns the number of bytes of the message.
func (w StrideWord) Length() uint32 { return uint32(w) & 0xffff }

// Count returns the number of strides that were used.
func (w StrideWord) Count() uint16 { return uint16(w>>16) & 0x7fff }

// Filler reports whether there is no message: the device does not use the strides.
func (w StrideWord) Filler() bool { return w>>31 != 0 }

// Strides returns which strides of the receive were used. Counter returns the index of the first one.
func (c CQE) Strides() StrideWord { return StrideWord(get32(c.p, cqeByteCount)) }

// Oldest returns the index of the oldest entry that has not completed, and the ID of its receive. It is for a queue
// with strides, whose completions do not complete an entry each.
func (q *RecvQueue) Oldest() (index uint16, id uint64, ok bool) {
	tail := q.tail.Acquire()
	if q.published.Acquire() == tail { // pairs with Release in Publish
		return 0, 0, false
	}
	return uint16(tail), q.ids[tail&q.mask], true
}
