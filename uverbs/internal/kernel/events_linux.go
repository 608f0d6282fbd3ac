package kernel

import (
	"fmt"
	"os"
	"syscall"
)

// OpenEvents returns the file of an event channel that is a file descriptor of this process. Reads
// of it park the goroutine in Go's netpoller.
func OpenEvents(fd int, name string) (*os.File, error) {
	// Such a file has no other flags that F_SETFL would clear.
	if _, _, errno := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_SETFL, syscall.O_NONBLOCK); errno != 0 {
		syscall.Close(fd)
		return nil, fmt.Errorf("uverbs: %s: %w", name, errno)
	}
	return os.NewFile(uintptr(fd), name), nil
}
