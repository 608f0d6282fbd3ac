// Noioctl runs a program on a kernel that seems to be without RDMA_VERBS_IOCTL, so that the program has
// to give its commands by write(). A filter of system calls answers the ioctl with ENOTTY.
//
//	noioctl PROGRAM [ARGUMENT...]
package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: noioctl PROGRAM [ARGUMENT...]")
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, "noioctl:", run(os.Args[1:]))
	os.Exit(1)
}

// run replaces this process by a program. It returns only if that fails.
func run(args []string) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the filter belongs to a thread
	if err := refuseIoctl(); err != nil {
		return fmt.Errorf("install the filter of system calls: %w", err)
	}
	return syscall.Exec(path, args, os.Environ())
}

// verbsIoctl is RDMA_VERBS_IOCTL.
const verbsIoctl = 0xc0181b01

// refuseIoctl has this thread and its children get ENOTTY for RDMA_VERBS_IOCTL.
func refuseIoctl() error {
	load := func(offset uint32) unix.SockFilter { // of struct seccomp_data
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	equal := func(v uint32, no uint8) unix.SockFilter { // else skip so many instructions
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: no, K: v}
	}
	answer := func(v uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: v} }
	filter := []unix.SockFilter{
		load(0), equal(unix.SYS_IOCTL, 3),
		load(24), equal(verbsIoctl, 1), // the low half of the second argument
		answer(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOTTY)),
		answer(unix.SECCOMP_RET_ALLOW),
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
}
