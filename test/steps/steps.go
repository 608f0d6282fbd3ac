//go:build linux && (amd64 || arm64)

// Package steps counts the instructions that a program executes for a request, function by function.
//
// The program marks what is counted with [Begin] and [End]. [Count] runs it under ptrace(2), stops its other
// threads at Begin, and has the processor execute the marked thread instruction by instruction until End. So
// neither the time that passes nor what else the machine does changes the figures. Instructions of the kernel
// are not counted.
//
// The program must not wait for another of its threads between the marks, and no other goroutine of it may be
// busy at Begin.
package steps

import (
	"debug/elf"
	"debug/gosym"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// quiet are variables of the environment with which a Go program neither collects garbage nor interrupts a
// goroutine nor starts another thread between the marks, and executes the same on all processors.
var quiet = []string{"GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1," + anyProcessor}

// A Region is what a program executes between a Begin and an End.
type Region struct {
	Name      string             // Name is the first argument of Begin.
	Functions map[string]float64 // Functions has the instructions of a request by function.
}

// Total returns the instructions of a request.
func (r *Region) Total() float64 {
	total := 0.0
	for _, n := range r.Functions {
		total += n
	}
	return total
}

// most is the number of instructions after which a region is given up. A processor without atomic
// instructions (arm64 before LSE) would never leave a loop with exclusive loads and stores, since each stop
// clears its reservation.
const most = 10_000_000

// traceOptions make stops at calls differ from signals, have threads traced from their beginning, and end the
// program with its tracer.
const traceOptions = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL

// patience is how long a program may take. One that waits in a region for a thread that is held never ends. This
// can also be Go's runtime, if a thread is held while it has a lock, so there are several tries.
var patience = 2 * time.Minute

const tries = 3

// mostOutput is how many bytes of a program's output are in an error.
const mostOutput = 1 << 20

// Count runs a program with arguments and more variables for the environment, and returns its regions in the
// order of their first Begin. The instructions of an empty region are subtracted. A region that is executed several
// times counts with its least total. The program has to end with status 0.
func Count(args []string, env ...string) (all []Region, err error) {
	for range tries {
		var late bool
		if all, late, err = countOnce(args, env); !late {
			break
		}
	}
	return all, err
}

// countOnce is Count, once. It reports whether the program had to be killed.
func countOnce(args, env []string) (_ []Region, stuck bool, _ error) {
	runtime.LockOSThread() // ptrace belongs to a thread
	defer runtime.UnlockOSThread()
	output, err := os.CreateTemp("", "steps")
	if err != nil {
		return nil, false, err
	}
	defer output.Close()
	os.Remove(output.Name()) // now, so that nothing is left of it after an interrupt
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.Env = slices.Concat(os.Environ(), quiet, env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return nil, false, refused(err)
	}
	t := &tracer{pid: cmd.Process.Pid, threads: map[int]bool{cmd.Process.Pid: true}}
	cmd.Process.Release()
	var late atomic.Bool
	watchdog := time.AfterFunc(patience, func() {
		late.Store(true)
		unix.Kill(t.pid, unix.SIGKILL)
	})
	defer watchdog.Stop()
	if err := t.follow(); err != nil {
		if late.Load() {
			err = fmt.Errorf("it was killed after %v: %w", patience, err)
		}
		unix.Kill(t.pid, unix.SIGKILL)
		for err := error(nil); !errors.Is(err, unix.ECHILD); { // its threads end
			_, err = unix.Wait4(-1, nil, unix.WALL|unix.WNOTHREAD, nil)
		}
		text, _ := io.ReadAll(io.NewSectionReader(output, 0, mostOutput))
		return nil, late.Load(), fmt.Errorf("count the instructions of %s: %w\n%s", args[0], refused(err), text)
	}
	all, err := t.regions(args[0])
	return all, false, err
}

// refused adds to an error what forbids to trace a program.
func refused(err error) error {
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
		return err
	}
	const yama = "/proc/sys/kernel/yama/ptrace_scope"
	b, _ := os.ReadFile(yama)
	if scope := strings.TrimSpace(string(b)); scope == "2" || scope == "3" {
		return fmt.Errorf("ptrace is not permitted: %w: %s is %s, want 0 or 1 (2 permits root)", err, yama, scope)
	}
	return fmt.Errorf("ptrace is not permitted: %w: a sandbox forbids it; in a container: --cap-add SYS_PTRACE, or --security-opt seccomp=unconfined", err)
}

// A phase is what the marked thread does.
type phase int

const (
	running   phase = iota // there is no marked thread
	holding                // it is in the first call of Begin
	held                   // it is between the two
	beginning              // it is in the second one
	stepping               // it is between the marks
)

// tracer follows a program with ptrace.
type tracer struct {
	pid     int
	threads map[int]bool
	marked  int                     // the thread in Begin, or between the marks; 0 if there is none
	phase   phase                   // of the marked thread
	held    map[int]unix.WaitStatus // why the other threads have stopped meanwhile
	mark    uint64                  // the address of the marks' call
	steps   uint64                  // of the region
	now     *counted                // the region
	all     []*counted
}

// counted has the steps of a region by their address.
type counted struct {
	name     string
	requests uint64
	at       map[uint64]uint64
}

// follow follows the program to its end.
func (t *tracer) follow() error {
	var status unix.WaitStatus
	if _, err := wait(t.pid, &status); err != nil {
		return err
	}
	if err := unix.PtraceSetOptions(t.pid, traceOptions); err != nil {
		return err
	}
	if err := unix.PtraceSyscall(t.pid, 0); err != nil {
		return err
	}
	for {
		tid, err := wait(-1, &status)
		switch {
		case err != nil:
			return err
		case status.Exited() || status.Signaled():
			delete(t.threads, tid)
			if tid != t.pid {
				continue
			}
			if t.now != nil {
				return fmt.Errorf("the program ended in region %q", t.now.name)
			}
			if !status.Exited() || status.ExitStatus() != 0 {
				return fmt.Errorf("the program ended with wait status %#x, want exit status 0", uint32(status))
			}
			return nil
		case tid == t.marked && t.phase == stepping:
			err = t.step(status)
		case t.marked != 0 && tid != t.marked:
			t.held[tid] = status
		default:
			err = t.stopped(tid, status)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) { // a thread that was killed is gone before it is waited for
			return err
		}
	}
}

// wait waits for a thread of the program, or for any one.
func wait(tid int, status *unix.WaitStatus) (int, error) {
	for {
		got, err := unix.Wait4(tid, status, unix.WALL|unix.WNOTHREAD, nil)
		if err != unix.EINTR {
			return got, err
		}
	}
}

// stopped continues a thread that is not between the marks.
func (t *tracer) stopped(tid int, status unix.WaitStatus) error {
	t.threads[tid] = true
	switch signal := status.StopSignal(); {
	case signal == unix.SIGTRAP|0x80 && t.phase == holding:
		t.phase = held
	case signal == unix.SIGTRAP|0x80 && t.phase == beginning:
		t.phase = stepping
		return unix.PtraceSingleStep(tid)
	case signal == unix.SIGTRAP|0x80:
		var r unix.PtraceRegs
		if err := unix.PtraceGetRegs(tid, &r); err != nil {
			return err
		}
		number, arg := call(&r)
		switch {
		case number != unix.SYS_GETPPID:
		case arg[0] == beginMark && t.phase == held:
			t.phase, t.mark = beginning, counter(&r)-callSize
		case arg[0] == holdMark:
			if err := t.begin(tid, arg[1], arg[2], arg[3]); err != nil {
				return err
			}
		}
	case signal == unix.SIGTRAP || signal == unix.SIGSTOP: // an event, the beginning of a thread, or one that was held
	default:
		return unix.PtraceSyscall(tid, int(signal))
	}
	return unix.PtraceSyscall(tid, 0)
}

// begin begins a region. The program has its name at an address.
func (t *tracer) begin(tid int, name, length, requests uint64) error {
	if length > 1000 || requests == 0 {
		return fmt.Errorf("a region begins with a name of %d bytes and %d requests, want at most 1000 and at least 1", length, requests)
	}
	text := make([]byte, length)
	if _, err := unix.PtracePeekData(tid, uintptr(name), text); err != nil {
		return err
	}
	t.marked, t.phase, t.steps = tid, holding, 0
	t.now = &counted{name: string(text), requests: requests, at: map[uint64]uint64{}}
	return t.hold()
}

// hold stops the threads that are not counted. One that stops for another reason first stops by SIGSTOP when
// it continues.
func (t *tracer) hold() error {
	t.held = map[int]unix.WaitStatus{}
	for tid := range t.threads {
		if tid == t.marked {
			continue
		}
		if err := unix.Tgkill(t.pid, tid, unix.SIGSTOP); err != nil && err != unix.ESRCH {
			return err
		}
		var status unix.WaitStatus
		switch _, err := wait(tid, &status); {
		case err == unix.ECHILD || err == nil && !status.Stopped():
			delete(t.threads, tid)
		case err != nil:
			return err
		default:
			t.held[tid] = status
		}
	}
	return nil
}

// step counts an instruction, or ends the region.
func (t *tracer) step(status unix.WaitStatus) error {
	switch signal := status.StopSignal(); signal {
	case unix.SIGTRAP:
	case unix.SIGSTOP, unix.SIGURG, unix.SIGCHLD: // of when it was held, of Go's runtime, and of another process
		return unix.PtraceSingleStep(t.marked)
	default:
		return fmt.Errorf("region %q gets signal %s", t.now.name, signal)
	}
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(t.marked, &r); err != nil {
		return err
	}
	switch arg := firstArg(&r); {
	case counter(&r) == t.mark && arg == holdMark:
		return fmt.Errorf("a region begins in region %q", t.now.name)
	case counter(&r) != t.mark || arg != endMark:
		t.now.at[counter(&r)]++
		if t.steps++; t.steps > most {
			return fmt.Errorf("region %q does not end within %d instructions; a processor without atomic instructions (LSE of arm64) cannot be counted", t.now.name, most)
		}
		return unix.PtraceSingleStep(t.marked)
	}
	tid, others := t.marked, t.held
	t.all, t.now, t.marked, t.phase, t.held = append(t.all, t.now), nil, 0, running, nil
	if err := unix.PtraceSyscall(tid, 0); err != nil {
		return err
	}
	for tid, status := range others {
		if err := t.stopped(tid, status); err != nil && err != unix.ESRCH {
			return err
		}
	}
	return nil
}

// regions returns the regions with the names of the functions in a program.
func (t *tracer) regions(program string) ([]Region, error) {
	name, err := functions(program)
	if err != nil {
		return nil, err
	}
	var all []Region
	for _, c := range t.all {
		r := Region{Name: c.name, Functions: map[string]float64{}}
		for at, n := range c.at {
			r.Functions[name(at)] += float64(n) / float64(c.requests)
		}
		i := slices.IndexFunc(all, func(other Region) bool { return other.Name == r.Name })
		switch {
		case i < 0:
			all = append(all, r)
		case r.Total() < all[i].Total():
			all[i] = r
		}
	}
	empty := slices.IndexFunc(all, func(r Region) bool { return r.Name == "" })
	if empty < 0 {
		return all, nil
	}
	requests := map[string]float64{}
	for _, c := range t.all {
		requests[c.name] = float64(c.requests)
	}
	for i := range all {
		for f, n := range all[empty].Functions {
			if left := all[i].Functions[f] - n*requests[""]/requests[all[i].Name]; i != empty && left > 0 {
				all[i].Functions[f] = left
			} else if i != empty {
				delete(all[i].Functions, f)
			}
		}
	}
	return slices.Delete(all, empty, empty+1), nil
}

// functions reads the table of functions of a Go program, and returns the function that finds the name of the
// one at an address.
func functions(program string) (func(at uint64) string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Type != elf.ET_EXEC {
		return nil, fmt.Errorf("%s is a program of ELF type %s, want one at fixed addresses (-buildmode=exe)", program, f.Type)
	}
	text, table := f.Section(".text"), f.Section(".gopclntab")
	if text == nil || table == nil {
		return nil, fmt.Errorf("%s is no Go program: it has no table of functions", program)
	}
	data, err := table.Data()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	all, err := gosym.NewTable(nil, gosym.NewLineTable(data, text.Addr))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	return func(at uint64) string {
		if f := all.PCToFunc(at); f != nil {
			return f.Name
		}
		return "the kernel's vDSO"
	}, nil
}
