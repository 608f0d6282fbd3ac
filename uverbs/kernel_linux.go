package uverbs

import "golang.org/x/sys/unix"

// kernelRelease returns the release of the running kernel, or "" if it is unknown.
func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
