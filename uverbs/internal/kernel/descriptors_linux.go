package kernel

import (
	"sync"

	"golang.org/x/sys/unix"
)

// descriptors is for how many descriptors GrowDescriptors makes room.
const descriptors = 1024

var grown sync.Once

// GrowDescriptors gives the process room for more descriptors, once and in the background. The kernel's table
// has room for 64 at first. When it is full, the kernel makes one of twice the size, and whoever needs a
// descriptor waits for some 10 ms if the process has threads (expand_fdtable in fs/file.c). A program that
// makes many connections would pay this again and again.
func GrowDescriptors() {
	grown.Do(func() { go growDescriptors() })
}

// growDescriptors makes the kernel's table of descriptors larger by taking a high one for a moment. Where a
// limit forbids it, the table grows later and bit by bit.
func growDescriptors() {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, descriptors-1); err == nil {
		unix.Close(fd)
	}
}
