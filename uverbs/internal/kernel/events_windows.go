package kernel

import "os"

// OpenEvents returns the file of an event channel that is a handle of this process, opened for
// overlapped I/O. Reads of it park the goroutine in Go's netpoller.
func OpenEvents(fd int, name string) (*os.File, error) {
	return os.NewFile(uintptr(fd), name), nil
}
