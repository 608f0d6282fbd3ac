//go:build unix

package trace

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Errno returns the error with a name such as "EINVAL", and whether this system has it.
func Errno(name string) (errno syscall.Errno, ok bool) {
	errno, ok = errnos()[name]
	return errno, ok
}

var errnos = sync.OnceValue(func() map[string]syscall.Errno {
	all := map[string]syscall.Errno{}
	for e := syscall.Errno(1); e < 4096; e++ {
		if name := unix.ErrnoName(e); name != "" {
			all[name] = e
		}
	}
	return all
})
