package memory

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// accessible makes pages present, as the kernel does when it pins them, and reports whether all of them are
// mapped, readable and, if write is set, writable. Pages of the program's own memory that nobody has written to
// stay what they are, so that a buffer takes memory only where it is used.
//
// Preconditions: those of populate.
func accessible(first, length uint64, write bool) bool {
	return populate(first, length, write && !writableAnonymous(first, length))
}

// populate makes pages present, as the kernel does when it pins them, and reports whether all of them
// are mapped, readable and, if write is set, writable. With Linux before 5.14 it cannot tell whether
// they are writable.
//
// Preconditions: first and length are multiples of the page size.
func populate(first, length uint64, write bool) bool {
	if !canPopulate() {
		return touch(first, length) == OK
	}
	if write {
		return madvise(first, length, unix.MADV_POPULATE_WRITE) == 0
	}
	return madvise(first, length, unix.MADV_POPULATE_READ) == 0
}

// madvise is the system call, until no signal interrupts it.
func madvise(first, length uint64, advice int) syscall.Errno {
	for {
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(first), uintptr(length), uintptr(advice))
		if errno != unix.EINTR {
			return errno
		}
	}
}

// canPopulate reports whether the kernel has MADV_POPULATE_READ, which Linux 5.14 added. Without it,
// and with no pages, the answer is EINVAL.
var canPopulate = sync.OnceValue(func() bool { return madvise(0, 0, unix.MADV_POPULATE_READ) == 0 })

// writeBack writes pages of mapped files to their files.
//
// Preconditions: those of populate.
func writeBack(first, length uint64) Fault {
	if length == 0 {
		return OK
	}
	if _, _, errno := unix.Syscall(unix.SYS_MSYNC, uintptr(first), uintptr(length), unix.MS_SYNC); errno != 0 {
		return MemoryGone
	}
	return OK
}
