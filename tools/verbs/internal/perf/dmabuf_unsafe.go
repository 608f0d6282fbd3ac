package perf

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// heaps is where the kernel has heaps that make dma-bufs.
const heaps = "/dev/dma_heap/"

// openDMABuf opens the dma-buf that a name stands for: a descriptor that this process was started with,
// as /proc/self/fd/3, which cannot be opened again; or a new one of so many bytes from a heap, as
// /dev/dma_heap/system.
func openDMABuf(name string, length int) (*os.File, error) {
	for _, dir := range []string{"/proc/self/fd/", "/dev/fd/"} {
		number, ok := strings.CutPrefix(name, dir)
		if fd, err := strconv.ParseUint(number, 10, 31); ok && err == nil {
			own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return nil, &os.PathError{Op: "open", Path: name, Err: err}
			}
			return os.NewFile(uintptr(own), name), nil
		}
	}
	if !strings.HasPrefix(name, heaps) {
		return os.Open(name)
	}
	heap, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer heap.Close()
	ask := struct { // struct dma_heap_allocation_data (linux/dma-heap.h)
		length  uint64
		fd      uint32
		fdFlags uint32
		flags   uint64
	}{length: uint64(length), fdFlags: unix.O_RDWR | unix.O_CLOEXEC}
	const alloc = 0xc0184800 // DMA_HEAP_IOCTL_ALLOC
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, heap.Fd(), alloc, uintptr(unsafe.Pointer(&ask))); errno != 0 {
		return nil, fmt.Errorf("%d bytes of %s: %w", length, name, errno)
	}
	return os.NewFile(uintptr(ask.fd), name), nil
}
