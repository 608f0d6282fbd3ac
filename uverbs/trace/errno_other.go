//go:build !unix

package trace

import "syscall"

// Errno returns the error with a name such as "EINVAL", and whether this system has it, which it has not.
func Errno(string) (errno syscall.Errno, ok bool) { return 0, false }
