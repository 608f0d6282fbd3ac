//go:build linux

package uverbs

import (
	"io"
	"os"
	"syscall"
	"unsafe"
)

// readParked reads an event into c.event, and waits for it in the netpoller. The reads themselves do
// not block, so the scheduler is not told about them: [os.File.Read] tells it each time, which makes
// its monitor thread look after the goroutine.
func (c *CompChannel) readParked() (int, error) {
	if c.raw.Read(c.try) != nil {
		return c.f.Read(c.event[:]) // fails for the same reason, with an error of package os
	}
	switch {
	case c.errno != 0:
		return 0, &os.PathError{Op: "read", Path: c.f.Name(), Err: c.errno}
	case c.n == 0:
		return 0, io.EOF
	}
	return c.n, nil
}

// tryRead reads without blocking, and sets c.n to the number of bytes and c.errno. It reports false
// if there is no event.
func (c *CompChannel) tryRead(fd uintptr) bool {
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&c.event)), eventSize)
		if errno == syscall.EINTR {
			continue
		}
		if c.n, c.errno = int(n), errno; errno != 0 {
			c.n = 0
		}
		return errno != syscall.EAGAIN
	}
}

// readNow reads an event into c.event without blocking, and sets c.n to its size, or to 0 if there is
// none.
func (c *CompChannel) readNow(fd uintptr) { c.tryRead(fd) }
