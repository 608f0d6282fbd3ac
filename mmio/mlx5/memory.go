package mlx5

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
)

// WordSize is the size and alignment of accesses to device memory, in bytes.
const WordSize = 4

// memoryChunk is how much is copied at once, in bytes. The goroutine cannot be preempted meanwhile,
// and a load from a device takes a microsecond.
const memoryChunk = 1 << 10

// A Memory is mapped device memory (MEMIC). It is safe for concurrent use as long as the accessed
// bytes do not overlap.
type Memory struct {
	mem []byte
}

// MemoryMap returns the mmap offset of device memory and how many bytes to map, from the answer of
// ALLOC_DM. The kernel accepts only this size.
func MemoryMap(page uint16, length, pageSize int) (offset uint64, size int) {
	return mapOffset(mapDeviceMemory, int(page), pageSize), (length + pageSize - 1) &^ (pageSize - 1)
}

// NewMemory makes a Memory of length bytes of a mapping. start is the answer of ALLOC_DM.
func NewMemory(mapped []byte, start uint64, length int) (*Memory, error) {
	if start%WordSize != 0 || start > uint64(len(mapped)) || length < 0 || uint64(length) > uint64(len(mapped))-start {
		return nil, fmt.Errorf("mlx5: %d bytes of device memory at %#x of a mapping of %d: %w", length, start, len(mapped), ErrLayout)
	}
	return &Memory{mem: mapped[start:][:length]}, nil
}

// Store copies b to device memory at offset at.
//
// Preconditions: at and len(b) are multiples of WordSize and within the memory.
func (m *Memory) Store(at int, b []byte) {
	for dst := m.mem[at:][:len(b)]; len(b) > 0; {
		n := min(len(b), memoryChunk)
		mmio.StoreWords((*uint32)(unsafe.Pointer(&dst[0])), &b[0], n/WordSize)
		dst, b = dst[n:], b[n:]
	}
}

// Load copies device memory at offset at to b.
//
// Preconditions: those of Store.
func (m *Memory) Load(at int, b []byte) {
	for src := m.mem[at:][:len(b)]; len(b) > 0; {
		n := min(len(b), memoryChunk)
		mmio.LoadWords(&b[0], (*uint32)(unsafe.Pointer(&src[0])), n/WordSize)
		src, b = src[n:], b[n:]
	}
}
