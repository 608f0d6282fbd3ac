//go:build linux

package trace

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// helperName is the name by which this program runs itself to start the program that is traced: Go can
// install no filter between fork and exec. Its arguments are the path of the program and the program's
// arguments.
const helperName = "verbs-trace-exec"

// Descriptors of the helper.
const (
	helperStart  = 3 // can be read when the tracer is there
	helperReport = 4 // takes what the helper reports
)

// What the helper reports: that it has begun, then whether there is a filter. An error follows if the program
// could not be run.
const (
	begun     = 'b'
	hasFilter = 'y'
	noFilter  = 'n'
)

func init() { // on the main thread, which the tracer expects to run the program
	if len(os.Args) > 2 && os.Args[0] == helperName {
		runHelper(os.Args[1], os.Args[2:])
	}
}

// runHelper replaces this process by a program with the filter.
func runHelper(path string, args []string) {
	runtime.LockOSThread()
	report := os.NewFile(helperReport, "report")
	unix.CloseOnExec(helperStart)
	unix.CloseOnExec(helperReport)
	fmt.Fprintf(report, "%c", begun)
	if n, _ := syscall.Read(helperStart, make([]byte, 1)); n != 1 {
		os.Exit(1) // the tracer is gone
	}
	have := hasFilter
	if err := installFilter(filter()); err != nil {
		have = noFilter
	}
	fmt.Fprintf(report, "%c", have)
	err := syscall.Exec(path, args, os.Environ())
	fmt.Fprint(report, err)
	os.Exit(1)
}

// helper is the process that becomes the program that is traced.
type helper struct {
	pid    int
	start  *os.File // a byte lets it run the program, the end of the file ends it
	report *os.File
}

// startHelper starts a helper, which has begun when it returns: otherwise the first program that it runs
// would be itself. The calling thread is the parent, so that it can be the tracer.
func startHelper(path string, args []string) (*helper, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	in, start, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	report, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, start.Close())
	}
	defer out.Close()
	h := &helper{start: start, report: report}
	// Package os/exec is not for this: its Wait and the tracer would wait for the same process.
	h.pid, err = syscall.ForkExec(self, append([]string{helperName, path}, args...), &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2, helperStart: in.Fd(), helperReport: out.Fd()},
	})
	if err != nil {
		h.close()
		return nil, fmt.Errorf("run %s again to start the program: %w", self, err)
	}
	out.Close()
	if _, err := report.Read(make([]byte, 1)); err != nil {
		h.end()
		return nil, fmt.Errorf("run %s again to start the program: %w", self, err)
	}
	return h, nil
}

// close closes the pipes.
func (h *helper) close() {
	h.start.Close()
	h.report.Close()
}

// end ends a helper that has not run the program.
func (h *helper) end() {
	h.close()
	for {
		if _, err := unix.Wait4(h.pid, nil, 0, nil); err != unix.EINTR {
			return
		}
	}
}

// Offsets in struct seccomp_data, on a little-endian machine.
const (
	dataNr   = 0
	dataArch = 4
	dataArgs = 16
)

// filter returns the program that has the kernel stop a thread at the calls that may be about RDMA.
func filter() []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	jump := func(op uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k, Jt: yes, Jf: no}
	}
	allow := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	stop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_TRACE}
	p := []unix.SockFilter{
		load(dataArch), jump(unix.BPF_JEQ, auditArch, 1, 0), allow,
		load(dataNr),
		// An ioctl of RDMA's type.
		jump(unix.BPF_JEQ, unix.SYS_IOCTL, 0, 5),
		load(dataArgs + 8*1), {Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xff00},
		jump(unix.BPF_JEQ, rdmaMagic<<8, 0, 1), stop, allow,
		// A mmap of a file.
		jump(unix.BPF_JEQ, unix.SYS_MMAP, 0, 4),
		load(dataArgs + 8*3), jump(unix.BPF_JSET, unix.MAP_ANONYMOUS, 0, 1), allow, stop,
		// A fcntl that makes a descriptor.
		jump(unix.BPF_JEQ, unix.SYS_FCNTL, 0, 5),
		load(dataArgs + 8*1), jump(unix.BPF_JEQ, unix.F_DUPFD, 1, 0), jump(unix.BPF_JEQ, unix.F_DUPFD_CLOEXEC, 0, 1), stop, allow,
	}
	for _, nr := range otherCalls {
		p = append(p, jump(unix.BPF_JEQ, nr, 0, 1), stop)
	}
	return append(p, allow)
}

// installFilter installs a filter in this thread. It takes from the thread the right to gain others
// only if the kernel insists.
func installFilter(f []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	install := func() error {
		// Without the flag, kernels before 5.16 slow the program itself down, against speculative attacks.
		const flags = unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
		_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
		if errno != 0 {
			return errno
		}
		return nil
	}
	err := install()
	if errors.Is(err, unix.EACCES) {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
		err = install()
	}
	return err
}

// syscallInfo is struct ptrace_syscall_info (linux/ptrace.h), the same on every architecture.
type syscallInfo struct {
	op   uint8
	_    [3]byte
	arch uint32
	ip   uint64
	sp   uint64
	data [8]uint64 // at entry the call's number and arguments, at exit its result
}

// Values of op.
const (
	opEntry   = 1
	opExit    = 2
	opSeccomp = 3
)

func (i *syscallInfo) arg(n int) uint64 { return i.data[1+n] }

// getSyscallInfo asks what system call a thread has stopped at (Linux 5.3).
func getSyscallInfo(tid int) (*syscallInfo, error) {
	i := new(syscallInfo)
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(*i), uintptr(unsafe.Pointer(i)), 0, 0)
	if errno != 0 {
		return nil, errno
	}
	return i, nil
}

// ptrace issues a ptrace call whose data is a number.
func ptrace(request int, tid int, data uintptr) error {
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), 0, data, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// sameFile reports whether two descriptors are of the same open file (kcmp with KCMP_FILE).
func sameFile(pid1, fd1, pid2, fd2 int) bool {
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid1), uintptr(pid2), 0, uintptr(fd1), uintptr(fd2), 0)
	return errno == 0 && r == 0
}
