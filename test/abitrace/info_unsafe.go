package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// info is struct ptrace_syscall_info (linux/ptrace.h), the same on every architecture.
type info struct {
	op   uint8
	_    [3]byte
	arch uint32
	ip   uint64
	sp   uint64
	data [8]uint64 // at entry the call's number and arguments, at exit its result
}

// Values of op.
const (
	opEntry = 1
	opExit  = 2
)

func (i *info) nr() uint64       { return i.data[0] }
func (i *info) arg(n int) uint64 { return i.data[1+n] }
func (i *info) result() int64    { return int64(i.data[0]) }

// syscallInfo asks what system call a thread has stopped at (Linux 5.3).
func syscallInfo(tid int) (*info, error) {
	i := new(info)
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(*i), uintptr(unsafe.Pointer(i)), 0, 0)
	if errno != 0 {
		return nil, errno
	}
	return i, nil
}

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
