package mmio

import (
	"fmt"
	"math"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// hugePageSize is what MapAnonymous asks for by name (MAP_HUGE_2MB), because
// the default huge page size of a machine may be a gigabyte.
const (
	hugePageShift = 21
	hugePageSize  = 1 << hugePageShift
)

// A Region is one memory mapping.
//
// Its methods may be called from several goroutines. The memory itself is not
// guarded: whoever uses the slice that Bytes returned, or a ring built on it,
// must have stopped before Close is called, as with any mapping.
type Region struct {
	mu  sync.Mutex
	mem []byte // the whole mapping; nil once closed
	n   int    // the bytes that were asked for, at most len(mem)
}

// Map maps size bytes of f, starting at offset, shared and for reading and
// writing. For the rings of a device, offset and size are what the kernel gave
// when it created the object; offset is a multiple of the page size.
//
// The error matches [os.ErrClosed] if f is closed, and the errno of mmap
// otherwise.
func Map(f *os.File, offset uint64, size int) (*Region, error) {
	if f == nil {
		return nil, fmt.Errorf("mmio: map: file: got nil: %w", os.ErrInvalid)
	}
	if size <= 0 {
		return nil, fmt.Errorf("mmio: map %s: size: got %d, must be positive: %w", f.Name(), size, unix.EINVAL)
	}
	if page := uint64(os.Getpagesize()); offset%page != 0 || offset > math.MaxInt64 {
		return nil, fmt.Errorf("mmio: map %s: offset: got %#x, must be a multiple of the page size %#x below 1<<63: %w",
			f.Name(), offset, page, unix.EINVAL)
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("mmio: map %s: %w", f.Name(), err)
	}
	// Control holds a reference to the descriptor: a concurrent Close can't
	// hand its number to another file while mmap looks at it.
	var mem []byte
	var mapErr error
	if err := raw.Control(func(fd uintptr) {
		mem, mapErr = unix.Mmap(int(fd), int64(offset), size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}); err != nil {
		// Control has an error of its own for a closed file; it is the only
		// reason for which it does not run the function.
		return nil, fmt.Errorf("mmio: map %s: %w", f.Name(), os.ErrClosed)
	}
	if mapErr != nil {
		return nil, fmt.Errorf("mmio: map %d bytes of %s at %#x: %w", size, f.Name(), offset, mapErr)
	}
	return &Region{mem: mem, n: size}, nil
}

// MapAnonymous maps size bytes of zeroed memory that starts on a page and lies
// outside the Go heap. With huge set it comes from the 2 MiB huge pages that the
// administrator set aside (MAP_HUGETLB), and uses them up in whole pages.
func MapAnonymous(size int, huge bool) (*Region, error) {
	if size <= 0 || size > math.MaxInt-hugePageSize {
		return nil, fmt.Errorf("mmio: anonymous memory: size: got %d, must be positive and below %d: %w",
			size, math.MaxInt-hugePageSize, unix.EINVAL)
	}
	flags, length := unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, size
	if huge {
		flags |= unix.MAP_HUGETLB | hugePageShift<<unix.MAP_HUGE_SHIFT
		// munmap wants whole huge pages, so the mapping has them too.
		length = (size + hugePageSize - 1) &^ (hugePageSize - 1)
	}
	mem, err := unix.Mmap(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil && huge {
		return nil, fmt.Errorf("mmio: %d bytes in %d huge pages of 2 MiB (see /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages): %w",
			size, length/hugePageSize, err)
	}
	if err != nil {
		return nil, fmt.Errorf("mmio: %d bytes of anonymous memory: %w", size, err)
	}
	return &Region{mem: mem, n: size}, nil
}

// Bytes returns the mapped bytes, as many as were asked for, or nil if the
// region is closed. The slice must not be used after Close.
func (r *Region) Bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem == nil {
		return nil
	}
	return r.mem[:r.n:r.n]
}

// Close unmaps the region. Closing it again does nothing.
func (r *Region) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem == nil {
		return nil
	}
	mem := r.mem
	r.mem = nil
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("mmio: unmap %d bytes: %w", len(mem), err)
	}
	return nil
}
