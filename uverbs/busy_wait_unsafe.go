//go:build linux

package uverbs

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// busyClock is a timer of the kernel (timerfd) that ends a series of busy waits. The zero value is a
// clock that is not open. It is not safe for concurrent use.
type busyClock struct {
	open bool
	fd   int
	fds  [2]unix.PollFd // the channel and the clock
	c    *CompChannel   // of the wait in progress
	cq   *CQ            // the CQ of an event that is still unread
	over bool           // the clock has fired

	sleep func(fd uintptr) // a method value, stored so that wait does not allocate
}

// start makes the clock fire once after d. It reports false if the kernel does not permit it.
func (k *busyClock) start(d time.Duration) bool {
	if !k.open {
		fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
		if err != nil {
			return false
		}
		k.fd, k.open, k.sleep = fd, true, k.poll
	}
	return unix.TimerfdSettime(k.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil) == nil
}

// close releases the timer.
func (k *busyClock) close() {
	if k.open {
		unix.Close(k.fd)
		k.open = false
	}
}

// wait sleeps until there is an event or the clock fires. If the channel has only one CQ, it returns
// the CQ without reading the event. Otherwise it reads the event and returns its size. If it returns
// neither, an ordinary read finds out why. over reports whether the clock has fired.
//
// Preconditions: the clock was started.
func (k *busyClock) wait(c *CompChannel) (n int, cq *CQ, over bool) {
	c.n = 0
	k.c, k.cq, k.over = c, nil, false
	err := c.raw.Control(k.sleep) // keeps the descriptor open
	cq, over = k.cq, k.over || err != nil
	k.c, k.cq = nil, nil
	return c.n, cq, over
}

// poll sleeps in ppoll. RawSyscall keeps the scheduler out. Its preemption signal, for the garbage
// collector or because the goroutine runs too long, ends ppoll with EINTR. The loop must then reach
// a preemption point.
func (k *busyClock) poll(fd uintptr) {
	k.c.tell(fd, false)
	k.fds = [2]unix.PollFd{{Fd: int32(k.c.fd), Events: unix.POLLIN}, {Fd: int32(k.fd), Events: unix.POLLIN}}
	for {
		_, _, errno := syscall.RawSyscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&k.fds[0])), uintptr(len(k.fds)), 0, 0, 0, 0)
		if errno == syscall.EINTR {
			preemptible()
			continue
		}
		k.over = errno != 0 || k.fds[1].Revents != 0
		if errno == 0 && k.fds[0].Revents != 0 {
			if k.fds[0].Revents == unix.POLLIN { // no error, as when the device was removed
				k.cq = k.c.only.Load()
			}
			if k.cq == nil {
				k.c.readNow(fd)
			}
		}
		return
	}
}

// preemptible is a preemption point: a function that calls another one checks on entry whether the
// scheduler wants to preempt. A leaf function does not. Gosched is no replacement: it yields without
// stopping for a collector that scans the stack, which would keep asking until the wait ends.
//
//go:noinline
func preemptible() { nothing() }

//go:noinline
func nothing() {}
