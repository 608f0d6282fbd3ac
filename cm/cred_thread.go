package cm

import (
	"os"
	"runtime"
	"slices"
	"sync/atomic"
)

// The kernel takes commands from those threads alone that have the very credentials with which the
// file was opened: not such that are equal, but the same object in the kernel's memory. Threads
// share it until the process changes user or group, which each thread does for itself; from then on
// they differ. So a file that is opened after that is used by one thread.

// credThread is a thread that does one thing after another for others. A nil keeper has it done by who
// calls.
type credThread struct {
	work chan func()
	done chan struct{}
}

// startCredThread starts one, if there is need of it.
func startCredThread() *credThread {
	if !credsRefused.Load() && currentCreds().equal(&startCreds) {
		return nil
	}
	k := &credThread{make(chan func()), make(chan struct{})}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for do := range k.work {
			do()
			k.done <- struct{}{}
		}
	}()
	return k
}

// run has something done, and waits for it.
func (k *credThread) run(what func()) {
	if k == nil {
		what()
		return
	}
	k.work <- what
	<-k.done
}

// stop ends it. Nothing is to be done any more.
func (k *credThread) stop() {
	if k != nil {
		close(k.work)
	}
}

// credentials are what a process is to the kernel.
type credentials struct {
	user, group int
	groups      []int
}

// currentCreds returns what this process is.
func currentCreds() credentials {
	groups, _ := os.Getgroups() // without them there is less to see a change by
	return credentials{os.Geteuid(), os.Getegid(), groups}
}

func (i credentials) equal(other *credentials) bool {
	return i.user == other.user && i.group == other.group && slices.Equal(i.groups, other.groups)
}

// startCreds is what the process was in the beginning, when its threads were equal.
var startCreds = currentCreds()

// credsRefused is set once the kernel has refused a command: it is likely that the threads differ.
var credsRefused atomic.Bool
