//go:build linux

package umad

import (
	"syscall"
	"unsafe"

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
