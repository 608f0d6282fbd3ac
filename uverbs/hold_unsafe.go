package uverbs

import (
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// holder sleeps in the kernel until a file is readable, without telling Go's scheduler:
// thread and processor stay with the goroutine, so that no other thread has to be woken
// before the goroutine goes on. It is not safe for concurrent use.
type holder struct {
	raw  syscall.RawConn
	time time.Duration
	call func(fd uintptr) // kept, so that holding does not allocate
	fds  [1]unix.PollFd
	rest unix.Timespec

	event *[eventSize]byte // where the event is read to
	n     int              // how many bytes were
}

// newHolder returns a holder that reads events of a file.
func newHolder(f *os.File, d time.Duration, event *[eventSize]byte) (*holder, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	h := &holder{raw: raw, time: d, event: event}
	h.call = h.poll
	return h, nil
}

// hold sleeps until an event is there, and reads it, or until the time is over. It
// returns the number of bytes read; if it is 0, the ordinary read tells why.
func (h *holder) hold() int {
	h.rest = unix.NsecToTimespec(int64(h.time))
	h.n = 0
	if h.raw.Control(h.call) != nil {
		return 0
	}
	return h.n
}

// poll is the sleep. RawSyscall is what keeps the scheduler out; its signal for a
// goroutine that runs too long, or for the garbage collector, ends the sleep with EINTR.
// The loop must then come to a place where a goroutine can be preempted, and has no other.
// The kernel leaves the rest of the time.
func (h *holder) poll(fd uintptr) {
	h.fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_PPOLL,
			uintptr(unsafe.Pointer(&h.fds[0])), 1, uintptr(unsafe.Pointer(&h.rest)), 0, 0, 0)
		if errno == syscall.EINTR {
			preemptible()
			continue
		}
		if errno == 0 && n == 1 {
			n, _, errno = syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(h.event)), eventSize)
			if errno == 0 {
				h.n = int(n)
			}
		}
		return
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
