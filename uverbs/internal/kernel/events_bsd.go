//go:build unix && !linux

package kernel

import "syscall"

// setNonblock makes reads of an event file return at once.
func setNonblock(fd int) error { return syscall.SetNonblock(fd, true) }
