//go:build unix

package kernel

import (
	"fmt"
	"os"
	"syscall"
)

// OpenEvents returns the file of an event channel that is a file descriptor of this process. Reads
// of it park the goroutine in Go's netpoller.
func OpenEvents(fd int, name string) (*os.File, error) {
	if err := setNonblock(fd); err != nil {
		syscall.Close(fd)
		return nil, fmt.Errorf("uverbs: %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
