package mmio

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"sync"
	"syscall"
)

// hugePageSize is the page size that MapAnonymous requests explicitly (MAP_HUGE_2MB), because the
// default huge page size of a machine may be a gigabyte.
const hugePageSize = 2 << 20

// A Region is one memory mapping, or memory that something else frees: see [GoMemory] and [Borrow].
//
// Its methods are safe for concurrent use. The memory itself is not protected: all use of the slice
// that Bytes returned, or of a ring built on it, must end before Close is called.
type Region struct {
	mu  sync.Mutex
	mem []byte // the whole mapping; nil once closed
	n   int    // the requested number of bytes, at most len(mem)

	borrowed bool // Close and Retire leave the memory alone
	owner    any  // what frees the memory once it is garbage collected, if it is borrowed or was retired with another; the dma-buf of MapHeap; else nil
}

// Map maps size bytes of f, starting at offset, shared and for reading and writing. For the rings
// of a device, the kernel returns offset and size when it creates the object; offset is a multiple
// of the page size.
//
// The error matches [os.ErrClosed] if f is closed, and the errno of mmap otherwise.
func Map(f *os.File, offset uint64, size int) (r *Region, err error) {
	if f == nil {
		return nil, fmt.Errorf("mmio: map: file: got nil: %w", os.ErrInvalid)
	}
	// Control holds a reference to the descriptor: while mmap uses it, a concurrent Close
	// cannot free its number for another file.
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("mmio: map %s: %w", f.Name(), err)
	}
	if raw.Control(func(fd uintptr) { r, err = MapDescriptor(fd, f.Name(), offset, size, true) }) != nil {
		// Control fails without running the function only if the file is closed.
		return nil, fmt.Errorf("mmio: map %s: %w", f.Name(), os.ErrClosed)
	}
	return r, err
}

// MapDescriptor is [Map] for the descriptor of a file that the caller keeps open meanwhile. The name is for
// errors. Unless writable is set, the memory is read-only: storing to it crashes the program.
func MapDescriptor(fd uintptr, name string, offset uint64, size int, writable bool) (*Region, error) {
	if size <= 0 {
		return nil, fmt.Errorf("mmio: map %s: size: got %d, must be positive: %w", name, size, syscall.EINVAL)
	}
	if page := uint64(os.Getpagesize()); offset%page != 0 || offset > math.MaxInt64 {
		return nil, fmt.Errorf("mmio: map %s: offset: got %#x, must be a multiple of the page size %#x below 1<<63: %w",
			name, offset, page, syscall.EINVAL)
	}
	mem, err := mapShared(fd, offset, size, writable)
	if err != nil {
		return nil, fmt.Errorf("mmio: map %d bytes of %s at %#x: %w", size, name, offset, err)
	}
	return &Region{mem: mem, n: size}, nil
}

// MapAnonymous maps size bytes of zeroed, page-aligned memory outside the Go heap. With huge set it
// uses the 2 MiB huge pages that the administrator has reserved (MAP_HUGETLB), in whole pages.
func MapAnonymous(size int, huge bool) (*Region, error) {
	if huge {
		return MapHuge(size, hugePageSize)
	}
	if size <= 0 || size > math.MaxInt-hugePageSize {
		return nil, fmt.Errorf("mmio: anonymous memory: size: got %d, must be positive and below %d: %w",
			size, math.MaxInt-hugePageSize, syscall.EINVAL)
	}
	mem, err := mapPrivate(size)
	if err != nil {
		return nil, fmt.Errorf("mmio: %d bytes of anonymous memory: %w", size, err)
	}
	return &Region{mem: mem, n: size}, nil
}

// MapHuge is [MapAnonymous] with huge pages of the given size in bytes. The error matches EINVAL if
// the machine has no pages of this size, and ENOMEM if too few are free. On systems other than Linux
// it matches [errors.ErrUnsupported].
func MapHuge(size, pageSize int) (*Region, error) {
	if pageSize <= 0 || pageSize&(pageSize-1) != 0 {
		return nil, fmt.Errorf("mmio: huge pages: page size: got %d, must be a power of two: %w", pageSize, syscall.EINVAL)
	}
	if size <= 0 || size > math.MaxInt-pageSize {
		return nil, fmt.Errorf("mmio: huge pages: size: got %d, must be positive and at most %d: %w", size, math.MaxInt-pageSize, syscall.EINVAL)
	}
	// munmap requires whole huge pages, so the mapping has whole pages.
	length := (size + pageSize - 1) &^ (pageSize - 1)
	mem, err := mapHuge(length, pageSize)
	if err != nil {
		return nil, fmt.Errorf("mmio: %d huge pages of %d KiB: %w", length/pageSize, pageSize>>10, err)
	}
	return &Region{mem: mem, n: size}, nil
}

// GoMemory returns a region that is mem, for a ring that both sides access from Go. The race
// detector watches such memory. Close and Retire only end the region: the memory stays what it is,
// and the garbage collector frees it once neither side refers to it.
func GoMemory(mem []byte) *Region { return Borrow(mem, nil) }

// Borrow returns a region that is mem, for a ring that both sides access from Go and that is too large
// for the Go heap. The region keeps owner reachable, whose cleanup (see [runtime.AddCleanup]) frees the
// memory. Close and Retire only end the region. The race detector does not watch memory outside the Go heap.
func Borrow(mem []byte, owner any) *Region {
	return &Region{mem: mem, n: len(mem), borrowed: true, owner: owner}
}

// Prefer makes the kernel take the pages of the region from a NUMA node, numbered from 0 to 1023,
// while the node has free ones (MPOL_PREFERRED). It does not move pages that exist already. The
// error matches EINVAL if there is no such node or the region is of [GoMemory] or [Borrow], and ENOSYS if
// the kernel does not support NUMA, as on systems other than Linux.
func (r *Region) Prefer(node int) error {
	if node < 0 || node > maxNode {
		return fmt.Errorf("mmio: NUMA node: got %d, must be from 0 to %d: %w", node, maxNode, syscall.EINVAL)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem == nil {
		return fmt.Errorf("mmio: region: %w", os.ErrClosed)
	}
	if r.borrowed { // its pages may hold other memory as well
		return fmt.Errorf("mmio: NUMA node %d: the memory does not belong to the region: %w", node, syscall.EINVAL)
	}
	if err := prefer(r.mem, node); err != nil {
		return fmt.Errorf("mmio: NUMA node %d: %w", node, err)
	}
	return nil
}

// maxNode is the highest NUMA node number of any kernel.
const maxNode = 1023

// Bytes returns the mapped bytes, as many as requested, or nil if the region is closed. The slice
// must not be used after Close.
func (r *Region) Bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem == nil {
		return nil
	}
	return r.mem[:r.n:r.n]
}

// Retire unmaps the region as Close does, but leaves zeroed memory at its address until the region
// is garbage collected. A call that wrongly still uses the memory then neither crashes nor stores
// to a later mapping. The cost is address space. Retiring a closed region does nothing.
func (r *Region) Retire() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem == nil {
		return nil
	}
	if r.borrowed {
		r.mem = nil
		return nil
	}
	mem := r.mem
	if err := cover(mem); err != nil {
		return fmt.Errorf("mmio: retire %d bytes: %w", len(mem), err)
	}
	r.mem = nil
	runtime.AddCleanup(r, func(mem []byte) { munmap(mem) }, mem)
	return nil
}

// RetireAll retires regions, of which some may be nil. Two that are neighbours in memory, as the rings of a
// queue pair usually are, take one system call instead of two; their address space is free again once both
// are garbage collected.
func RetireAll(regions ...*Region) error {
	if len(regions) == 2 && regions[0] != nil && regions[1] != nil && regions[0] != regions[1] {
		if done, err := retireBoth(regions[0], regions[1]); done {
			return err
		}
	}
	var errs []error
	for _, r := range regions {
		if r != nil {
			errs = append(errs, r.Retire())
		}
	}
	return errors.Join(errs...)
}

// covered is zeroed memory at the addresses of several regions. They refer to it until they are collected.
type covered struct{ mem []byte }

// retireBoth retires two regions with one mapping if they are neighbours in memory.
func retireBoth(a, b *Region) (done bool, err error) {
	if !a.before(b) {
		a, b = b, a
	}
	a.mu.Lock() // in the order of the addresses
	defer a.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.mem == nil || b.mem == nil || a.borrowed || b.borrowed || !adjacent(a.mem, b.mem) {
		return false, nil
	}
	mem := join(a.mem, b.mem)
	if err := cover(mem); err != nil {
		return true, fmt.Errorf("mmio: retire %d bytes: %w", len(mem), err)
	}
	c := &covered{mem}
	a.mem, b.mem, a.owner, b.owner = nil, nil, c, c
	runtime.AddCleanup(c, func(mem []byte) { munmap(mem) }, mem)
	return true, nil
}

// before reports whether the memory of r is below that of s.
func (r *Region) before(s *Region) bool {
	x, y := r.Bytes(), s.Bytes()
	return len(x) > 0 && len(y) > 0 && address(x) < address(y)
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
	if r.borrowed {
		return nil
	}
	if err := munmap(mem); err != nil {
		return fmt.Errorf("mmio: unmap %d bytes: %w", len(mem), err)
	}
	if f, ok := r.owner.(*os.File); ok {
		return f.Close()
	}
	return nil
}
