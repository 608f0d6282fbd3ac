package uverbs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"golang.org/x/sys/unix"
)

// openFile opens the character device and makes sure that it is the right one.
func (i *DeviceInfo) openFile() (*os.File, error) {
	// Package os would make five more system calls to add the file to the netpoller, in vain.
	fd, err := unix.Open(i.CharDev, unix.O_RDWR|unix.O_CLOEXEC, 0)
	for err == unix.EINTR {
		fd, err = unix.Open(i.CharDev, unix.O_RDWR|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		err = &fs.PathError{Op: "open", Path: i.CharDev, Err: err}
		return nil, fmt.Errorf("%w%s", err, i.openHint(err))
	}
	f := os.NewFile(uintptr(fd), i.CharDev)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, fmt.Errorf("stat %s: %w", i.CharDev, err)
	}
	major, minor := unix.Major(st.Rdev), unix.Minor(st.Rdev)
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || major != i.char.Major || minor != i.char.Minor {
		f.Close()
		return nil, fmt.Errorf("%s is device %d:%d, but the kernel's %s is %d:%d (a stale node: remove it and run %s): %w",
			i.CharDev, major, minor, i.char.Name, i.char.Major, i.char.Minor, i.mknod(), fs.ErrNotExist)
	}
	return f, nil
}

// charNumber returns the device number of a file, which must be a character device.
func charNumber(f *os.File) (major, minor uint32, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var st unix.Stat_t
	var statErr error
	if err := raw.Control(func(fd uintptr) { statErr = unix.Fstat(int(fd), &st) }); err != nil {
		return 0, 0, err
	}
	if statErr != nil {
		return 0, 0, os.NewSyscallError("fstat", statErr)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return 0, 0, fmt.Errorf("%s, which is no character device", f.Name())
	}
	return unix.Major(st.Rdev), unix.Minor(st.Rdev), nil
}

// mknod returns the command that creates the character device.
func (i *DeviceInfo) mknod() string {
	return fmt.Sprintf("mknod -m 666 %s c %d %d", i.CharDev, i.char.Major, i.char.Minor)
}

// openHint explains a failed open and says how to fix it.
func (i *DeviceInfo) openHint(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf(" (the file does not exist; in a container: --device %s, else run udev or %s)", i.CharDev, i.mknod())
	case errors.Is(err, syscall.EPERM):
		return fmt.Sprintf(" (the device control group forbids it; in a container: --device %s, else allow character device %d:%d)", i.CharDev, i.char.Major, i.char.Minor)
	case errors.Is(err, fs.ErrPermission) && kernel.NoDev(i.CharDev):
		return fmt.Sprintf(" (its mount has the option nodev; in a container: --device %s, else mount it without)", i.CharDev)
	case errors.Is(err, fs.ErrPermission):
		st, serr := os.Stat(i.CharDev)
		if serr != nil {
			return ""
		}
		owner, join := "", fmt.Sprintf("; on the host: chmod 666 %s", i.CharDev)
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			owner = fmt.Sprintf(", owner %d, group %d", sys.Uid, sys.Gid)
			if st.Mode()&0o060 == 0o060 {
				join = fmt.Sprintf("; join the group, in a container by --group-add %d", sys.Gid)
			}
		}
		return fmt.Sprintf(" (mode %s%s; this process is user %d, group %d%s)", st.Mode().Perm(), owner, os.Geteuid(), os.Getegid(), join)
	}
	return ""
}

// sysfsGIDs reads a GID table from sysfs below root. It opens the files relative to their
// directory, because there are about a thousand and most have no GID.
func sysfsGIDs(root, device string, port uint8, attr PortAttr) ([]GIDEntry, error) {
	dir := sysfsPort(root, device, port)
	gids, err := unix.Open(filepath.Join(dir, "gids"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, sysfsErr(device, port, &fs.PathError{Op: "open", Path: filepath.Join(dir, "gids"), Err: err})
	}
	defer unix.Close(gids)
	var table []GIDEntry
	for i := range attr.GIDTableLen {
		text, err := readLineAt(gids, strconv.Itoa(i))
		if err != nil {
			return nil, sysfsErr(device, port, err)
		}
		e, used, err := sysfsEntry(root, dir, text, GIDEntry{Port: port, Index: i}, attr.LinkLayer)
		if err != nil {
			return nil, err
		}
		if used {
			table = append(table, e)
		}
	}
	return table, nil
}
