package rdmacm

import (
	"os"
	"runtime"
	"slices"
	"sync/atomic"
)

// The kernel accepts a command only from a thread whose credentials are the ones that the file was
// opened with: the same object in the kernel's memory, not equal values. The threads of a process
// share that object until the process changes its user or group. Each thread then changes its own
// credentials, and the objects differ. So a file that is opened after such a change is used by one
// thread only.

// credThread is a thread that runs functions one after another. A nil credThread runs them on the
// thread of the caller.
type credThread struct {
	work chan func()
	done chan struct{}
}

// startCredThread starts a thread if the credentials of the process have changed, or else returns
// nil.
func startCredThread() *credThread {
	if !credsRefused.Load() && currentCreds().equal(&startCreds) {
		return nil
	}
	t := &credThread{make(chan func()), make(chan struct{})}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for f := range t.work {
			f()
			t.done <- struct{}{}
		}
	}()
	return t
}

// run runs f on the thread and waits for its end.
func (t *credThread) run(f func()) {
	if t == nil {
		f()
		return
	}
	t.work <- f
	<-t.done
}

// stop ends the thread. There must be no later call of run.
func (t *credThread) stop() {
	if t != nil {
		close(t.work)
	}
}

// credentials are the user and the groups of a process.
type credentials struct {
	user, group int
	groups      []int
}

// currentCreds returns the credentials that the process has now.
func currentCreds() credentials {
	groups, _ := os.Getgroups() // without them a change of user or group is still noticed
	return credentials{os.Geteuid(), os.Getegid(), groups}
}

func (c credentials) equal(other *credentials) bool {
	return c.user == other.user && c.group == other.group && slices.Equal(c.groups, other.groups)
}

// startCreds are the credentials at the start of the process, when all of its threads share them.
var startCreds = currentCreds()

// credsRefused is set once the kernel has refused a command with EACCES, which probably means that
// the credentials of the threads differ.
var credsRefused atomic.Bool
