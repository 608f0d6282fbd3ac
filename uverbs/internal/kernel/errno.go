package kernel

import "syscall"

// Errnos of this package, with numbers that the kernel does not use.
const (
	ErrnoClosed      = syscall.Errno(1<<20 + iota) // the Conn is closed
	ErrnoWriteDenied                               // EACCES from write(); the ioctl may be allowed
)

// Absent reports whether an errno means that the kernel does not know the ioctl interface, the
// method or a mandatory attribute.
func Absent(errno syscall.Errno) bool {
	return errno == syscall.ENOTTY || errno == syscall.EPROTONOSUPPORT
}

// Unsupported reports whether an errno means that the kernel or the driver does not support the
// command at all, for whatever arguments.
func Unsupported(errno syscall.Errno) bool {
	return Absent(errno) || errno == syscall.EOPNOTSUPP || errno == syscall.ENOSYS
}

// writeErrno marks an errno that came from write().
func writeErrno(errno syscall.Errno) syscall.Errno {
	if errno == syscall.EACCES {
		return ErrnoWriteDenied
	}
	return errno
}
