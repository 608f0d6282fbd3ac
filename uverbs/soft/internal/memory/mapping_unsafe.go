//go:build linux

package memory

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// procmapQuery is struct procmap_query (linux/fs.h).
type procmapQuery struct {
	size       uint64
	flags      uint64
	addr       uint64
	start, end uint64 // of the mapping
	vmaFlags   uint64
	pageSize   uint64
	offset     uint64
	inode      uint64
	major      uint32
	minor      uint32
	nameSize   uint32
	buildSize  uint32
	name       uint64
	build      uint64
}

// Values of procmap_query (enum procmap_query_flags, and the number of the ioctl).
const (
	procmapReadable = 1 << 0
	procmapWritable = 1 << 1
	procmapIoctl    = 0xc0686611
)

// writableAnonymous reports whether all pages are of mappings that are readable, writable and of no file. It
// returns false if it cannot tell: Linux before 6.11 does not say.
//
// Preconditions: those of populate.
func writableAnonymous(first, length uint64) bool {
	fd, err := unix.Open("/proc/self/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	const need = procmapReadable | procmapWritable
	for end := first + length; first < end; {
		q := procmapQuery{size: uint64(unsafe.Sizeof(procmapQuery{})), flags: need, addr: first}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), procmapIoctl, uintptr(unsafe.Pointer(&q)))
		if errno != 0 || q.vmaFlags&need != need || q.inode != 0 || q.major != 0 || q.minor != 0 || q.end <= first {
			return false
		}
		first = q.end
	}
	return true
}
