package uverbs

import (
	"bytes"
	"io/fs"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/kernel"
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
func hasInput(f kernel.EventFile) bool {
	conn, ok := f.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	n := 1
	err = raw.Control(func(fd uintptr) {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	})
	return err != nil || n != 0
}

// readLine returns the first line of a sysfs file of at most one page.
func readLine(path string) (string, error) { return readLineAt(unix.AT_FDCWD, path) }

// readLineAt is readLine for a file in an open directory. It creates no os.File, which would double
// the number of system calls.
func readLineAt(dir int, name string) (string, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	var buf [4096]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return "", &fs.PathError{Op: "read", Path: name, Err: err}
	}
	line, _, _ := bytes.Cut(buf[:n], []byte("\n"))
	return string(bytes.TrimSpace(line)), nil
}
