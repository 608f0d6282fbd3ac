//go:build unix && !linux

package soft

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// fionread is the ioctl that returns the number of bytes that can be read.
const fionread = 0x4004667f // FIONREAD

// openPipe returns the two ends of a new pipe, which do not block. Not every system has pipe2.
func openPipe() (p [2]int, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := unix.Pipe(p[:]); err != nil {
		return p, err
	}
	for _, fd := range p {
		unix.CloseOnExec(fd)
		if err := unix.SetNonblock(fd, true); err != nil {
			unix.Close(p[0])
			unix.Close(p[1])
			return p, err
		}
	}
	return p, nil
}
