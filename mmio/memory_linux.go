package mmio

import (
	"fmt"
	"math/bits"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// coverFlags are the flags for memory that nobody uses.
const coverFlags = unix.MAP_NORESERVE

// mapShared maps a file without telling Go's scheduler, as the runtime maps its own memory: mapping
// a ring takes less time than handing the processor over and getting it back.
func mapShared(fd uintptr, offset uint64, size int, writable bool) ([]byte, error) {
	addr, _, errno := syscall.RawSyscall6(syscall.SYS_MMAP, 0, uintptr(size), protection(writable), unix.MAP_SHARED, fd, uintptr(offset))
	if errno != 0 {
		return nil, errno
	}
	// The kernel chose an address outside the Go heap, so the garbage collector ignores the
	// pointer.
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), size), nil
}

// mapHuge maps memory of huge pages.
func mapHuge(length, pageSize int) ([]byte, error) {
	mem, err := mapAnonymous(length, unix.MAP_HUGETLB|bits.TrailingZeros(uint(pageSize))<<unix.MAP_HUGE_SHIFT)
	if err != nil {
		return nil, fmt.Errorf("%w (see /sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages)", err, pageSize>>10)
	}
	return mem, nil
}

// prefer makes the kernel take the pages of memory from a NUMA node.
func prefer(mem []byte, node int) error {
	const wordBits = 64
	var mask [maxNode/wordBits + 1]uint64
	mask[node/wordBits] = 1 << (node % wordBits)
	// The kernel subtracts one from the number of bits.
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(&mem[0])), uintptr(len(mem)),
		unix.MPOL_PREFERRED, uintptr(unsafe.Pointer(&mask[0])), maxNode+2, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// allocHeap returns the descriptor of a new dma-buf of a heap.
func allocHeap(path string, size int) (uintptr, error) {
	heap, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(heap)
	ask := struct { // struct dma_heap_allocation_data (linux/dma-heap.h)
		length  uint64
		fd      uint32
		fdFlags uint32
		flags   uint64
	}{length: uint64(size), fdFlags: unix.O_RDWR | unix.O_CLOEXEC}
	const alloc = 0xc0184800 // DMA_HEAP_IOCTL_ALLOC
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(heap), alloc, uintptr(unsafe.Pointer(&ask))); errno != 0 {
		return 0, errno
	}
	return uintptr(ask.fd), nil
}
