package interop

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// filter has the kernel refuse system calls of this thread, and of the program that it becomes, with an errno: those
// of the list, and sockets of an address family, if it is not negative.
func filter(errno unix.Errno, family int, calls ...uint32) error {
	const load, equal, result = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	refuse := unix.SockFilter{Code: result, K: unix.SECCOMP_RET_ERRNO | uint32(errno)}
	p := []unix.SockFilter{{Code: load, K: 0}} // the number of the call
	for _, nr := range calls {
		p = append(p, unix.SockFilter{Code: equal, Jf: 1, K: nr}, refuse)
	}
	if family >= 0 {
		p = append(p, unix.SockFilter{Code: equal, Jf: 3, K: unix.SYS_SOCKET}, unix.SockFilter{Code: load, K: 16}, // its first argument
			unix.SockFilter{Code: equal, Jf: 1, K: uint32(family)}, refuse)
	}
	p = append(p, unix.SockFilter{Code: result, K: unix.SECCOMP_RET_ALLOW})
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	return errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
		unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0))
}
