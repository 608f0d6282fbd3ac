package kernel

import (
	"os"

	"golang.org/x/sys/unix"
)

// DupFile returns another descriptor of an open file, which programs that this one executes do not
// inherit.
func DupFile(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var dupErr error
	if err := raw.Control(func(of uintptr) { fd, dupErr = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, &os.PathError{Op: "dup", Path: f.Name(), Err: os.ErrClosed} // Control has no other error
	}
	if dupErr != nil {
		return nil, os.NewSyscallError("dup", dupErr)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// NoDev reports whether a file is on a mount that permits no devices.
func NoDev(path string) bool {
	var fsys unix.Statfs_t
	return unix.Statfs(path, &fsys) == nil && fsys.Flags&unix.ST_NODEV != 0
}
