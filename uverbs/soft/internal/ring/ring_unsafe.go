package ring

import (
	"unsafe"

	kernel "github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/soft/internal/abi"
)

// Sizes and offsets of the C structs, in bytes.
const (
	headerSize     = int(unsafe.Sizeof(abi.RxeQueueBuf{}))
	producerOffset = unsafe.Offsetof(abi.RxeQueueBuf{}.ProducerIndex)
	consumerOffset = unsafe.Offsetof(abi.RxeQueueBuf{}.ConsumerIndex)
	doorbellOffset = unsafe.Offsetof(abi.RxeQueueBuf{}.IndexMask) + unsafe.Sizeof(abi.RxeQueueBuf{}.IndexMask)
	sendSize       = int(unsafe.Sizeof(abi.RxeSendWQE{}))
	recvSize       = int(unsafe.Sizeof(abi.RxeRecvWQE{}))
	sgeSize        = int(unsafe.Sizeof(abi.RxeSGE{}))
	wcSize         = int(unsafe.Sizeof(kernel.WC{}))
)

// address returns the address of the first byte.
func address(b []byte) int { return int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// header returns the header of a ring.
//
// Preconditions: mem is aligned to 8 bytes and has headerSize bytes.
func header(mem []byte) *abi.RxeQueueBuf { return at[abi.RxeQueueBuf](mem, headerSize) }

// sendAt returns an element of a send queue. The scatter/gather entries or the inline data lie behind it.
func sendAt(elem []byte) *abi.RxeSendWQE { return at[abi.RxeSendWQE](elem, sendSize) }

// recvAt returns an element of a receive queue. The scatter/gather entries lie behind it.
func recvAt(elem []byte) *abi.RxeRecvWQE { return at[abi.RxeRecvWQE](elem, recvSize) }

// completionAt returns an element of a completion queue.
func completionAt(elem []byte) *kernel.WC { return at[kernel.WC](elem, wcSize) }

// at returns the struct of the given size at the start of b. It panics if b is too short.
//
// Preconditions: b is aligned as T, which has no pointers.
func at[T any](b []byte, size int) *T { return (*T)(unsafe.Pointer(&b[:size][0])) }

// encode returns a copy of the bytes of v.
//
// Preconditions: T has no pointers and no padding.
func encode[T any](v *T) []byte {
	return append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))...)
}
