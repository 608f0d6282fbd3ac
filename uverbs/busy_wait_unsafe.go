//go:build linux

package uverbs

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// busyWaiter sleeps in the kernel until a file is readable, without telling Go's scheduler. The
// goroutine keeps its thread and processor, so no other thread must be woken before it continues.
// It is not safe for concurrent use.
type busyWaiter struct {
	time          time.Duration
	raw           syscall.RawConn  // of the file
	fds           [2]unix.PollFd   // the file and the clock
	withFD, sleep func(fd uintptr) // method values, stored so that wait does not allocate

	// A timeout of ppoll would set and cancel a timer for each sleep, which is expensive. The clock
	// is a timerfd with a fixed interval; it stays readable until it is read.
	clock    *os.File
	clockRaw syscall.RawConn
	tick     [8]byte // read buffer for the clock

	event  *[eventSize]byte    // read buffer for the event
	n      int                 // number of bytes read into event
	unread bool                // an earlier event must be read first
	only   *atomic.Pointer[CQ] // the only CQ of the channel, or nil
	cq     *CQ                 // the CQ of an event that is still unread
}

// busyWaitTicks is the number of clock ticks that end a busy wait. The first may be an old one and
// the second may come at once, so a busy wait takes between a third of its time and all of it.
const busyWaitTicks = 3

// newBusyWaiter returns a busyWaiter for the events of f.
func newBusyWaiter(f *os.File, d time.Duration, event *[eventSize]byte) (*busyWaiter, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create a clock: %w", err)
	}
	h := &busyWaiter{time: d, raw: raw, clock: os.NewFile(uintptr(fd), "clock"), event: event}
	h.withFD, h.sleep = h.withClock, h.poll
	every := unix.NsecToTimespec(max(int64(d)/busyWaitTicks, 1))
	err = unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Interval: every, Value: every}, nil)
	if err == nil {
		h.clockRaw, err = h.clock.SyscallConn()
	}
	if err != nil {
		h.clock.Close()
		return nil, fmt.Errorf("set a clock: %w", err)
	}
	return h, nil
}

// close releases the clock.
func (h *busyWaiter) close() error { return h.clock.Close() }

// wait sleeps until there is an event or the time is over. If the channel has only one CQ, it
// returns the CQ without reading the event. Otherwise it reads the event and returns its size. If
// it returns neither, an ordinary read finds out why. If unread is set, it first reads the earlier
// event, which ends the wait.
func (h *busyWaiter) wait(only *atomic.Pointer[CQ], unread bool) (int, *CQ) {
	h.n, h.cq, h.only, h.unread = 0, nil, only, unread
	if h.raw.Control(h.withFD) != nil {
		return 0, nil
	}
	return h.n, h.cq
}

// withClock calls sleep with the clock's descriptor, which it keeps open.
func (h *busyWaiter) withClock(fd uintptr) {
	h.fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	h.clockRaw.Control(h.sleep) // an error means closed; the ordinary read reports it
}

// poll sleeps in ppoll. RawSyscall keeps the scheduler out. Its preemption signal, for the garbage
// collector or because the goroutine runs too long, ends ppoll with EINTR. The loop must then reach
// a preemption point.
func (h *busyWaiter) poll(clock uintptr) {
	if h.unread {
		if h.read(); h.n > 0 {
			return
		}
	}
	h.fds[1] = unix.PollFd{Fd: int32(clock), Events: unix.POLLIN}
	for ticks := 0; ticks < busyWaitTicks; {
		_, _, errno := syscall.RawSyscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&h.fds[0])), uintptr(len(h.fds)), 0, 0, 0, 0)
		switch {
		case errno == syscall.EINTR:
			preemptible()
		case errno != 0:
			return
		case h.fds[0].Revents != 0:
			if h.fds[0].Revents == unix.POLLIN { // no error, as when the device was removed
				h.cq = h.only.Load()
			}
			if h.cq == nil {
				h.read()
			}
			return
		default:
			ticks++
			syscall.RawSyscall(syscall.SYS_READ, clock, uintptr(unsafe.Pointer(&h.tick)), uintptr(len(h.tick)))
		}
	}
}

// read reads an event without blocking.
func (h *busyWaiter) read() {
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(h.fds[0].Fd), uintptr(unsafe.Pointer(h.event)), eventSize)
	if errno == 0 {
		h.n = int(n)
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
