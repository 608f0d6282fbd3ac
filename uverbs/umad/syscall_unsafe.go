//go:build linux

package umad

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs/umad/internal/abi"
)

// header returns the header at the beginning of a buffer.
//
// Preconditions: b has at least hdrSize bytes and is aligned to 4.
func header(b []byte) *abi.Hdr { return (*abi.Hdr)(unsafe.Pointer(&b[0])) }

// The header has the size that the code assumes.
const _ = -(unsafe.Sizeof(abi.Hdr{}) ^ hdrSize)

// registerAgent issues IB_USER_MAD_REGISTER_AGENT2. The kernel stores the agent's number in req.
func registerAgent(fd uintptr, req *abi.RegReq2) syscall.Errno {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, abi.IB_USER_MAD_REGISTER_AGENT2, uintptr(unsafe.Pointer(req)))
	return errno
}

// unregisterAgent issues IB_USER_MAD_UNREGISTER_AGENT.
func unregisterAgent(fd uintptr, agent *uint32) syscall.Errno {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, abi.IB_USER_MAD_UNREGISTER_AGENT, uintptr(unsafe.Pointer(agent)))
	return errno
}

// The calls below do not tell the scheduler that the thread may sleep.

// pollNow waits for an event of two files.
func pollNow(fds *[2]unix.PollFd, wait time.Duration) error {
	t := unix.NsecToTimespec(int64(wait))
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(fds)), uintptr(len(fds)), uintptr(unsafe.Pointer(&t)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// readNow reads from a file that poll reports as readable.
//
// Preconditions: b is not empty.
func readNow(fd int32, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(n), errno
}

// writeNow writes to a file.
//
// Preconditions: b is not empty.
func writeNow(fd uintptr, b []byte) syscall.Errno {
	_, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return errno
}
