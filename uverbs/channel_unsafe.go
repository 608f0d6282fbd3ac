//go:build linux

package uverbs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs/internal/diag"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// openWatcher returns an epoll instance for the netpoller to watch in place of the events of fd, which
// it closes if it fails.
//
// The netpoller would watch a file until it is closed. Go's idle thread sleeps there whenever the program
// has a timer or a network connection, and each event would wake it, too, while a busy wait has the event
// already. So the events are put into the watcher before a Wait parks, and taken out before a busy wait.
func openWatcher(fd int, name string) (_ *os.File, err error) {
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("uverbs: %s: %w", name, err)
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		hint := ""
		if errno, ok := err.(syscall.Errno); ok && errno == syscall.EMFILE {
			hint = ": " + (&diag.Registration{Errno: errno}).Hint()
		}
		return nil, fmt.Errorf("uverbs: epoll instance for the %s: %w%s", name, err, hint)
	}
	kernel.GrowDescriptors()
	return kernel.OpenEvents(epoll, name)
}

// closeFiles closes the events, and the watcher before, which ends reads.
func (c *CompChannel) closeFiles() error {
	err := c.f.Close()
	if c.watcher != nil {
		err = errors.Join(err, unix.Close(c.fd))
	}
	return err
}

// tell decides whether an event makes the watcher readable, whose descriptor is fd.
func (c *CompChannel) tell(fd uintptr, on bool) syscall.Errno {
	if c.told == on {
		return 0
	}
	var err error
	if on {
		err = unix.EpollCtl(int(fd), unix.EPOLL_CTL_ADD, c.fd, &unix.EpollEvent{Events: unix.EPOLLIN})
	} else {
		err = unix.EpollCtl(int(fd), unix.EPOLL_CTL_DEL, c.fd, nil)
	}
	errno, _ := err.(syscall.Errno)
	c.told = on && errno == 0
	return errno
}

// readParked reads an event into c.event, and waits for it in the netpoller. The reads themselves do
// not block, so the scheduler is not told about them: [os.File.Read] tells it each time, which makes
// its monitor thread look after the goroutine.
func (c *CompChannel) readParked() (int, error) {
	if c.watcher == nil {
		return c.f.Read(c.event[:])
	}
	switch err := c.raw.Read(c.try); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, err
	case err != nil:
		return c.f.Read(c.event[:]) // fails for the same reason, with an error of package os
	}
	switch {
	case !c.told:
		return 0, &os.PathError{Op: "epoll_ctl", Path: c.watcher.Name(), Err: c.errno}
	case c.errno != 0:
		return 0, &os.PathError{Op: "read", Path: c.watcher.Name(), Err: c.errno}
	case c.n == 0:
		return 0, io.EOF
	}
	return c.n, nil
}

// tryRead is readNow for a goroutine that will wait until the file fd is readable. It reports false if
// there is no event.
func (c *CompChannel) tryRead(fd uintptr) bool {
	if c.errno = c.tell(fd, true); c.errno != 0 {
		return true
	}
	c.readNow(fd)
	return c.errno != syscall.EAGAIN
}

// readNow reads an event into c.event without blocking, and sets c.n to its size, or to 0 if there is
// none, and c.errno.
func (c *CompChannel) readNow(uintptr) {
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(c.fd), uintptr(unsafe.Pointer(&c.event)), eventSize)
		if errno == syscall.EINTR {
			continue
		}
		if c.n, c.errno = int(n), errno; errno != 0 {
			c.n = 0
		}
		return
	}
}
