package kernel

import "syscall"

// setNonblock makes reads of an event file return at once. Such a file has no other flags that
// F_SETFL would clear.
func setNonblock(fd int) error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_SETFL, syscall.O_NONBLOCK); errno != 0 {
		return errno
	}
	return nil
}
