//go:build unix

package mmio

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// protection returns the protection of memory for mmap.
func protection(writable bool) uintptr {
	if writable {
		return unix.PROT_READ | unix.PROT_WRITE
	}
	return unix.PROT_READ
}

// mapPrivate maps zeroed memory.
func mapPrivate(size int) ([]byte, error) { return mapAnonymous(size, 0) }

// mapAnonymous is mapPrivate with flags. unix.Mmap and unix.Munmap also keep a table of all mappings
// under a lock, which a Region does not need.
func mapAnonymous(size, flags int) ([]byte, error) {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(size), int(protection(true)), unix.MAP_PRIVATE|unix.MAP_ANON|flags)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), size), nil
}

// cover replaces a mapping by zeroed memory at the same address.
func cover(mem []byte) error {
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&mem[0]), uintptr(len(mem)), int(protection(true)),
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED|coverFlags)
	return err
}

// joins says that cover and munmap take memory that several mappings have.
const joins = true

func munmap(mem []byte) error { return unix.MunmapPtr(unsafe.Pointer(&mem[0]), uintptr(len(mem))) }
