package soft

import "golang.org/x/sys/unix"

// fionread is the ioctl that returns the number of bytes that can be read.
const fionread = unix.TIOCINQ

// openPipe returns the two ends of a new pipe, which do not block.
func openPipe() (p [2]int, err error) {
	err = unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK)
	return p, err
}
