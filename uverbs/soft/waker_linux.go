package soft

import (
	"os"

	"golang.org/x/sys/unix"
)

// openWaker opens an eventfd that Go's netpoller watches. Each read takes one wake-up.
func openWaker() (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK|unix.EFD_SEMAPHORE)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "wake-ups of software devices"), nil
}
