package uverbs

import (
	"os"

	"golang.org/x/sys/unix"
)

// kernelRelease returns the release of the running kernel, or "" if it is unknown.
func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// hasInput reports whether a read of f would return at once. It is true if the kernel does not say.
func hasInput(f *os.File) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return true
	}
	n := 1
	err = raw.Control(func(fd uintptr) {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	})
	return err != nil || n != 0
}
