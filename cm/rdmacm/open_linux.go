package rdmacm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// openHere is open on the calling thread.
func openHere(dev netlinkrdma.CharDev, path string) (*file, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%w%s", &os.PathError{Op: "open", Path: path, Err: err}, openHint(dev, path, err))
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	major, minor := unix.Major(st.Rdev), unix.Minor(st.Rdev)
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || major != dev.Major || minor != dev.Minor {
		unix.Close(fd)
		return nil, fmt.Errorf("%s is not the kernel's device %d:%d (a stale node: remove it and run %s): %w",
			path, dev.Major, dev.Minor, mknod(dev, path), fs.ErrNotExist)
	}
	return newFile(fd, path)
}

// mknod returns the command that creates the device node.
func mknod(dev netlinkrdma.CharDev, path string) string {
	return fmt.Sprintf("mknod -m 666 %s c %d %d", path, dev.Major, dev.Minor)
}

// openHint returns what to do about a failed open.
func openHint(dev netlinkrdma.CharDev, path string, err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf(" (no such node; in a container: --device %s, else run udev or %s)", path, mknod(dev, path))
	case errors.Is(err, syscall.EPERM):
		return fmt.Sprintf(" (a device control group forbids it; in a container: --device %s, else allow character device %d:%d)", path, dev.Major, dev.Minor)
	case errors.Is(err, syscall.EACCES):
		var fsys unix.Statfs_t
		if unix.Statfs(path, &fsys) == nil && fsys.Flags&unix.ST_NODEV != 0 {
			return fmt.Sprintf(" (its mount has the option nodev; in a container: --device %s, else mount it without)", path)
		}
		st, err := os.Stat(path)
		if err != nil { // a parent directory denies access
			return ""
		}
		owner, join := "", ""
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			owner = fmt.Sprintf(", owner %d, group %d", sys.Uid, sys.Gid)
			if st.Mode()&0o060 == 0o060 {
				join = fmt.Sprintf("join the group, in a container by --group-add %d, or ", sys.Gid)
			}
		}
		return fmt.Sprintf(" (mode %s%s; this process is user %d, group %d; %srun chmod 666 %s)",
			st.Mode().Perm(), owner, os.Geteuid(), os.Getegid(), join, path)
	}
	return ""
}
