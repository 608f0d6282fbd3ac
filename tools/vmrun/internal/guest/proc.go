package guest

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// procTable starts processes and reaps them, and reaps the orphans that come to
// the first process of a machine as well. os/exec can't be used beside that: the
// reaper would take the status that it waits for.
type procTable struct {
	mu      sync.Mutex
	cond    sync.Cond
	waiting map[int]chan unix.WaitStatus
	current int // pid of the program that runs now, or 0
}

func newProcTable() *procTable {
	t := &procTable{waiting: map[int]chan unix.WaitStatus{}}
	t.cond.L = &t.mu
	go t.reap()
	return t
}

// start starts a process in a process group of its own. Its status comes over
// the channel.
func (t *procTable) start(prog Program, dir string, env []string, files []uintptr) (int, <-chan unix.WaitStatus, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// The lock is held across the fork, so the reaper can't miss the entry.
	pid, err := fork(prog, dir, env, files)
	if err != nil {
		return 0, nil, err
	}
	ch := make(chan unix.WaitStatus, 1)
	t.waiting[pid] = ch
	t.current = pid
	t.cond.Broadcast()
	return pid, ch, nil
}

// daemon starts a process that nobody waits for, in a process group of its own.
func (t *procTable) daemon(prog Program, dir string, env []string, files []uintptr) error {
	_, err := fork(prog, dir, env, files)
	return err
}

func fork(prog Program, dir string, env []string, files []uintptr) (int, error) {
	pid, err := syscall.ForkExec(prog.Path, prog.Args, &syscall.ProcAttr{
		Dir: dir, Env: env, Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", prog.Path, err)
	}
	return pid, nil
}

// signal sends sig to the process group of the program that runs now.
func (t *procTable) signal(sig unix.Signal) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current == 0 {
		return nil
	}
	if err := unix.Kill(-t.current, sig); err != nil {
		return fmt.Errorf("send %v to %d: %w", sig, t.current, err)
	}
	return nil
}

func (t *procTable) reap() {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case err == nil && (ws.Exited() || ws.Signaled()):
			t.mu.Lock()
			if ch := t.waiting[pid]; ch != nil {
				ch <- ws
				delete(t.waiting, pid)
				t.current = 0
			}
			t.mu.Unlock()
		case errors.Is(err, unix.ECHILD):
			t.mu.Lock()
			for len(t.waiting) == 0 {
				t.cond.Wait()
			}
			t.mu.Unlock()
		}
	}
}
