package perf

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// nanosleep is the number of the system call that Go's monitor sleeps by.
var nanosleep = map[string]string{"amd64": "35 ", "arm64": "101 "}

// TestHushMonitor: the thread that watches over Go's scheduler is the one that sleeps for short times
// while something runs. During a run it is scheduled as what is idle, other threads are not, and after
// it all are as they were, if that is allowed.
func TestHushMonitor(t *testing.T) {
	all := threads()
	if len(all) < 2 || all[0] != os.Getpid() {
		t.Fatalf("the threads are %d, want that of process %d first, and others", all, os.Getpid())
	}
	monitor := all[1]
	sleeps := false
	for begin := time.Now(); !sleeps && time.Since(begin) < 2*time.Minute; runtime.Gosched() {
		call, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/syscall", monitor))
		if err != nil {
			t.Fatal(err)
		}
		sleeps = strings.HasPrefix(string(call), nanosleep[runtime.GOARCH])
	}
	if !sleeps {
		t.Errorf("thread %d has not been seen to sleep", monitor)
	}
	idle := func() (idle []int) {
		for _, tid := range threads() {
			if hushed(tid) {
				idle = append(idle, tid)
			}
		}
		return idle
	}
	// A process whose threads all are scheduled so stays as it is.
	if mayGoBack() && setPolicy(monitor, unix.SCHED_NORMAL, unix.SCHED_IDLE) {
		occupy()()
		if got := idle(); !slices.Contains(got, monitor) {
			t.Errorf("threads %d are scheduled as what is idle, want %d, as before", got, monitor)
		}
		setPolicy(monitor, unix.SCHED_IDLE, unix.SCHED_NORMAL)
	}
	done := occupy()
	if got := idle(); !slices.Contains(got, monitor) {
		t.Errorf("threads %d are scheduled as what is idle, want %d", got, monitor)
	}
	if !signal.Ignored(unix.SIGURG) {
		t.Error("the monitor's signal is not ignored")
	}
	done()
	if got := idle(); len(got) != 0 && mayGoBack() {
		t.Errorf("threads %d are still scheduled as what is idle", got)
	}
}

// hushed reports whether a thread takes a processor only where one is free.
func hushed(tid int) bool {
	a, err := unix.SchedGetAttr(tid, 0)
	return err == nil && a.Policy == unix.SCHED_IDLE
}

// mayGoBack reports whether this process may schedule a thread as usual that was scheduled as what
// is idle, by doing it with one that ends then.
func mayGoBack() bool {
	may := make(chan bool)
	go func() {
		runtime.LockOSThread()
		tid := unix.Gettid()
		may <- setPolicy(tid, unix.SCHED_NORMAL, unix.SCHED_IDLE) && setPolicy(tid, unix.SCHED_IDLE, unix.SCHED_NORMAL)
	}()
	return <-may
}
