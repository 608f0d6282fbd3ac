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

// busyWaiter sleeps in the kernel until a file is readable, without telling Go's scheduler:
// thread and processor stay with the goroutine, so that no other thread has to be woken
// before the goroutine goes on. It is not safe for concurrent use.
type busyWaiter struct {
	time          time.Duration
	raw           syscall.RawConn  // of the file
	fds           [2]unix.PollFd   // the file and the clock
	withFD, sleep func(fd uintptr) // methods, kept so that holding does not allocate

	// A timeout of the sleep itself would set a timer each time and cancel it, which is a
	// good part of what a sleep costs. The clock ticks by itself, and not on as long as
	// nobody reads it.
	clock    *os.File
	clockRaw syscall.RawConn
	tick     [8]byte // where the clock's number of ticks is read to

	event  *[eventSize]byte    // where the event is read to
	n      int                 // how many bytes were
	unread bool                // whether the last event is to be read first
	only   *atomic.Pointer[CQ] // the CQ whose events need not be read to be known, if there is one
	cq     *CQ                 // the CQ of an event that was not read
}

// busyWaitTicks are the ticks of the clock that end a hold. The first may be an old one and
// the second come at once, so a hold lasts from a third of the time to the whole.
const busyWaitTicks = 3

// newBusyWaiter returns a holder that reads events of a file.
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

// hold sleeps until an event is there or until the time is over. The event is read, and the number of
// bytes returned, unless it can only be of one CQ, which is returned then. If there is neither, the
// ordinary read tells why. An event of before that is unread is read first, which ends the hold.
func (h *busyWaiter) wait(only *atomic.Pointer[CQ], unread bool) (int, *CQ) {
	h.n, h.cq, h.only, h.unread = 0, nil, only, unread
	if h.raw.Control(h.withFD) != nil {
		return 0, nil
	}
	return h.n, h.cq
}

// withClock keeps the clock open as well.
func (h *busyWaiter) withClock(fd uintptr) {
	h.fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	h.clockRaw.Control(h.sleep) // closed: the ordinary read says so
}

// poll is the sleep. RawSyscall is what keeps the scheduler out; its signal for a
// goroutine that runs too long, or for the garbage collector, ends the sleep with EINTR.
// The loop must then come to a place where a goroutine can be preempted, and has no other.
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
			if h.fds[0].Revents == unix.POLLIN { // and not that the device is gone
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

// read reads an event, which does not block.
func (h *busyWaiter) read() {
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(h.fds[0].Fd), uintptr(unsafe.Pointer(h.event)), eventSize)
	if errno == 0 {
		h.n = int(n)
	}
}

// preemptible is a place where the scheduler can preempt: a function that calls another
// looks on entry whether it shall. A function that calls none does not, and
// runtime.Gosched yields without stopping for a collector that wants to see the stack,
// which then keeps asking for as long as the hold lasts.
//
//go:noinline
func preemptible() { nothing() }

//go:noinline
func nothing() {}
