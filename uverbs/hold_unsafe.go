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
	got   bool             // whether one was
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
// reports whether it has read one; if not, the ordinary read tells why.
func (h *holder) hold() bool {
	h.rest = unix.NsecToTimespec(int64(h.time))
	h.got = false
	return h.raw.Control(h.call) == nil && h.got
}

// poll is the sleep. RawSyscall is what keeps the scheduler out; its signal for a
// goroutine that runs too long, or for the garbage collector, ends the sleep with EINTR,
// and the loop gives it the chance to preempt. The kernel leaves the rest of the time.
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
			h.got = errno == 0 && n == eventSize
		}
		return
	}
}

// preemptible is a function call, which is where the scheduler may step in.
//
//go:noinline
func preemptible() {}
