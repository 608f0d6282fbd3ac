// Abitrace runs a program and writes down every command that it gives to the kernel's
// RDMA files, byte by byte, with what the kernel answers: the ioctls and writes of
// /dev/infiniband/uverbs* and the writes of /dev/infiniband/rdma_cm. It reads the
// program's memory, which strace does not for these commands. It is how the golden files
// of rdma-core's commands are made.
//
//	abitrace [-o FILE] [-no-ioctl] PROGRAM [ARGUMENT...]
//
// It writes one JSON object per command and exits as the program does. With -no-ioctl the
// program finds a kernel without RDMA_VERBS_IOCTL and has to fall back to write().
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	out := flag.String("o", "", "write to this file instead of standard error")
	noIoctl := flag.Bool("no-ioctl", false, "answer RDMA_VERBS_IOCTL with ENOTTY, as a kernel without it does")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: abitrace [-o FILE] [-no-ioctl] PROGRAM [ARGUMENT...]\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	code, err := run(*out, *noIoctl, flag.Args())
	if err != nil {
		fmt.Fprintf(os.Stderr, "abitrace: %s\n", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// run traces a program and returns its exit status.
func run(out string, noIoctl bool, args []string) (code int, err error) {
	w := os.Stderr
	if out != "" {
		if w, err = os.Create(out); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, w.Close()) }()
	}
	runtime.LockOSThread() // ptrace belongs to a thread, as does the filter
	if noIoctl {
		if err := refuseIoctl(); err != nil {
			return 0, fmt.Errorf("install the filter of system calls: %w", err)
		}
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	t := &tracer{enc: json.NewEncoder(w), open: map[int]*command{}}
	return t.follow(cmd.Process.Pid)
}

// tracer follows the threads and children of a program.
type tracer struct {
	enc  *json.Encoder
	open map[int]*command // by thread: the command whose answer is awaited
}

// traceOptions have every thread and child of the program traced too, and tell a stop at
// a system call from a signal.
const traceOptions = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK |
	unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL

// follow runs the program to its end.
func (t *tracer) follow(pid int) (int, error) {
	var ws unix.WaitStatus
	if _, err := wait(pid, &ws); err != nil {
		return 0, err
	}
	if err := unix.PtraceSetOptions(pid, traceOptions); err != nil {
		return 0, fmt.Errorf("set ptrace options: %w", err)
	}
	next, signal := pid, 0
	for {
		if err := unix.PtraceSyscall(next, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return 0, fmt.Errorf("continue %d: %w", next, err)
		}
		tid, err := wait(-1, &ws)
		if err != nil {
			return 0, err
		}
		for ws.Exited() || ws.Signaled() {
			if tid == pid {
				if ws.Signaled() {
					return 128 + int(ws.Signal()), nil
				}
				return ws.ExitStatus(), nil
			}
			delete(t.open, tid)
			if tid, err = wait(-1, &ws); err != nil {
				return 0, err
			}
		}
		next, signal = tid, 0
		switch {
		case ws.StopSignal() == unix.SIGTRAP|0x80:
			if err := t.syscall(tid); err != nil {
				return 0, err
			}
		case ws.TrapCause() > 0, ws.StopSignal() == unix.SIGSTOP, ws.StopSignal() == unix.SIGTRAP:
			// A new thread, its first stop, or an exec.
		default:
			signal = int(ws.StopSignal())
		}
	}
}

// wait waits for a traced thread, -1 for any.
func wait(pid int, ws *unix.WaitStatus) (int, error) {
	for {
		tid, err := unix.Wait4(pid, ws, unix.WALL, nil)
		if err != unix.EINTR {
			if err != nil {
				err = fmt.Errorf("wait: %w", err)
			}
			return tid, err
		}
	}
}

// syscall looks at a thread that enters or leaves a system call.
func (t *tracer) syscall(tid int) error {
	info, err := syscallInfo(tid)
	if errors.Is(err, unix.ESRCH) {
		return nil // it was killed meanwhile
	}
	if err != nil {
		return fmt.Errorf("system call of %d: %w", tid, err)
	}
	switch {
	case info.op == opExit:
		if c := t.open[tid]; c != nil {
			delete(t.open, tid)
			c.finish(tid, info.result())
			return t.enc.Encode(c)
		}
	case info.op == opEntry && (info.nr() == unix.SYS_IOCTL && info.arg(1) == verbsIoctl || info.nr() == unix.SYS_WRITE):
		file, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, info.arg(0)))
		if name, ok := strings.CutPrefix(file, "/dev/infiniband/"); err == nil && ok {
			c, err := begin(tid, name, info)
			if err != nil {
				return err
			}
			t.open[tid] = c
		}
	}
	return nil
}

// read reads a thread's memory.
func read(tid int, addr uint64, n int) ([]byte, error) {
	b := make([]byte, n)
	if n == 0 {
		return b, nil
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", tid))
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	if _, err := mem.ReadAt(b, int64(addr)); err != nil {
		return nil, fmt.Errorf("read %d bytes at %#x of %d: %w", n, addr, tid, err)
	}
	return b, nil
}
