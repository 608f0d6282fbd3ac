//go:build linux

package trace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Tracer follows programs with ptrace(2). Its methods must be called by one goroutine.
type Tracer struct {
	// Sink gets the calls in the order in which they end.
	Sink func(*Call)

	// Warn gets what a person should know, such as that a process is not traced.
	Warn func(format string, args ...any)

	// DriverOf returns the RDMA device and the driver's number for a file such as "uverbs0".
	DriverOf func(file string) (device string, driver uint32)

	begin   time.Time
	every   bool // stop at every call, since there is no filter
	main    int
	threads map[int]*thread
	opens   int      // open files so far
	pending *Call    // a doorbell that may come again
	report  *os.File // from the helper, until it has run the program
}

// process is a process that is traced.
type process struct {
	pid int
	fds map[int]*deviceFile // nil for a descriptor of something else
}

// deviceFile is an open character device or event channel.
type deviceFile struct {
	name   string
	open   int
	driver uint32
}

// thread is a thread that is traced.
type thread struct {
	tid  int
	proc *process
	call *pendingCall // under way
}

// pendingCall is a call whose end is awaited.
type pendingCall struct {
	*Call
	nr    uint64
	args  [6]uint64
	start time.Time
}

// Options of ptrace for every thread: threads and children are traced too, and stops at calls differ
// from signals.
const traceOptions = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK |
	unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACESECCOMP

// init prepares the tracer.
func (t *Tracer) init() {
	t.begin = time.Now()
	t.threads = map[int]*thread{}
	runtime.LockOSThread() // ptrace belongs to a thread
}

// Run runs a program to its end, and that of its children, and returns its exit status, which is 128
// and the signal's number if a signal killed it. It calls started, if that is not nil, with the process
// ID.
func (t *Tracer) Run(args []string, started func(pid int)) (int, error) {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return 0, err
	}
	if err := traceable(path); err != nil {
		return 0, err
	}
	t.init()
	defer runtime.UnlockOSThread()
	h, err := startHelper(path, args)
	if err != nil {
		return 0, err
	}
	t.main = h.pid
	// If the tracer is killed, so is the program: with the filter but no tracer, its calls would fail with ENOSYS.
	if err := ptrace(unix.PTRACE_SEIZE, t.main, traceOptions|unix.PTRACE_O_EXITKILL); err != nil {
		err = refusal(t.main, err)
		h.end()
		return 0, err
	}
	defer h.close()
	t.threads[t.main] = &thread{tid: t.main, proc: &process{pid: t.main, fds: map[int]*deviceFile{}}}
	if started != nil {
		started(t.main)
	}
	if _, err := h.start.Write([]byte{1}); err != nil {
		return 0, fmt.Errorf("start the program: %w", err)
	}
	t.report = h.report
	return t.follow()
}

// Attach traces a process and its children until they end.
func (t *Tracer) Attach(pid int) (int, error) {
	t.init()
	defer runtime.UnlockOSThread()
	t.every, t.main = true, pid
	if err := traceableProcess(pid); err != nil {
		return 0, err
	}
	p := &process{pid: pid, fds: map[int]*deviceFile{}}
	for more := true; more; { // threads that begin meanwhile are in the list of the next round, or traced already
		more = false
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		if err != nil {
			return 0, err
		}
		for _, task := range tasks {
			tid, _ := strconv.Atoi(filepath.Base(task))
			if t.threads[tid] != nil {
				continue
			}
			err := ptrace(unix.PTRACE_SEIZE, tid, traceOptions)
			switch {
			case errors.Is(err, unix.ESRCH):
				continue
			case err != nil && tid == pid:
				return 0, refusal(pid, err)
			case err != nil: // it is traced as the child of another
				continue
			}
			more = true
			t.threads[tid] = &thread{tid: tid, proc: p}
			if err := ptrace(unix.PTRACE_INTERRUPT, tid, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return 0, fmt.Errorf("stop thread %d: %w", tid, err)
			}
		}
	}
	if len(t.threads) == 0 {
		return 0, refusal(pid, unix.ESRCH)
	}
	return t.follow()
}

// follow runs the traced threads to their end.
func (t *Tracer) follow() (status int, err error) {
	for len(t.threads) > 0 {
		var ws unix.WaitStatus
		tid, err := unix.Wait4(-1, &ws, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ECHILD:
			t.threads = nil
			continue
		case err != nil:
			return 0, fmt.Errorf("wait: %w", err)
		}
		if ws.Exited() || ws.Signaled() {
			code := ws.ExitStatus()
			if ws.Signaled() {
				code = 128 + int(ws.Signal())
			}
			t.gone(tid, code)
			if tid == t.main {
				status = code
			}
			continue
		}
		if ws.Stopped() {
			t.stopped(tid, ws)
		}
	}
	t.flush()
	if t.report != nil { // nothing was run
		text, err := io.ReadAll(t.report)
		if len(text) > 1 {
			err = fmt.Errorf("run the program: %s", text[1:])
		}
		return status, err
	}
	return status, nil
}

// thread returns a thread, which may be new.
func (t *Tracer) thread(tid int) *thread {
	th := t.threads[tid]
	if th == nil {
		th = &thread{tid: tid}
		t.threads[tid] = th
		tgid, ppid := identity(tid)
		for _, other := range t.threads {
			if other.proc != nil && other.proc.pid == tgid {
				th.proc = other.proc
			}
		}
		if th.proc == nil {
			th.proc = &process{pid: tgid, fds: map[int]*deviceFile{}}
			for _, other := range t.threads {
				if other != th && other.proc.pid == ppid {
					th.inherit(other.proc)
					break
				}
			}
		}
	}
	return th
}

// inherit gives a new process the files of its parent.
func (th *thread) inherit(parent *process) {
	for fd, f := range parent.fds {
		if f != nil {
			th.proc.fds[fd] = f
		}
	}
}

// identity returns the process of a thread and the process's parent.
func identity(tid int) (tgid, ppid int) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	tgid = tid
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Tgid:"); ok {
			tgid, _ = strconv.Atoi(strings.TrimSpace(v))
		}
		if v, ok := strings.CutPrefix(line, "PPid:"); ok {
			ppid, _ = strconv.Atoi(strings.TrimSpace(v))
		}
	}
	return tgid, ppid
}

// gone handles the end of a thread.
func (t *Tracer) gone(tid, code int) {
	th := t.threads[tid]
	if th == nil {
		return
	}
	delete(t.threads, tid)
	if c := th.call; c != nil {
		c.Unfinished = true
		t.emit(c.Call)
	}
	if tid == th.proc.pid {
		t.emit(&Call{Time: t.now(), PID: tid, TID: tid, Call: CallExit, Result: uint64(code)})
	}
}

func (t *Tracer) now() int64 { return int64(time.Since(t.begin)) }

// stopped handles a stop of a thread and lets it go on.
func (t *Tracer) stopped(tid int, ws unix.WaitStatus) {
	th := t.thread(tid)
	signal, event := ws.StopSignal(), int(ws)>>16
	deliver := 0
	switch {
	case event == unix.PTRACE_EVENT_SECCOMP:
		t.enter(th)
	case event == unix.PTRACE_EVENT_EXEC:
		t.exec(th)
	case event == unix.PTRACE_EVENT_FORK, event == unix.PTRACE_EVENT_VFORK, event == unix.PTRACE_EVENT_CLONE:
		if child, err := unix.PtraceGetEventMsg(tid); err == nil {
			t.thread(int(child))
		}
	case event == unix.PTRACE_EVENT_STOP:
		if signal != unix.SIGTRAP { // a stop of the whole process, such as by Ctrl-Z
			if ptrace(unix.PTRACE_LISTEN, tid, 0) == nil {
				return
			}
		}
	case event != 0:
	case signal == unix.SIGTRAP|0x80:
		if info, err := getSyscallInfo(tid); err == nil && info.op == opExit {
			t.leave(th, int64(info.data[0]))
		} else {
			t.enter(th)
		}
	default:
		deliver = int(signal)
	}
	request := unix.PTRACE_CONT
	if th.call != nil || t.every {
		request = unix.PTRACE_SYSCALL
	}
	ptrace(request, tid, uintptr(deliver)) // fails only if the thread was killed, which wait4 tells next
}

// exec handles that a process runs another program. Its other threads are gone.
func (t *Tracer) exec(th *thread) {
	if t.report != nil {
		var filter [1]byte // the pipe may not be at its end: the kernel closes it when the program goes on
		if n, _ := t.report.Read(filter[:]); n == 1 && filter[0] == noFilter {
			t.every = true
			t.Warn("the kernel or a sandbox refuses seccomp filters: the program stops at every system call, which is slow")
		}
		t.report = nil
	}
	p := th.proc
	for tid, other := range t.threads {
		if other.proc == p && other != th {
			delete(t.threads, tid)
		}
	}
	th.call = nil
	for fd, f := range p.fds {
		if f == nil || !strings.HasPrefix(kindOfLink(p.pid, fd), f.name) {
			delete(p.fds, fd)
		}
	}
	name, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid))
	t.emit(&Call{Time: t.now(), PID: p.pid, TID: th.tid, Call: CallExec, Text: name})
	if elfClass(fmt.Sprintf("/proc/%d/exe", p.pid)) == elf32 {
		t.Warn("process %d runs %q, a 32-bit program, which is not traced", p.pid, name)
	}
}

// kindOfLink returns the name of the character device that a descriptor is of, eventFile for an
// event channel, or "" for something else.
func kindOfLink(pid, fd int) string {
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
	if err != nil {
		return ""
	}
	if name, ok := strings.CutPrefix(link, "/dev/infiniband/"); ok {
		return name
	}
	if strings.HasPrefix(link, "anon_inode:[infinibandevent]") {
		return eventFile
	}
	return ""
}

// file returns the character device of a descriptor, or nil if it is of something else.
func (t *Tracer) file(p *process, fd int) *deviceFile {
	f, known := p.fds[fd]
	if known {
		return f
	}
	if name := kindOfLink(p.pid, fd); name != "" {
		f = t.known(p, fd, name)
		if f == nil {
			t.opens++
			f = &deviceFile{name: name, open: t.opens}
			if strings.HasPrefix(name, "uverbs") {
				_, f.driver = t.DriverOf(name)
			}
		}
	}
	p.fds[fd] = f
	return f
}

// known returns the file of a descriptor if another descriptor of it was seen.
func (t *Tracer) known(p *process, fd int, name string) *deviceFile {
	seen := map[*process]bool{}
	for _, th := range t.threads {
		if seen[th.proc] {
			continue
		}
		seen[th.proc] = true
		for n, f := range th.proc.fds {
			if f != nil && f.name == name && (th.proc != p || n != fd) && sameFile(p.pid, fd, th.proc.pid, n) {
				return f
			}
		}
	}
	return nil
}

// enter looks at a thread that begins a system call, and keeps the call if it is about RDMA.
func (t *Tracer) enter(th *thread) {
	info, err := getSyscallInfo(th.tid)
	if err != nil || info.op != opEntry && info.op != opSeccomp || info.arch != auditArch {
		return
	}
	p := th.proc
	c := &pendingCall{Call: &Call{PID: p.pid, TID: th.tid}, nr: info.data[0], args: [6]uint64(info.data[1:7]), start: time.Now()}
	c.Time = t.now()
	fd := int(int32(info.arg(0)))
	switch c.nr {
	case unix.SYS_OPENAT, unix.SYS_OPENAT2, sysOpen:
		addr := info.arg(1)
		if c.nr == sysOpen {
			addr = info.arg(0)
		}
		name, ok := devicePath(readText(p.pid, addr))
		if !ok {
			return
		}
		c.Call.Call, c.File = CallOpen, name
		th.call = c
		return
	case unix.SYS_CLOSE_RANGE:
		if info.arg(2)&unix.CLOSE_RANGE_CLOEXEC != 0 { // an exec closes them
			return
		}
		for n := range p.fds {
			if uint64(n) >= info.arg(0) && uint64(n) <= info.arg(1) {
				delete(p.fds, n)
			}
		}
		return
	case unix.SYS_CLOSE:
		if p.fds[fd] == nil {
			delete(p.fds, fd)
			return
		}
		c.Call.Call = CallClose
	case unix.SYS_DUP3, sysDup2:
		if t.file(p, fd) == nil { // the new descriptor may take the place of a device's
			delete(p.fds, int(int32(info.arg(1))))
			return
		}
		c.Call.Call = CallDup
	case unix.SYS_DUP, unix.SYS_FCNTL:
		if c.nr == unix.SYS_FCNTL && info.arg(1) != unix.F_DUPFD && info.arg(1) != unix.F_DUPFD_CLOEXEC {
			return
		}
		c.Call.Call = CallDup
	case unix.SYS_IOCTL:
		if info.arg(1)>>8&0xff != rdmaMagic {
			return
		}
		c.Call.Call = CallIoctl
	case unix.SYS_WRITE:
		c.Call.Call = CallWrite
	case unix.SYS_READ:
		c.Call.Call = CallRead
	case unix.SYS_MMAP:
		if info.arg(3)&unix.MAP_ANONYMOUS != 0 {
			return
		}
		fd = int(int32(info.arg(4)))
		c.Call.Call = CallMmap
		c.Length, c.Prot, c.Offset = info.arg(1), info.arg(2), info.arg(5)
	default:
		return
	}
	f := t.file(p, fd)
	if f == nil {
		return
	}
	c.File, c.FD, c.Open, c.Driver = f.name, fd, f.open, f.driver
	c.read(info)
	c.start = time.Now()
	th.call = c
}

// devicePath returns the name of a character device from the path with which it is opened.
func devicePath(path string) (string, bool) {
	base := filepath.Base(path)
	if strings.HasPrefix(path, "/dev/infiniband/") || base == CMFile {
		return base, true
	}
	for _, p := range []string{"uverbs", "umad", "issm"} {
		if n, ok := strings.CutPrefix(base, p); ok && n != "" && strings.Trim(n, "0123456789") == "" && !strings.HasPrefix(path, "/sys/") {
			return base, true
		}
	}
	return "", false
}

// leave ends the call of a thread.
func (t *Tracer) leave(th *thread, result int64) {
	c := th.call
	if c == nil {
		return
	}
	th.call = nil
	c.Duration = int64(time.Since(c.start))
	failed := result < 0 && result > -4096
	switch {
	case failed && -result >= restartFirst && -result <= restartLast:
		c.Errno = restart
	case failed:
		c.fail(syscall.Errno(-result))
	default:
		c.Result = uint64(result)
	}
	p := th.proc
	switch c.Call.Call {
	case CallOpen:
		if failed {
			break
		}
		c.FD = int(result)
		delete(p.fds, c.FD)
		f := t.file(p, c.FD)
		if f == nil {
			return // another file with such a name
		}
		c.File, c.Open, c.Driver = f.name, f.open, f.driver
		if strings.HasPrefix(f.name, "uverbs") {
			c.Device, _ = t.DriverOf(f.name)
		}
	case CallClose:
		delete(p.fds, c.FD) // the descriptor is free even after an error
	case CallDup:
		if !failed {
			p.fds[int(result)] = p.fds[c.FD]
		}
	case CallMmap:
		if !failed {
			c.Memory = beginning(c.PID, c.Result, c.Length)
		}
	default:
		c.finish(result, failed)
	}
	t.emit(c.Call)
}

// Results of calls that the kernel begins again or turns into EINTR (ERESTARTSYS and others).
const (
	restartFirst = 512
	restartLast  = 516
	restart      = "ERESTARTSYS"
)

// doorbells are the numbers of doorbellCommands.
var doorbells = sync.OnceValue(func() (all []uint32) {
	for _, name := range doorbellCommands {
		all = append(all, uint32(abi().values[name]))
	}
	return all
})

// emit passes a call on. Equal doorbells that follow each other become one.
func (t *Tracer) emit(c *Call) {
	bell := c.Call == CallWrite && c.Errno == "" && strings.HasPrefix(c.File, "uverbs") && len(c.Request) >= 4 && !c.Unfinished &&
		slices.Contains(doorbells(), uint32(integer(c.Request[:4], false)))
	if p := t.pending; p != nil && bell && p.Open == c.Open && p.TID == c.TID && slices.Equal(p.Request, c.Request) {
		p.Count = max(p.Count, 1) + 1
		p.Duration += c.Duration
		return
	}
	t.flush()
	if bell {
		t.pending = c
		return
	}
	t.Sink(c)
}

// flush passes on a doorbell that was kept.
func (t *Tracer) flush() {
	if t.pending != nil {
		t.Sink(t.pending)
		t.pending = nil
	}
}
