package guest

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// The reaper takes every child's status, so nothing in this package's tests may
// use os/exec.
var procs = newProcTable()

func start(t *testing.T, script string) (int, <-chan unix.WaitStatus) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must(t, err)
	defer null.Close()
	fd := null.Fd()
	pid, ch, err := procs.start(Program{Path: "/bin/sh", Args: []string{"sh", "-c", script}}, t.TempDir(), []string{"A=b"}, []uintptr{fd, fd, fd})
	must(t, err)
	return pid, ch
}

func TestStatus(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 42": 42, `[ "$A" = b ] && exit 7`: 7} {
		_, ch := start(t, script)
		if ws := <-ch; !ws.Exited() || ws.ExitStatus() != want {
			t.Errorf("%s: %v", script, ws)
		}
	}
	_, ch := start(t, "kill -SEGV $$")
	if ws := <-ch; !ws.Signaled() || ws.Signal() != unix.SIGSEGV {
		t.Errorf("killed: %v", ws)
	}
}

// Statuses go to the right process however they come, and orphans disturb
// nothing.
func TestMany(t *testing.T) {
	var chans []<-chan unix.WaitStatus
	for range 20 {
		_, ch := start(t, "(sleep 0.01 & exit 1) & exit 5")
		chans = append(chans, ch)
	}
	for _, ch := range chans {
		if ws := <-ch; ws.ExitStatus() != 5 {
			t.Errorf("status %d", ws.ExitStatus())
		}
	}
}

func TestSignalGroup(t *testing.T) {
	marker := filepath.Join(t.TempDir(), "marker")
	pid, ch := start(t, "trap 'exit 9' TERM; touch "+marker+"; sleep 1000 & wait")
	for {
		if _, err := os.Stat(marker); err == nil {
			break
		}
	}
	must(t, procs.signal(unix.SIGTERM))
	if ws := <-ch; ws.ExitStatus() != 9 {
		t.Errorf("process %d: %v", pid, ws)
	}
	if err := procs.signal(unix.SIGTERM); err != nil {
		t.Errorf("with no process: %v", err)
	}
}

func TestStartErrors(t *testing.T) {
	if _, _, err := procs.start(Program{Path: "/nonexistent", Args: []string{"x"}}, "/", nil, nil); err == nil {
		t.Error("a missing program was started")
	}
}
