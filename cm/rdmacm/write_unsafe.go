//go:build linux

package rdmacm

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// writeKernel writes a command of a number of bytes to the kernel.
func (f *file) writeKernel(fd uintptr, o rawCommand, size uintptr) (errno syscall.Errno) {
	if f.thread != nil {
		f.thread.run(func() { _, _, errno = syscall.Syscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(o.hdr)), size) })
	} else if isShort(o.hdr.Cmd) {
		_, _, errno = syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(o.hdr)), size)
	} else {
		_, _, errno = syscall.Syscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(o.hdr)), size)
	}
	return errno
}

// writeNoSignals writes a command while all signals of the thread are blocked.
func writeNoSignals(fd int, o rawCommand) syscall.Errno {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i]-- // 0 less 1: every bit
	}
	masked := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old) == nil // if this fails the command is issued nevertheless
	_, _, errno := syscall.Syscall(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(o.hdr)), unsafe.Sizeof(*o.hdr)+uintptr(o.hdr.In))
	runtime.KeepAlive(o)
	if masked {
		if err := unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil); err != nil && errno == 0 {
			errno, _ = err.(syscall.Errno)
		}
	}
	return errno
}
